"""The ways to spend GPUs: the verifier alone, drafts here or there, one more verifier, a wider one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cluster.planning.assumptions import Assumptions
from cluster.planning.fleet import Fleet, Outcome, evaluate, fit_of, without_drafts
from cluster.planning.gpus import Gpu
from cluster.planning.memory import drafter_gib
from cluster.planning.precision import Precision
from cluster.planning.roofline import Engine
from cluster.planning.shape import ModelShape
from cluster.planning.speculation import DraftOn

#: A part of a GPU is enough for the drafts when it keeps this share of a whole one's tokens per second.
_KEPT = 0.97

Kind = Literal["base", "drafts", "verifier"]


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft before it has a place.

    Attributes:
        name: the draft.
        shape: its model.
        precision: what its matrices are in.
        kv_number_bytes: bytes of a number in its KV slots.
        acceptance: chance that a proposed token is accepted, given that those before it were.
        share: share of the requests that it serves.
    """

    name: str
    shape: ModelShape
    precision: Precision
    kv_number_bytes: float
    acceptance: float
    share: float

    def on(self, gpu: Gpu, device: str, assumptions: Assumptions, replicas: int = 1) -> DraftOn:
        """The draft on a processor."""
        layer_us = assumptions.speculation.draft_layer_us
        engine = Engine(self.shape, self.precision, self.kv_number_bytes, gpu, 1, layer_us)
        return DraftOn(self.name, engine, self.acceptance, self.share, device, replicas)

    def gib(self, assumptions: Assumptions) -> float:
        """Memory of one drafter that serves its share of the load, GiB."""
        load = assumptions.load
        return drafter_gib(
            self.shape,
            self.precision,
            self.kv_number_bytes,
            max(1.0, load.concurrency * self.share),
            load.prompt_tokens + load.answer_tokens,
            assumptions.memory.drafter_runtime_gib,
        )[0]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to spend GPUs.

    Attributes:
        name: for people.
        kind: whether its GPUs beyond the base go to drafts or to the verifier.
        key: names it in code.
        fleet: what it is; None when it is not possible.
        outcome: what it does under the load.
        why_not: why it is not possible.
    """

    name: str
    kind: Kind
    key: str
    fleet: Fleet | None
    outcome: Outcome | None
    why_not: str = ""

    @property
    def configurable(self) -> bool:
        """Whether it is possible, and a fleet's configuration can say it today."""
        return self.outcome is not None and self.key != "beside"


def all_options(
    base: Fleet, drafts: Sequence[DraftModel], draft_gpu: Gpu, node_gpus: int, assumptions: Assumptions
) -> list[Option]:
    """Everything that is compared, the base first.

    Args:
        base: the verifier alone.
        drafts: the drafts, in no place yet.
        draft_gpu: type of GPU for those that get one of their own.
        node_gpus: GPUs of a node: the widest verifier.
        assumptions: the load, and all else.
    """
    base = without_drafts(base)
    options = [_option("verifier alone", "base", "base", base, assumptions)]
    if drafts:
        if not base.verifier.gpu.cpu:
            options.append(_beside(base, drafts, assumptions))
        options.append(on_one_gpu(base, drafts, draft_gpu, assumptions))
        shared = None if draft_gpu.cpu else on_a_fraction(base, drafts, draft_gpu, assumptions)
        options += [shared] if shared is not None else []
        if len(drafts) > 1:
            options.append(_on_a_gpu_each(base, drafts, draft_gpu, assumptions))
    options.append(one_more_verifier(base, assumptions))
    if not base.verifier.gpu.cpu:
        options.append(_wider(base, node_gpus, assumptions))
    return options


def on_one_gpu(base: Fleet, drafts: Sequence[DraftModel], gpu: Gpu, assumptions: Assumptions) -> Option:
    """All drafts together on one more GPU, each with a fraction of it."""
    name = f"{_them(drafts)} on one more {gpu.name}"
    needed = sum(draft.gib(assumptions) for draft in drafts)
    if needed > gpu.memory_gib:
        return Option(
            name, "drafts", "whole", None, None, f"they need {needed:.1f} GiB of {gpu.memory_gib:.1f}"
        )
    placed = tuple(draft.on(gpu, "drafts", assumptions) for draft in drafts)
    return _option(name, "drafts", "whole", _with(base, placed, 1, gpu), assumptions)


