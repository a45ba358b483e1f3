"""Tokens of a step, and what asking drafts costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.planning.assumptions import Assumptions
from cluster.planning.errors import PlanError
from cluster.planning.fleet import Fleet, evaluate, with_acceptance
from cluster.planning.speculation import (
    DraftOn,
    acceptance_from,
    busy_seconds,
    expected_tokens,
    wait_seconds,
)
from tests.planning.shapes import GIVEN, draft, engine, fleet

CONTEXT = 1250.0


@pytest.mark.parametrize(
    ("acceptance", "length", "published"),
    # Leviathan et al., arXiv 2211.17192, table 1: "speed" with a draft that costs nothing.
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)],
)
def test_tokens_of_a_step_are_those_of_the_paper(acceptance: float, length: int, published: float) -> None:
    assert expected_tokens(acceptance, length) == pytest.approx(published, abs=0.005)


@given(st.floats(0, 0.99), st.integers(1, 16))
def test_a_measured_mean_length_gives_the_acceptance_back(acceptance: float, length: int) -> None:
    assert acceptance_from(expected_tokens(acceptance, length), length) == pytest.approx(acceptance, abs=1e-4)


def test_an_impossible_mean_length_is_refused() -> None:
    with pytest.raises(PlanError, match="between 1 and 5"):
        acceptance_from(5.5, 4)


def placed(device: str, share: float = 1.0, name: str = "d", acceptance: float = 0.6) -> DraftOn:
    return draft(acceptance=acceptance, share=share, called=name).on(
        engine("Llama-3.2-1B", "H100").gpu, device, GIVEN
    )


def busy(drafts: list[DraftOn], rows: float, length: int = 3, given: Assumptions = GIVEN) -> float:
    lengths = {each.name: length for each in drafts}
    return busy_seconds(drafts, rows, lengths, CONTEXT, given.hardware, given.speculation)


def test_drafts_on_one_gpu_take_longer_than_on_two_and_less_than_their_sum() -> None:
    apart = [placed("a", 0.5, "x"), placed("b", 0.5, "y")]
    together = [replace(each, device="a") for each in apart]
    assert busy(apart, 32) < busy(together, 32) < 2 * busy(apart, 32)


def test_without_overlap_times_on_one_gpu_add_up() -> None:
    speculation = GIVEN.speculation.model_copy(update={"gap_overlap": 0.0})
    strict = GIVEN.model_copy(update={"speculation": speculation})
    apart = [placed("a", 0.5, "x"), placed("b", 0.5, "y")]
    together = [replace(each, device="a") for each in apart]
    assert busy(together, 32, given=strict) == pytest.approx(2 * busy(apart, 32, given=strict))


def test_a_single_request_asks_one_draft_wherever_they_are() -> None:
    alone = busy([placed("a")], 1)
    assert busy([placed("a", 0.5, "x"), placed("b", 0.5, "y")], 1) == pytest.approx(alone)
    assert busy([placed("a", 0.5, "x"), placed("a", 0.5, "y")], 1) == pytest.approx(alone)


def test_nothing_proposed_costs_nothing() -> None:
    assert busy([placed("a")], 32, length=0) == 0.0


def waited(each: DraftOn, verifiers: float) -> float:
    return wait_seconds(
        [each], 8, {each.name: 3}, CONTEXT, verifiers, 20e-3, GIVEN.hardware, GIVEN.speculation
    )


def test_sharing_drafters_costs_time_and_having_them_alone_does_not() -> None:
    shared = placed("a")
    assert waited(shared, 1) < waited(shared, 4) < waited(shared, 16)
    assert waited(replace(shared, own=True), 16) == waited(shared, 1)
    assert waited(replace(shared, sharers=4), 1) > waited(shared, 1)


def with_draft(acceptance: float, replicas: int = 1, given: Assumptions = GIVEN) -> Fleet:
    base = fleet(engine("Llama-3.1-70B", "H100", 4), replicas)
    return replace(
        base, drafts=(placed("a", acceptance=acceptance),), price_per_hour=base.price_per_hour + 3.5
    )


def test_useless_drafts_are_not_asked() -> None:
    outcome = evaluate(with_draft(0.0), GIVEN)
    assert outcome is not None
    assert outcome.lengths == {"d": 0}
    assert not outcome.speculates
    assert outcome.wait_s == 0.0


def test_good_drafts_are_asked_for_more_where_the_batch_is_small() -> None:
    small = evaluate(with_draft(0.9), GIVEN, 1)
    large = evaluate(with_draft(0.9), GIVEN, 256)
    assert small is not None
    assert large is not None
    assert small.lengths["d"] > large.lengths["d"]


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 0.9), st.floats(0.01, 0.09), st.integers(1, 256))
def test_more_acceptance_never_makes_a_fleet_slower(acceptance: float, more: float, load: int) -> None:
    slower = evaluate(with_draft(acceptance), GIVEN, load)
    faster = evaluate(with_acceptance(with_draft(0), acceptance + more), GIVEN, load)
    assert slower is not None
    assert faster is not None
    assert faster.rate >= slower.rate * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 512), st.integers(1, 4))
def test_a_fleet_writes_what_its_requests_get(load: int, replicas: int) -> None:
    outcome = evaluate(with_draft(0.7, replicas), GIVEN, load)
    assert outcome is not None
    assert outcome.rate == pytest.approx(outcome.running * outcome.request_rate)
    assert outcome.running + outcome.waiting == pytest.approx(load)
    assert 1.0 <= outcome.step_tokens <= 1 + GIVEN.speculation.max_draft_tokens
    assert outcome.wait_s <= outcome.step_s


def test_a_million_tokens_cost_the_hours_that_they_take() -> None:
    base = fleet(engine("Llama-3.1-70B", "H100", 4))
    outcome = evaluate(base, GIVEN)
    assert outcome is not None
    hours = 1_000_000 / outcome.rate / 3600
    assert outcome.price_per_million == pytest.approx(hours * 4 * 3.50)


def test_more_requests_than_fit_wait() -> None:
    base = fleet(engine("Llama-3.1-70B", "H100", 2))
    outcome = evaluate(base, GIVEN, 100)
    assert outcome is not None
    assert outcome.running < 100
    assert outcome.waiting == pytest.approx(100 - outcome.running)


def test_a_cached_prompt_costs_less() -> None:
    load = GIVEN.load.model_copy(update={"cached_share": 0.9})
    cached = GIVEN.model_copy(update={"load": load})
    base = fleet(engine("Llama-3.1-70B", "H100", 4))
    before, after = evaluate(base, GIVEN), evaluate(base, cached)
    assert before is not None
    assert after is not None
    assert after.prefill_s < 0.2 * before.prefill_s
    assert after.rate > before.rate
