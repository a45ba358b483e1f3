"""Drafts of other architectures run through transformers on the same slots."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.drafter.checkpoint import load_draft
from deployments.drafter.engine import Ask, DraftEngine, EngineLimits
from deployments.drafter.weights import DraftError
from tests.drafter.conftest import VOCABULARY, Reference, draft, finish, write_checkpoint

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
SIZES = {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "qwen2": {**HEADS, **SIZES},
    "qwen3": {**HEADS, **SIZES, "head_dim": 16},
    "gemma2": {**HEADS, **SIZES, "head_dim": 8, "sliding_window": 40},
    "gpt_neox": {**HEADS, **SIZES},
    "opt": {
        **SIZES,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
    },
    "llama": {**HEADS, **SIZES, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
}


@pytest.fixture(scope="module", params=list(MODELS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(
        tmp_path_factory.mktemp("models") / request.param, request.param, **MODELS[request.param]
    )


def test_following_a_text_says_what_it_would_have_proposed_at_every_place(
    folder: Path, verifier: Path, reference: Callable[..., Reference]
) -> None:
    truth = reference(folder)
    engine = DraftEngine(load_draft(folder, verifier, quantise=False).forward, EngineLimits(prefill_chunk=16))
    rng = random.Random(2)
    text = [rng.randrange(VOCABULARY) for _ in range(40)]
    for start in (1, 7, 39):
        assert engine.follow(text, start) == [truth.next(text[:end]) for end in range(start, 40)]
    assert len(engine) == 0
    longer = [*text, *text]
    assert len(engine.follow(longer, 5)) == min(len(longer), engine.window) - 5


def test_it_drafts_as_the_model_itself(
    folder: Path, verifier: Path, reference: Callable[..., Reference]
) -> None:
    loaded = load_draft(folder, verifier, quantise=False)
    assert loaded.backend == "transformers"
    truth = reference(folder)
    engine = DraftEngine(loaded.forward, EngineLimits(prefill_chunk=20))
    rng = random.Random(1)
    texts = [[rng.randrange(VOCABULARY) for _ in range(count)] for count in (1, 3, 9, 18, 30)]
    for number, text in enumerate(texts):
        assert draft(engine, number, text, 4) == truth.greedy(text, 4)
    asks = []
    for number, text in enumerate(texts):
        base = len(text) - number % 3
        del text[base:]
        text += [rng.randrange(VOCABULARY) for _ in range(1 + number)]
        asks.append(Ask(number, base, text[base:], 3))
    assert [a.tokens for a in engine.propose(asks)] == [truth.greedy(text, 3) for text in texts]
    finish(engine)


def test_it_runs_in_8_bits(folder: Path, verifier: Path) -> None:
    engine = DraftEngine(load_draft(folder, verifier, quantise=True).forward)
    alone = [draft(engine, n, [n, 5, 9], 3) for n in range(6)]
    engine.close_all()
    assert [a.tokens for a in engine.propose([Ask(n, 0, [n, 5, 9], 3) for n in range(6)])] == alone


def test_a_sliding_window_bounds_the_context(tmp_path: Path, verifier: Path) -> None:
    folder = write_checkpoint(tmp_path / "g", "gemma2", **MODELS["gemma2"])
    assert DraftEngine(load_draft(folder, verifier).forward).window == 40


def test_a_model_without_keys_and_values_is_refused(tmp_path: Path, verifier: Path) -> None:
    folder = write_checkpoint(
        tmp_path / "m", "mamba", hidden_size=32, num_hidden_layers=1, state_size=4, conv_kernel=2
    )
    with pytest.raises(DraftError, match="cannot be a draft"):
        load_draft(folder, verifier)