def on_a_fraction(
    base: Fleet, drafts: Sequence[DraftModel], gpu: Gpu, assumptions: Assumptions
) -> Option | None:
    """The drafts on a part of a GPU whose rest serves other fleets as busy as this one.

    Returns:
        The smallest part that keeps most of what a whole one gives; None when not even a half holds them.
    """
    gib = sum(draft.gib(assumptions) for draft in drafts)
    whole = on_one_gpu(base, drafts, gpu, assumptions).outcome
    best: Option | None = None
    for parts in (2, 4, 8):
        if whole is None or gib * parts > gpu.memory_gib:
            break
        placed = tuple(replace(draft.on(gpu, "drafts", assumptions), sharers=parts) for draft in drafts)
        name = f"{_them(drafts)} on 1/{parts} of one more {gpu.name}"
        found = _option(name, "drafts", "fraction", _with(base, placed, 1 / parts, gpu), assumptions)
        kept = found.outcome is not None and found.outcome.rate >= _KEPT * whole.rate
        if best is None or kept:
            best = found
    return best


def one_more_verifier(base: Fleet, assumptions: Assumptions) -> Option:
    """Another replica of the verifier."""
    return _option("one more verifier", "verifier", "replica", _of_size(base, base.replicas + 1), assumptions)


def _on_a_gpu_each(base: Fleet, drafts: Sequence[DraftModel], gpu: Gpu, assumptions: Assumptions) -> Option:
    name = f"each draft on a {gpu.name} of its own"
    large = next((draft for draft in drafts if draft.gib(assumptions) > gpu.memory_gib), None)
    if large is not None:
        what = f"draft {large.name} needs {large.gib(assumptions):.1f} GiB of {gpu.memory_gib:.1f}"
        return Option(name, "drafts", "each", None, None, what)
    placed = tuple(draft.on(gpu, draft.name, assumptions) for draft in drafts)
    return _option(name, "drafts", "each", _with(base, placed, len(drafts), gpu), assumptions)


def _beside(base: Fleet, drafts: Sequence[DraftModel], assumptions: Assumptions) -> Option:
    """Drafts in the memory of a verifier GPU; each verifier has its own, so that none waits for another's."""
    name = f"{_them(drafts)} on the verifier's GPU"
    gib = sum(draft.gib(assumptions) for draft in drafts)
    gpu = base.verifier.gpu
    placed = tuple(replace(draft.on(gpu, "verifier", assumptions), own=True) for draft in drafts)
    fleet = replace(base, drafts=placed, taken_gib=gib)
    if fit_of(fleet, assumptions).requests < 1:
        return Option(name, "drafts", "beside", None, None, f"their {gib:.1f} GiB leave no room for KV")
    return _option(name, "drafts", "beside", fleet, assumptions)


def _wider(base: Fleet, node_gpus: int, assumptions: Assumptions) -> Option:
    """The verifier over twice as many GPUs."""
    size = base.verifier.parallel * 2
    name = f"verifier over {size} GPUs"
    if size > node_gpus:
        return Option(name, "verifier", "wider", None, None, f"GPUs of a node: {node_gpus}")
    if size not in base.verifier.shape.parallel_sizes(size):
        heads = base.verifier.shape.heads
        return Option(name, "verifier", "wider", None, None, f"its {heads} heads do not divide by {size}")
    wide = replace(base, verifier=replace(base.verifier, parallel=size))
    return _option(name, "verifier", "wider", _of_size(wide, base.replicas), assumptions)


def _them(drafts: Sequence[DraftModel]) -> str:
    return "drafts" if len(drafts) > 1 else "draft"


def _of_size(base: Fleet, replicas: int) -> Fleet:
    return without_drafts(replace(base, replicas=replicas))


def _with(base: Fleet, drafts: tuple[DraftOn, ...], gpus: float, gpu: Gpu) -> Fleet:
    return replace(
        base,
        drafts=drafts,
        gpus=base.gpus + gpus,
        price_per_hour=base.price_per_hour + gpus * gpu.price_per_hour,
    )


def _option(name: str, kind: Kind, key: str, fleet: Fleet, assumptions: Assumptions) -> Option:
    outcome = evaluate(fleet, assumptions)
    why_not = "" if outcome is not None else "not one request of this length fits"
    return Option(name, kind, key, fleet if outcome else None, outcome, why_not)
