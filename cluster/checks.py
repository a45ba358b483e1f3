"""What a configuration's parts mean for each other and for the machines, found before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.config import OF_DRAFTS, FleetConfig, NodeSettings
from cluster.model_checks import check_models
from cluster.problems import Problem
from cluster.yaml_source import KeyPath, dotted

#: Fewer examples than this cannot describe a domain at all.
MIN_EXAMPLES = 4
#: Fewer than this recognise a domain poorly.
FEW_EXAMPLES = 16
#: `x-specfleet-draft: none` asks for plain decoding.
RESERVED_DRAFTS = frozenset({"none"})


@dataclass(frozen=True, slots=True)
class Unit:
    """Something that has to fit on one node as a whole: one replica.

    Attributes:
        owner: whose replica it is, for messages.
        path: the key that asks for it.
        cpus: CPUs of the replica.
        gpus: GPUs of the replica; fractions share one GPU.
    """

    owner: str
    path: KeyPath
    cpus: float
    gpus: float


def check_fleet(config: FleetConfig) -> list[Problem]:
    """Checks everything that the configuration alone can tell; no files, no machine."""
    if config.verifier.proposer is not None:
        return list(_fixed(config))
    return [*_empty(config), *_names(config), *_quantisations(config), *_domains(config)]


def check_machine(config: FleetConfig) -> list[Problem]:
    """Checks the configuration against this machine's model folders and against the nodes' resources."""
    return [*check_models(config), *_resources(config), *_cores(config)]


def _fixed(config: FleetConfig) -> Iterator[Problem]:
    """A fleet whose verifier proposes in a way of vLLM's own has no drafts, and nothing that is for them."""
    assert config.verifier.proposer is not None
    given = [key for key in OF_DRAFTS if key in config.model_fields_set]
    if given:
        yield Problem(
            "verifier.proposer",
            f"with it vLLM's {config.verifier.proposer.method} proposes in every step of the verifier, and "
            f"{' and '.join(given)} would never be used",
            f"take {' and '.join(given)} out; or take verifier.proposer out, and the drafts propose",
        )


def _empty(config: FleetConfig) -> Iterator[Problem]:
    for key in OF_DRAFTS:
        if not getattr(config, key):
            description = FleetConfig.model_fields[key].description or ""
            yield Problem(key, "required and missing", description.rstrip("."))


def _names(config: FleetConfig) -> Iterator[Problem]:
    drafts = ", ".join(config.drafts)
    if config.generalist and config.generalist not in config.drafts:
        yield Problem("generalist", f"there is no draft {config.generalist!r}", f"the drafts are: {drafts}")
    for name, domain in config.domains.items():
        if domain.draft not in config.drafts:
            yield Problem(
                dotted(("domains", name, "draft")),
                f"there is no draft {domain.draft!r}",
                f"the drafts are: {drafts}",
            )
    used = {domain.draft for domain in config.domains.values()} | {config.generalist}
    for name in config.drafts:
        if name in RESERVED_DRAFTS:
            yield Problem(
                dotted(("drafts", name)),
                "a draft cannot have this name",
                "it asks for plain decoding in requests",
            )
        elif name not in used:
            todo = "name it in domains.NAME.draft or as the generalist, or take it out"
            yield Problem(dotted(("drafts", name)), "no domain uses this draft", todo)


def _quantisations(config: FleetConfig) -> Iterator[Problem]:
    for name, draft in config.drafts.items():
        asked = draft.quantise == "int8" and "quantise" in draft.model_fields_set
        if asked and not draft.runs_int8():
            place = "GPUs" if draft.on_gpu else draft.dtype
            yield Problem(
                dotted(("drafts", name, "quantise")),
                f"has no effect on {place}: 8 bits are for float32 on CPUs",
                "take it out",
                severity="warning",
            )


def _domains(config: FleetConfig) -> Iterator[Problem]:
    described = [name for name, domain in config.domains.items() if any(map(str.strip, domain.examples))]
    if not described:
        return  # nothing is recognised: requests name their domain, or go to the generalist
    if len(config.domains) == 1:
        yield Problem(
            dotted(("domains", described[0], "examples")),
            "there is no other domain to tell this one apart from",
            "leave its examples out, or add a domain with examples of its own",
        )
    owner_of: dict[str, str] = {}
    for name, domain in config.domains.items():
        where = dotted(("domains", name, "examples"))
        count = len({example.strip() for example in domain.examples} - {""})
        if count < MIN_EXAMPLES:
            yield Problem(
                where,
                f"{count} different example prompts, and a domain needs at least {MIN_EXAMPLES}",
                "give 20 to 40 short and varied ones",
            )
        elif count < FEW_EXAMPLES:
            yield Problem(
                where,
                f"only {count} different example prompts: the domain will often not be recognised",
                "give 20 to 40 short and varied ones",
                severity="warning",
            )
        for example in domain.examples:
            other = owner_of.setdefault(example.strip(), name)
            if other != name:
                todo = f"{example.strip()[:60]!r} stands in both; keep it in one"
                yield Problem(where, f"shares an example with domain {other!r}", todo, severity="warning")


