"""What one more proposed token costs the batch, and the length of proposal that is worth it.

The step is shared by the whole batch, so the question for one request is not how fast it could be alone but
what the batch writes per second. Let R requests have k tokens proposed each, of which E(k) are accepted on
average; the step then takes T(R, R k), and the wait for proposals W(k). Maximising R (1 + E) / (T + W) is the
same as maximising

    E(k) - v * (T(R, R k) - T(R, 0) + W(k)) / R

where v is the best rate itself, in tokens per second of the batch (Dinkelbach, On nonlinear fractional
programming, 1967). The second term is the price: the tokens that the batch forgoes while it waits and
verifies. Written so, requests with different acceptance choose separately and still share one clock. The
difference is the gain over plain decoding in tokens per step; plain decoding has gain 0 and writes 1 token.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from router.acceptance import CEILING
from router.costs import StepCost, WaitCost


@dataclass(slots=True)
class Option:
    """One draft at its best length for one request.

    Attributes:
        draft: The draft.
        length: Tokens to propose.
        accepted: Expected accepted tokens per step, E(k).
        gain: Expected gain over plain decoding, tokens per step; negative when it does not pay.
    """

    draft: str
    length: int
    accepted: float
    gain: float


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of one step.

    Attributes:
        rows: Requests in the batch, R.
        plain_s: Seconds of the step without any proposals.
        seconds: Draft -> seconds of step and wait if every request had 0, 1, ... tokens of it proposed.
        price: Draft -> tokens per request that the batch forgoes for 0, 1, ... proposed tokens each.
    """

    rows: int
    plain_s: float
    seconds: Mapping[str, list[float]]
    price: Mapping[str, list[float]]


def price_step(
    steps: StepCost, waits: Mapping[str, WaitCost], drafts: Collection[str], rows: int, speedup: float
) -> Prices:
    """Prices of a step of `rows` requests, given the batch's present speed-up over plain decoding (>= 1)."""
    curve = steps.curve(rows)
    plain = curve[0]
    per_second = speedup / plain  # v / R: what one request of the batch writes per second
    seconds: dict[str, list[float]] = {}
    price: dict[str, list[float]] = {}
    for draft in drafts:
        total = [step + wait for step, wait in zip(curve, waits[draft].curve(), strict=True)]
        seconds[draft] = total
        price[draft] = [per_second * (one - plain) for one in total]
    return Prices(rows, plain, seconds, price)


def best_length(
    draft: str,
    rates: list[float],
    factor: float,
    delivery: float,
    price: list[float],
    longest: int,
    keep: int,
    least_gain: float,
) -> Option:
    """The length of proposal that gains most.

    Args:
        draft: The draft.
        rates: Chance of each position to be accepted, given those before it.
        factor: The request's own acceptance relative to those rates.
        delivery: Chance that the draft answers at all.
        price: See `Prices.price`.
        longest: Longest allowed, tokens, at least 1.
        keep: The length so far; kept unless another is better by `least_gain`. 0 for none.
        least_gain: Share of what is written per step.

    Returns:
        The option; its length is at least 1.
    """
    reach, accepted = delivery, 0.0
    best_gain, best, best_accepted = -1e9, 1, 0.0
    kept_gain, kept_accepted = -1e9, 0.0
    for length in range(1, longest + 1):
        rate = rates[length - 1] * factor
        reach *= rate if rate < CEILING else CEILING
        accepted += reach
        gain = accepted - price[length]
        if gain > best_gain:
            best_gain, best, best_accepted = gain, length, accepted
        if length == keep:
            kept_gain, kept_accepted = gain, accepted
    if best_gain - kept_gain <= least_gain * (1.0 + max(kept_gain, 0.0)):
        return Option(draft, keep, kept_accepted, kept_gain)
    return Option(draft, best, best_accepted, best_gain)


def fixed_length(option: Option, rates: list[float], length: int) -> Option:
    """The same draft at a length that somebody else decided, with what it is expected to give there.

    Args:
        option: The draft at its best length.
        rates: Chance of each position to be accepted, given those before it.
        length: Tokens to propose, at least 1 and at most `len(rates)`.
    """
    reach, accepted = 1.0, 0.0
    for rate in rates[:length]:
        reach *= min(rate, CEILING)
        accepted += reach
    return Option(option.draft, length, accepted, option.gain)
