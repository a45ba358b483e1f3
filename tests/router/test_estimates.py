"""The estimates that decisions rest on: acceptance, step times, waits, and the length they lead to."""

import random
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from router.acceptance import AcceptanceCurve, OwnAcceptance
from router.costs import StepCost, WaitCost
from router.prices import best_length, price_step
from tests.router.simulation import cpu_step, gpu_step


def step_cost(max_tokens: int = 4) -> StepCost:
    return StepCost(max_tokens, 0.034, 0.004, 0.0035)


def curve(window: int = 2000) -> AcceptanceCurve:
    return AcceptanceCurve(4, prior=0.4, strength=8.0, window=window)


def test_acceptance_starts_at_the_prior_and_converges_by_position() -> None:
    chances = [0.8, 0.6, 0.3, 0.9]
    learnt, generator = curve(window=100_000), random.Random(1)
    assert learnt.rates() == pytest.approx([0.4] * 4)
    for _ in range(8000):
        accepted = 0
        while accepted < 4 and generator.random() < chances[accepted]:
            accepted += 1
        learnt.book(4, accepted)
    assert learnt.rates() == pytest.approx(chances, abs=0.03)
    assert learnt.accepted == sum(learnt.by_position)


def test_tokens_after_a_rejection_are_not_evidence() -> None:
    long, short = curve(), curve()
    for _ in range(200):
        long.book(4, 0)
        short.book(1, 0)
    assert long.rates() == short.rates()


def test_position_never_proposed_leans_on_the_others() -> None:
    learnt = curve()
    for _ in range(300):
        learnt.book(1, 1)
    assert learnt.rates()[3] > 0.9


def test_old_acceptance_fades() -> None:
    learnt = curve(window=100)
    for _ in range(1000):
        learnt.book(1, 1)
    for _ in range(250):
        learnt.book(1, 0)
    assert learnt.rates()[0] < 0.2


def test_unused_evidence_returns_to_the_prior_and_used_evidence_does_not() -> None:
    unused, used = curve(), curve()
    for _ in range(500):
        unused.book(4, 0)
        used.book(4, 0)
    for _ in range(40):
        used.book(1, 0)
        unused.fade()
        used.fade()
    assert unused.rates()[0] == pytest.approx(0.4, abs=0.02)
    assert used.rates()[0] < 0.02


def test_own_evidence_weighs_more_as_it_grows() -> None:
    own, rates, factors = OwnAcceptance(), [0.5] * 4, []
    for _ in range(40):
        factors.append(own.factor(16.0))
        own.book(1, 1, rates, decay=1 - 1 / 48)
    assert factors[0] == 1.0
    assert factors == sorted(factors)
    assert 1.5 < factors[-1] < 2.0  # on its way to the doubled rate that this request has


def test_own_factor_does_not_mistake_length_for_quality() -> None:
    """A request that does exactly what the domain's curve says, at any length, is a usual request."""
    rates, generator = [0.9, 0.6, 0.4, 0.2], random.Random(2)
    for length in (1, 4):
        own = OwnAcceptance()
        for _ in range(30_000):
            accepted = 0
            while accepted < length and generator.random() < rates[accepted]:
                accepted += 1
            own.book(length, accepted, rates, decay=1 - 1 / 5000)
        assert own.factor(16.0) == pytest.approx(1.0, abs=0.04)


@pytest.mark.parametrize("truth", [cpu_step, gpu_step])
def test_step_times_are_learnt_and_robust(truth) -> None:  # type: ignore[no-untyped-def]
    cost, generator = step_cost(), random.Random(3)
    for _ in range(600):
        rows, tokens = generator.choice([1, 4, 16]), generator.randrange(5)
        slow = 20.0 if generator.random() < 0.05 else 1.0
        cost.observe(rows, rows * tokens, truth(rows, rows * tokens) * slow)
    for rows in (1, 4, 16):
        for tokens in range(5):
            assert cost.curve(rows)[tokens] == pytest.approx(truth(rows, rows * tokens), rel=0.12)


def test_single_outlier_hardly_moves_a_step_time() -> None:
    cost = step_cost()
    for _ in range(20):
        cost.observe(1, 0, 0.04)
    before = cost.curve(1)[4]
    cost.observe(1, 4, 1.0)
    for _ in range(8):
        cost.observe(1, 0, 0.04)
    assert cost.curve(1)[4] < 1.2 * before


