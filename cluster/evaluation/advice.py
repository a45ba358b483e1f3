"""From predicted speeds to what to do: which draft for which domain, how long, and where not at all. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.evaluation.result import WORTH, BatchAdvice, CandidateInfo, DomainAdvice, Speed

#: The configuration's own choice stays unless another is predicted to be better by this share.
_CLEARLY = 1.02


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for all domains.

    Attributes:
        domains: domain by domain.
        drafts: domain -> the draft that its configuration should name.
        generalist: the draft for everything else.
        max_draft_tokens: the longest proposal that is best anywhere; at least 1.
        summary: the whole in one sentence.
    """

    domains: list[DomainAdvice]
    drafts: dict[str, str]
    generalist: str
    max_draft_tokens: int
    summary: str


def choose(
    speeds: Sequence[Speed],
    candidates: Sequence[CandidateInfo],
    configured: Mapping[str, str],
    generalist: str,
) -> Choice:
    """Choose for every domain.

    Args:
        speeds: predictions; the lowest temperature decides, the others are only told.
        candidates: who was evaluated.
        configured: domain -> its draft in the configuration.
        generalist: the configuration's generalist.

    Raises:
        ValueError: there is no prediction for any candidate that the fleet can serve.
    """
    table = _Table(speeds)
    served = [one.name for one in candidates if one.served]
    looked_up = [one.name for one in candidates if not one.served]
    if not any(one.candidate in served for one in speeds):
        raise ValueError("nothing was predicted for any candidate that the fleet can serve")
    overall = _generalist(table, served, list(configured), generalist)
    advice, drafts = [], {}
    for domain, present in configured.items():
        best = _best_draft(table, domain, served, present)
        one = _advise(table, domain, best, looked_up)
        advice.append(one)
        # A draft that pays nowhere is not asked there; naming the generalist keeps the fleet small.
        drafts[domain] = one.candidate or overall
    lengths = [batch.length for one in advice for batch in one.batches]
    return Choice(advice, drafts, overall, max(1, *lengths), _summary(advice))


class _Table:
    """Predictions at the lowest temperature, and the rest beside them."""

    def __init__(self, speeds: Sequence[Speed]) -> None:
        self.temperatures = sorted({one.temperature for one in speeds})
        self.batches = sorted({one.batch for one in speeds})
        self._best: dict[tuple[str, str, float, int], Speed] = {}
        for one in speeds:
            key = (one.domain, one.candidate, one.temperature, one.batch)
            if key not in self._best or one.predicted > self._best[key].predicted:
                self._best[key] = one

    def best(self, domain: str, candidate: str, batch: int, temperature: float | None = None) -> Speed | None:
        at = self.temperatures[0] if temperature is None else temperature
        return self._best.get((domain, candidate, at, batch))

    def value(self, domain: str, candidate: str) -> float:
        """Mean gain over the batch sizes (geometric), where the router would not draft for less than none."""
        logs = []
        for batch in self.batches:
            speed = self.best(domain, candidate, batch)
            logs.append(math.log(max(1.0, speed.predicted)) if speed is not None else 0.0)
        return math.exp(sum(logs) / len(logs))


def _best_draft(table: _Table, domain: str, served: Sequence[str], present: str) -> str:
    best = max(served, key=lambda name: table.value(domain, name))
    if present in served and table.value(domain, best) < _CLEARLY * table.value(domain, present):
        return present
    return best


def _generalist(table: _Table, served: Sequence[str], domains: Sequence[str], present: str) -> str:
    def over_all(name: str) -> float:
        return math.prod(table.value(domain, name) for domain in domains) ** (1 / len(domains))

    best = max(served, key=over_all)
    if present in served and over_all(best) < _CLEARLY * over_all(present):
        return present
    return best


