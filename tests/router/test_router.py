"""The router's promises about single requests: pins, limits, summaries, figures, errors."""

import json

import pytest

from router.router import Router
from router.settings import SpeculationSettings
from router.types import Reason, RequestProfile
from tests.router.simulation import DOMAINS, DRAFTS, Simulation, by_draft

ALL = frozenset(DRAFTS)


def router(**settings: object) -> Router:
    return Router(SpeculationSettings(**settings), DOMAINS, "general", DRAFTS)  # type: ignore[arg-type]


def test_pinned_draft_is_used_although_it_never_pays() -> None:
    simulation = Simulation(by_draft(medical=0.0, general=0.9, code=0.0))
    simulation.open("r", pinned="medical")
    decisions = simulation.run(100).of("r")
    assert all(decision.draft == "medical" and decision.length >= 1 for decision in decisions)
    assert {decision.reason for decision in decisions} == {Reason.PINNED}
    assert decisions[-1].length == 1


def test_pinned_draft_gets_a_longer_length_where_it_is_good() -> None:
    simulation = Simulation(by_draft(medical=0.95, general=0.1, code=0.1))
    simulation.open("r", pinned="medical")
    assert simulation.run(100).of("r")[-1].length == 4


def test_pinned_draft_that_is_away_means_plain_decoding_until_it_is_back() -> None:
    simulation = Simulation(by_draft(medical=0.7, general=0.7, code=0.7))
    simulation.open("r", pinned="medical")
    simulation.available.discard("medical")
    assert {(d.draft, d.reason) for d in simulation.run(20).of("r")} == {(None, Reason.AWAY)}
    simulation.available.add("medical")
    assert simulation.run(1).of("r")[0].draft == "medical"


def test_pinned_to_none_decodes_plainly() -> None:
    simulation = Simulation(by_draft(medical=1.0, general=1.0, code=1.0))
    simulation.open("r", pinned="none")
    decisions = simulation.run(200).of("r")
    assert {(d.draft, d.length, d.reason) for d in decisions} == {(None, 0, Reason.PINNED)}
    assert simulation.router.home("r") is None


def test_a_fixed_length_is_proposed_whatever_pays_but_never_past_the_end() -> None:
    simulation = Simulation(by_draft(medical=0.0, general=0.9, code=0.0))
    simulation.router.open(RequestProfile("r", "medical", 1.0, pinned="medical", length=3))
    decide = simulation.router.decide
    assert {decide(["r"], ALL, [50])[0].length for _ in range(100)} == {3}
    assert [decide(["r"], ALL, [left])[0].length for left in (5, 4, 3, 2, 1)] == [3, 3, 2, 1, 0]


def test_a_fixed_length_cannot_exceed_what_the_verifier_has_room_for() -> None:
    simulation = Simulation(by_draft(medical=0.5, general=0.5, code=0.5))
    simulation.router.open(RequestProfile("r", "medical", 1.0, pinned="medical", length=16))
    assert simulation.router.decide(["r"], ALL, [50])[0].length == 4
    with pytest.raises(ValueError, match="at least 1"):
        simulation.router.open(RequestProfile("s", "medical", 1.0, pinned="medical", length=0))


def test_only_allowed_drafts_are_used() -> None:
    settings = SpeculationSettings(prior_acceptance=0.8)
    simulation = Simulation(by_draft(medical=0.9, general=0.9, code=0.9), settings=settings)
    simulation.open("general_only", allowed=frozenset({"general"}))
    simulation.open("nobody", allowed=frozenset())
    simulation.open("pinned", pinned="medical", allowed=frozenset({"general"}))
    trace = simulation.run(30)
    assert {d.draft for d in trace.of("general_only")} == {"general"}
    assert trace.of("general_only")[0].reason == Reason.NOT_ALLOWED
    for name in ("nobody", "pinned"):
        assert {(d.draft, d.reason) for d in trace.of(name)} == {(None, Reason.NOT_ALLOWED)}


@pytest.mark.parametrize(("left", "longest"), [(0, 0), (1, 0), (2, 1), (3, 2), (100, 4)])
def test_nothing_is_proposed_beyond_the_last_token(left: int, longest: int) -> None:
    simulation = Simulation(by_draft(medical=0.98, general=0.98, code=0.98))
    simulation.open("free")
    simulation.open("pinned", pinned="code")
    simulation.run(60)
    for decision in simulation.router.decide(["free", "pinned"], ALL, [left, left]):
        assert decision.length == longest
        assert (decision.draft is None) == (longest == 0)
        assert (decision.reason == Reason.LAST_TOKEN) == (longest == 0)


def test_near_the_end_the_usual_length_is_not_forgotten() -> None:
    simulation = Simulation(by_draft(medical=0.95, general=0.3, code=0.3))
    simulation.open("r")
    assert simulation.run(60).of("r")[-1].length == 4
    assert simulation.router.decide(["r"], ALL, [3])[0].length == 2
    assert simulation.router.decide(["r"], ALL, [100])[0].length == 4


