"""Whatever is accepted, rejected, repeated or taken back: proposals equal those computed from nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.drafter.checkpoint import load_draft
from deployments.drafter.engine import Ask, DraftEngine, EngineLimits
from deployments.drafter.forward import Forward
from tests.drafter.conftest import VOCABULARY, Reference

WINDOW = 48
TOKEN = st.integers(0, VOCABULARY - 1)
#: session, how it goes on, how many drafted tokens are accepted, tokens after them, tokens wanted
MOVE = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["on", "on", "on", "repeat", "back", "close", "advance"]),
    st.integers(0, 5),
    st.lists(TOKEN, min_size=0, max_size=9),
    st.integers(0, 5),
)


@pytest.fixture(scope="module", params=["own", "transformers"])
def forward(request: pytest.FixtureRequest, tiny_llama: Path, verifier: Path) -> Forward:
    return load_draft(tiny_llama, verifier, quantise=False, backend=request.param).forward


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.lists(MOVE, min_size=1, max_size=4), min_size=1, max_size=12))
def test_proposals_equal_those_from_nothing(
    turns: list[list[tuple[int, str, int, list[int], int]]],
    forward: Forward,
    tiny_llama: Path,
    reference: Callable[..., Reference],
) -> None:
    truth = reference(tiny_llama)
    engine = DraftEngine(forward, EngineLimits(max_context=WINDOW, max_sessions=3, prefill_chunk=8))
    told: dict[int, list[int]] = {}
    drafted: dict[int, list[int]] = {}
    for turn in turns:
        asks: dict[int, Ask] = {}
        for session, way, accepted, tokens, length in turn:
            known = told.get(session, [])
            if way == "close":
                engine.close(session)
                told.pop(session, None)
                drafted.pop(session, None)
                asks.pop(session, None)
                continue
            if way == "advance":
                engine.advance()
                continue
            if session in asks:
                continue
            if way == "repeat":
                base, new = 0, known
            elif way == "back":
                base = len(known) * accepted // 6
                new = tokens
            else:
                base, new = len(known), drafted.get(session, [])[:accepted] + tokens
            if base + len(new) == 0 or base + len(new) > WINDOW:
                continue
            asks[session] = Ask(session, base, new, length)
        for answer in engine.propose(list(asks.values())):
            assert isinstance(answer.session, int)
            ask = asks[answer.session]
            context = told.get(answer.session, [])[: ask.base] + list(ask.tokens)
            told[answer.session], drafted[answer.session] = context, answer.tokens
            assert (answer.state, answer.position) == ("ok", len(context))
            whole = truth.greedy(context, min(ask.length, WINDOW - len(context)))
            assert answer.tokens in (whole, [])
            if not answer.tokens and whole:
                assert engine.behind
    for session in list(told):
        engine.close(session)
    assert len(engine) == 0
    assert engine._slots.free == engine.capacity