def _advise(table: _Table, domain: str, name: str, looked_up: Sequence[str]) -> DomainAdvice:
    batches = []
    for rows in table.batches:
        speed = table.best(domain, name, rows)
        assert speed is not None
        worth = speed.predicted >= WORTH
        batches.append(BatchAdvice(batch=rows, length=speed.length if worth else 0, speedup=speed.predicted))
    worthy = [one for one in batches if one.length]
    words = [_worth(domain, name, batches) if worthy else _not_worth(table, domain, name, batches)]
    if worthy:
        words += _warmer(table, domain, name, worthy)
    words += _without_drafter(table, domain, name, looked_up)
    return DomainAdvice(
        domain=domain, candidate=name if worthy else None, words=" ".join(words), batches=batches
    )


def _worth(domain: str, name: str, batches: Sequence[BatchAdvice]) -> str:
    worthy = [one for one in batches if one.length]
    lengths = {one.length for one in worthy}
    if len(lengths) == 1:
        gains = " and ".join(f"{one.speedup:.2f}x at batch {one.batch}" for one in worthy)
        text = f"Use {name} for {domain}, k = {lengths.pop()}: {gains}."
    else:
        gains = ", ".join(f"k = {one.length} at batch {one.batch} ({one.speedup:.2f}x)" for one in worthy)
        text = f"Use {name} for {domain}: {gains}."
    idle = [one.batch for one in batches if not one.length]
    if not idle:
        return text
    first, last = worthy[0].batch, worthy[-1].batch
    if min(idle) > last:
        return f"{text} It is not worth it from batch {min(idle)} on; the router then stops asking by itself."
    if max(idle) < first:
        return f"{text} It is not worth it below batch {first}; the router then does not ask."
    return f"{text} It is not worth it at batch {', '.join(map(str, idle))}."


def _not_worth(table: _Table, domain: str, name: str, batches: Sequence[BatchAdvice]) -> str:
    best = max(batches, key=lambda one: one.speedup)
    speed = table.best(domain, name, best.batch)
    assert speed is not None
    return (
        f"No draft is worth it for {domain}: the best, {name} with k = {speed.length}, gives "
        f"{best.speedup:.2f}x at batch {best.batch}."
    )


def _warmer(table: _Table, domain: str, name: str, worthy: Sequence[BatchAdvice]) -> list[str]:
    """What becomes of it at higher temperatures."""
    told = []
    for temperature in table.temperatures[1:]:
        speeds = [table.best(domain, name, one.batch, temperature) for one in worthy]
        gains = [speed.predicted for speed in speeds if speed is not None]
        if not gains:
            continue
        if max(gains) < WORTH:
            told.append(f"At temperature {temperature:g} it gives nothing.")
        else:
            low, high = min(gains), max(gains)
            span = f"{high:.2f}x" if high - low < 0.01 else f"{low:.2f}x to {high:.2f}x"
            told.append(f"At temperature {temperature:g}: {span}.")
    return told


def _without_drafter(table: _Table, domain: str, name: str, looked_up: Sequence[str]) -> list[str]:
    if not looked_up:
        return []
    best = max(looked_up, key=lambda one: table.value(domain, one))
    value, own = table.value(domain, best), table.value(domain, name)
    if value < max(WORTH, own):
        return []
    speeds = [(rows, table.best(domain, best, rows)) for rows in table.batches]
    gains = " and ".join(f"{speed.predicted:.2f}x at batch {rows}" for rows, speed in speeds if speed)
    return [f"No drafter is needed here: {best} alone would give {gains} (the fleet cannot serve it yet)."]


def _summary(advice: Sequence[DomainAdvice]) -> str:
    worthy = [one for one in advice if one.candidate]
    if not worthy:
        return "None of the drafts is worth running for these domains on this machine."
    gains = [max(batch.speedup for batch in one.batches if batch.length) for one in worthy]
    who = ", ".join(f"{one.candidate} for {one.domain}" for one in worthy)
    rest = [one.domain for one in advice if not one.candidate]
    tail = f"; drafting is not worth it for {', '.join(rest)}" if rest else ""
    return f"Worth it: {who} (up to {max(gains):.2f}x){tail}."
