"""Costs and the speed that follows from them: known answers on machines whose times are given."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.evaluation.costs import FleetCosts, StepSample, expected_length
from deployments.evaluation.walk import replay_batch
from router.settings import SpeculationSettings
from tests.evaluation.test_walk import scored

LONGEST = 4


def machine(
    step_s: float = 0.050,
    row_s: float = 0.004,
    token_s: float = 0.003,
    wait_s: float = 0.001,
    each_s: float = 0.002,
) -> FleetCosts:
    """Costs learnt on a machine whose times are exactly affine."""
    costs = FleetCosts(SpeculationSettings(), LONGEST)
    for rows in (1, 4):
        for length in (0, 1, 2, 4):
            verify = step_s + row_s * rows + token_s * rows * length
            wait = wait_s + each_s * length if length else 0.0
            samples = [StepSample(rows, rows * length, verify, length, wait)] * 15
            costs.observe("code" if length else None, samples)
    return costs


def test_it_learns_what_it_sees() -> None:
    costs = machine()
    assert costs.step_s(1) == pytest.approx(0.054, rel=0.02)
    assert costs.step_s(4, 16) == pytest.approx(0.114, rel=0.02)
    assert costs.wait_s("code", 4, 4) == pytest.approx(0.009, rel=0.05)
    assert costs.token_s("code", 1) == pytest.approx(0.002, rel=0.05)
    assert costs.relative_token_cost("code", 1) == pytest.approx(0.002 / 0.054, rel=0.06)
    assert costs.knows("code", 4)
    assert not costs.knows("code", 8)


def test_one_slow_step_does_not_spoil_it() -> None:
    costs = machine()
    costs.observe(None, [StepSample(1, 0, 3.0, 0, 0.0)])
    assert costs.step_s(1) == pytest.approx(0.054, rel=0.02)


def test_sources_without_a_drafter_wait_for_nobody() -> None:
    costs = machine()
    assert costs.wait_s(None, 1, 4) == 0.0
    assert costs.step_ratio(None, 1, 4) < costs.step_ratio("code", 1, 4)


def test_break_even_is_where_a_draft_neither_gains_nor_loses() -> None:
    costs = machine()
    for length in (1, 2, 3, 4):
        rate = costs.break_even("code", 1, length)
        assert rate is not None
        assert expected_length(rate, length) == pytest.approx(costs.step_ratio("code", 1, length), rel=1e-6)


def test_no_rate_breaks_even_where_drafting_costs_more_than_it_could_bring() -> None:
    costs = machine(wait_s=0.2, each_s=0.1)
    assert costs.break_even("code", 1, 1) is None


def test_speedup_of_a_perfect_and_of_a_useless_draft() -> None:
    costs = machine()
    always = replay_batch([scored([True] * 21)], 4)  # four steps of five tokens
    assert costs.speedup("code", 4, [always]) == pytest.approx(5 / costs.step_ratio("code", 1, 4), rel=1e-6)
    never = replay_batch([scored([False] * 200)], 4)
    assert costs.speedup("code", 4, [never]) == pytest.approx(1 / costs.step_ratio("code", 1, 4), rel=0.01)


def test_nothing_proposed_is_plain_decoding() -> None:
    costs = machine()
    assert costs.speedup(None, 0, [replay_batch([scored([True] * 9)] * 4, 0)]) == pytest.approx(1.0)


MACHINE = machine()


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 0.9), st.integers(1, 4))
def test_above_break_even_it_gains_and_below_it_loses(rate: float, length: int) -> None:
    rng = random.Random(11)
    text = scored([rng.random() < rate for _ in range(2000)])
    limit = MACHINE.break_even("code", 1, length)
    assert limit is not None
    gain = MACHINE.speedup("code", length, [replay_batch([text], length)])
    if rate > limit + 0.05:
        assert gain > 1.0
    if rate < limit - 0.05:
        assert gain < 1.0


def test_textbook_length() -> None:
    assert expected_length(0.0, 4) == 1.0
    assert expected_length(1.0, 4) == 5.0
    assert expected_length(0.5, 2) == 1.75
