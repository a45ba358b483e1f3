"""Replayed traces: what the router does while acceptance, batch and drafters change under it."""

from itertools import pairwise
from statistics import mean

import pytest

from router.settings import SpeculationSettings
from router.types import Reason
from tests.router.simulation import (
    Simulation,
    Trace,
    best_fixed_rate,
    by_draft,
    cpu_step,
    gpu_step,
    quick_wait,
)

#: Mean of the simulation's noise: what is measured is slower than the noiseless optimum by this factor.
NOISE = 1.056


def lengths(trace: Trace, request_id: str, first: int = 0) -> list[int]:
    return [decision.length for decision in trace.of(request_id)[first:]]


def reasons(simulation: Simulation, request_id: str) -> list[tuple[str, str]]:
    summary = simulation.router.summary(request_id)
    assert summary is not None
    return [(use.name, use.reason) for use in summary.drafts]


@pytest.mark.parametrize(
    ("domain", "probability", "draft", "reason"),
    [
        ("medical", 0.9, "medical", Reason.DOMAIN),
        ("general", 0.9, "general", Reason.GENERALIST),
        ("gardening", 0.9, "general", Reason.GENERALIST),
        ("medical", 0.3, "general", Reason.UNSURE),
    ],
)
def test_request_starts_with_the_draft_of_its_domain(
    domain: str, probability: float, draft: str, reason: Reason
) -> None:
    simulation = Simulation(by_draft(general=0.5, code=0.5, medical=0.5))
    simulation.open("r", domain, domain_probability=probability)
    assert simulation.router.home("r") == draft
    (decision,) = simulation.run(1).of("r")
    assert (decision.draft, decision.reason) == (draft, reason)
    assert decision.length >= 1


@pytest.mark.parametrize("step", [cpu_step, gpu_step])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    "rates",
    [
        {"medical": 0.8, "general": 0.5},
        {"medical": 0.5, "general": 0.4},
        {"medical": 0.1, "general": 0.6},
        {"medical": 0.36, "general": 0.36},
        {"medical": 0.05, "general": 0.05},
    ],
    ids=lambda rates: f"medical{rates['medical']}-general{rates['general']}",
)
def test_rate_is_close_to_the_best_fixed_choice(step, rows: int, rates: dict[str, float]) -> None:  # type: ignore[no-untyped-def]
    achieved = []
    for seed in range(2):
        simulation = Simulation(
            by_draft(code=0.1, **rates),
            step=step,
            seed=seed,
            settings=SpeculationSettings(max_draft_tokens=6),
        )
        for generation in range(3):  # the first generation of requests also teaches the router
            for row in range(rows):
                simulation.open(f"r{row}")
            trace = simulation.run(120)
            for row in range(rows):
                simulation.close(f"r{row}")
            if generation:
                achieved.append(trace.rate() * NOISE)
    assert mean(achieved) > 0.86 * best_fixed_rate(simulation, rates, rows)[2]
    assert mean(achieved) > 0.96 * simulation.plain_rate(rows)


def test_request_unlike_its_domain_goes_to_the_generalist() -> None:
    """The medical draft is good at medicine; this one request is labelled so and is something else."""
    odd = {"written": False}

    def acceptance(draft: str, domain: str, written: int) -> float:
        if odd["written"]:
            return {"medical": 0.02, "general": 0.6}.get(draft, 0.1)
        return {"medical": 0.7, "general": 0.4}.get(draft, 0.1)

    simulation = Simulation(acceptance)
    for name in ("a", "b", "c"):
        simulation.open(name)
        simulation.run(100)
        simulation.close(name)
    odd["written"] = True
    simulation.open("odd")
    trace = simulation.run(150)
    decisions = trace.of("odd")
    assert decisions[0].draft == "medical"
    uses = reasons(simulation, "odd")
    assert uses[:2] in (
        [("medical", Reason.DOMAIN), ("general", Reason.LOW_ACCEPTANCE)],
        [("medical", Reason.DOMAIN), ("general", Reason.BETTER)],
    )
    assert all(decision.draft != "medical" for decision in decisions[40:90])
    assert mean(decision.draft == "general" for decision in decisions[40:]) > 0.9


