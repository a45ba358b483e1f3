"""How many GPUs a load needs at a speed, with drafts and without."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cluster.planning.assumptions import Assumptions
from cluster.planning.fleet import Fleet, evaluate, without_drafts
from cluster.planning.gpus import Gpu
from cluster.planning.options import DraftModel

#: Most verifiers that the search tries.
MOST_VERIFIERS = 64
#: Verifiers that share one GPU for drafters: what the search tries.
_VERIFIERS_OF_A_DRAFT_GPU = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Need:
    """What reaches a speed for the least price.

    Attributes:
        verifiers: how many.
        parallel: GPUs of each.
        draft_gpus: GPUs for drafters.
        gpus: all GPUs.
        price: of all for an hour.
    """

    verifiers: int
    parallel: int
    draft_gpus: int
    gpus: int
    price: float


@dataclass(frozen=True, slots=True)
class Spared:
    """GPUs that a load needs at a speed.

    Attributes:
        speed: tokens per second that every request gets.
        plain: without drafts; None when no number of GPUs reaches the speed.
        drafted: with drafts, likewise.
    """

    speed: float
    plain: Need | None
    drafted: Need | None


def spared(
    base: Fleet,
    drafts: Sequence[DraftModel],
    gpu: Gpu,
    node_gpus: int,
    speed: float,
    assumptions: Assumptions,
) -> Spared:
    """The cheapest fleets that give every request of the load `speed` tokens per second.

    Args:
        base: the verifier alone.
        drafts: the drafts.
        gpu: type of GPU that drafts get; a drafter of every draft is on each.
        node_gpus: GPUs of a node: the widest verifier.
        speed: tokens per second.
        assumptions: the load, and all else.
    """
    plain: Need | None = None
    drafted: Need | None = None
    for size in base.verifier.shape.parallel_sizes(node_gpus):
        wide = replace(base, verifier=replace(base.verifier, parallel=size))

        def alone(count: int, wide: Fleet = wide) -> Fleet:
            return without_drafts(replace(wide, replicas=count))

        count = _least(alone, speed, assumptions)
        if count is not None:
            plain = _cheaper(plain, alone(count), count, 0)
        for together in _VERIFIERS_OF_A_DRAFT_GPU:

            def aided(count: int, wide: Fleet = wide, together: int = together) -> Fleet:
                many = math.ceil(count / together)
                return _aided(without_drafts(replace(wide, replicas=count)), drafts, gpu, many, assumptions)

            count = _least(aided, speed, assumptions)
            if count is not None:
                drafted = _cheaper(drafted, aided(count), count, math.ceil(count / together))
    return Spared(speed, plain, drafted)


def _aided(
    fleet: Fleet, drafts: Sequence[DraftModel], gpu: Gpu, many: int, assumptions: Assumptions
) -> Fleet:
    placed = tuple(draft.on(gpu, "drafts", assumptions, many) for draft in drafts)
    price = fleet.price_per_hour + many * gpu.price_per_hour
    return replace(fleet, drafts=placed, gpus=fleet.gpus + many, price_per_hour=price)


def _least(fleet: Callable[[int], Fleet], speed: float, assumptions: Assumptions) -> int | None:
    """The least number of verifiers that reach the speed; more of them are never slower for a request."""
    if not _reaches(fleet(MOST_VERIFIERS), speed, assumptions):
        return None
    low, high = 0, MOST_VERIFIERS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches(fleet(middle), speed, assumptions) else (middle, high)
    return high


def _reaches(fleet: Fleet, speed: float, assumptions: Assumptions) -> bool:
    outcome = evaluate(fleet, assumptions)
    return outcome is not None and outcome.waiting < 0.5 and outcome.request_rate >= speed


def _cheaper(best: Need | None, fleet: Fleet, verifiers: int, draft_gpus: int) -> Need:
    found = Need(verifiers, fleet.verifier.parallel, draft_gpus, round(fleet.gpus), fleet.price_per_hour)
    return found if best is None or found.price < best.price else best
