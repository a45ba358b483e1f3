"""What quantisation buys, and what every type of GPU would do with the same models and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.planning.advice import least_acceptance
from cluster.planning.assumptions import Assumptions
from cluster.planning.fleet import Fleet, evaluate, fit_of
from cluster.planning.gpus import Gpu
from cluster.planning.memory import GIB
from cluster.planning.options import DraftModel, Option, on_one_gpu
from cluster.planning.precision import PRECISIONS, Precision
from cluster.planning.roofline import Engine
from cluster.planning.speculation import draft_seconds


@dataclass(frozen=True, slots=True)
class SizeRow:
    """The verifier in one precision or on one type of GPU.

    Attributes:
        name: the precision or the type.
        weights_gib: all weights.
        parallel: GPUs of one verifier; None when it fits on no number of them.
        requests: requests of the load's length that fit.
        kv_gib: KV memory of all its GPUs.
        plain: tokens per second of one verifier without drafts; None when it does not fit.
        plain_price: price per million tokens.
        drafted: the same with the drafts on one more GPU; None without drafts or room.
        drafted_price: likewise.
    """

    name: str
    weights_gib: float
    parallel: int | None
    requests: int
    kv_gib: float
    plain: float | None
    plain_price: float | None
    drafted: float | None
    drafted_price: float | None


@dataclass(frozen=True, slots=True)
class AloneRow:
    """One draft that serves all requests, on one more GPU.

    Attributes:
        draft: its name.
        acceptance: what was assumed for it.
        length: the best number of proposed tokens.
        rate: tokens per second of the fleet; None when it does not fit.
        price: per million tokens.
        pays_from: the acceptance from which it gains anything; None: never.
    """

    draft: str
    acceptance: float
    length: int | None
    rate: float | None
    price: float | None
    pays_from: float | None


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A draft in one precision.

    Attributes:
        draft: its name, or those of drafts that are alike.
        precision: the precision.
        weights_gib: its weights.
        gib: all memory of a drafter that serves its share of the load.
        proposal_ms: time for a proposal of the longest length for its share of the load.
        rate: tokens per second of the fleet with all drafts in this precision, on one more GPU.
    """

    draft: str
    precision: str
    weights_gib: float
    gib: float
    proposal_ms: float
    rate: float | None


def choose_parallel(base: Fleet, node_gpus: int, assumptions: Assumptions) -> int | None:
    """The least number of GPUs that hold the load's requests; else what holds most; None: nothing fits."""
    best: tuple[int, int] | None = None
    wanted = min(assumptions.load.concurrency, base.most_rows)
    for size in base.verifier.shape.parallel_sizes(node_gpus):
        fit = fit_of(replace(base, verifier=replace(base.verifier, parallel=size)), assumptions)
        if fit.requests >= wanted:
            return size
        if fit.requests >= 1 and (best is None or fit.requests > best[0]):
            best = (fit.requests, size)
    return best[1] if best else None


def by_precision(
    base: Fleet, drafts: Sequence[DraftModel], draft_gpu: Gpu, node_gpus: int, assumptions: Assumptions
) -> list[SizeRow]:
    """The verifier in its own precision and in every smaller one, each on as few GPUs as it needs."""
    own = base.verifier.precision
    smaller = [
        each
        for each in PRECISIONS.values()
        if each.bits < own.bits and _worth_showing(each, base.verifier.gpu)
    ]
    return [
        _row(each.name, _in(base, each), drafts, draft_gpu, node_gpus, assumptions)
        for each in (own, *smaller)
    ]


def by_gpu(
    base: Fleet,
    drafts: Sequence[DraftModel],
    types: Mapping[str, Gpu],
    node_gpus: int,
    assumptions: Assumptions,
) -> list[SizeRow]:
    """Verifier and drafts on every type of GPU, drafts on one of the same type."""
    rows = []
    for gpu in types.values():
        if not gpu.cpu:
            moved = replace(base, verifier=replace(base.verifier, gpu=gpu))
            rows.append(_row(gpu.name, moved, drafts, gpu, node_gpus, assumptions))
    return rows


