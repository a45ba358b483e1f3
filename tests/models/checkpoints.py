"""Small real tokenizers and checkpoints, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = [
    "def add(a, b): return a + b",
    "the patient has a fever and the doctor asks about the fever",
    "a bond pays interest and the interest is taxed",
    "numbers 0 1 2 3 4 5 6 7 8 9 and words and more words",
]
CONTEXT = 256


def train_bpe(vocab_size: int = 320, text: list[str] = TEXT) -> Tokenizer:
    """A byte-level BPE tokenizer trained on a few sentences, with two special tokens in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def content(tokenizer: Tokenizer) -> dict[str, Any]:
    """What its `tokenizer.json` says."""
    return dict(json.loads(tokenizer.to_str()))


def checkpoint(folder: Path, tokenizer: dict[str, Any] | None, **config: Any) -> Path:
    """A checkpoint folder as far as it is read before loading: configuration and tokenizer."""
    folder.mkdir(parents=True)
    settings = {
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 32,
        "max_position_embeddings": CONTEXT,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def own_draft(folder: Path, sha256: str, **changes: Any) -> Path:
    """The description of a draft in our own format."""
    folder.mkdir(parents=True)
    description = {
        "format_version": 1,
        "name": "code",
        "architecture": {"model_type": "llama", "hidden_size": 32, "max_position_embeddings": CONTEXT},
        "shares": ["embedding", "head"],
        "head_token_ids": [0, 1, 17, 300],
        "verifier": "tiny",
        "tokenizer_sha256": sha256,
        **changes,
    }
    (folder / "draft.json").write_text(json.dumps(description))
    return folder
