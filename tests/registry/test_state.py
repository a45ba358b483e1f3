"""Who is in the fleet, as the registry sees it; time is passed in."""

from typing import Any

import pytest

from deployments.registry.reports import BadReport
from deployments.registry.state import AWAY_S, FORGET_S, HAND_OUT_S, MAX_ENTRIES, MAX_LABELS, RegistryState


def drafter(draft: str = "code", replica: str = "d1", **more: Any) -> dict[str, Any]:
    return {
        "draft": draft,
        "replica": replica,
        "address": "tcp://10.0.0.1:7001",
        "public_key": f"key-of-{replica}",
        "pid": 11,
        "state": "ready",
        "sessions": 3,
        **more,
    }


def verifier(replica: str = "v1", snapshot: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "replica": replica,
        "model": "smol",
        "public_key": f"key-of-{replica}",
        "pid": 21,
        "snapshot": snapshot or {},
        **more,
    }


def counted(proposed: int, accepted: int, steps: int, domain: str = "code") -> dict[str, Any]:
    figures = {"proposed": proposed, "accepted": accepted, "steps": steps, "by_position": [accepted]}
    return {"acceptance": {"code": {domain: figures}}, "generation_tokens": accepted + steps}


@pytest.fixture
def registry() -> RegistryState:
    return RegistryState(["general", "code"], ["code"], now=0.0)


def test_each_side_learns_of_the_other(registry: RegistryState) -> None:
    assert registry.announce(drafter(), 1.0) == {"client_keys": []}
    assert registry.report(verifier(), 1.5) == {
        "drafters": [
            {"draft": "code", "replica": "d1", "address": "tcp://10.0.0.1:7001", "public_key": "key-of-d1"}
        ]
    }
    registry.report(verifier("v2", public_key=""), 1.6)
    assert registry.announce(drafter(), 2.0) == {"client_keys": ["key-of-v1"]}


def test_only_ready_drafters_heard_lately_are_handed_out(registry: RegistryState) -> None:
    registry.announce(drafter(replica="silent"), 0.0)
    registry.announce(drafter(replica="starting", state="starting"), HAND_OUT_S)
    registry.announce(drafter(replica="live"), HAND_OUT_S)
    names = [entry["replica"] for entry in registry.report(verifier(), HAND_OUT_S)["drafters"]]
    assert names == ["live", "silent"]
    names = [entry["replica"] for entry in registry.report(verifier(), HAND_OUT_S + 0.1)["drafters"]]
    assert names == ["live"]


def test_silent_entries_are_away_then_forgotten(registry: RegistryState) -> None:
    registry.announce(drafter(), 0.0)
    registry.report(verifier(snapshot={"running": 4, "tokens_per_second": 9.0}), 0.0)

    view = registry.view(AWAY_S)
    assert view["verifiers"][0]["state"] == "ready"
    assert view["verifiers"][0]["running"] == 4
    assert [(d["name"], d["state"], d["sessions"]) for d in view["drafters"]] == [
        ("general", "away", 0),
        ("code", "ready", 3),
    ]

    view = registry.view(AWAY_S + 0.1)
    assert view["verifiers"][0]["state"] == "away"
    assert view["verifiers"][0]["running"] == 0
    assert view["verifiers"][0]["tokens_per_second"] == 0
    code = view["drafters"][1]
    assert (code["state"], code["sessions"], code["replicas"][0]["state"]) == ("away", 0, "away")

    view = registry.view(FORGET_S + 0.1)
    assert view["verifiers"] == []
    assert view["drafters"][1]["replicas"] == []


def test_a_draft_is_ready_when_one_replica_is(registry: RegistryState) -> None:
    registry.announce(drafter(replica="d1", state="starting"), 0.0)
    assert registry.view(0.0)["drafters"][1]["state"] == "starting"
    registry.announce(drafter(replica="d2", sessions=2), 0.0)
    code = registry.view(0.0)["drafters"][1]
    assert (code["state"], code["sessions"], len(code["replicas"])) == ("ready", 5, 2)