def drafts_by_precision(
    base: Fleet, drafts: Sequence[DraftModel], gpu: Gpu, assumptions: Assumptions
) -> list[DraftRow]:
    """Every draft in its own precision and in every smaller one."""
    load, rows = assumptions.load, []
    alike: dict[object, list[DraftModel]] = {}
    for draft in drafts:
        key = (replace(draft.shape, name=""), draft.precision, round(draft.share, 6))
        alike.setdefault(key, []).append(draft)
    for draft, *same in alike.values():
        smaller = [
            each
            for each in PRECISIONS.values()
            if each.bits < draft.precision.bits and _worth_showing(each, gpu)
        ]
        for each in (draft.precision, *smaller):
            one = replace(draft, precision=each)
            others = [replace(other, precision=each) for other in drafts]
            option = on_one_gpu(base, others, gpu, assumptions)
            seconds = draft_seconds(
                one.on(gpu, "drafts", assumptions),
                max(1.0, load.concurrency * one.share),
                assumptions.speculation.max_draft_tokens,
                load.prompt_tokens + load.answer_tokens / 2,
                assumptions.hardware,
                assumptions.speculation,
            )
            rows.append(
                DraftRow(
                    draft=", ".join(each.name for each in (draft, *same)),
                    precision=each.name,
                    weights_gib=one.shape.weight_bytes(each) / GIB,
                    gib=one.gib(assumptions),
                    proposal_ms=1000 * seconds,
                    rate=option.outcome.rate if option.outcome else None,
                )
            )
    return rows


def drafts_alone(
    options: Sequence[Option], drafts: Sequence[DraftModel], gpu: Gpu, assumptions: Assumptions
) -> list[AloneRow]:
    """Each draft by itself, to compare candidates. `options` has the base first."""
    base = options[0].fleet
    rows = []
    for draft in drafts if base is not None else ():
        assert base is not None
        option = on_one_gpu(base, [replace(draft, share=1.0)], gpu, assumptions)
        outcome = option.outcome
        rows.append(
            AloneRow(
                draft=draft.name,
                acceptance=draft.acceptance,
                length=outcome.lengths[draft.name] if outcome else None,
                rate=outcome.rate if outcome else None,
                price=outcome.price_per_million if outcome else None,
                pays_from=least_acceptance(option, options, assumptions, against="base"),
            )
        )
    return rows


def _worth_showing(precision: Precision, gpu: Gpu) -> bool:
    """Of the formats of one size, the one that the hardware computes in."""
    if precision.name == "fp8":
        return gpu.fp8_tflops is not None
    if precision.name == "int8":
        return gpu.fp8_tflops is None
    return precision.name != "bf16" or not gpu.cpu


def _in(base: Fleet, precision: Precision) -> Fleet:
    engine: Engine = replace(base.verifier, precision=precision)
    return replace(base, verifier=engine)


def _row(
    name: str,
    base: Fleet,
    drafts: Sequence[DraftModel],
    draft_gpu: Gpu,
    node_gpus: int,
    assumptions: Assumptions,
) -> SizeRow:
    weights = base.verifier.shape.weight_bytes(base.verifier.precision) / GIB
    size = choose_parallel(base, node_gpus, assumptions)
    if size is None:
        return SizeRow(name, weights, None, 0, 0.0, None, None, None, None)
    price = size * base.verifier.gpu.price_per_hour
    engine = replace(base.verifier, parallel=size)
    sized = replace(base, verifier=engine, replicas=1, drafts=(), gpus=float(size), price_per_hour=price)
    fit, plain = fit_of(sized, assumptions), evaluate(sized, assumptions)
    drafted = on_one_gpu(sized, drafts, draft_gpu, assumptions).outcome if drafts else None
    return SizeRow(
        name=name,
        weights_gib=weights,
        parallel=size,
        requests=fit.requests,
        kv_gib=fit.kv * size,
        plain=plain.rate if plain else None,
        plain_price=plain.price_per_million if plain else None,
        drafted=drafted.rate if drafted else None,
        drafted_price=drafted.price_per_million if drafted else None,
    )
