"""Everything that a plan says, worked out from a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cluster.planning.advice import LoadRow, by_load, recommend
from cluster.planning.fleet import evaluate, fit_of
from cluster.planning.memory import GIB, MemoryFit
from cluster.planning.options import Option, all_options
from cluster.planning.placement import Placement, place
from cluster.planning.scenario import Scenario
from cluster.planning.spared import Spared, spared
from cluster.planning.tables import (
    AloneRow,
    DraftRow,
    SizeRow,
    by_gpu,
    by_precision,
    drafts_alone,
    drafts_by_precision,
)

#: Models of one family pad the same vocabulary to different sizes.
_PADDING = 1024
#: A wait this close to the deadline is often late: times vary from step to step.
_DEADLINE_ROOM = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan; the parts are described where they are defined."""

    scenario: Scenario
    fit: MemoryFit
    options: tuple[Option, ...]
    loads: tuple[LoadRow, ...]
    precisions: tuple[SizeRow, ...]
    draft_precisions: tuple[DraftRow, ...]
    drafts_alone: tuple[AloneRow, ...]
    types: tuple[SizeRow, ...]
    placement: Placement
    spared: Spared | None
    notes: tuple[str, ...]
    recommendation: tuple[str, ...]


def make_plan(scenario: Scenario, min_speed: float | None = None) -> Plan:
    """Works everything out.

    Args:
        scenario: what is planned for.
        min_speed: tokens per second that every request should get, to count the GPUs that it takes.
    """
    base, drafts, assumptions = scenario.base, scenario.drafts, scenario.assumptions
    options = all_options(base, drafts, scenario.draft_gpu, scenario.node_gpus, assumptions)
    if scenario.configured is not None:
        outcome = evaluate(scenario.configured, assumptions)
        options.insert(1, Option("as configured", "drafts", "configured", scenario.configured, outcome))
    loads = by_load(options, assumptions)
    types: list[SizeRow] = []
    if not base.verifier.gpu.cpu:
        types = by_gpu(base, drafts, scenario.types, scenario.node_gpus, assumptions)
    found = None
    if min_speed is not None and drafts:
        found = spared(base, drafts, scenario.draft_gpu, scenario.node_gpus, min_speed, assumptions)
    return Plan(
        scenario=scenario,
        fit=fit_of(base, assumptions),
        options=tuple(options),
        loads=tuple(loads),
        precisions=tuple(by_precision(base, drafts, scenario.draft_gpu, scenario.node_gpus, assumptions)),
        drafts_alone=tuple(drafts_alone(options, drafts, scenario.draft_gpu, assumptions)),
        draft_precisions=tuple(drafts_by_precision(base, drafts, scenario.draft_gpu, assumptions)),
        types=tuple(types),
        placement=place(scenario.units, scenario.nodes),
        spared=found,
        notes=(*scenario.notes, *_mismatches(scenario), *_deadline(scenario, options)),
        recommendation=tuple(recommend(options, drafts, assumptions, loads)),
    )


def _mismatches(scenario: Scenario) -> list[str]:
    """Drafts that cannot serve this verifier or this load, as far as configurations tell."""
    verifier, load = scenario.base.verifier.shape, scenario.assumptions.load
    length = load.prompt_tokens + load.answer_tokens
    notes = []
    for draft in scenario.drafts:
        own = scenario.found[draft.name].own_format
        if not own and abs(draft.shape.vocabulary - verifier.vocabulary) > _PADDING:
            notes.append(
                f"draft {draft.name} knows {draft.shape.vocabulary} tokens and the verifier "
                f"{verifier.vocabulary}: a draft must have the verifier's tokenizer, id for id"
            )
        if draft.shape.max_context and length > draft.shape.max_context:
            notes.append(
                f"draft {draft.name} was made for {draft.shape.max_context} tokens, and requests have "
                f"{length}: the rest is answered without it, which is not in the figures"
            )
    return notes