def test_acceptance_is_merged_over_verifiers(registry: RegistryState) -> None:
    registry.report(verifier("v1", counted(40, 10, 10)), 0.0)
    registry.report(verifier("v2", counted(40, 30, 10)), 0.0)
    registry.report(verifier("v3", counted(4, 2, 1, domain="general")), 0.0)
    assert registry.view(0.0)["acceptance"] == {
        "code": {
            "code": {
                "proposed": 80,
                "accepted": 40,
                "steps": 20,
                "by_position": [40],
                "acceptance_rate": 0.5,
                "mean_acceptance_length": 3.0,
            },
            "general": {
                "proposed": 4,
                "accepted": 2,
                "steps": 1,
                "by_position": [2],
                "acceptance_rate": 0.5,
                "mean_acceptance_length": 3.0,
            },
        }
    }


def test_totals_survive_a_restart_of_the_verifier(registry: RegistryState) -> None:
    registry.report(verifier(pid=1, snapshot=counted(40, 10, 10)), 0.0)
    registry.report(verifier(pid=2, snapshot=counted(4, 1, 1)), 1.0)
    figures = registry.view(1.0)["acceptance"]["code"]["code"]
    assert (figures["proposed"], figures["accepted"], figures["steps"]) == (44, 11, 11)
    # Long after it was dropped from the view, what it counted is still there.
    later = registry.view(1.0 + 10 * FORGET_S)
    assert later["verifiers"] == []
    assert later["acceptance"]["code"]["code"]["proposed"] == 44
    assert later["totals"]["generation_tokens"] == 22


def test_a_verifier_that_was_out_of_reach_is_not_counted_twice(registry: RegistryState) -> None:
    registry.report(verifier(snapshot=counted(40, 10, 10)), 0.0)
    assert registry.view(FORGET_S + 1)["verifiers"] == []
    registry.report(verifier(snapshot=counted(48, 12, 12)), FORGET_S + 2)
    assert registry.view(FORGET_S + 2)["acceptance"]["code"]["code"]["proposed"] == 48


def test_a_report_that_arrives_late_is_ignored(registry: RegistryState) -> None:
    registry.report(verifier(sent_at=5.0, snapshot=counted(40, 10, 10)), 0.0)
    registry.report(verifier(sent_at=4.0, snapshot=counted(30, 9, 9)), 0.1)
    view = registry.view(0.1)
    assert view["acceptance"]["code"]["code"]["proposed"] == 40
    assert view["verifiers"][0]["acceptance"]["code"]["code"]["proposed"] == 40


def test_link_and_reasons_are_summed(registry: RegistryState) -> None:
    link = {"code": {"sent": 5, "late": 1, "round_trip_seconds": 0.25, "round_trips": 4, "up": True}}
    for name in ("v1", "v2"):
        snapshot = {"link": link, "switches": {"acceptance": 2}, "requests": {"stop": 3}, "prompt_tokens": 7}
        registry.report(verifier(name, snapshot), 0.0)
    totals = registry.view(0.0)["totals"]
    assert totals["link"]["code"]["late"] == 2
    assert totals["link"]["code"]["round_trip_seconds"] == 0.5
    assert "up" not in totals["link"]["code"]
    assert (totals["switches"], totals["requests"]) == ({"acceptance": 4}, {"stop": 6})
    assert totals["prompt_tokens"] == 14


def test_further_keys_of_a_snapshot_are_shown(registry: RegistryState) -> None:
    registry.report(verifier(snapshot={"step_cost": {"1": 0.02}}), 0.0)
    assert registry.view(0.0)["verifiers"][0]["step_cost"] == {"1": 0.02}


