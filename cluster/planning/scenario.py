"""What is planned for, from flags or from a fleet's YAML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster.planning.assumptions import Assumptions
from cluster.planning.errors import PlanError
from cluster.planning.fleet import Fleet, fit_of
from cluster.planning.gpus import Gpu, catalogue, find_gpu
from cluster.planning.memory import GIB
from cluster.planning.options import DraftModel
from cluster.planning.placement import Node, Unit
from cluster.planning.precision import precision
from cluster.planning.roofline import Engine
from cluster.planning.shape import ModelShape
from cluster.planning.sources import FoundModel, find_model
from cluster.planning.tables import choose_parallel

#: vLLM's max_num_seqs on most GPUs.
MOST_ROWS = 256


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says; None leaves it to the file or to the defaults.

    Attributes:
        verifier: model of the verifier.
        drafts: name -> model.
        gpu: type of the verifier's GPUs.
        draft_gpu: type of a GPU that drafts get.
        nodes: machines.
        gpus_per_node: GPUs of each.
        parallel: GPUs of one verifier.
        replicas: verifiers.
        verifier_precision: what its matrices are in.
        draft_precision: what the drafts' are in.
        most_rows: vLLM's max_num_seqs.
    """

    verifier: str | None = None
    drafts: Mapping[str, str] = field(default_factory=dict)
    gpu: str | None = None
    draft_gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    parallel: int | None = None
    replicas: int | None = None
    verifier_precision: str | None = None
    draft_precision: str | None = None
    most_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is planned for.

    Attributes:
        base: the verifiers alone.
        drafts: the drafts, in no place yet.
        found: name -> the model and where it is from; the verifier under "verifier".
        types: all types of GPU.
        draft_gpu: type of a GPU that drafts get.
        nodes: the machines.
        node_gpus: GPUs of the largest node.
        assumptions: with what flags and file say filled in.
        units: the replicas to place.
        configured: the fleet as the file describes it; None with flags.
        deadline_ms: the file's link.step_deadline_ms; None with flags.
        notes: what the reader should know.
    """

    base: Fleet
    drafts: tuple[DraftModel, ...]
    found: Mapping[str, FoundModel]
    types: Mapping[str, Gpu]
    draft_gpu: Gpu
    nodes: tuple[Node, ...]
    node_gpus: int
    assumptions: Assumptions
    units: tuple[Unit, ...]
    configured: Fleet | None = None
    deadline_ms: float | None = None
    notes: tuple[str, ...] = ()


def from_flags(wishes: Wishes, assumptions: Assumptions) -> Scenario:
    """A scenario from the command line alone.

    Raises:
        PlanError: something that cannot be; the text says what.
    """
    if wishes.verifier is None:
        raise PlanError(
            "nothing to plan for", "give a fleet's YAML file, or --verifier MODEL and --draft NAME=MODEL"
        )
    types = catalogue(assumptions.gpus)
    gpu = find_gpu(wishes.gpu or assumptions.gpu, types)
    draft_gpu = find_gpu(wishes.draft_gpu, types) if wishes.draft_gpu else gpu
    node_gpus = wishes.gpus_per_node or 8
    nodes = tuple(Node(gpu, node_gpus) for _ in range(wishes.nodes or 1))
    found = {"verifier": find_model(wishes.verifier, stand_ins=assumptions.models)}
    for name, model in wishes.drafts.items():
        found[name] = find_model(model, stand_ins=assumptions.models, verifier=wishes.verifier)
    check_load(found["verifier"].shape, assumptions)
    shares = traffic(list(wishes.drafts), assumptions)
    drafts = tuple(
        draft_model(name, found[name].shape, wishes.draft_precision, shares[name], assumptions)
        for name in wishes.drafts
    )
    engine = verifier_engine(found["verifier"].shape, wishes.verifier_precision, gpu, assumptions)
    base = sized(
        engine, wishes.parallel, wishes.replicas or 1, wishes.most_rows or MOST_ROWS, node_gpus, assumptions
    )
    units = [verifier_unit(base, assumptions)] * base.replicas
    if draft_gpu != gpu and drafts:
        nodes += (Node(draft_gpu, 1),)
    part = share_of_gpu(len(drafts))
    for draft in drafts:
        gib = draft.gib(assumptions)
        owner = "the draft" if draft.name == "draft" else f"draft {draft.name}"
        key = "--draft-gpu, --draft-precision or --concurrency"
        units.append(Unit(owner, part, gib, gib, key=key, gpu=draft_gpu.name))
    return Scenario(base, drafts, found, types, draft_gpu, nodes, node_gpus, assumptions, tuple(units))


def check_load(shape: ModelShape, assumptions: Assumptions, most: int | None = None) -> None:
    """Refuses requests that are longer than the model can take.

    Raises:
        PlanError: prompt and answer together exceed the context.
    """
    length = assumptions.load.prompt_tokens + assumptions.load.answer_tokens
    bound = min(each for each in (most, shape.max_context or None, length) if each is not None)
    if length > bound:
        whose = "max_model_len" if most == bound else f"what {shape.name} was made for"
        raise PlanError(
            f"prompt and answer together are {length} tokens, more than {whose}: {bound}",
            "lower --prompt-tokens or --answer-tokens",
        )


def traffic(
    names: Sequence[str], assumptions: Assumptions, weights: Mapping[str, int] | None = None
) -> dict[str, float]:
    """The share of the requests that each draft serves; they add up to 1.

    Args:
        names: the drafts.
        assumptions: may name shares.
        weights: how the rest is divided; evenly when None.

    Raises:
        PlanError: shares of drafts that are not there, or that add up to more than 1.
    """
    for kind, given in (
        ("share_of", assumptions.speculation.share_of),
        ("acceptance_of", assumptions.speculation.acceptance_of),
    ):
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise PlanError(
                f"speculation.{kind} names {unknown[0]!r}, which is no draft here",
                f"the drafts are: {', '.join(names) or 'none'}",
            )
    fixed = dict(assumptions.speculation.share_of)
    left = 1.0 - sum(fixed.values())
    rest = [name for name in names if name not in fixed]
    if left < -1e-9 or (names and not rest and left > 1e-6):
        raise PlanError(
            f"speculation.share_of adds up to {1 - left:g}", "the drafts' shares are to add up to 1"
        )
    total = sum((weights or {}).get(name, 1) for name in rest)
    return {
        name: fixed.get(name, max(left, 0.0) * (weights or {}).get(name, 1) / (total or 1)) for name in names
    }


def draft_model(
    name: str, shape: ModelShape, chosen: str | None, share: float, assumptions: Assumptions
) -> DraftModel:
    """A draft in the precision that was chosen for it, or in its own."""
    used = precision(chosen) if chosen else shape.stored
    speculation = assumptions.speculation
    number_bytes = 4.0 if used.name == "fp32" else 2.0
    acceptance = speculation.acceptance_of.get(name, speculation.acceptance)
    return DraftModel(name, shape, used, number_bytes, acceptance, share)


def verifier_engine(shape: ModelShape, chosen: str | None, gpu: Gpu, assumptions: Assumptions) -> Engine:
    """The verifier on one GPU, in the precision that was chosen for it, or in its own."""
    used = precision(chosen) if chosen else shape.stored
    number_bytes = shape.kv_number_bytes(assumptions.memory.kv_precision)
    if used.name == "bf16":
        number_bytes = min(number_bytes, 2.0)
    return Engine(shape, used, number_bytes, gpu, 1, assumptions.hardware.layer_us)


def sized(
    engine: Engine,
    parallel: int | None,
    replicas: int,
    most_rows: int,
    node_gpus: int,
    assumptions: Assumptions,
    kv_gib: float | None = None,
) -> Fleet:
    """The verifiers on as many GPUs as were asked for, or as they need.

    Raises:
        PlanError: they fit on no number of GPUs of a node, or their heads do not divide.
    """
    gpu = engine.gpu
    base = Fleet(engine, replicas, (), most_rows, 0.0, 0.0, kv_gib=kv_gib)
    if parallel is None:
        parallel = choose_parallel(base, node_gpus, assumptions)
    elif parallel > node_gpus:
        raise PlanError(
            f"one verifier over {parallel} GPUs, and a node has {node_gpus}",
            "give it fewer (tensor_parallel_size), or nodes with more (--gpus-per-node)",
        )
    elif engine.shape.heads % parallel:
        raise PlanError(
            f"{engine.shape.name} has {engine.shape.heads} heads, which do not divide by {parallel}",
            f"tensor parallel sizes for it: {', '.join(map(str, engine.shape.parallel_sizes(16)))}",
        )
    found = replace(base, verifier=replace(engine, parallel=parallel or 1)) if parallel else None
    if found is None or fit_of(found, assumptions).requests < 1:
        raise _does_not_fit(base, found, node_gpus, assumptions)
    gpus = float(replicas * found.verifier.parallel)
    return replace(found, gpus=gpus, price_per_hour=gpus * gpu.price_per_hour)


def verifier_unit(base: Fleet, assumptions: Assumptions, cpus: float = 0.0) -> Unit:
    """One verifier for the placement. vLLM fills what it may of its GPUs."""
    fit = fit_of(base, assumptions)
    return Unit(
        "the verifier", float(base.verifier.parallel), fit.weights + fit.activations, fit.usable, cpus,
        "verifier.tensor_parallel_size",
    )  # fmt: skip


def share_of_gpu(drafts: int) -> float:
    """`num_gpus` for each of some drafts that share one GPU, as people write it."""
    return 1.0 if drafts <= 1 else int(100 / drafts) / 100


def resolve(models: Mapping[str, str], base: Path | None, assumptions: Assumptions) -> dict[str, FoundModel]:
    """The models of a fleet by name; that of the verifier is called so."""
    verifier = models["verifier"]
    return {
        name: find_model(
            model,
            base=base,
            stand_ins=assumptions.models,
            verifier=None if name == "verifier" else verifier,
        )
        for name, model in models.items()
    }


def _does_not_fit(base: Fleet, asked: Fleet | None, node_gpus: int, assumptions: Assumptions) -> PlanError:
    engine = base.verifier
    if asked is not None:
        fit = fit_of(asked, assumptions)
        size, need = asked.verifier.parallel, fit.weights + fit.activations
        what = f"over {size} GPUs" if size > 1 else "on one GPU"
    else:
        size = engine.shape.parallel_sizes(node_gpus)[-1]
        fit = fit_of(replace(base, verifier=replace(engine, parallel=size)), assumptions)
        need = fit.weights + fit.activations
        what = f"even over all {size} GPUs that it can use of a node" if size > 1 else "on one GPU"
    smaller = [
        name
        for name in ("fp8" if engine.gpu.fp8_tflops else "int8", "int4")
        if (used := precision(name)).bits < engine.precision.bits
        and choose_parallel(replace(base, verifier=replace(engine, precision=used)), node_gpus, assumptions)
    ]
    hint = f"; in {' or '.join(smaller)} it fits" if smaller else ""
    total = engine.shape.weight_bytes(engine.precision) / GIB
    return PlanError(
        f"{engine.shape.name} in {engine.precision.name} ({total:.1f} GiB of weights) does not fit {what}: "
        f"each {engine.gpu.name} would need {need:.1f} GiB and room for a request, and may use "
        f"{fit.usable:.1f}",
        f"a larger --gpu, more --gpus-per-node, a smaller --verifier-precision, or shorter requests{hint}",
    )
