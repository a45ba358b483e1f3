"""Which drafts the batch as a whole should wait for.

A step waits for the slowest draft that was asked. Each request pays its own share of that wait when it
chooses, as if all others chose alike; where they do not, a few requests of a slow draft would make everybody
wait. So the batch has the last word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router.costs import StepCost, WaitCost
from router.prices import Option, Prices
from router.request import RequestState
from router.types import Reason

#: A draft comes off the bench, or goes on it, for at least this gain.
_LEAST_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class Pick:
    """What one request would do by itself.

    Attributes:
        state: The request; None when it is not known.
        draft: The draft to ask, or None.
        length: Tokens to ask for.
        accepted: Expected accepted tokens.
        reason: Why.
        forced: Whether the batch may not overrule it.
        considered: What was compared.
    """

    state: RequestState | None
    draft: str | None
    length: int
    accepted: float
    reason: Reason
    forced: bool
    considered: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the batch does.

    Attributes:
        benched: Drafts not to ask in this step, except for forced picks.
        speedup: Expected tokens per second relative to plain decoding.
    """

    benched: frozenset[str]
    speedup: float


@dataclass(slots=True)
class _Share:
    """What one draft adds to the step."""

    proposed: int = 0
    accepted: float = 0.0
    longest: int = 0
    wait_s: float = 0.0

    def add(self, length: int, accepted: float) -> None:
        self.proposed += length
        self.accepted += accepted
        self.longest = max(self.longest, length)


def worth_waiting_for(
    picks: Sequence[Pick],
    prices: Prices,
    steps: StepCost,
    waits: Mapping[str, WaitCost],
    benched: frozenset[str],
) -> Verdict:
    """Bench the slowest drafts as long as the batch gains by it.

    Args:
        picks: What each request would do by itself.
        prices: Of this step.
        steps: Step times.
        waits: Waits by draft.
        benched: The drafts benched before; changing that needs a clear gain.
    """
    forced = _Share()
    shares: dict[str, _Share] = {}
    for pick in picks:
        if pick.draft is None:
            continue
        if pick.forced:
            forced.add(pick.length, pick.accepted)
            forced.wait_s = max(forced.wait_s, waits[pick.draft].curve()[pick.length])
        else:
            share = shares.get(pick.draft)
            if share is None:
                share = shares[pick.draft] = _Share()
            share.add(pick.length, pick.accepted)
    for draft, share in shares.items():
        share.wait_s = waits[draft].curve()[share.longest]
    order = sorted(shares, key=lambda draft: shares[draft].wait_s)
    plain_rate = prices.rows / prices.plain_s

    # Drafts from the fastest on: asking the first n of them, for n = 0, 1, ...
    proposed, accepted, wait_s = forced.proposed, forced.accepted, forced.wait_s
    best = now = (prices.rows + accepted) / (steps.seconds(prices.rows, proposed) + wait_s)
    best_count, now_count = 0, 0
    for count, draft in enumerate(order, start=1):
        share = shares[draft]
        proposed += share.proposed
        accepted += share.accepted
        wait_s = max(wait_s, share.wait_s)
        rate = (prices.rows + accepted) / (steps.seconds(prices.rows, proposed) + wait_s)
        if rate > best:
            best, best_count = rate, count
        if draft not in benched and count == now_count + 1:
            now, now_count = rate, count
    if best <= now * (1.0 + _LEAST_GAIN):
        best, best_count = now, now_count
    return Verdict(frozenset(order[best_count:]), best / plain_rate)
