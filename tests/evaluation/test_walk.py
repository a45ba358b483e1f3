"""Replaying drafts on scored texts: known answers, and promises that hold for every text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.evaluation.walk import ScoredText, group, replay_batch, walk


def scored(right: list[bool], longest: int = 4, limit: int | None = None) -> ScoredText:
    """A text on which a model draft is right at the given places, greedily judged."""
    count = len(right)
    matched, odds = [], []
    for place in range(count):
        run = 0
        while run < longest and place + run < count and right[place + run]:
            run += 1
        matched.append(run)
        odds.append([float(place + i < count and right[place + i]) for i in range(longest)])
    return ScoredText([longest] * count, matched, odds, count if limit is None else limit)


def brute(right: list[bool], length: int) -> tuple[int, int, int]:
    """(steps with a proposal, proposed, accepted), stepping through the text one token at a time."""
    place, steps, proposed, accepted, count = 1, 0, 0, 0, len(right)
    while place < count:
        asked = min(length, count - place - 1)
        taken = 0
        while taken < asked and right[place + taken]:
            taken += 1
        steps += asked > 0
        proposed += asked
        accepted += taken
        place += taken + 1
    return steps, proposed, accepted


def test_a_draft_that_is_always_right() -> None:
    # Token 0 comes with the prompt; 1..4 are accepted and 5 is the verifier's; 6..9 likewise; 10 is plain.
    result = walk([scored([True] * 11)], 4)
    assert (result.steps, result.plain_steps, result.proposed, result.accepted) == (2, 0, 8, 8)
    assert (result.rate, result.length) == (1.0, 5.0)
    assert result.by_position == [1.0, 1.0, 1.0, 1.0]


def test_a_draft_that_is_never_right() -> None:
    result = walk([scored([False] * 6)], 2)
    # Places 1, 2, 3 ask for two; place 4 for one, since the last token cannot follow a proposal; 5 for none.
    assert (result.steps, result.plain_steps, result.proposed, result.accepted) == (4, 1, 7, 0)
    assert (result.rate, result.length, result.by_position) == (0.0, 1.0, [0.0])


def test_a_known_mixture() -> None:
    right = [False, True, False, True, True, True, False, False, True, True]
    result = walk([scored(right)], 2)
    # 1: right, wrong -> 1 accepted, next 3. 3: right, right -> 2, next 6. 6: wrong -> next 7. 7: wrong -> 8.
    # 8: one token may be proposed, right -> 1, end.
    assert (result.steps, result.proposed, result.accepted) == (5, 9, 4)
    assert result.judged == [5, 2]
    assert result.by_position == [3 / 5, 1 / 2]
    assert result.length == 1 + 4 / 5


def test_odds_count_in_place_of_chance() -> None:
    text = ScoredText([2, 2, 2, 2], [0, 1, 0, 0], [[0.5, 0.5], [0.8, 0.3], [0.2, 0.1], [0.4, 0.0]], 4)
    result = walk([text], 2)
    # Place 1: both judged since the first was accepted: 0.8 + 0.3. The next place is 3: nothing left.
    assert result.accepted == pytest.approx(1.1)
    assert result.by_position == pytest.approx([0.8, 0.3])


def test_a_source_may_propose_less_or_nothing() -> None:
    text = ScoredText([0, 0, 1, 3, 0, 0], [0, 0, 1, 1, 0, 0], [[], [], [1.0], [1.0, 0.0, 0.0], [], []], 9)
    result = walk([text], 4)
    # Place 1 has none; place 2 proposes one, right; place 4 none; place 5 none.
    assert (result.steps, result.plain_steps, result.proposed, result.accepted) == (1, 3, 1, 1)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 6))
def test_it_is_what_stepping_through_gives(right: list[bool], length: int) -> None:
    result = walk([scored(right, longest=6)], length)
    assert (result.steps, result.proposed, result.accepted) == brute(right, length)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(1, 5))
def test_every_token_is_written_exactly_once(right: list[bool], length: int) -> None:
    result = walk([scored(right, longest=5)], length)
    assert result.accepted + result.steps + result.plain_steps == len(right) - 1


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(1, 5))
def test_a_batch_of_one_is_the_walk(right: list[bool], length: int) -> None:
    text = scored(right, longest=5)
    result, replay = walk([text], length), replay_batch([text], length)
    assert replay.steps == result.steps + result.plain_steps
    assert sum(replay.proposed) == result.proposed
    assert replay.written == pytest.approx(len(right) - 1)


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=30), min_size=1, max_size=5), st.integers(0, 4))
def test_a_batch_ends_with_its_first_text(texts: list[list[bool]], length: int) -> None:
    alone = [replay_batch([scored(right)], length).steps for right in texts]
    together = replay_batch([scored(right) for right in texts], length)
    assert together.steps == min(alone)
    assert together.written >= together.steps * len(texts)
    if length == 0:
        assert together.written == together.steps * len(texts)
        assert set(together.proposed) == {0}


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_proposals_never_need_more_steps_than_plain_decoding(right: list[bool]) -> None:
    steps = [replay_batch([scored(right, longest=8)], length).steps for length in range(9)]
    assert max(steps) == steps[0]


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 0.95), st.integers(1, 4))
def test_independent_tokens_give_the_textbook_length(rate: float, length: int) -> None:
    rng = random.Random(7)
    right = [rng.random() < rate for _ in range(6000)]
    expected = sum(rate**power for power in range(length + 1))
    result = walk([scored(right)], length)
    assert result.length == pytest.approx(expected, abs=6 * max(result.spread, 1e-3))


def test_spread_shrinks_with_the_text() -> None:
    rng = random.Random(3)
    short = walk([scored([rng.random() < 0.5 for _ in range(200)])], 3)
    long = walk([scored([rng.random() < 0.5 for _ in range(3200)])], 3)
    assert short.spread / long.spread == pytest.approx(4.0, rel=0.25)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="more tokens"):
        ScoredText([1], [2], [[1.0, 1.0]], 5)
    with pytest.raises(ValueError, match="one entry per token"):
        ScoredText([1, 1], [1], [[1.0]], 5)
    with pytest.raises(ValueError, match="two tokens"):
        replay_batch([scored([True])], 2)
    with pytest.raises(ValueError, match="two tokens"):
        replay_batch([], 2)


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(1, 8))
def test_groups_use_every_text_and_are_full(count: int, rows: int) -> None:
    groups = group(count, rows)
    assert {index for one in groups for index in one} == set(range(count))
    assert all(len(one) == rows for one in groups)
    assert len(groups) == -(-count // rows)
