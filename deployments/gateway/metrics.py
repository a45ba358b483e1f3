"""The fleet's figures for Prometheus, named as vLLM names its own.

They come from the registry, not from this process, so every gateway replica shows the same ones and none of
them falls when a replica restarts. Labels are bounded: drafts, domains, reasons, positions, model names.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from deployments.gateway.fleet_view import FleetPicture

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "specfleet:"

_SPECULATION = {
    "steps": ("spec_decode_num_drafts", "Steps of requests that carried a proposal."),
    "proposed": ("spec_decode_num_draft_tokens", "Tokens proposed by drafters."),
    "accepted": ("spec_decode_num_accepted_tokens", "Proposed tokens that the verifier accepted."),
}
_LINK = {
    "sent": "Messages sent to drafters.",
    "answered": "Answers of drafters that came in time.",
    "missed": "Messages to drafters without an answer at the step's deadline.",
    "late": "Answers of drafters that came after the step's deadline.",
    "skipped": "Requests that a drafter was not asked about while it was behind.",
    "dropped": "Messages to drafters that were not sent because the pipe was full.",
    "resyncs": "Times a drafter asked for a context from its beginning.",
    "too_long": "Contexts longer than the draft's window.",
    "busy": "Times a drafter had no room for a session.",
    "refused": "Messages that a drafter refused.",
    "foreign": "Answers of drafters to another epoch, step or session.",
    "bad": "Answers of drafters that could not be used.",
    "tokens_sent": "Tokens sent to drafters.",
    "bytes_sent": "Bytes sent to drafters.",
    "drafter_busy_seconds": "Time that drafters computed for the answers.",
}


def render(picture: FleetPicture, models: Collection[str]) -> bytes:
    """The figures in Prometheus' text format.

    Args:
        picture: the fleet as it was last seen; counters of an old picture stay where they were.
        models: the verifiers' model names that may become labels.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FleetCollector(picture, models))
    return generate_latest(registry)


class _FleetCollector(Collector):
    def __init__(self, picture: FleetPicture, models: Collection[str]) -> None:
        self._view = picture.view
        self._up = picture.registry_up
        self._models = models

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "registry_up", "Whether the registry answers; if not, the rest is the last known state.", self._up
        )
        if not self._view:
            return
        yield from self._speculation()
        yield from self._link()
        yield from self._drafters()
        yield from self._verifiers()

    def _speculation(self) -> Iterator[Metric]:
        acceptance = self._view["acceptance"]
        positions: dict[int, float] = defaultdict(int)
        for field, (name, text) in _SPECULATION.items():
            counter = _counter(name, text, "draft", "domain")
            for draft, domains in acceptance.items():
                for domain, figures in domains.items():
                    counter.add_metric([draft, domain], figures[field])
            yield counter
        for domains in acceptance.values():
            for figures in domains.values():
                for position, accepted in enumerate(figures["by_position"]):
                    positions[position] += accepted
        by_position = _counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens at each position of a proposal.",
            "position",
        )
        for position, accepted in sorted(positions.items()):
            by_position.add_metric([str(position)], accepted)
        yield by_position
        totals = self._view["totals"]
        yield _by_label("draft_switches", "Changes of a request's draft.", "reason", totals["switches"])
        yield _by_label("request_success", "Finished requests.", "finished_reason", totals["requests"])
        for name, text in (("generation", "Tokens generated."), ("prompt", "Prompt tokens processed.")):
            counter = _counter(f"{name}_tokens", text)
            counter.add_metric([], totals[f"{name}_tokens"])
            yield counter

    def _link(self) -> Iterator[Metric]:
        link = self._view["totals"]["link"]
        trips = SummaryMetricFamily(
            f"{PREFIX}link_round_trip_seconds",
            "Time from a question to a drafter until its answer.",
            labels=["draft"],
        )
        for draft, figures in link.items():
            trips.add_metric([draft], figures["round_trips"], figures["round_trip_seconds"])
        yield trips
        for field, text in _LINK.items():
            counts = {draft: figures[field] for draft, figures in link.items()}
            yield _by_label(f"link_{field}", text, "draft", counts)

    def _drafters(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            f"{PREFIX}drafters_up", "Replicas of a draft that are ready.", labels=["draft"]
        )
        sessions = GaugeMetricFamily(
            f"{PREFIX}num_drafter_sessions",
            "Sessions whose KV the replicas of a draft hold.",
            labels=["draft"],
        )
        for draft in self._view["drafters"]:
            ready = [replica for replica in draft["replicas"] if replica["state"] == "ready"]
            up.add_metric([draft["name"]], len(ready))
            sessions.add_metric([draft["name"]], draft["sessions"])
        yield up
        yield sessions

    def _verifiers(self) -> Iterator[Metric]:
        texts = {
            "verifiers_up": "Verifier replicas that are ready.",
            "num_requests_running": "Requests that the verifiers run now.",
            "num_requests_waiting": "Requests that wait in the verifiers.",
            "generation_tokens_per_second": "Tokens that the verifiers generate per second now.",
            "kv_cache_usage_perc": "Share of the KV cache in use in the fullest verifier (1 is all of it).",
        }
        gauges = {
            name: GaugeMetricFamily(f"{PREFIX}{name}", text, labels=["model_name"])
            for name, text in texts.items()
        }
        for model in sorted(self._models):
            verifiers = [entry for entry in self._view["verifiers"] if entry["model"] == model]
            present = [entry for entry in verifiers if entry["state"] != "away"]
            for name, number in _model_gauges(present).items():
                gauges[name].add_metric([model], number)
        yield from gauges.values()


def _model_gauges(verifiers: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "verifiers_up": sum(entry["state"] == "ready" for entry in verifiers),
        "num_requests_running": sum(entry["running"] for entry in verifiers),
        "num_requests_waiting": sum(entry["waiting"] for entry in verifiers),
        "generation_tokens_per_second": sum(entry["tokens_per_second"] for entry in verifiers),
        "kv_cache_usage_perc": max((entry["cache"].get("usage", 0.0) for entry in verifiers), default=0.0),
    }


def _gauge(name: str, text: str, number: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}{name}", text, value=float(number))


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}{name}", text, labels=list(labels))


def _by_label(name: str, text: str, label: str, counts: dict[str, float]) -> CounterMetricFamily:
    counter = _counter(name, text, label)
    for key, number in counts.items():
        counter.add_metric([key], number)
    return counter
