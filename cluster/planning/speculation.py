"""What proposals are worth and what asking for them costs.

Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192, gives
the tokens of a step; the costs are those of this fleet: drafters in processes of their own, asked after every
step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.planning.assumptions import Hardware, Speculation
from cluster.planning.errors import PlanError
from cluster.planning.roofline import Engine


@dataclass(frozen=True, slots=True)
class DraftOn:
    """A draft and where its drafters run.

    Attributes:
        name: the draft.
        engine: its model on its processor.
        acceptance: chance that a proposed token is accepted, given that those before it were.
        share: share of the requests that it serves; the shares of all drafts add up to 1.
        device: names the processor; drafts with the same one take turns on it.
        replicas: its drafters; each serves its part of the requests of every verifier.
        own: every verifier has such drafters to itself.
        sharers: fleets that share the processor, each asking as much as this one.
    """

    name: str
    engine: Engine
    acceptance: float
    share: float
    device: str
    replicas: int = 1
    own: bool = False
    sharers: int = 1


def expected_tokens(acceptance: float, length: int) -> float:
    """Tokens of a step with `length` proposed ones: (1 - a^(k+1)) / (1 - a), equation 1 of the paper."""
    if acceptance >= 1.0:
        return length + 1.0
    return float((1.0 - acceptance ** (length + 1)) / (1.0 - acceptance))


def acceptance_from(mean_length: float, length: int) -> float:
    """The acceptance behind a measured mean acceptance length at `length` proposed tokens: the inverse.

    Raises:
        PlanError: a mean length that `length` proposed tokens cannot have.
    """
    if not 1.0 <= mean_length <= length + 1.0:
        raise PlanError(
            f"a mean acceptance length of {mean_length:g} at k = {length} is not possible",
            f"it lies between 1 and {length + 1}",
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, length) < mean_length else (low, middle)
    return (low + high) / 2


def draft_seconds(
    draft: DraftOn, rows: float, length: int, context: float, hardware: Hardware, speculation: Speculation
) -> float:
    """Seconds that one drafter computes for a question about `rows` requests, `length` tokens each.

    The first pass also takes in the tokens that the last step accepted; the rest are one token a row.
    """
    if length == 0:
        return 0.0
    taken = expected_tokens(draft.acceptance, length)
    first = draft.engine.decode_seconds(rows, taken, context, hardware)
    later = draft.engine.decode_seconds(rows, 1.0, context, hardware)
    return first + (length - 1) * later + speculation.turn_ms * 1e-3


def busy_seconds(
    drafts: Sequence[DraftOn],
    rows: float,
    lengths: Mapping[str, int],
    context: float,
    hardware: Hardware,
    speculation: Speculation,
) -> float:
    """Seconds until the last drafter has answered one verifier, the link apart.

    All are asked at once. Those on one processor take turns on it, but not in the gaps between a drafter's
    kernels, which others fill in part; the slowest processor counts. Where there are fewer requests than
    drafts, only some drafts are asked at all.
    """
    occupied: dict[str, float] = {}
    slowest = alone = 0.0
    for draft in drafts:
        each = rows * draft.share / draft.replicas
        chance, length = min(each, 1.0), lengths[draft.name]
        seconds = draft_seconds(draft, max(each, 1.0), length, context, hardware, speculation)
        gaps = _gap_seconds(draft, length, hardware, speculation)
        alone += draft.share * seconds
        slowest = max(slowest, chance * seconds)
        occupied[draft.device] = occupied.get(draft.device, 0.0) + chance * (
            seconds - speculation.gap_overlap * gaps
        )
    # `alone`: at a single request exactly one draft is asked, wherever it runs.
    return max(slowest, max(occupied.values(), default=0.0), alone * min(1.0, 1.0 / rows))


def _gap_seconds(draft: DraftOn, length: int, hardware: Hardware, speculation: Speculation) -> float:
    """Seconds of a proposal in which its processor idles: kernels launched one by one, work on the host."""
    if length == 0:
        return 0.0
    idle_us = 0.0 if draft.engine.gpu.cpu else max(0.0, draft.engine.layer_us - hardware.layer_us)
    return length * draft.engine.shape.layers * idle_us * 1e-6 + speculation.turn_ms * 1e-3


def wait_seconds(
    drafts: Sequence[DraftOn],
    rows: float,
    lengths: Mapping[str, int],
    context: float,
    verifiers: float,
    step_s: float,
    hardware: Hardware,
    speculation: Speculation,
) -> float:
    """Mean seconds that a verifier waits for its proposals, others' questions included.

    A drafter takes the questions of several verifiers that lie before it in one turn: a question waits for
    half of the turn that is under way, if one is, and is then computed with those that came meanwhile. Other
    fleets on the same processor are in other processes: they take turns with ours.

    Args:
        drafts: the drafts.
        rows: requests of one verifier.
        lengths: draft -> tokens proposed.
        context: tokens that each request has so far.
        verifiers: how many ask the same drafters.
        step_s: seconds of a verifier's step without the wait.
        hardware: what is reached of the peak.
        speculation: costs of asking.
    """
    link = speculation.link_ms * 1e-3

    def busy(many: float) -> float:
        return busy_seconds(drafts, rows * many, lengths, context, hardware, speculation)

    wait = busy(1.0)
    others = 0.0 if drafts[0].own else max(0.0, verifiers - 1.0)
    if others > 0.0:
        meets = min(1.0, wait / (step_s + link + wait))  # chance that a given other one is asking just then
        together = busy(1.0 + others * meets)
        wait = together + min(1.0, others * meets) * together / 2
    sharers = drafts[0].sharers - 1
    if sharers > 0:
        cycle = max(step_s + link + wait, (1 + sharers) * wait)
        wait = max(wait + sharers * wait * wait / (2 * cycle), (1 + sharers) * wait - step_s - link)
    return wait + link
