"""The draft while it learns: a few layers of the verifier between the verifier's own embedding and head."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deployments.distillation.errors import DistillError
from deployments.drafter.checkpoint import DESCRIPTION_FILE, read_description
from deployments.drafter.hf import build_model
from deployments.drafter.quantise import dequantise_weight, quantise_weight
from deployments.drafter.weights import Checkpoint, DraftError
from deployments.models.tokenizers import tokenizer_sha256

_LAYER = re.compile(r"^model\.layers\.(\d+)\.(.+)$")
_NORM = "model.norm.weight"


class Student(nn.Module):
    """A draft in float32. Embedding and head are the verifier's and stay as they are.

    Args:
        config: Hugging Face configuration of the small model.
        tensors: `model.layers.*` and `model.norm.weight`.
        embedding: [vocabulary, hidden] the verifier's.
        head: [vocabulary, hidden] the verifier's.
        head_ids: ids that may be proposed, ascending; None is all below `limit`.
        limit: ids from here on are padding of the vocabulary.
        layers: the verifier's layers it started from, for the record.

    Raises:
        DistillError: the tensors do not fit the configuration.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        embedding: Tensor,
        head: Tensor,
        *,
        head_ids: Sequence[int] | None,
        limit: int,
        layers: Sequence[int],
    ) -> None:
        super().__init__()
        self.config = dict(config)
        self.layers = list(layers)
        self.head_ids = None if head_ids is None else list(head_ids)
        complete = {name: tensor.float() for name, tensor in tensors.items()}
        complete |= {"model.embed_tokens.weight": embedding.float(), "lm_head.weight": head.float()}
        try:
            model = build_model(dict(config), complete, torch.float32)
        except DraftError as error:
            raise DistillError(f"no draft can be made of this verifier: {error}") from error
        self.body: nn.Module = model.base_model
        ids = torch.arange(limit) if head_ids is None else torch.tensor(head_ids)
        self.register_buffer("head", head.float()[ids].contiguous(), persistent=False)
        self.register_buffer("ids", ids, persistent=False)
        for name, parameter in self.body.named_parameters():
            parameter.requires_grad_(not name.startswith("embed_tokens."))

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Final hidden states at some places.

        Args:
            tokens: [rows, length] token ids, filled up on the right with anything.
            places: [n] which of the rows * length positions, counted through.

        Returns:
            [n, hidden], for `scores`.
        """
        # Causal attention never looks to the right, so the filling needs no mask.
        states: Tensor = self.body(input_ids=tokens, use_cache=False).last_hidden_state
        return states.flatten(0, 1)[places]

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores over the head [n, head] for final hidden states [n, hidden]."""
        return F.linear(hidden, self.head)  # type: ignore[arg-type]

    def places(self, vocabulary: int) -> Tensor:
        """[vocabulary] position of each token id in the head, -1 where it has none."""
        ids: Tensor = self.ids  # type: ignore[assignment]
        result = torch.full((vocabulary,), -1, dtype=torch.long)
        result[ids.cpu()] = torch.arange(len(ids))
        return result

    def trained(self) -> dict[str, Tensor]:
        """The tensors that a draft folder holds, under Llama's names, on the CPU."""
        return {
            f"model.{name}": parameter.detach().cpu().clone()
            for name, parameter in self.body.named_parameters()
            if parameter.requires_grad
        }