def test_decision_is_explained() -> None:
    simulation = Simulation(by_draft(medical=0.7, general=0.3, code=0.1))
    simulation.open("r")
    decision = simulation.run(80).of("r")[-1]
    assert [estimate.draft for estimate in decision.expected] == ["medical", "general", None]
    medical, general, plain = decision.expected
    assert (medical.length, decision.draft) == (decision.length, "medical")
    assert medical.tokens_per_second > general.tokens_per_second
    assert medical.tokens_per_second > plain.tokens_per_second
    assert medical.acceptance > general.acceptance > plain.acceptance == 0.0
    assert plain.tokens_per_second == pytest.approx(simulation.plain_rate(1), rel=0.15)


def test_summary_counts_what_was_booked() -> None:
    simulation = Simulation(by_draft(medical=0.6, general=0.3, code=0.1))
    simulation.open("r", domain_probability=0.8)
    trace = simulation.run(100)
    summary = simulation.router.close("r")
    assert summary is not None
    assert (summary.request_id, summary.domain, summary.domain_probability) == ("r", "medical", 0.8)
    assert summary.proposed == sum(decision.length for decision in trace.of("r"))
    assert summary.steps == sum(decision.length > 0 for decision in trace.of("r"))
    assert summary.emitted == sum(trace.tokens) == summary.accepted + 100
    assert summary.mean_acceptance_length == 1 + summary.accepted / summary.steps
    assert summary.drafts[0].name == "medical"
    assert summary.drafts[0].from_token == 0
    assert simulation.router.close("r") is None
    assert len(simulation.router) == 0


def test_uses_say_from_which_token_on() -> None:
    simulation = Simulation(by_draft(medical=0.6, general=0.6, code=0.1))
    simulation.open("r")
    simulation.run(30)
    written = simulation.written["r"]
    simulation.available.discard("medical")
    simulation.run(5)
    summary = simulation.router.summary("r")
    assert summary is not None
    assert [(use.name, use.from_token) for use in summary.drafts] == [("medical", 0), ("general", written)]
    assert summary.switches == 1


def test_uses_are_bounded_and_the_latest_is_kept() -> None:
    simulation = Simulation(
        by_draft(medical=0.6, general=0.6, code=0.1),
        settings=SpeculationSettings(max_switches=5, min_dwell_steps=0),
    )
    simulation.open("r")
    for _ in range(20):
        simulation.run(3)
        simulation.available ^= {"medical"}
    summary = simulation.router.summary("r")
    assert summary is not None
    assert len(summary.drafts) == 5
    assert summary.switches > 15
    assert summary.drafts[-1].from_token > 50


def test_late_proposals_do_not_count_as_steps() -> None:
    simulation = Simulation(by_draft(medical=0.6, general=0.6, code=0.1))
    simulation.silent.update(DRAFTS)
    simulation.open("r")
    simulation.run(20)
    summary = simulation.router.summary("r")
    assert summary is not None
    assert (summary.proposed, summary.accepted, summary.steps, summary.emitted) == (0, 0, 0, 20)


def test_request_that_was_never_opened_decodes_plainly() -> None:
    (decision,) = router().decide(["nobody"], ALL, [10])
    assert (decision.draft, decision.length, decision.reason) == (None, 0, Reason.UNKNOWN)
    router().book("nobody", "medical", 3, 2, 3)
    assert router().home("nobody") is None


def test_empty_batch_needs_no_decisions() -> None:
    assert router().decide([], ALL, []) == []


def test_sequences_of_different_length_are_refused() -> None:
    fleet = router()
    fleet.open(RequestProfile("r", "medical", 1.0))
    with pytest.raises(ValueError, match="shorter"):
        fleet.decide(["r"], ALL, [])


def test_oldest_request_is_forgotten_beyond_the_bound() -> None:
    fleet = router(max_requests=3)
    for number in range(5):
        fleet.open(RequestProfile(f"r{number}", "medical", 1.0))
    assert len(fleet) == 3
    assert fleet.summary("r1") is None
    assert fleet.summary("r2") is not None
    assert fleet.snapshot()["forgotten_requests"] == 2


def test_snapshot_is_plain_and_counts() -> None:
    simulation = Simulation(by_draft(medical=0.6, general=0.5, code=0.1))
    simulation.open("r")
    simulation.open("c", "code")
    trace = simulation.run(60)
    snapshot = simulation.router.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    figures = snapshot["acceptance"]["medical"]["medical"]  # type: ignore[index]
    mine = [decision for decision in trace.of("r") if decision.draft == "medical"]
    assert figures["proposed"] == sum(decision.length for decision in mine)
    assert figures["steps"] == len(mine)
    assert sum(figures["by_position"]) == figures["accepted"]
    assert sum(snapshot["switches"].values()) >= 2  # type: ignore[attr-defined]


def test_unknown_drafts_are_named() -> None:
    with pytest.raises(ValueError, match=r"generalist 'nobody'.*code, general, medical"):
        Router(SpeculationSettings(), DOMAINS, "nobody", DRAFTS)
    with pytest.raises(ValueError, match=r"domain 'law' uses draft 'lawyer'"):
        Router(SpeculationSettings(), {"law": "lawyer"}, "general", DRAFTS)
    with pytest.raises(ValueError, match=r"pinned draft 'lawyer'.*'none'"):
        router().open(RequestProfile("r", "medical", 1.0, pinned="lawyer"))


def test_settings_refuse_trials_that_can_never_be_reached() -> None:
    with pytest.raises(ValueError, match="min_trials"):
        SpeculationSettings(min_trials=40, request_window=48)