def test_low_acceptance_moves_on_to_the_generalist_and_then_to_nobody() -> None:
    """Where proposals are free even a bad draft pays a little; the operator's threshold still holds."""
    settings = SpeculationSettings(min_acceptance=0.4, prior_acceptance=0.6, switch_gain=1.0)
    simulation = Simulation(
        by_draft(medical=0.2, general=0.2, code=0.2),
        step=lambda rows, proposed: 0.02,
        wait=lambda draft, length: 0.0,
        settings=settings,
    )
    simulation.open("r")
    simulation.run(60)
    assert [name for name, _ in reasons(simulation, "r")][:3] == ["medical", "general", "none"]
    assert reasons(simulation, "r")[2] == ("none", Reason.LOW_ACCEPTANCE)


def test_useless_drafts_cost_next_to_nothing() -> None:
    simulation = Simulation(by_draft(medical=0.02, general=0.02, code=0.02))
    simulation.open("r")
    trace = simulation.run(3000)
    proposing = [length > 0 for length in lengths(trace, "r", first=50)]
    assert mean(proposing) <= simulation.settings.probe_share + 0.01
    assert any(proposing)  # it is tried again now and then
    assert trace.rate() * NOISE > 0.97 * simulation.plain_rate(1)


def test_drafting_resumes_when_the_text_becomes_easy() -> None:
    simulation = Simulation(lambda draft, domain, written: 0.0 if written < 150 else 0.9)
    simulation.open("r")
    trace = simulation.run(350)
    assert mean(lengths(trace, "r")[100:140]) < 0.2
    assert (
        Reason.RECOVERED in [reason for _, reason in reasons(simulation, "r")]
        or mean(decision.draft is not None for decision in trace.of("r")[-50:]) == 1.0
    )
    assert mean(lengths(trace, "r", first=300)) > 2.0


def test_length_follows_acceptance_down_and_up() -> None:
    def acceptance(draft: str, domain: str, written: int) -> float:
        return 0.9 if written < 400 or written > 900 else 0.35

    simulation = Simulation(acceptance, settings=SpeculationSettings(max_draft_tokens=8))
    simulation.open("r")
    easy = simulation.run(100)
    assert mean(lengths(easy, "r", first=50)) > 4
    while simulation.written["r"] < 700:
        simulation.run(10)
    assert mean(lengths(simulation.run(40), "r")) < 3
    while simulation.written["r"] < 1200:
        simulation.run(10)
    assert mean(lengths(simulation.run(50), "r")) > 4


def test_bigger_batches_propose_less_and_smaller_ones_more_again() -> None:
    simulation = Simulation(by_draft(medical=0.7, general=0.4, code=0.1))
    simulation.open("r0")
    means = []
    for rows in (1, 4, 32, 1):
        for row in range(1, 32):
            name = f"r{row}"
            if row < rows and name not in simulation.written:
                simulation.open(name)
            if row >= rows and name in simulation.written:
                simulation.close(name)
        trace = simulation.run(150)
        means.append(mean(lengths(trace, "r0", first=60)))
    alone, few, many, again = means
    assert alone > few > many
    assert many < 0.5
    assert again > 0.8 * alone


def test_equal_drafts_do_not_flap() -> None:
    switches = []
    for seed in range(8):
        simulation = Simulation(by_draft(medical=0.45, general=0.45, code=0.45), seed=seed)
        simulation.open("r")
        switches.append(simulation.run(500).switches("r"))
    assert mean(switches) <= 4
    assert max(switches) <= 10


def test_draft_length_does_not_flap() -> None:
    simulation = Simulation(by_draft(medical=0.6, general=0.3, code=0.3))
    simulation.open("r")
    simulation.run(100)
    settled = lengths(simulation.run(300), "r")
    changes = sum(a != b for a, b in pairwise(settled))
    assert changes < 45


def test_draft_that_goes_away_is_replaced_at_once_and_used_again_when_back() -> None:
    simulation = Simulation(by_draft(medical=0.7, general=0.5, code=0.1))
    simulation.open("r")
    simulation.run(50)
    simulation.available.discard("medical")
    away = simulation.run(40).of("r")
    assert all(decision.draft == "general" for decision in away)
    assert away[0].reason == Reason.AWAY
    simulation.available.add("medical")
    back = simulation.run(20).of("r")
    assert (back[0].draft, back[0].reason) == ("medical", Reason.RETURNED)
    simulation.available.clear()
    assert all(decision.draft is None and decision.length == 0 for decision in simulation.run(20).of("r"))
    simulation.available.update(("general", "medical"))
    assert mean(decision.draft == "medical" for decision in simulation.run(40).of("r")[10:]) == 1.0


