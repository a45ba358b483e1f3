"""The fleet's status as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_COLOURS = {"ready": "green", "starting": "yellow", "stopping": "yellow", "away": "red"}


def render(status: Mapping[str, Any]) -> RenderableType:
    """Lays out what ``/specfleet/status`` says; parts that are missing are left out."""
    totals = status.get("totals") or {}
    verifiers, drafters = status.get("verifiers") or [], status.get("drafters") or []
    own = _own_ways(verifiers)
    parts: list[RenderableType] = [_verifiers(verifiers), *own]
    if drafters or not own:
        parts.append(_drafters(drafters, totals.get("link") or {}))
    parts.append(_acceptance(status.get("acceptance") or {}))
    reasons = [
        _counts("Changes of draft", totals.get("switches")),
        _counts("Requests", totals.get("requests")),
    ]
    parts += [line for line in reasons if line is not None]
    if not status.get("registry_up", True):
        age = float(status.get("age_s") or 0.0)
        parts.append(Text(f"The registry does not answer; these figures are {age:.0f} s old.", "red"))
    return Group(*parts)


def _verifiers(verifiers: list[Mapping[str, Any]]) -> Table:
    table = _table("Verifiers", "model", "state")
    for name in ("run", "wait", "tokens/s", "KV used", "prefix hits"):
        table.add_column(name, justify="right")
    for each in verifiers:
        cache = each.get("cache") or {}
        table.add_row(
            str(each.get("model", "?")),
            _state(each),
            str(each.get("running", "-")),
            str(each.get("waiting", "-")),
            f"{float(each.get('tokens_per_second') or 0.0):.1f}",
            _percent(cache.get("usage")),
            _percent(_share(cache.get("hits"), cache.get("queries"))),
        )
    return table


def _own_ways(verifiers: list[Mapping[str, Any]]) -> list[RenderableType]:
    """One line for each of vLLM's own ways to propose that verifiers have instead of drafts."""
    lines: dict[str, None] = {}
    for each in verifiers:
        proposer = each.get("proposer") or {}
        method, model = proposer.get("method"), proposer.get("model")
        if method:
            tokens = proposer.get("num_speculative_tokens", "?")
            source = f" ({model})" if model else ""
            lines[f"vLLM's own {method}{source} proposes {tokens} tokens a step; there are no drafts."] = None
    return [Text(line) for line in lines]


def _drafters(drafters: list[Mapping[str, Any]], link: Mapping[str, Mapping[str, float]]) -> Table:
    table = _table("Drafters", "draft", "state")
    for name in ("replicas", "sessions", "asked", "in time", "late", "trip"):
        table.add_column(name, justify="right")
    for each in drafters:
        figures = link.get(str(each.get("name")), {})
        sent, answered = figures.get("sent", 0.0), figures.get("answered", 0.0)
        trips = figures.get("round_trips", 0.0)
        table.add_row(
            str(each.get("name", "?")),
            _state(each),
            str(len(each.get("replicas") or [])),
            str(each.get("sessions", 0)),
            f"{sent:.0f}",
            f"{answered / sent:.1%}" if sent else "-",
            f"{figures.get('late', 0.0):.0f}",
            f"{1000 * figures.get('round_trip_seconds', 0.0) / trips:.1f} ms" if trips else "-",
        )
    return table


def _acceptance(acceptance: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    table = _table("Acceptance", "draft", "domain")
    for name in ("proposed", "accepted", "rate", "mean length"):
        table.add_column(name, justify="right")
    for draft, domains in acceptance.items():
        for domain, figures in domains.items():
            proposed, accepted = int(figures.get("proposed", 0)), int(figures.get("accepted", 0))
            steps = int(figures.get("steps", 0))
            table.add_row(
                draft,
                domain,
                str(proposed),
                str(accepted),
                f"{accepted / proposed:.0%}" if proposed else "-",
                f"{1 + accepted / steps:.2f}" if steps else "-",
            )
    return table


def _counts(title: str, counts: Mapping[str, Any] | None) -> Text | None:
    if not counts:
        return None
    shown = ", ".join(f"{reason} {int(count)}" for reason, count in counts.items())
    return Text(f"{title}: {shown}", "dim")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _state(entry: Mapping[str, Any]) -> Text:
    state = str(entry.get("state", "?"))
    return Text(state, _COLOURS.get(state, "yellow"))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table