def _deadline(scenario: Scenario, options: list[Option]) -> list[str]:
    """Whether the configured fleet's drafters can answer before its verifier stops waiting."""
    configured = next((option for option in options if option.key == "configured"), None)
    if scenario.deadline_ms is None or configured is None or configured.outcome is None:
        return []
    wait = 1000 * configured.outcome.wait_s
    if wait * _DEADLINE_ROOM <= scenario.deadline_ms:
        return []
    late = "would come too late" if wait > scenario.deadline_ms else "would often come too late"
    return [
        f"proposals take about {wait:.1f} ms and {late} for link.step_deadline_ms {scenario.deadline_ms:g}: "
        f"set it to {max(1.0, wait * _DEADLINE_ROOM):.0f}, or give the drafts more GPU"
    ]


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values: sizes in GiB, times in ms, rates in tokens per second."""
    scenario = plan.scenario
    base = scenario.base
    return {
        "models": {name: _model(scenario, name) for name in scenario.found},
        "verifier": {
            "gpu": base.verifier.gpu.name,
            "tensor_parallel_size": base.verifier.parallel,
            "replicas": base.replicas,
            "precision": base.verifier.precision.name,
            "per_gpu_gib": asdict(plan.fit),
        },
        "options": [_option(option) for option in plan.options],
        "by_load": [asdict(row) for row in plan.loads],
        "verifier_by_precision": [asdict(row) for row in plan.precisions],
        "drafts_by_precision": [asdict(row) for row in plan.draft_precisions],
        "drafts_alone": [asdict(row) for row in plan.drafts_alone],
        "by_gpu": [asdict(row) for row in plan.types],
        "placement": {
            "gpus": [
                {
                    "node": slot.node,
                    "gpu": slot.index,
                    "type": slot.gpu.name,
                    "tenants": [
                        {"owner": owner, "num_gpus": share, "gib": gib} for owner, share, gib in slot.tenants
                    ],
                }
                for slot in plan.placement.slots
            ],
            "problems": list(plan.placement.problems),
        },
        "gpus_for_speed": asdict(plan.spared) if plan.spared else None,
        "notes": list(plan.notes),
        "recommendation": list(plan.recommendation),
        "assumptions": scenario.assumptions.model_dump(mode="json"),
        "gpu_types": {name: gpu.model_dump(mode="json") for name, gpu in scenario.types.items()},
    }


def _model(scenario: Scenario, name: str) -> Mapping[str, Any]:
    found, draft = scenario.found[name], next((d for d in scenario.drafts if d.name == name), None)
    precision = draft.precision if draft else scenario.base.verifier.precision
    number = draft.kv_number_bytes if draft else scenario.base.verifier.kv_number_bytes
    return {
        "model": found.shape.name,
        "configuration_from": found.origin,
        "parameters": found.shape.parameters,
        "active_parameters": found.shape.active,
        "precision": precision.name,
        "weights_gib": found.shape.weight_bytes(precision) / GIB,
        "kv_bytes_per_token": found.shape.kv_numbers * number,
        "acceptance": draft.acceptance if draft else None,
        "share": draft.share if draft else None,
    }


def _option(option: Option) -> Mapping[str, Any]:
    outcome, fleet = option.outcome, option.fleet
    if outcome is None or fleet is None:
        return {"name": option.name, "possible": False, "why_not": option.why_not}
    return {
        "name": option.name,
        "possible": True,
        "gpus": fleet.gpus,
        "price_per_hour": fleet.price_per_hour,
        "running": outcome.running,
        "waiting": outcome.waiting,
        "proposed_tokens": dict(outcome.lengths),
        "tokens_per_step": outcome.step_tokens,
        "step_ms": 1000 * outcome.step_s,
        "wait_ms": 1000 * outcome.wait_s,
        "prefill_ms": 1000 * outcome.prefill_s,
        "tokens_per_s": outcome.rate,
        "tokens_per_s_each": outcome.request_rate,
        "price_per_million_tokens": outcome.price_per_million,
    }
