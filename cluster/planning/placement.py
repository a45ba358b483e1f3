"""Puts verifiers and drafters on the nodes' GPUs, whole and fractional, and says why something does not fit.

Ray counts `num_gpus` and nothing else: fractions share a GPU until they add up to 1, and a replica with whole
GPUs needs them empty, all on one node. Whether the memory suffices is nobody's concern there: it is checked
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.planning.gpus import Gpu

#: 0.1 ten times is not quite 1.
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Node:
    """One machine.

    Attributes:
        gpu: the type of its GPUs.
        gpus: how many.
        cpus: CPUs; None when nobody said.
    """

    gpu: Gpu
    gpus: int
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """One replica, which has to fit on one node.

    Attributes:
        owner: whose it is.
        gpus: GPUs: whole ones, or a fraction of one.
        gib: memory that it needs on each of its GPUs.
        gib_taken: memory that it fills on each of its GPUs, when that is more (vLLM takes what it may).
        cpus: CPUs.
        key: what to change in a configuration to give it less or more.
        gpu: the type of GPU that it is meant for; any when empty.
    """

    owner: str
    gpus: float
    gib: float
    gib_taken: float
    cpus: float = 0.0
    key: str = ""
    gpu: str = ""


@dataclass(slots=True)
class Slot:
    """One GPU and who is on it.

    Attributes:
        node: number of its node.
        index: its number there.
        gpu: its type.
        tenants: (owner, share of the GPU, GiB).
    """

    node: int
    index: int
    gpu: Gpu
    tenants: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def free(self) -> float:
        """Share of the GPU that Ray still has to give."""
        return 1.0 - sum(share for _, share, _ in self.tenants)

    @property
    def filled_gib(self) -> float:
        """Memory that its tenants fill."""
        return sum(gib for *_, gib in self.tenants)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything goes.

    Attributes:
        slots: every GPU of every node.
        problems: what does not fit, and why; empty when all fits.
    """

    slots: tuple[Slot, ...]
    problems: tuple[str, ...]

    @property
    def used(self) -> int:
        """GPUs that have a tenant."""
        return sum(bool(slot.tenants) for slot in self.slots)


def place(units: Sequence[Unit], nodes: Sequence[Node]) -> Placement:
    """Largest first, each on the first node with room; fractions on the fullest GPU that still takes them."""
    slots = [Slot(number, index, node.gpu) for number, node in enumerate(nodes) for index in range(node.gpus)]
    cpus = {number: node.cpus for number, node in enumerate(nodes)}
    problems: list[str] = []
    for unit in sorted(units, key=lambda unit: (unit.gpus, unit.gib), reverse=True):
        problem = _put(unit, slots, cpus, len(nodes))
        if problem is not None and problem not in problems:
            problems.append(problem)
    return Placement(tuple(slots), tuple(problems))


def _put(unit: Unit, slots: list[Slot], cpus: dict[int, float | None], nodes: int) -> str | None:
    """Puts a replica somewhere; returns why that is not possible."""
    reasons: list[str] = []
    for node in range(nodes):
        free_cpus = cpus[node]
        if free_cpus is not None and free_cpus + _SLACK < unit.cpus:
            reasons.append(f"node {node} has {free_cpus:g} CPUs left of the {unit.cpus:g} that it asks for")
            continue
        here = [slot for slot in slots if slot.node == node]
        if unit.gpu and here and here[0].gpu.name != unit.gpu:
            reasons.append(f"node {node} has {here[0].gpu.name}, not {unit.gpu}")
            continue
        chosen, reason = _choose(unit, here)
        if chosen is None:
            reasons.append(f"node {node} {reason}")
            continue
        for slot in chosen:
            slot.tenants.append((unit.owner, min(unit.gpus, 1.0), unit.gib_taken))
        if free_cpus is not None:
            cpus[node] = free_cpus - unit.cpus
        return None
    hint = f"; change {unit.key}, or add nodes" if unit.key else ""
    return f"{unit.owner} does not fit: " + ("; ".join(reasons) or "there are no nodes") + hint


def _choose(unit: Unit, here: list[Slot]) -> tuple[list[Slot] | None, str]:
    """The GPUs of one node that a replica gets, or why there are none."""
    if unit.gpus <= 0:
        return [], ""
    small = [slot for slot in here if slot.gpu.memory_gib + _SLACK < unit.gib]
    if here and len(small) == len(here):
        most = max(slot.gpu.memory_gib for slot in here)
        return None, f"has GPUs of {most:.1f} GiB, and it needs {unit.gib:.1f} GiB on each of its GPUs"
    if unit.gpus >= 1:
        many = round(unit.gpus)
        empty = [slot for slot in here if slot.free > 1 - _SLACK and slot not in small]
        if len(empty) < many:
            return None, f"has {len(empty)} empty GPUs of the {many} that it needs"
        return empty[:many], ""
    shared = [slot for slot in here if slot.free + _SLACK >= unit.gpus]
    if not shared:
        return None, f"has no GPU with {unit.gpus:g} of it free"
    roomy = [slot for slot in shared if slot.filled_gib + unit.gib_taken <= slot.gpu.memory_gib + _SLACK]
    if not roomy:
        left = max(slot.gpu.memory_gib - slot.filled_gib for slot in shared)
        return (
            None,
            f"has {left:.1f} GiB left on a GPU with a share free, and it needs {unit.gib_taken:.1f} GiB",
        )
    return [min(roomy, key=lambda slot: slot.free)], ""
