"""Counters that never fall, although the processes that count them come and go.

A verifier counts from its own start. Whoever reads the fleet's totals (Prometheus above all) needs sums
that only grow, so what a process counted before it went stays in the sum, and a process that was only out of
reach is not counted twice when it is heard again.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from deployments.registry.reports import LinkFigures, VerifierSnapshot

# One counter: what it counts, then what it is split by, such as ("proposed", draft, domain).
Leaf = tuple[str, ...]
Counts = dict[Leaf, float]

ACCEPTANCE_FIELDS = ("proposed", "accepted", "steps")
LINK_COUNTERS = tuple(name for name in LinkFigures.model_fields if name != "up")


def flatten(snapshot: VerifierSnapshot) -> Counts:
    """All counters of a snapshot by name; gauges are left out."""
    counts: Counts = {
        ("generation_tokens",): snapshot.generation_tokens,
        ("prompt_tokens",): snapshot.prompt_tokens,
    }
    for draft, domains in snapshot.acceptance.items():
        for domain, figures in domains.items():
            for field in ACCEPTANCE_FIELDS:
                counts[field, draft, domain] = getattr(figures, field)
            for position, accepted in enumerate(figures.by_position):
                counts["position", draft, domain, str(position)] = accepted
    for reason, number in snapshot.switches.items():
        counts["switch", reason] = number
    for reason, number in snapshot.requests.items():
        counts["request", reason] = number
    for draft, link in snapshot.link.items():
        for field in LINK_COUNTERS:
            counts["link", draft, field] = getattr(link, field)
    return counts


def add(into: Counts, counts: Mapping[Leaf, float]) -> None:
    """Add `counts` to `into`, counter by counter."""
    for leaf, number in counts.items():
        into[leaf] = into.get(leaf, 0) + number


class Ledger:
    """Sums the counters of many sources, each of which may restart, go away and come back.

    Args:
        max_sources: most sources remembered one by one; the longest silent one beyond that is merged into a
            sum and would be counted anew if it ever came back.
    """

    def __init__(self, max_sources: int = 256) -> None:
        self._max_sources = max_sources
        # Least recently heard first.
        self._latest: OrderedDict[str, Counts] = OrderedDict()
        self._settled: Counts = {}

    def update(self, source: str, counts: Counts) -> None:
        """Take the newest counters of `source`; a counter that fell means that it began again from zero."""
        before = self._latest.pop(source, {})
        for leaf, number in before.items():
            if counts.get(leaf, 0) < number:
                self._settled[leaf] = self._settled.get(leaf, 0) + number
        self._latest[source] = dict(counts)
        while len(self._latest) > self._max_sources:
            _, oldest = self._latest.popitem(last=False)
            add(self._settled, oldest)

    def totals(self) -> Counts:
        """The sum over all sources, past and present. No counter in it ever falls."""
        sums = dict(self._settled)
        for counts in self._latest.values():
            add(sums, counts)
        return sums


def summarise(counts: Mapping[Leaf, float]) -> dict[str, Any]:
    """Lay counters out as JSON data: acceptance by draft and domain, link by draft, the rest by reason."""
    acceptance: dict[str, dict[str, dict[str, Any]]] = {}
    link: dict[str, dict[str, float]] = {}
    switches: dict[str, float] = {}
    requests: dict[str, float] = {}
    plain: dict[str, float] = {"generation_tokens": 0, "prompt_tokens": 0}
    positions: dict[tuple[str, str], dict[int, float]] = {}
    for leaf, number in sorted(counts.items()):
        match leaf:
            case ("position", draft, domain, position):
                positions.setdefault((draft, domain), {})[int(position)] = number
            case ("link", draft, field):
                link.setdefault(draft, {})[field] = number
            case ("switch", reason):
                switches[reason] = number
            case ("request", reason):
                requests[reason] = number
            case (field, draft, domain):
                acceptance.setdefault(draft, {}).setdefault(domain, {})[field] = number
            case (name,):
                plain[name] = number
    for draft, domains in acceptance.items():
        for domain, figures in domains.items():
            by_position = positions.get((draft, domain), {})
            figures["by_position"] = [by_position.get(i, 0) for i in range(max(by_position, default=-1) + 1)]
            proposed, accepted, steps = (figures[field] for field in ACCEPTANCE_FIELDS)
            figures["acceptance_rate"] = accepted / proposed if proposed else 0.0
            figures["mean_acceptance_length"] = 1 + accepted / steps if steps else 1.0
    return {"acceptance": acceptance, "link": link, "switches": switches, "requests": requests, **plain}