def units(config: FleetConfig) -> list[Unit]:
    """Every replica with what it needs on its node, one entry per replica."""
    verifier = config.verifier
    size = verifier.tensor_parallel_size
    gpus_each = max(verifier.num_gpus, 1.0) if verifier.device == "cuda" else verifier.num_gpus
    whole = Unit("the verifier", ("verifier",), verifier.num_cpus * size, gpus_each * size)
    found = [whole] * verifier.replicas
    found += [Unit("the gateway", ("gateway",), config.gateway.num_cpus, 0.0)] * config.gateway.replicas
    for name, draft in config.drafts.items():
        unit = Unit(f"draft {name!r}", ("drafts", name), draft.num_cpus, draft.num_gpus)
        found += [unit] * draft.replicas
    return found


def _resources(config: FleetConfig) -> Iterator[Problem]:
    here = config.nodes is None
    nodes = config.nodes or [this_machine()]
    place = "this machine" if here else "the largest node"
    todo = "describe the cluster's machines under `nodes`" if here else "ask for less, or correct `nodes`"
    most_cpus, most_gpus = max(node.cpus for node in nodes), max(node.gpus for node in nodes)
    wanted = units(config)
    fits = True
    for unit in dict.fromkeys(wanted):
        if unit.gpus > most_gpus:
            fits = False
            what = f"a replica asks for {unit.gpus:g} GPUs and {place} has {most_gpus:g}"
            yield Problem(dotted((*unit.path, "num_gpus")), what, todo)
        if unit.cpus > most_cpus:
            fits = False
            what = f"a replica asks for {unit.cpus:g} CPUs and {place} has {most_cpus:g}"
            yield Problem(dotted((*unit.path, "num_cpus")), what, todo)
    if fits:
        left_over = _place(wanted, nodes)
        if left_over is not None:
            gpus, cpus = sum(unit.gpus for unit in wanted), sum(unit.cpus for unit in wanted)
            have_gpus = sum(node.gpus * node.count for node in nodes)
            have_cpus = sum(node.cpus * node.count for node in nodes)
            yield Problem(
                dotted(left_over.path),
                f"there is no room left for a replica of {left_over.owner}: the fleet asks for {gpus:g} GPUs "
                f"and {cpus:g} CPUs in all, and {'this machine has' if here else 'the nodes have'} "
                f"{have_gpus:g} GPUs and {have_cpus:g} CPUs",
                "lower num_gpus, num_cpus or replicas, or add nodes",
            )


def _place(wanted: Sequence[Unit], nodes: Sequence[NodeSettings]) -> Unit | None:
    """Puts the largest replicas first, each where it fits; returns the first that fits nowhere.

    GPUs are kept one by one: fractions share a GPU, and a replica with whole GPUs needs them empty.
    """
    free = [([1.0] * int(node.gpus), [node.cpus]) for node in nodes for _ in range(node.count)]
    for unit in sorted(wanted, key=lambda unit: (unit.gpus, unit.cpus), reverse=True):
        if not any(_take(unit, gpus, cpus) for gpus, cpus in free):
            return unit
    return None


def _take(unit: Unit, gpus: list[float], cpus: list[float]) -> bool:
    slack = 1e-6  # 0.1 ten times is not quite 1
    if cpus[0] + slack < unit.cpus:
        return False
    if unit.gpus >= 1:
        chosen = [index for index, left in enumerate(gpus) if left > 1 - slack][: round(unit.gpus)]
        if len(chosen) < round(unit.gpus):
            return False
        for index in chosen:
            gpus[index] = 0.0
    elif unit.gpus > 0:
        shared = [index for index, left in enumerate(gpus) if left + slack >= unit.gpus]
        if not shared:
            return False
        fullest = min(shared, key=lambda index: gpus[index])
        gpus[fullest] -= unit.gpus
    cpus[0] -= unit.cpus
    return True


def _cores(config: FleetConfig) -> Iterator[Problem]:
    pinned: list[tuple[KeyPath, list[int]]] = []
    if config.verifier.cpu_cores:
        pinned.append((("verifier", "cpu_cores"), config.verifier.cpu_cores))
    pinned += [
        (("drafts", name, "cpu_cores"), draft.cpu_cores)
        for name, draft in config.drafts.items()
        if draft.cpu_cores
    ]
    available = len(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0)
    owners: dict[int, KeyPath] = {}
    for path, cores in pinned:
        missing = sorted(set(cores) - allowed)
        if config.nodes is None and missing:
            have = ", ".join(map(str, sorted(allowed)))
            yield Problem(
                dotted(path), f"this machine has no core {missing[0]}", f"its {available} cores are {have}"
            )
        if len(set(cores)) < len(cores):
            yield Problem(dotted(path), "names a core twice", severity="warning")
        for core in sorted(set(cores)):
            other = owners.setdefault(core, path)
            # Drafts may share a core on purpose: few of them work at once. The verifier's is its own.
            if other != path and other[0] != path[0]:
                what = f"core {core} is also in {dotted(other)}: they will slow each other down"
                yield Problem(dotted(path), what, "give them different cores", severity="warning")


def this_machine() -> NodeSettings:
    """The CPUs and GPUs that this process may use."""
    return NodeSettings(cpus=len(os.sched_getaffinity(0)), gpus=_visible_gpus())


def _visible_gpus() -> int:
    """Counts GPUs without importing torch, which would take seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1", "NoDevFiles")])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
