"""Tiny random models, written as real checkpoints, and a reference that shares no code with the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from deployments.drafter.engine import Ask, DraftEngine

VOCABULARY = 61
PADDED = 64

torch.set_num_threads(1)


def write_tokenizer(folder: Path, size: int = VOCABULARY) -> None:
    vocab = {f"w{index}": index for index in range(size)}
    Tokenizer(WordLevel(vocab, unk_token="w0")).save(str(folder / "tokenizer.json"))


def write_checkpoint(folder: Path, model_type: str, seed: int = 0, **config: Any) -> Path:
    """A random model with outputs spread out enough that no two tokens tie."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": PADDED,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **config,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


LLAMA = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
}


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(
        tmp_path_factory.mktemp("models") / "verifier", "llama", **{**LLAMA, "num_hidden_layers": 4}
    )


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "llama", "llama", seed=1, **LLAMA)


class Reference:
    """Greedy continuation with the whole context computed anew for every token, by transformers alone."""

    def __init__(self, model: PreTrainedModel, allowed: Sequence[int] = range(VOCABULARY)) -> None:
        self._model = model.eval()
        self._allowed = torch.tensor(list(allowed))
        self._known: dict[tuple[int, ...], int] = {}

    def next(self, context: Sequence[int]) -> int:
        key = tuple(context)
        if key not in self._known:
            with torch.inference_mode():
                logits = self._model(torch.tensor([list(context)]), use_cache=False).logits[0, -1]
            self._known[key] = int(self._allowed[logits[self._allowed].argmax()])
        return self._known[key]

    def greedy(self, context: Sequence[int], length: int) -> list[int]:
        text = list(context)
        for _ in range(length):
            text.append(self.next(text))
        return text[len(context) :]


@pytest.fixture(scope="session")
def reference() -> Callable[..., Reference]:
    known: dict[tuple[Path, tuple[int, ...]], Reference] = {}

    def build(folder: Path, allowed: Sequence[int] = range(VOCABULARY)) -> Reference:
        key = (folder, tuple(allowed))
        if key not in known:
            known[key] = Reference(AutoModelForCausalLM.from_pretrained(folder), allowed)
        return known[key]

    return build


def finish(engine: DraftEngine) -> None:
    """Compute all prompts that are behind; more rounds than there are tokens would be a hang."""
    for _ in range(10_000):
        if not engine.advance():
            return
    raise AssertionError("advance() never finishes")


def draft(engine: DraftEngine, session: object, context: Sequence[int], length: int) -> list[int]:
    """What the engine proposes after a context that it is told in full."""
    [answer] = engine.propose([Ask(session, 0, list(context), length)])
    assert answer.state == "ok"
    if not answer.tokens and length:
        finish(engine)
        [answer] = engine.propose([Ask(session, len(context), [], length)])
    return answer.tokens


def json_of(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "draft.json").read_text())
    return data
