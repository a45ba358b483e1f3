"""Texts that the verifier wrote, kept in small files so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from deployments.distillation.errors import DistillError
from deployments.distillation.files import remove_partial, write_atomically

_PATTERN = "texts-*.safetensors"


@dataclass(frozen=True, slots=True)
class Request:
    """One text to be written.

    Attributes:
        prompt: token ids up to where the answer begins.
        temperature: 0 is greedy.
        seed: of the sampling; without meaning at temperature 0.
        max_tokens: longest answer.
        top_k: how many of the likeliest tokens to keep at every place.
    """

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    max_tokens: int
    top_k: int

    def key(self, verifier: str) -> str:
        """A name for the text that is the same in every run with this verifier.

        Args:
            verifier: a digest of the verifier.
        """
        asked = (verifier, self.prompt, self.temperature, self.seed, self.max_tokens, self.top_k)
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Text:
    """One text, with what the verifier thought at every place of its answer.

    Attributes:
        prompt: [p] int32 token ids.
        answer: [n] int32 token ids, the end token included where it came.
        top_ids: [n, k] int32 likeliest tokens before sampling, likeliest first.
        top_logprobs: [n, k] float16 natural log-probabilities at temperature 1.
    """

    prompt: Tensor
    answer: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


class TextStore:
    """The texts in one folder. One process writes at a time; the owner of the folder sees to that.

    Args:
        folder: made when missing. Leftovers of a killed run are removed.

    Raises:
        DistillError: a file in it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        remove_partial(folder)
        self._folder = folder
        self._place: dict[str, tuple[Path, int]] = {}
        for path in sorted(folder.glob(_PATTERN)):
            self._index(path, _read_keys(path))

    def __contains__(self, key: str) -> bool:
        return key in self._place

    def __len__(self) -> int:
        return len(self._place)

    def add(self, texts: Sequence[tuple[str, Text]]) -> None:
        """Keep texts under their keys: all of them, or in case of an error none.

        Raises:
            NoSpace: the disk is full.
        """
        if not texts:
            return
        keys = [key for key, _ in texts]
        path = self._folder / f"texts-{_digest(keys)}.safetensors"
        tensors = {
            "prompt": torch.cat([text.prompt.int() for _, text in texts]),
            "prompt_length": torch.tensor([len(text.prompt) for _, text in texts]),
            "answer": torch.cat([text.answer.int() for _, text in texts]),
            "answer_length": torch.tensor([len(text.answer) for _, text in texts]),
            "top_ids": torch.cat([text.top_ids.int() for _, text in texts]),
            "top_logprobs": torch.cat([text.top_logprobs.half() for _, text in texts]),
        }
        data = save(tensors, metadata={"keys": json.dumps(keys)})
        write_atomically(path, lambda file: file.write(data))
        self._index(path, keys)

    def get(self, keys: Iterable[str]) -> list[Text]:
        """The texts of these keys, in their order.

        Raises:
            KeyError: one is not there.
            DistillError: a file is damaged.
        """
        wanted = list(keys)
        files: dict[Path, list[Text]] = {}
        result = []
        for key in wanted:
            path, number = self._place[key]
            if path not in files:
                files[path] = _read(path)
            result.append(files[path][number])
        return result

    def lengths(self, keys: Iterable[str]) -> list[int]:
        """Answer tokens of the texts of these keys."""
        return [len(text.answer) for text in self.get(keys)]

    def _index(self, path: Path, keys: Sequence[str]) -> None:
        for number, key in enumerate(keys):
            self._place.setdefault(key, (path, number))


def _read_keys(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            keys = json.loads(file.metadata()["keys"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    return [str(key) for key in keys]


def _read(path: Path) -> list[Text]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        prompts = tensors["prompt"].split(tensors["prompt_length"].tolist())
        lengths = tensors["answer_length"].tolist()
        answers, ids, odds = (tensors[name].split(lengths) for name in ("answer", "top_ids", "top_logprobs"))
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise _damaged(path, error) from error
    return [Text(*parts) for parts in zip(prompts, answers, ids, odds, strict=True)]


def _damaged(path: Path, error: Exception) -> DistillError:
    return DistillError(f"{path} is damaged ({error}): remove it, and its texts are written again")


def _digest(keys: Sequence[str]) -> str:
    return hashlib.sha256("".join(keys).encode()).hexdigest()[:16]
