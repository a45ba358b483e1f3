"""A scenario from a fleet's YAML file: its models, GPUs and nodes, and what its settings allow them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cluster.checks import this_machine
from cluster.config import FleetConfig
from cluster.planning.assumptions import Assumptions
from cluster.planning.errors import PlanError
from cluster.planning.fleet import Fleet
from cluster.planning.gpus import CPU_CORE, Gpu, catalogue, find_gpu
from cluster.planning.memory import GIB
from cluster.planning.options import DraftModel
from cluster.planning.placement import Node, Unit, place
from cluster.planning.scenario import (
    Scenario,
    Wishes,
    check_load,
    draft_model,
    resolve,
    sized,
    traffic,
    verifier_engine,
    verifier_unit,
)
from cluster.planning.speculation import DraftOn
from deployments.drafter.settings import DEFAULT_KV_MEMORY_MIB, DraftSettings
from deployments.verifier.settings import VerifierSettings


def from_file(
    config: FleetConfig, wishes: Wishes, assumptions: Assumptions, given: frozenset[str]
) -> Scenario:
    """The scenario of a configuration.

    Args:
        config: the configuration.
        wishes: flags that overrule it.
        assumptions: where the configuration says something, that counts, except for `given`.
        given: dotted names of assumptions that flags or an assumptions file set on purpose.

    Raises:
        PlanError: something that cannot be; the text says what.
    """
    if wishes.verifier is not None or wishes.drafts:
        raise PlanError("a YAML file and --verifier or --draft at the same time", "leave one of them out")
    verifier = config.verifier
    assumptions = _with_settings(config, assumptions, given)
    types = catalogue(assumptions.gpus)
    models = {"verifier": verifier.model} | {name: draft.model for name, draft in config.drafts.items()}
    base_folder = Path(config.base_folder) if config.base_folder else None
    found = resolve(models, base_folder, assumptions)
    check_load(found["verifier"].shape, assumptions, verifier.max_model_len)

    on_cpu = verifier.device == "cpu"
    gpu = find_gpu(CPU_CORE if on_cpu else wishes.gpu or assumptions.gpu, types)
    if on_cpu:
        cores = len(verifier.cpu_cores or ()) or max(1, round(verifier.num_cpus))
        gpu = gpu.times(cores)
    nodes, guess = _nodes(config, wishes, find_gpu(wishes.gpu or assumptions.gpu, types))
    node_gpus = 1 if on_cpu else max((node.gpus for node in nodes), default=1) or 1
    chosen = (
        wishes.verifier_precision
        or _engine_precision(verifier)
        or _dtype(verifier.dtype, found["verifier"].shape.stored.quantised)
    )
    engine = verifier_engine(found["verifier"].shape, chosen, gpu, assumptions)
    base = sized(
        engine,
        1 if on_cpu else wishes.parallel or verifier.tensor_parallel_size,
        wishes.replicas or verifier.replicas,
        wishes.most_rows or verifier.max_num_seqs,
        node_gpus,
        assumptions,
        verifier.kv_cache_gib,
    )

    weights = Counter(domain.draft for domain in config.domains.values())
    shares = traffic(list(config.drafts), assumptions, {name: weights[name] for name in config.drafts})
    drafts = {
        name: draft_model(
            name,
            found[name].shape,
            wishes.draft_precision or _draft_precision(draft),
            shares[name],
            assumptions,
        )
        for name, draft in config.drafts.items()
    }
    units = _units(config, base, drafts, assumptions, on_cpu)
    configured, notes = _configured(config, base, drafts, units, nodes, types, assumptions)
    draft_gpu = find_gpu(wishes.draft_gpu, types) if wishes.draft_gpu else types[CPU_CORE] if on_cpu else gpu
    return Scenario(
        base,
        tuple(drafts.values()),
        found,
        types,
        draft_gpu,
        nodes,
        node_gpus,
        assumptions,
        tuple(units),
        configured,
        config.link.step_deadline_ms,
        (*guess, *notes),
    )


def _with_settings(config: FleetConfig, assumptions: Assumptions, given: frozenset[str]) -> Assumptions:
    """The assumptions with what the configuration fixes."""
    verifier = config.verifier
    memory: dict[str, object] = {}
    speculation: dict[str, object] = {}
    utilization = verifier.gpu_memory_utilization
    if utilization is not None and "memory.gpu_memory_utilization" not in given:
        memory["gpu_memory_utilization"] = utilization
    if (
        str(verifier.engine.get("kv_cache_dtype", "")).startswith("fp8")
        and "memory.kv_precision" not in given
    ):
        memory["kv_precision"] = "fp8"
    batched = verifier.engine.get("max_num_batched_tokens")
    if isinstance(batched, int) and batched > 0 and "memory.batched_tokens" not in given:
        memory["batched_tokens"] = batched
    if "speculation.max_draft_tokens" not in given:
        speculation["max_draft_tokens"] = config.speculation.max_draft_tokens
    return assumptions.model_copy(
        update={
            "memory": assumptions.memory.model_copy(update=memory),
            "speculation": assumptions.speculation.model_copy(update=speculation),
        }
    )


def _nodes(config: FleetConfig, wishes: Wishes, gpu: Gpu) -> tuple[tuple[Node, ...], list[str]]:
    """The machines, and a note where they are a guess."""
    if wishes.nodes or wishes.gpus_per_node:
        return tuple(Node(gpu, wishes.gpus_per_node or 8) for _ in range(wishes.nodes or 1)), []
    described = config.nodes if config.nodes is not None else [this_machine()]
    found = tuple(Node(gpu, int(node.gpus), node.cpus) for node in described for _ in range(node.count))
    wants = config.verifier.device == "cuda" or any(draft.on_gpu for draft in config.drafts.values())
    if config.nodes is None and wants and not any(node.gpus for node in found):
        note = f"the file has no `nodes`, and there is no GPU here: planned for one node with 8 x {gpu.name}"
        return (Node(gpu, 8),), [note]
    return found, []


def _engine_precision(verifier: VerifierSettings) -> str | None:
    """What ``engine.quantization`` names, where that says the format."""
    named = str(verifier.engine.get("quantization") or "")
    return next((form for form in ("fp8", "awq", "gptq") if named.startswith(form)), None)


def _dtype(dtype: str, quantised: bool) -> str | None:
    return None if dtype == "auto" or quantised else dtype


def _draft_precision(draft: DraftSettings) -> str | None:
    if draft.on_gpu:
        return _dtype(draft.dtype, False) or "bf16"  # drafters on GPUs run in their dtype
    return "int8" if draft.runs_int8() else _dtype(draft.dtype, False) or "fp32"


def _units(
    config: FleetConfig, base: Fleet, drafts: Mapping[str, DraftModel], assumptions: Assumptions, on_cpu: bool
) -> list[Unit]:
    """Every replica that asks for something of a node. KV memory of drafts is what the file allows them."""
    size = base.verifier.parallel
    whole = verifier_unit(base, assumptions, config.verifier.num_cpus * size)
    units = [replace(whole, gpus=0.0) if on_cpu else whole] * base.replicas
    for name, draft in config.drafts.items():
        gib = 0.0
        if draft.on_gpu:
            model = drafts[name]
            kv = (draft.kv_memory_mib or DEFAULT_KV_MEMORY_MIB) / 1024
            weights = model.shape.weight_bytes(model.precision) / GIB
            gib = weights + kv + assumptions.memory.drafter_runtime_gib
        unit = Unit(f"draft {name}", draft.num_gpus, gib, gib, draft.num_cpus, f"drafts.{name}.num_gpus")
        units += [unit] * draft.replicas
    return units


def _configured(
    config: FleetConfig,
    base: Fleet,
    drafts: Mapping[str, DraftModel],
    units: list[Unit],
    nodes: tuple[Node, ...],
    types: Mapping[str, Gpu],
    assumptions: Assumptions,
) -> tuple[Fleet, list[str]]:
    """The fleet as the file describes it, drafts where they would be placed, and what is odd about it."""
    notes: list[str] = []
    if config.verifier.proposer is not None:
        notes.append(
            f"vLLM's own {config.verifier.proposer.method} proposes in this fleet: what it takes and gives "
            "is not in these figures"
        )
    placement = place(units, nodes)
    where = {
        owner: f"GPU {slot.index} of node {slot.node}"
        for slot in reversed(placement.slots)
        for owner, *_ in slot.tenants
    }
    placed: list[DraftOn] = []
    cores: set[object] = set()
    load = assumptions.load
    for name, draft in config.drafts.items():
        model = drafts[name]
        if draft.on_gpu:
            gpu, device = nodes[0].gpu if nodes else base.verifier.gpu, where.get(f"draft {name}", name)
            kv = (draft.kv_memory_mib or DEFAULT_KV_MEMORY_MIB) * draft.replicas / 1024
            wanted = max(1.0, load.concurrency * model.share)
            needs = (
                wanted
                * model.shape.kv_bytes(load.prompt_tokens + load.answer_tokens, model.kv_number_bytes)
                / GIB
            )
            if needs > kv * 1.01:
                notes.append(
                    f"draft {name} needs {needs:.1f} GiB of KV for its share of the load and may use "
                    f"{kv:.1f}: set drafts.{name}.kv_memory_mib to {needs / draft.replicas * 1024:.0f}, or "
                    "some requests go without proposals"
                )
        else:
            many = len(draft.cpu_cores or ()) or max(1, round(draft.num_cpus))
            pinned = tuple(draft.cpu_cores or (name,))
            cores |= set(draft.cpu_cores or (f"{name}{core}" for core in range(many)))
            gpu, device = types[CPU_CORE].times(many), f"cores {pinned}"
        if draft.max_sessions * draft.replicas < load.concurrency * model.share:
            notes.append(
                f"draft {name} keeps {draft.max_sessions * draft.replicas} sessions and serves "
                f"{load.concurrency * model.share:.0f} requests: raise drafts.{name}.max_sessions, or some "
                "go without proposals"
            )
        placed.append(model.on(gpu, device, assumptions, draft.replicas))
    gpus = placement.used
    types_price = sum(slot.gpu.price_per_hour for slot in placement.slots if slot.tenants)
    core_price = len(cores) * types[CPU_CORE].price_per_hour
    if base.verifier.gpu.cpu:
        types_price += base.price_per_hour
    fleet = replace(
        base,
        drafts=tuple(placed),
        gpus=float(gpus) if not base.verifier.gpu.cpu else base.gpus + len(cores),
        price_per_hour=types_price + (core_price if cores else 0.0),
    )
    return fleet, notes
