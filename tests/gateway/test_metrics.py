"""The text that Prometheus gets, read back with Prometheus' own parser."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.gateway.fleet_view import FleetPicture
from deployments.gateway.metrics import render
from deployments.registry.state import RegistryState


def snapshot() -> dict[str, Any]:
    return {
        "acceptance": {
            "code": {"code": {"proposed": 40, "accepted": 30, "steps": 10, "by_position": [10, 10, 7, 3]}},
            "general": {
                "general": {"proposed": 8, "accepted": 2, "steps": 4, "by_position": [2]},
                'odd "\\\n': {"proposed": 1, "accepted": 0, "steps": 1, "by_position": [0]},
            },
        },
        "switches": {"acceptance": 3},
        "requests": {"stop": 5, "length": 1},
        "generation_tokens": 90,
        "prompt_tokens": 12,
        "link": {"code": {"sent": 11, "late": 1, "round_trips": 10, "round_trip_seconds": 0.5}},
        "running": 2,
        "waiting": 1,
        "tokens_per_second": 42.5,
        "cache": {"usage": 0.25},
    }


@pytest.fixture
def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    state = RegistryState(["code", "general"], now=0.0)
    state.report({"replica": "v1", "model": "smol", "pid": 1, "snapshot": snapshot()}, 0.0)
    state.report({"replica": "v2", "model": "smol", "pid": 1, "snapshot": snapshot()}, 0.0)
    state.report({"replica": "v3", "model": "foreign", "pid": 1}, 0.0)
    entry = {
        "draft": "code",
        "replica": "d",
        "address": "tcp://h:1",
        "public_key": "k",
        "pid": 2,
        "sessions": 6,
    }
    state.announce(entry, 0.0)
    return read(render(FleetPicture(state.view(0.0), 0.0, True), ["smol"]))


def read(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.name.startswith("specfleet:")
        assert family.documentation
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name.endswith("_total")
            key = (sample.name.removeprefix("specfleet:"), tuple(sorted(sample.labels.items())))
            assert key not in found, "a series twice"
            found[key] = sample.value
    return found


@pytest.mark.parametrize(
    ("name", "labels", "number"),
    [
        ("registry_up", {}, 1),
        ("spec_decode_num_drafts_total", {"draft": "code", "domain": "code"}, 20),
        ("spec_decode_num_draft_tokens_total", {"draft": "code", "domain": "code"}, 80),
        ("spec_decode_num_accepted_tokens_total", {"draft": "general", "domain": "general"}, 4),
        ("spec_decode_num_draft_tokens_total", {"draft": "general", "domain": 'odd "\\\n'}, 2),
        ("spec_decode_num_accepted_tokens_per_pos_total", {"position": "0"}, 24),
        ("spec_decode_num_accepted_tokens_per_pos_total", {"position": "3"}, 6),
        ("draft_switches_total", {"reason": "acceptance"}, 6),
        ("request_success_total", {"finished_reason": "stop"}, 10),
        ("generation_tokens_total", {}, 180),
        ("prompt_tokens_total", {}, 24),
        ("link_round_trip_seconds_sum", {"draft": "code"}, 1.0),
        ("link_round_trip_seconds_count", {"draft": "code"}, 20),
        ("link_late_total", {"draft": "code"}, 2),
        ("link_sent_total", {"draft": "code"}, 22),
        ("drafters_up", {"draft": "code"}, 1),
        ("drafters_up", {"draft": "general"}, 0),
        ("num_drafter_sessions", {"draft": "code"}, 6),
        ("verifiers_up", {"model_name": "smol"}, 2),
        ("num_requests_running", {"model_name": "smol"}, 4),
        ("num_requests_waiting", {"model_name": "smol"}, 2),
        ("generation_tokens_per_second", {"model_name": "smol"}, 85),
        ("kv_cache_usage_perc", {"model_name": "smol"}, 0.25),
    ],
)
def test_figures(samples: dict[Any, float], name: str, labels: dict[str, str], number: float) -> None:
    assert samples[name, tuple(sorted(labels.items()))] == number


def test_labels_are_bounded(samples: dict[Any, float]) -> None:
    names = {label for _, labels in samples for label, _ in labels}
    assert names == {"draft", "domain", "reason", "finished_reason", "position", "model_name"}
    assert not any(("model_name", "foreign") in labels for _, labels in samples)


def test_without_a_registry_ever() -> None:
    assert read(render(FleetPicture({}, 0.0, False), ["smol"])) == {("registry_up", ()): 0}


def test_the_last_known_state_is_shown_while_the_registry_is_away() -> None:
    state = RegistryState(["code", "general"], now=0.0)
    state.report({"replica": "v1", "model": "smol", "pid": 1, "snapshot": snapshot()}, 0.0)
    found = read(render(FleetPicture(state.view(0.0), 99.0, False), ["smol"]))
    assert found["registry_up", ()] == 0
    assert found["generation_tokens_total", ()] == 90
