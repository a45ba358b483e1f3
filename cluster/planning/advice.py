"""When a GPU for drafts beats a GPU for the verifier, and what to do at the given load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cluster.planning.assumptions import Assumptions
from cluster.planning.fleet import Fleet, evaluate, with_acceptance
from cluster.planning.options import DraftModel, Option

#: Loads at which the comparison is repeated.
LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: Two ways that differ by less than this are called equal: the model is not finer.
LEAST_GAIN = 0.02
#: Acceptance above this is not seen between two different models.
HIGHEST_ACCEPTANCE = 0.95


@dataclass(frozen=True, slots=True)
class LoadRow:
    """The comparison at one load.

    Attributes:
        concurrency: requests in flight.
        rates: option's name -> tokens per second; None where it is not possible.
        winner: what adds most tokens per second for its price; empty when nothing adds any.
    """

    concurrency: int
    rates: dict[str, float | None]
    winner: str


def best_addition(options: Sequence[Option], assumptions: Assumptions, concurrency: float) -> Option | None:
    """Of the options that cost more than the base, the one that adds most tokens per second for its price.

    Returns:
        None when none of them adds anything.
    """
    base = options[0]
    start = evaluate(base.fleet, assumptions, concurrency) if base.fleet else None
    if start is None or base.fleet is None:
        return None
    best: tuple[float, Option] | None = None
    for option in options[1:]:
        value = _value(option, base.fleet, start.rate, assumptions, concurrency)
        if value is not None and (best is None or value > best[0]):
            best = (value, option)
    return best[1] if best else None


def cheapest(options: Sequence[Option]) -> Option | None:
    """The option whose tokens cost least under the load; one that is not clearly cheaper is not taken."""
    best: Option | None = None
    for option in options:
        price = _price(option)
        if option.configurable and (best is None or price < _price(best) * (1 - LEAST_GAIN)):
            best = option
    return best


def by_load(options: Sequence[Option], assumptions: Assumptions) -> list[LoadRow]:
    """The comparison over `LOADS` and the load itself, up to where nothing changes any more."""
    rows: list[LoadRow] = []
    for concurrency in sorted({*LOADS, assumptions.load.concurrency}):
        rates: dict[str, float | None] = {}
        for option in options:
            outcome = evaluate(option.fleet, assumptions, concurrency) if option.fleet else None
            rates[option.name] = outcome.rate if outcome else None
        winner = best_addition(options, assumptions, concurrency)
        full = rows and all(rates[name] == rate for name, rate in rows[-1].rates.items())
        if not full or concurrency == assumptions.load.concurrency:
            rows.append(LoadRow(concurrency, rates, winner.name if winner else ""))
    return rows


def least_acceptance(
    draft: Option, options: Sequence[Option], assumptions: Assumptions, *, against: str
) -> float | None:
    """The acceptance from which `draft` is worth more, for its price, than its rivals; None: never.

    Args:
        draft: the option with drafts.
        options: all options, the base first.
        assumptions: the load, and all else.
        against: ``base``: drafts have to gain anything at all; ``verifier``: more than a GPU for that would.
    """
    base = options[0]
    if draft.fleet is None or base.fleet is None or base.outcome is None:
        return None
    start, concurrency = base.outcome.rate, float(assumptions.load.concurrency)
    rivals = [option for option in options if option.kind == "verifier"] if against == "verifier" else []
    values = [_value(option, base.fleet, start, assumptions, concurrency) for option in rivals]
    to_beat = max((value for value in values if value is not None), default=0.0)

    def wins(acceptance: float) -> bool:
        assert draft.fleet is not None
        assert base.fleet is not None
        fleet = with_acceptance(draft.fleet, acceptance)
        value = _value(replace(draft, fleet=fleet), base.fleet, start, assumptions, concurrency)
        return value is not None and value > to_beat

    return _first(wins, HIGHEST_ACCEPTANCE)


def recommend(
    options: Sequence[Option], drafts: Sequence[DraftModel], assumptions: Assumptions, rows: Sequence[LoadRow]
) -> list[str]:
    """What to do, in a few sentences."""
    base = options[0]
    if base.outcome is None or base.fleet is None:
        return [
            f"The verifier does not fit: {base.why_not}. Take more or larger GPUs, or a smaller precision."
        ]
    said = []
    if base.outcome.waiting > 0.5:
        said.append(
            f"Of {assumptions.load.concurrency} requests only {base.outcome.running:.0f} run at a time: "
            "memory or max_num_seqs is the limit, and what adds room gains most."
        )
    if not drafts:
        return [*said, "No draft was given (--draft): only the verifier was planned for."]
    unit = "core" if base.fleet.verifier.gpu.cpu else "GPU"
    least = cheapest(options)
    if least is not None and least.outcome is not None:
        k = _proposed(least)
        said.append(
            f"Cheapest per token with {assumptions.load.concurrency} in flight: {least.name}{k}, "
            f"{least.outcome.price_per_million:.2f} per million"
            + (f" (verifier alone: {base.outcome.price_per_million:.2f})." if least is not base else ".")
        )
    possible = [option for option in options if option.kind == "drafts" and option.outcome is not None]
    best = best_addition(options, assumptions, assumptions.load.concurrency)
    if best is None or best.outcome is None or best.fleet is None:
        said.append(f"More {unit}s gain nothing at this load: {_nothing_pays(possible)}.")
    else:
        more = best.fleet.gpus - base.fleet.gpus
        said.append(
            f"More {unit}s are best spent on: {best.name}{_proposed(best)}, "
            f"{best.outcome.rate / base.outcome.rate - 1:+.0%} tokens/s for {more:g} more, "
            f"{best.outcome.price_per_million:.2f} per million."
        )
    said += _thresholds(possible, options, assumptions, rows)
    return said


def _thresholds(
    possible: Sequence[Option], options: Sequence[Option], assumptions: Assumptions, rows: Sequence[LoadRow]
) -> list[str]:
    said = []
    unit = "core" if options[0].fleet and options[0].fleet.verifier.gpu.cpu else "GPU"
    names = {option.name for option in possible}
    won = [row.concurrency for row in rows if row.winner in names]
    if won and len(won) < len(rows):
        where = f"at {_ranges(won, rows)} requests in flight, else on the verifier or not at all"
    elif won:
        where = f"at every load from {rows[0].concurrency} to {rows[-1].concurrency} requests in flight"
    else:
        where = f"at no load up to {rows[-1].concurrency} requests in flight"
    said.append(f"The next {unit} is better spent on drafts {where}.")
    own = next((option for option in possible if option.key == "whole"), None)
    if own is not None:
        load = f"At {assumptions.load.concurrency} in flight"
        gains = least_acceptance(own, options, assumptions, against="base")
        beats = least_acceptance(own, options, assumptions, against="verifier")
        if gains is None:
            said.append(f"{load} no acceptance makes a {unit} for drafts worth while.")
        elif beats is None:
            said.append(
                f"{load} a {unit} for drafts gains from an acceptance of {gains:.2f}, but one for the "
                "verifier gains more for its price at any."
            )
        else:
            said.append(
                f"{load} a {unit} for drafts gains from an acceptance of {gains:.2f}, and more for its price "
                f"than one for the verifier from {beats:.2f}."
            )
    return said


def _nothing_pays(possible: Sequence[Option]) -> str:
    if not possible:
        return "no place for the drafts was found, and a larger verifier gains nothing"
    if not any(option.outcome and option.outcome.speculates for option in possible):
        return "at this acceptance no proposal is worth the wait for it, nor does a larger verifier help"
    return "nothing adds as much as 2 %"


def _price(option: Option) -> float:
    return option.outcome.price_per_million if option.outcome else math.inf


def _proposed(option: Option) -> str:
    if option.kind != "drafts" or option.outcome is None:
        return ""
    lengths = sorted(set(option.outcome.lengths.values()))
    many = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    return f" (k = {many})"


def _ranges(won: Sequence[int], rows: Sequence[LoadRow]) -> str:
    """Runs of neighbouring loads as people write them: ``1 to 16 and 64``."""
    loads = [row.concurrency for row in rows]
    runs: list[list[int]] = []
    for load in won:
        if runs and loads.index(load) == loads.index(runs[-1][-1]) + 1:
            runs[-1].append(load)
        else:
            runs.append([load])
    return " and ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _value(
    option: Option, base: Fleet, start: float, assumptions: Assumptions, concurrency: float
) -> float | None:
    """Tokens per second gained for each unit of price added; None when it adds no price or gains nothing."""
    added = option.fleet.price_per_hour - base.price_per_hour if option.fleet else 0.0
    if option.fleet is None or added <= 0:
        return None
    outcome = evaluate(option.fleet, assumptions, concurrency)
    if outcome is None or outcome.rate < start * (1 + LEAST_GAIN):
        return None
    return (outcome.rate - start) / added


def _first(wins: Callable[[float], bool], highest: float) -> float | None:
    """The least acceptance that wins; more acceptance never loses."""
    if not wins(highest):
        return None
    low, high = 0.0, highest
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high