def test_request_that_starts_while_its_draft_is_away_gets_it_later() -> None:
    simulation = Simulation(by_draft(medical=0.7, general=0.5, code=0.1))
    simulation.available.discard("medical")
    simulation.open("r")
    first = simulation.run(10).of("r")
    assert (first[0].draft, first[0].reason) == ("general", Reason.AWAY)
    simulation.available.add("medical")
    assert simulation.run(10).of("r")[-1].draft == "medical"
    assert reasons(simulation, "r") == [("general", Reason.AWAY), ("medical", Reason.RETURNED)]


def test_hung_draft_is_left_even_though_it_counts_as_available() -> None:
    simulation = Simulation(by_draft(medical=0.7, general=0.5, code=0.1))
    simulation.open("r")
    simulation.run(30)
    simulation.silent.add("medical")
    hung = simulation.run(60).of("r")
    limit = simulation.settings.unanswered_steps + simulation.settings.min_dwell_steps
    assert all(decision.draft != "medical" for decision in hung[limit + 1 :])
    assert mean(decision.draft == "general" for decision in hung[limit + 1 :]) == 1.0


def test_draft_that_hung_and_was_restarted_is_used_again() -> None:
    simulation = Simulation(by_draft(medical=0.7, general=0.3, code=0.1))
    simulation.open("r")
    simulation.run(30)
    simulation.silent.add("medical")
    simulation.run(30)
    simulation.available.discard("medical")
    simulation.run(20)
    simulation.silent.clear()
    simulation.available.add("medical")
    assert mean(decision.draft == "medical" for decision in simulation.run(300).of("r")[-50:]) == 1.0


def test_many_requests_together_do_not_try_useless_drafts_more_often() -> None:
    """Each request has its own time to try again; if all did so by themselves, most steps would wait."""
    simulation = Simulation(by_draft(medical=0.02, general=0.02, code=0.02))
    for row in range(2):
        simulation.open(f"first{row}")
    simulation.run(150)
    for row in range(24):
        simulation.open(f"r{row}")
        simulation.run(3)
    trace = simulation.run(400)
    asking = [any(decision.length for decision in step.values()) for step in trace.decisions]
    assert 0.0 < mean(asking) <= simulation.settings.probe_share + 0.01


def test_few_requests_of_a_slow_draft_do_not_delay_the_batch() -> None:
    """One request would gain by its slow draft, and the seven others would lose more by waiting for it."""

    def wait(draft: str, length: int) -> float:
        return 0.02 if draft == "code" else quick_wait(draft, length)

    simulation = Simulation(by_draft(medical=0.5, general=0.3, code=0.95), step=gpu_step, wait=wait)
    simulation.open("slow", "code")
    assert simulation.run(100).of("slow")[-1].draft == "code"
    for row in range(7):
        simulation.open(f"medical{row}")
    simulation.run(60)
    trace = simulation.run(200)
    assert trace.of("slow")[-1].expected[0].tokens_per_second > 1.1 * simulation.plain_rate(1)
    asked = [decision.draft == "code" for decision in trace.of("slow")]
    assert mean(asked) <= simulation.settings.probe_share + 0.02
    assert mean(decision.draft == "medical" for decision in trace.of("medical0")) > 0.9


def test_one_late_answer_is_no_reason_to_leave() -> None:
    simulation = Simulation(by_draft(medical=0.7, general=0.5, code=0.1))
    for row in range(8):
        simulation.open(f"r{row}")
    simulation.run(50)
    simulation.silent.add("medical")
    simulation.run(1)
    simulation.silent.clear()
    assert all(decision.draft == "medical" for decision in simulation.run(20).of("r0"))


def test_prompt_too_long_for_a_draft_does_not_spoil_it_for_others() -> None:
    """The draft never answers one request, and answers all others."""
    simulation = Simulation(by_draft(medical=0.7, general=0.5, code=0.1))
    router = simulation.router
    simulation.open("short")
    simulation.open("long")
    del simulation.written["long"]  # driven by hand below
    drafts = []
    for _ in range(100):
        short, long = router.decide(["short", "long"], simulation.available, [1000, 1000])
        router.observe_step(2, short.length, 0.045)
        router.book("short", short.draft, short.length, short.length, short.length + 1)
        router.book("long", long.draft, 0, 0, 1)
        drafts.append((short.draft, long.draft))
    assert all(short == "medical" for short, _ in drafts)
    assert all(long != "medical" for _, long in drafts[20:60])
