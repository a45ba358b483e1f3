from __future__ import annotations

import pytest

from deployments.link.health import Health
from deployments.link.settings import LinkSettings

DEADLINE = 0.04


@pytest.fixture
def health() -> Health:
    return Health(LinkSettings(probe_first_ms=50, probe_longest_ms=1_000))


def test_one_miss_is_forgiven_with_the_next_answer(health: Health) -> None:
    health.missed(1.0)
    assert health.state(9.0) == "late"
    health.answered(9.0, in_time=False)
    assert health.state(9.0) == "up"


def test_probes_come_at_growing_pauses_up_to_the_longest(health: Health) -> None:
    now = 0.0
    health.missed(now)
    times = []
    while len(times) < 9:
        now += 0.01
        if health.probe_due(now):
            times.append(now)
            health.probed(now)
    pauses = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], abs=0.02)


def test_a_drafter_that_is_always_slow_costs_about_one_deadline_a_second(health: Health) -> None:
    """Every answer comes just after the deadline; steps follow each other without a pause."""
    now, waited = 0.0, 0.0
    while now < 60.0:
        if health.state(now) == "up":
            now += DEADLINE
            waited += DEADLINE
            health.missed(now)
        now += 0.01
        health.answered(now, in_time=False)
    assert waited < 60 * DEADLINE * 1.2


def test_a_drafter_that_recovers_is_trusted_again(health: Health) -> None:
    for now in range(10):
        health.missed(float(now))
    health.answered(20.0, in_time=False)
    for now in range(21, 26):
        assert health.state(float(now)) == "up"
        health.answered(float(now), in_time=True)
    health.missed(30.0)
    health.answered(30.1, in_time=False)
    assert health.state(30.1) == "up"


def test_down_lasts_until_an_answer_or_a_new_connection(health: Health) -> None:
    health.lost(1.0)
    assert health.state(100.0) == "down"
    health.answered(100.0, in_time=False)
    assert health.state(100.0) == "up"
    health.lost(101.0)
    health.connected(102.0)
    assert health.state(102.0) == "up"


def test_a_new_connection_does_not_clear_a_late_drafter(health: Health) -> None:
    health.missed(1.0)
    health.connected(2.0)
    assert health.state(2.0) == "late"
