"""Reading tensors from checkpoint folders, only those that are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from deployments.drafter.quantise import dequantise_weight

#: A quantised weight `NAME` has its scales under `NAME` + this.
SCALES_SUFFIX = "_scale"
_EMBEDDING_NAMES = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "transformer.wte.weight",
    "gpt_neox.embed_in.weight",
)
_HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight", "embed_out.weight")


class DraftError(ValueError):
    """A draft cannot be read or run; the text names the file and what to do."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor in floating point, or int8 values with one scale per row."""

    values: Tensor
    scales: Tensor | None = None

    def float(self) -> Tensor:
        """The weight in floating point (float32 where it was quantised)."""
        return self.values if self.scales is None else dequantise_weight(self.values, self.scales)

    def take(self, rows: Tensor) -> Weight:
        """The given rows, in that order."""
        return Weight(self.values[rows], None if self.scales is None else self.scales[rows])


class Checkpoint:
    """The safetensors files of a folder. Tensors are mapped from the file, not read as a whole.

    Raises:
        DraftError: there are no safetensors files in the folder, or their index is damaged.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        self.folder = folder
        try:
            if index.is_file():
                shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                self._files = {str(name): folder / str(shard) for name, shard in shards.items()}
            else:
                single = folder / "model.safetensors"
                with safe_open(single, framework="pt") as file:
                    self._files = dict.fromkeys(file.keys(), single)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise DraftError(
                f"{folder} has no readable safetensors weights ({error}); "
                "save the model with save_pretrained, which writes them"
            ) from error

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._files)

    def tensor(self, name: str) -> Tensor:
        """One tensor, as stored.

        Raises:
            DraftError: it is missing or its file is damaged.
        """
        file = self._files.get(name)
        if file is None:
            raise DraftError(f"{self.folder} has no tensor {name}")
        try:
            with safe_open(file, framework="pt") as opened:
                return opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise DraftError(f"{file} is damaged: {error}") from error

    def weights(self) -> dict[str, Weight]:
        """All tensors; quantised ones joined with their scales."""
        names = {name for name in self._files if not name.endswith(SCALES_SUFFIX)}
        return {
            name: Weight(
                self.tensor(name),
                self.tensor(name + SCALES_SUFFIX) if name + SCALES_SUFFIX in self._files else None,
            )
            for name in names
        }

    def embedding(self) -> Tensor:
        """The input embedding [vocabulary, hidden]."""
        return self._first(_EMBEDDING_NAMES, "input embedding")

    def head(self) -> Tensor:
        """The output head [vocabulary, hidden]; the embedding where they are tied."""
        present = [name for name in _HEAD_NAMES if name in self._files]
        return self.tensor(present[0]) if present else self.embedding()

    def _first(self, candidates: Iterable[str], what: str) -> Tensor:
        for name in candidates:
            if name in self._files:
                return self.tensor(name)
        raise DraftError(f"{self.folder} has no {what} under a known name: {', '.join(candidates)}")


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """The element type for a configured name; auto is float32 on CPUs, bfloat16 elsewhere."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
