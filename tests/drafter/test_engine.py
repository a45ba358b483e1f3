"""The engine's rules: what it answers to what it is asked, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from deployments.drafter.checkpoint import load_draft
from deployments.drafter.engine import Answer, Ask, DraftEngine, EngineLimits
from tests.drafter.conftest import VOCABULARY, Reference, draft, finish

WINDOW = 64


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["own", "transformers"])
def backend(request: pytest.FixtureRequest) -> Literal["own", "transformers"]:
    chosen: Literal["own", "transformers"] = request.param
    return chosen


@pytest.fixture
def engine(tiny_llama: Path, verifier: Path, backend: Literal["own", "transformers"]) -> DraftEngine:
    loaded = load_draft(tiny_llama, verifier, quantise=False, backend=backend)
    assert loaded.backend == backend
    return DraftEngine(loaded.forward, EngineLimits(max_context=WINDOW, prefill_chunk=16, max_sessions=8))


@pytest.fixture
def truth(tiny_llama: Path, reference: Callable[..., Reference]) -> Reference:
    return reference(tiny_llama)


@pytest.fixture
def contexts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(VOCABULARY) for _ in range(count)] for count in (1, 2, 7, 15, 16, 17, 33, 50)]


@pytest.fixture
def small(tiny_llama: Path, verifier: Path) -> tuple[DraftEngine, Clock]:
    """Room for two sessions, and a clock that only the test moves."""
    clock = Clock()
    loaded = load_draft(tiny_llama, verifier, quantise=False)
    return DraftEngine(loaded.forward, EngineLimits(max_context=WINDOW, max_sessions=2), clock), clock


def test_alone_equals_the_reference(engine: DraftEngine, truth: Reference, contexts: list[list[int]]) -> None:
    for number, context in enumerate(contexts):
        assert draft(engine, number, context, 6) == truth.greedy(context, 6)


def test_batched_equals_alone(engine: DraftEngine, truth: Reference, contexts: list[list[int]]) -> None:
    engine.propose([Ask(number, 0, context, 0) for number, context in enumerate(contexts)])
    finish(engine)
    lengths = [6, 1, 3, 0, 5, 2, 4, 6]
    answers = engine.propose(
        [Ask(n, len(c), [], k) for n, (c, k) in enumerate(zip(contexts, lengths, strict=True))]
    )
    assert [answer.tokens for answer in answers] == [
        truth.greedy(context, length) for context, length in zip(contexts, lengths, strict=True)
    ]


def test_ragged_catch_up_in_one_turn(engine: DraftEngine, truth: Reference) -> None:
    rng = random.Random(7)
    texts = [[rng.randrange(VOCABULARY) for _ in range(12)] for _ in range(6)]
    engine.propose([Ask(n, 0, text, 0) for n, text in enumerate(texts)])
    finish(engine)
    asks = []
    for number, text in enumerate(texts):
        new = [rng.randrange(VOCABULARY) for _ in range(number + 1)]  # 1 to 6 new tokens per row
        asks.append(Ask(number, len(text), new, 4))
        text += new
    # Slots out of order and with a gap: rows must not be mixed up.
    engine.close(2)
    del asks[2]
    asks.reverse()
    for answer in engine.propose(asks):
        assert isinstance(answer.session, int)
        assert answer.tokens == truth.greedy(texts[answer.session], 4)


def test_accepted_drafts_are_not_computed_again(engine: DraftEngine, truth: Reference) -> None:
    context = [3, 1, 4, 1, 5]
    tokens = draft(engine, "s", context, 4)
    computed = engine.counts.computed
    bonus = next(t for t in range(VOCABULARY) if t != truth.next([*context, *tokens]))
    [answer] = engine.propose([Ask("s", len(context), [*tokens, bonus], 3)])
    assert answer == Answer("s", truth.greedy([*context, *tokens, bonus], 3), len(context) + 5, "ok")
    # The KV of three drafted tokens was there; the fourth was drafted last and never computed.
    assert engine.counts.computed - computed == 2
    assert engine.counts.reused == 3


def test_a_repeated_ask_gives_the_same_answer(engine: DraftEngine) -> None:
    first = draft(engine, "s", [9, 8, 7], 4)
    ask = Ask("s", 3, [first[0], 11], 4)
    assert engine.propose([ask]) == engine.propose([ask]) == engine.propose([ask])


def test_an_older_base_rolls_back(engine: DraftEngine, truth: Reference) -> None:
    context = list(range(20))
    draft(engine, "s", context, 4)
    [answer] = engine.propose([Ask("s", 7, [50, 51], 4)])
    assert answer == Answer("s", truth.greedy([*range(7), 50, 51], 4), 9, "ok")


def test_a_base_beyond_what_is_known_asks_for_a_resync(engine: DraftEngine) -> None:
    assert engine.propose([Ask("new", 1, [5], 2)])[0].state == "resync"
    draft(engine, "s", [1, 2, 3], 4)
    # The four drafted tokens do not count as known, although their KV is there.
    assert engine.propose([Ask("s", 4, [5], 2)]) == [Answer("s", [], 5, "resync")]
    assert engine.propose([Ask("s", 3, [5], 2)])[0].state == "ok"


@pytest.mark.parametrize("bad", [[-1], [64], [2**31]])
def test_ids_outside_the_vocabulary_end_in_a_resync(engine: DraftEngine, bad: list[int]) -> None:
    assert engine.propose([Ask("s", 0, bad, 2), Ask("t", 0, [1], 1)])[0].state == "resync"
    assert len(engine) == 1


def test_an_empty_context_cannot_be_continued(engine: DraftEngine) -> None:
    assert engine.propose([Ask("s", 0, [], 2)])[0].state == "resync"
    assert len(engine) == 0


def test_contexts_past_the_window_go_without_proposals(engine: DraftEngine, truth: Reference) -> None:
    context = [index % VOCABULARY for index in range(WINDOW - 2)]
    assert draft(engine, "s", context, 4) == truth.greedy(context, 2)  # drafting ends with the window
    full = engine.propose([Ask("s", WINDOW - 2, [1, 2], 4)])[0]
    assert (full.state, full.tokens) == ("ok", [])
    assert engine.propose([Ask("s", WINDOW, [3], 4)])[0].state == "too_long"
    assert len(engine) == 0
    assert engine.propose([Ask("t", 0, [1] * (WINDOW + 1), 4)])[0].state == "too_long"


def test_a_long_prompt_does_not_hold_up_the_others(engine: DraftEngine, truth: Reference) -> None:
    long, short = list(range(50)), [1, 2, 3]
    answers = engine.propose([Ask("long", 0, long, 4), Ask("short", 0, short, 4)])
    assert answers == [Answer("long", [], 50, "ok"), Answer("short", truth.greedy(short, 4), 3, "ok")]
    assert engine.behind
    before = engine.counts.computed
    assert engine.advance()
    assert engine.counts.computed - before == 16  # one chunk, then it is others' turn
    finish(engine)
    assert not engine.behind
    assert engine.propose([Ask("long", 50, [], 4)])[0].tokens == truth.greedy(long, 4)


def test_of_several_asks_for_a_session_the_last_counts(engine: DraftEngine, truth: Reference) -> None:
    answers = engine.propose([Ask("s", 0, [1, 2], 4), Ask("s", 0, [1, 2, 3], 2)])
    assert answers == [Answer("s", truth.greedy([1, 2, 3], 2), 3, "ok")]


def test_following_a_text_says_what_it_would_have_proposed_at_every_place(
    engine: DraftEngine, truth: Reference
) -> None:
    text = [(7 * place + place // 3) % VOCABULARY for place in range(50)]
    assert engine.follow(text, 20) == [truth.next(text[:end]) for end in range(20, 50)]
    assert engine.follow(text, 50) == []
    assert draft(engine, "after", text, 3) == truth.greedy(text, 3)  # it left nothing behind


def test_a_text_that_cannot_be_followed_is_an_error(engine: DraftEngine) -> None:
    with pytest.raises(ValueError, match="token ids outside"):
        engine.follow([1, 10_000], 1)
    for number in range(engine.capacity):
        engine.propose([Ask(number, 0, [1, 2], 1)])
    with pytest.raises(ValueError, match="all KV slots"):
        engine.follow([1, 2, 3], 1)


def test_closed_sessions_leave_nothing(engine: DraftEngine, truth: Reference) -> None:
    for number in range(40):  # five times the slots there are
        assert draft(engine, number, [number, 1, 2], 2) == truth.greedy([number, 1, 2], 2)
        assert engine.close(number)
    assert not engine.close(0)
    assert len(engine) == 0
    assert engine.propose([Ask(0, 3, [5], 2)])[0].state == "resync"


def test_the_least_recently_used_session_is_evicted(small: tuple[DraftEngine, Clock]) -> None:
    engine, clock = small
    for second, session in enumerate("aba"):
        clock.now = 10.0 * second
        draft(engine, session, [1, 2, 3], 1)
    clock.now = 40.0
    assert engine.propose([Ask("c", 0, [4], 1)])[0].state == "ok"
    assert (len(engine), engine.evictions) == (2, 1)
    assert engine.propose([Ask("b", 3, [4], 1)])[0].state == "resync"
    assert engine.propose([Ask("a", 3, [4], 1)])[0].state == "ok"


def test_sessions_in_use_are_not_evicted(small: tuple[DraftEngine, Clock]) -> None:
    engine, clock = small
    states = [answer.state for answer in engine.propose([Ask(name, 0, [1], 1) for name in "abc"])]
    assert states == ["ok", "ok", "busy"]
    clock.now = 0.5
    assert engine.propose([Ask("c", 0, [1], 1)])[0].state == "busy"
    clock.now = 5.0
    assert [a.state for a in engine.propose([Ask("a", 1, [2], 1), Ask("c", 0, [1], 1)])] == ["ok", "ok"]
    assert engine.propose([Ask("b", 1, [2], 1)])[0].state == "resync"


def test_kv_memory_bounds_the_sessions(tiny_llama: Path, verifier: Path) -> None:
    forward = load_draft(tiny_llama, verifier, quantise=False).forward
    # 2 layers * 2 heads * 8 * (key, value) * 4 bytes = 256 bytes a token, 24 KiB for 96 of them.
    assert forward.kv.bytes_per_token == 256
    assert DraftEngine(forward, EngineLimits(kv_memory_mib=1, max_sessions=1000)).capacity == 42
    forward.max_positions = 5000
    with pytest.raises(ValueError, match=r"raise kv_memory_mib or lower max_context"):
        DraftEngine(forward, EngineLimits(kv_memory_mib=1))
    assert DraftEngine(forward, EngineLimits(kv_memory_mib=1, max_context=96)).capacity == 42


def test_an_error_in_the_model_leaves_sessions_usable(engine: DraftEngine, truth: Reference) -> None:
    context = draft(engine, "s", [1, 2, 3], 4)
    context = [1, 2, 3, *context]
    forward = engine._forward
    step = forward.step
    calls = 0

    def failing(*arguments: object) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("planted")
        return step(*arguments)  # type: ignore[arg-type]

    forward.step = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="planted"):
        engine.propose([Ask("s", 3, context[3:], 4)])
    forward.step = step  # type: ignore[method-assign]
    assert engine.propose([Ask("s", 3, context[3:], 4)])[0].tokens == truth.greedy(context, 4)
