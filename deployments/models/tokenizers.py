"""What a tokenizer's ids mean, reduced to what two models have to share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TokenizerContent:
    """The part of a tokenizer on which verifier and draft must agree.

    Chat templates, truncation and which tokens are flagged special are left out on purpose: the same
    tokenizer saved by two versions of a library differs there, and only the verifier turns text into ids.

    Attributes:
        kind: the algorithm, e.g. ``BPE`` or ``Unigram``.
        tokens: id -> text, added tokens included.
        merges: the BPE merges in their order, each as its two halves; empty for other algorithms.
    """

    kind: str
    tokens: Mapping[int, str]
    merges: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        """One more than the largest id in use: what a model's embedding must at least have."""
        return max(self.tokens, default=-1) + 1

    def sha256(self) -> str:
        """A digest of the content that does not depend on how it was written down."""
        digest = hashlib.sha256()
        content = {"kind": self.kind, "tokens": sorted(self.tokens.items()), "merges": self.merges}
        digest.update(json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode())
        return digest.hexdigest()


def read_tokenizer(folder: Path) -> TokenizerContent:
    """Reads the tokenizer of a Hugging Face checkpoint folder.

    Raises:
        ValueError: there is no tokenizer in the folder, or none that can be read.
    """
    fast = folder / "tokenizer.json"
    if fast.is_file():
        try:
            return _from_fast(json.loads(fast.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{fast} cannot be read as a tokenizer: {error!r}") from error
    return _from_library(folder)


def tokenizer_sha256(folder: Path) -> str:
    """The digest of a checkpoint's tokenizer content; drafts without one of their own carry it."""
    return read_tokenizer(folder).sha256()


def _from_fast(data: Mapping[str, Any]) -> TokenizerContent:
    model = data["model"]
    vocab = model["vocab"]
    if isinstance(vocab, Mapping):
        tokens = {int(index): str(text) for text, index in vocab.items()}
    else:  # Unigram writes [text, score] pairs in the order of their ids
        tokens = {index: str(text) for index, (text, _score) in enumerate(vocab)}
    tokens |= {int(token["id"]): str(token["content"]) for token in data.get("added_tokens") or []}
    return TokenizerContent(str(model.get("type", "")), tokens, _pairs(model.get("merges") or []))


def _pairs(merges: Iterable[str | list[str]]) -> tuple[tuple[str, str], ...]:
    """Older files write a merge as "a b", newer ones as ["a", "b"]."""
    halves = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
    return tuple((str(left), str(right)) for left, right in halves)


def _from_library(folder: Path) -> TokenizerContent:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # every kind of broken folder ends here, each with its own type
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{folder} has no tokenizer that can be read: {cause}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return _from_fast(json.loads(backend.to_str()))
    tokens = {int(index): str(text) for text, index in tokenizer.get_vocab().items()}
    return TokenizerContent(type(tokenizer).__name__, tokens, ())
