"""The registry's memory: who was heard when, and what was counted. Plain Python; time is passed in."""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.registry.counters import Ledger, flatten, summarise
from deployments.registry.reports import (
    AnnounceAnswer,
    BadReport,
    DrafterEntry,
    DrafterReport,
    ReportAnswer,
    VerifierReport,
    parse_drafter,
    parse_verifier,
)

# Everyone reports about once a second. A drafter is handed out only while it was heard this lately, ...
HAND_OUT_S = 3.0
# ... shown as away after this long, ...
AWAY_S = 5.0
# ... and dropped from the view after this long.
FORGET_S = 60.0
# Beyond this many entries of a kind something is wrong, such as a replica that makes up a new id each time.
MAX_ENTRIES = 512
# Names that verifiers may bring with them (domains, reasons): they become labels of metrics.
MAX_LABELS = 256

AWAY = "away"
# The domain of requests whose prompt fits none; always there, whether it is configured or not.
UNSURE_DOMAIN = "general"


@dataclass(frozen=True, slots=True)
class _DrafterEntry:
    report: DrafterReport
    heard: float


@dataclass(frozen=True, slots=True)
class _VerifierEntry:
    report: VerifierReport
    heard: float


class RegistryState:
    """Who is in the fleet, as told by themselves, and the sum of what verifiers counted.

    Args:
        drafts: names of the configured drafts; reports that name another one are refused.
        domains: names of the configured domains, or None to take any (bounded in number).
        now: seconds on any clock that never goes back; all later calls use the same clock.
        method: vLLM's own way to propose, where verifiers have one instead of drafts.
    """

    def __init__(
        self,
        drafts: Sequence[str],
        domains: Collection[str] | None = None,
        *,
        now: float,
        method: str | None = None,
    ) -> None:
        self._drafts = tuple(dict.fromkeys(drafts))
        self._method = method
        self._domains = None if domains is None else {*domains, UNSURE_DOMAIN}
        self._labels: set[tuple[str, str]] = set()
        self._started = now
        self._incarnation = uuid.uuid4().hex
        self._drafters: dict[str, _DrafterEntry] = {}
        self._verifiers: dict[str, _VerifierEntry] = {}
        self._ledger = Ledger()

    def announce(self, report: dict[str, Any], now: float) -> AnnounceAnswer:
        """Note that a drafter replica lives.

        Raises:
            BadReport: malformed, of a draft that is not configured, or one entry too many.
        """
        drafter = parse_drafter(report)
        self._check_draft(drafter.draft)
        self._forget_silent(now)
        self._check_room(self._drafters, drafter.replica, "drafter replicas")
        self._drafters[drafter.replica] = _DrafterEntry(drafter, now)
        keys = {entry.report.public_key for entry in self._verifiers.values()}
        return {"client_keys": sorted(keys - {""})}

    def report(self, report: dict[str, Any], now: float) -> ReportAnswer:
        """Note that a verifier replica lives and what it has counted.

        Raises:
            BadReport: malformed, of a draft or domain that is not configured, or one entry too many.
        """
        verifier = parse_verifier(report)
        self._check_snapshot(verifier)
        self._forget_silent(now)
        self._check_room(self._verifiers, verifier.replica, "verifier replicas")
        known = self._verifiers.get(verifier.replica)
        if known is None or not _overtaken(verifier, known.report):
            self._verifiers[verifier.replica] = _VerifierEntry(verifier, now)
            # A process counts from its own start, so it is the process that is the source, not the replica.
            self._ledger.update(f"{verifier.replica}/{verifier.pid}", flatten(verifier.snapshot))
        return {"drafters": self._hand_out(now)}

    def view(self, now: float) -> dict[str, Any]:
        """The whole fleet as plain JSON data; see `deployments.registry.replica.Registry.view`."""
        self._forget_silent(now)
        totals = summarise(self._ledger.totals())
        return {
            "registry": {"incarnation": self._incarnation, "uptime_s": now - self._started},
            "verifiers": [self._verifier_view(entry, now) for _, entry in sorted(self._verifiers.items())],
            "drafters": [self._draft_view(draft, now) for draft in self._drafts],
            "acceptance": totals.pop("acceptance"),
            "totals": totals,
        }

    def _hand_out(self, now: float) -> list[DrafterEntry]:
        return [
            {
                "draft": entry.report.draft,
                "replica": replica,
                "address": entry.report.address,
                "public_key": entry.report.public_key,
            }
            for replica, entry in sorted(self._drafters.items())
            if now - entry.heard <= HAND_OUT_S and entry.report.state == "ready"
        ]

    def _verifier_view(self, entry: _VerifierEntry, now: float) -> dict[str, Any]:
        report = entry.report
        away = now - entry.heard > AWAY_S
        shown = report.snapshot.model_dump()
        if away:
            # What it did a moment ago is not what it does now.
            shown |= {"running": 0, "waiting": 0, "tokens_per_second": 0.0}
        return {
            **shown,
            "replica": report.replica,
            "model": report.model,
            "pid": report.pid,
            "node": report.node,
            "state": AWAY if away else report.state,
            "silent_s": now - entry.heard,
        }

    def _draft_view(self, draft: str, now: float) -> dict[str, Any]:
        replicas: list[dict[str, Any]] = [
            {
                "replica": replica,
                "address": entry.report.address,
                "pid": entry.report.pid,
                "node": entry.report.node,
                "model": entry.report.model,
                "state": AWAY if now - entry.heard > AWAY_S else entry.report.state,
                "sessions": entry.report.sessions,
                "stats": entry.report.stats,
                "silent_s": now - entry.heard,
            }
            for replica, entry in sorted(self._drafters.items())
            if entry.report.draft == draft
        ]
        present = [replica for replica in replicas if replica["state"] != AWAY]
        states = {replica["state"] for replica in present}
        return {
            "name": draft,
            # One ready replica serves the draft; otherwise say what the others are about.
            "state": "ready" if "ready" in states else min(states, default=AWAY),
            "sessions": sum(replica["sessions"] for replica in present),
            "replicas": replicas,
        }

    def _check_draft(self, draft: str) -> None:
        if draft not in self._drafts:
            raise BadReport(
                f"draft {draft!r} is not configured; configured are {', '.join(self._drafts) or 'none'}"
            )

    def _check_snapshot(self, verifier: VerifierReport) -> None:
        snapshot = verifier.snapshot
        for draft in {*snapshot.acceptance, *snapshot.link} - {self._method}:
            self._check_draft(draft)
        domains = {domain for figures in snapshot.acceptance.values() for domain in figures}
        if self._domains is not None and not domains <= self._domains:
            unknown = min(domains - self._domains)
            raise BadReport(
                f"domain {unknown!r} is not configured; configured are {', '.join(sorted(self._domains))}"
            )
        kinds = {"domain": domains, "switch": snapshot.switches, "request": snapshot.requests}
        labels = self._labels.union((kind, name) for kind, names in kinds.items() for name in names)
        if len(labels) > MAX_LABELS:
            raise BadReport(f"more than {MAX_LABELS} different domains and reasons; is one making them up?")
        self._labels = labels

    def _check_room(self, entries: Collection[str], replica: str, what: str) -> None:
        if replica not in entries and len(entries) >= MAX_ENTRIES:
            raise BadReport(
                f"more than {MAX_ENTRIES} {what} within {FORGET_S:.0f} s; is one making up new ids?"
            )

    def _forget_silent(self, now: float) -> None:
        self._drafters = {k: v for k, v in self._drafters.items() if now - v.heard <= FORGET_S}
        self._verifiers = {k: v for k, v in self._verifiers.items() if now - v.heard <= FORGET_S}


def _overtaken(report: VerifierReport, known: VerifierReport) -> bool:
    """Whether `report` was sent before `known` by the same process and only arrived later."""
    return report.pid == known.pid and report.sent_at < known.sent_at