class VerifierParts:
    """What a student takes from the verifier's checkpoint.

    Args:
        folder: the checkpoint.

    Raises:
        DistillError: it has no layers under `model.layers`, as Llama, Qwen, Mistral, Gemma and others have.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
            self._checkpoint = Checkpoint(folder)
            self.embedding = self._checkpoint.embedding()
            self.head = self._checkpoint.head()
        except (OSError, ValueError) as error:
            raise DistillError(f"the verifier in {folder} cannot be read: {error}") from error
        found = {int(match[1]) for name in self._checkpoint.names if (match := _LAYER.match(name))}
        if not found or _NORM not in self._checkpoint.names:
            raise DistillError(
                f"{folder} has no tensors model.layers.* and {_NORM}: drafts are made from models that are "
                "built like Llama; give a ready draft with --from instead"
            )
        self.layer_count = max(found) + 1

    def default_layers(self) -> list[int]:
        """The first two and the last, as the shipped drafts."""
        return sorted({0, min(1, self.layer_count - 1), self.layer_count - 1})

    def student(self, layers: Sequence[int], *, head_ids: Sequence[int] | None, limit: int) -> Student:
        """A student made of some layers.

        Args:
            layers: which, in this order.
            head_ids: ids that it may propose; None is all.
            limit: ids from here on are padding.

        Raises:
            DistillError: a layer does not exist.
        """
        beyond = [layer for layer in layers if not 0 <= layer < self.layer_count]
        if beyond:
            raise DistillError(
                f"layer {beyond[0]} does not exist: the verifier's layers are 0 to {self.layer_count - 1}"
            )
        tensors = {_NORM: self._checkpoint.tensor(_NORM)}
        for name in self._checkpoint.names:
            match = _LAYER.match(name)
            for place, layer in enumerate(layers):
                if match and int(match[1]) == layer:
                    tensors[f"model.layers.{place}.{match[2]}"] = self._checkpoint.tensor(name)
        return self._build(self._config(layers), tensors, head_ids, limit, layers)

    def load(
        self, folder: Path, *, head_ids: Sequence[int] | None, limit: int, keep_head: bool = False
    ) -> Student:
        """A student that goes on from a draft folder in our own format.

        Args:
            folder: the draft.
            head_ids: ids that it may propose; None is all.
            limit: ids from here on are padding.
            keep_head: take the draft's own ids instead, as for measuring it.

        Raises:
            DistillError: it is no such draft, or was made for another verifier.
        """
        if not (folder / DESCRIPTION_FILE).is_file():
            raise DistillError(
                f"{folder} holds no {DESCRIPTION_FILE}: only drafts in our own format can be read here"
            )
        try:
            description = read_description(folder)
            weights = Checkpoint(folder).weights()
        except DraftError as error:
            raise DistillError(str(error)) from error
        own = tokenizer_sha256(self.folder)
        if description.tokenizer_sha256 != own:
            raise DistillError(
                f"draft {folder} was made for the tokenizer of {description.verifier} (sha256 "
                f"{description.tokenizer_sha256[:12]}), and {self.folder} has another one (sha256 "
                f"{own[:12]}): take one that was made for this verifier, or start from the verifier's layers"
            )
        if description.architecture.get("hidden_size") != self.embedding.shape[1]:
            raise DistillError(
                f"draft {folder} has hidden size {description.architecture.get('hidden_size')} and the "
                f"verifier {self.embedding.shape[1]}: it cannot share the verifier's embedding"
            )
        tensors = {name: weight.float() for name, weight in weights.items() if name.startswith("model.")}
        tensors.pop("model.embed_tokens.weight", None)
        ids = description.head_token_ids if keep_head else head_ids
        return self._build(description.architecture, tensors, ids, limit, description.initialised_from_layers)

    def rounded(self, student: Student, limit: int) -> Student:
        """A copy of a student whose matrices are rounded to 8 bits, as they will be stored.

        Args:
            student: the draft.
            limit: ids from here on are padding.
        """
        tensors = {
            name: dequantise_weight(*quantise_weight(tensor)) if tensor.ndim == 2 else tensor
            for name, tensor in student.trained().items()
        }
        return self._build(student.config, tensors, student.head_ids, limit, student.layers)

    def _build(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        head_ids: Sequence[int] | None,
        limit: int,
        layers: Sequence[int],
    ) -> Student:
        return Student(
            config, tensors, self.embedding, self.head, head_ids=head_ids, limit=limit, layers=layers
        )

    def _config(self, layers: Sequence[int]) -> dict[str, Any]:
        config = {**self.config, "num_hidden_layers": len(layers)}
        for key in ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "quantization_config"):
            config.pop(key, None)
        kinds = config.get("layer_types")
        if isinstance(kinds, list) and len(kinds) > max(layers):
            config["layer_types"] = [kinds[layer] for layer in layers]
        return config
