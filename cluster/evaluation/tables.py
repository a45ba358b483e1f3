"""From scored texts and costs to the figures of the result. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cluster.evaluation.result import Acceptance, Cost, LengthFigures, Speed
from deployments.evaluation.costs import FleetCosts
from deployments.evaluation.walk import BatchReplay, ScoredText, group, replay_batch, walk

if TYPE_CHECKING:
    from cluster.evaluation.run import Scores, Task

#: Costs differ between greedy and sampled steps: (temperature above 0) -> costs.
Costs = Mapping[bool, FleetCosts]


def replays(texts: Sequence[ScoredText], rows: int, length: int) -> list[BatchReplay]:
    """All texts in batches of so many rows."""
    return [replay_batch([texts[index] for index in chosen], length) for chosen in group(len(texts), rows)]


def acceptance_of(task: Task, scores: Scores) -> list[Acceptance]:
    """Acceptance of every candidate in every domain at every temperature."""
    lengths = task.effort.predicted_lengths
    found = []
    for (domain, candidate, temperature), texts in scores.items():
        walks = {length: walk(texts, length) for length in lengths}
        figures = [
            LengthFigures(
                length=length,
                acceptance_rate=round(one.rate, 4),
                mean_acceptance_length=round(one.length, 4),
                spread=round(one.spread, 4),
                covered=round(one.steps / max(1, one.steps + one.plain_steps), 4),
            )
            for length, one in walks.items()
        ]
        found.append(
            Acceptance(
                domain=domain,
                candidate=candidate,
                temperature=temperature,
                by_position=[round(rate, 4) for rate in walks[max(lengths)].by_position],
                lengths=figures,
            )
        )
    return found


def costs_of(task: Task, costs: Costs) -> list[Cost]:
    """Costs of every candidate with a drafter at every batch size, greedily decoded."""
    learnt = costs[min(costs)]
    lengths = task.effort.predicted_lengths
    found = []
    for candidate in task.models:
        for rows in task.effort.batches:
            name = candidate.name
            even = {length: learnt.break_even(name, rows, length) for length in lengths}
            found.append(
                Cost(
                    candidate=name,
                    batch=rows,
                    plain_step_ms=round(1e3 * learnt.step_s(rows), 3),
                    token_ms=round(1e3 * learnt.token_s(name, rows), 3),
                    relative_token_cost=round(learnt.relative_token_cost(name, rows), 4),
                    wait_ms={k: round(1e3 * learnt.wait_s(name, rows, k), 3) for k in lengths},
                    step_ratio={k: round(learnt.step_ratio(name, rows, k), 4) for k in lengths},
                    break_even={k: None if one is None else round(one, 4) for k, one in even.items()},
                )
            )
    return found


def speeds_of(task: Task, scores: Scores, costs: Costs) -> list[Speed]:
    """Predicted speed of everything everywhere."""
    drafters = {candidate.name for candidate in task.models}
    found = []
    for (domain, candidate, temperature), texts in scores.items():
        learnt = costs[temperature > 0]
        waits_for = candidate if candidate in drafters else None
        for rows in task.effort.batches:
            for length in task.effort.predicted_lengths:
                speed = learnt.speedup(waits_for, length, replays(texts, rows, length))
                found.append(
                    Speed(
                        domain=domain,
                        candidate=candidate,
                        temperature=temperature,
                        length=length,
                        batch=rows,
                        predicted=round(speed, 4),
                    )
                )
    return found