@pytest.mark.parametrize(
    ("report", "named"),
    [
        ({}, "draft"),
        (drafter(pid="eleven"), "pid"),
        (drafter(sessions=-1), "sessions"),
        (drafter(public_key=None), "public_key"),
        (drafter(stats={"x": [1]}), "stats.x"),
        (drafter(draft="legal"), "'legal' is not configured; configured are general, code"),
        ("nonsense", "announcement"),
    ],
)
def test_bad_announcements_are_refused_by_name(registry: RegistryState, report: Any, named: str) -> None:
    with pytest.raises(BadReport, match=named):
        registry.announce(report, 0.0)
    assert registry.view(0.0)["drafters"][1]["replicas"] == []


@pytest.mark.parametrize(
    ("snapshot", "named"),
    [
        ({"acceptance": {"legal": {}}}, "'legal' is not configured"),
        ({"link": {"legal": {}}}, "'legal' is not configured"),
        (
            {"acceptance": {"code": {"poetry": {}}}},
            "'poetry' is not configured; configured are code, general",
        ),
        ({"acceptance": {"code": {"code": {"proposed": -1}}}}, "snapshot.acceptance.code.code.proposed"),
        ({"acceptance": {"code": {"code": {"by_position": [0] * 17}}}}, "by_position"),
        ({"tokens_per_second": float("inf")}, "tokens_per_second"),
        ({"link": {"code": {"round_trip_seconds": float("nan")}}}, "round_trip_seconds"),
        ({"switches": {'x"} 1': 1}}, "switches"),
        ({"notes": "x" * 70_000}, "bytes"),
        ({"notes": object()}, "JSON"),
    ],
)
def test_bad_snapshots_are_refused_by_name(
    registry: RegistryState, snapshot: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadReport, match=named):
        registry.report(verifier(snapshot=snapshot), 0.0)
    assert registry.view(0.0)["verifiers"] == []


def test_entries_are_bounded(registry: RegistryState) -> None:
    for number in range(MAX_ENTRIES):
        registry.announce(drafter(replica=f"d{number}"), 0.0)
    with pytest.raises(BadReport, match="drafter replicas"):
        registry.announce(drafter(replica="one-more"), 1.0)
    registry.announce(drafter(replica="d0"), FORGET_S)
    registry.announce(drafter(replica="one-more"), FORGET_S + 0.1)


def test_labels_are_bounded(registry: RegistryState) -> None:
    for number in range(MAX_LABELS):
        registry.report(verifier(snapshot={"switches": {f"reason-{number}": 1}}), 0.0)
    with pytest.raises(BadReport, match="domains and reasons"):
        registry.report(verifier(snapshot={"switches": {"one more": 1}}), 0.0)
    assert len(registry.view(0.0)["totals"]["switches"]) == MAX_LABELS


def test_domains_need_not_be_listed() -> None:
    registry = RegistryState(["code"], now=0.0)
    registry.report(verifier(snapshot=counted(4, 2, 1, domain="poetry")), 0.0)
    assert list(registry.view(0.0)["acceptance"]["code"]) == ["poetry"]


def test_vllms_own_way_to_propose_counts_like_a_draft_and_is_none() -> None:
    registry = RegistryState([], [], now=0.0, method="ngram")
    figures = {"proposed": 8, "accepted": 4, "steps": 2, "by_position": [2, 1, 1, 0]}
    own = {"acceptance": {"ngram": {"general": figures}}, "proposer": {"method": "ngram"}}
    assert registry.report(verifier(snapshot=own, public_key=""), 1.0) == {"drafters": []}
    view = registry.view(2.0)
    assert view["drafters"] == []
    assert view["acceptance"]["ngram"]["general"]["mean_acceptance_length"] == 3.0
    assert view["verifiers"][0]["proposer"] == {"method": "ngram"}
    with pytest.raises(BadReport, match="draft 'code' is not configured"):
        registry.report(verifier(snapshot=counted(1, 1, 1)), 3.0)
    with pytest.raises(BadReport, match="draft 'ngram' is not configured"):
        registry.announce(drafter("ngram"), 3.0)