def test_step_times_follow_a_machine_that_gets_slower() -> None:
    cost = step_cost()
    for _ in range(500):
        cost.observe(1, 2, 0.04)
    for _ in range(24):
        cost.observe(1, 2, 0.12)
    assert cost.curve(1)[2] == pytest.approx(0.12, rel=0.1)


def test_only_relative_times_of_the_prior_matter() -> None:
    quick, slow = StepCost(4, 0.001, 0.0, 0.0001), StepCost(4, 1.0, 0.0, 0.1)
    for cost in (quick, slow):
        for _ in range(8):
            cost.observe(2, 0, 0.05)
    assert quick.curve(2) == pytest.approx(slow.curve(2))


@given(
    observations=st.lists(
        st.tuples(st.integers(-1, 2000), st.integers(-1, 30_000), st.floats(0, 100)), max_size=60
    ),
    rows=st.integers(1, 2000),
)
@settings(deadline=None)
def test_step_times_never_fall_with_tokens(observations: list[tuple[int, int, float]], rows: int) -> None:
    cost = step_cost(8)
    for observation in observations:
        cost.observe(*observation)
    times = cost.curve(rows)
    assert all(0 < a <= b * (1 + 1e-9) for a, b in pairwise(times))
    assert cost.seconds(rows, 3.5 * rows) == pytest.approx((times[3] + times[4]) / 2)


def test_waits_are_affine_in_the_length_and_robust() -> None:
    wait, generator = WaitCost(8, 0.002, 0.002), random.Random(4)
    for _ in range(300):
        length = generator.choice([1, 2, 4])
        wait.observe(length, (0.01 + 0.004 * length) * (30 if generator.random() < 0.1 else 1))
    base, token = wait.line()
    assert base == pytest.approx(0.01, rel=0.2)
    assert token == pytest.approx(0.004, rel=0.2)
    assert wait.curve()[0] == 0.0
    assert wait.curve()[8] == pytest.approx(0.042, rel=0.15)


def test_first_wait_alone_is_not_believed() -> None:
    wait = WaitCost(4, 0.002, 0.002)
    wait.observe(2, 0.5)
    assert wait.curve()[2] < 0.012


def test_wait_of_a_draft_that_nobody_asked_is_forgotten() -> None:
    wait = WaitCost(4, 0.002, 0.002)
    for _ in range(20):
        wait.observe(2, 0.5)
    wait.fade()
    assert wait.curve()[2] > 0.3
    wait.fade()
    assert wait.curve()[2] == pytest.approx(0.006)


@given(
    rates=st.lists(st.floats(0.01, 0.97), min_size=6, max_size=6),
    rows=st.integers(1, 64),
    token_ms=st.floats(0.0, 10.0),
    wait_ms=st.floats(0.0, 30.0),
)
@settings(deadline=None)
def test_chosen_length_maximises_tokens_per_second(
    rates: list[float], rows: int, token_ms: float, wait_ms: float
) -> None:
    """At the batch's own best rate the price finds the very length that enumeration finds."""
    steps = StepCost(6, 0.03, 0.004, token_ms / 1e3)
    waits = {"d": WaitCost(6, wait_ms / 1e3, 0.001)}

    def rate(length: int) -> float:
        expected, reach = 1.0, 1.0
        for position in range(length):
            reach *= rates[position]
            expected += reach
        return expected / (steps.seconds(rows, rows * length) + waits["d"].curve()[length])

    best = max(range(7), key=rate)
    prices = price_step(steps, waits, ["d"], rows, speedup=rate(best) * prices_plain(steps, rows))
    option = best_length("d", rates, 1.0, 1.0, prices.price["d"], longest=6, keep=0, least_gain=0.0)
    assert rate(option.length if option.gain > 0 else 0) == pytest.approx(rate(best))


def prices_plain(steps: StepCost, rows: int) -> float:
    return steps.curve(rows)[0]


def test_length_is_kept_for_a_negligible_gain() -> None:
    rates, price = [0.6, 0.5, 0.4, 0.3], [0.0, 0.2, 0.49, 0.8, 1.2]
    free = best_length("d", rates, 1.0, 1.0, price, longest=4, keep=0, least_gain=0.02)
    kept = best_length("d", rates, 1.0, 1.0, price, longest=4, keep=2, least_gain=0.02)
    cut = best_length("d", rates, 1.0, 1.0, price, longest=1, keep=2, least_gain=0.02)
    assert (free.length, kept.length, cut.length) == (2, 2, 1)
    dear = [0.0, 0.2, 0.60, 1.0, 1.4]
    assert best_length("d", rates, 1.0, 1.0, dear, longest=4, keep=2, least_gain=0.02).length == 1
