"""Learning what steps cost, from short runs on the real engine with its drafters."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from deployments.evaluation.costs import FleetCosts, StepSample
from deployments.evaluation.drift import Yardsticks, around, interleave
from deployments.evaluation.rig import BatchTiming, Rig
from deployments.evaluation.scoring import VerifierText

if TYPE_CHECKING:
    from cluster.evaluation.run import Progress, Task, Texts

#: Steps of a batch that only wake caches and connections.
_WARM_UP_STEPS = 4
#: So many runs with drafts lie between two plain ones.
YARDSTICK_EVERY = 2

#: Who proposes in a run, and how many tokens.
Way = tuple[str | None, int]
PLAIN: Way = (None, 0)

Run = TypeVar("Run")


def with_yardsticks(runs: Sequence[Run], plain: Run) -> list[Run]:
    """The runs with plain ones before, between and after them."""
    return interleave(runs, plain, YARDSTICK_EVERY)


def learn_costs(
    task: Task, rig: Rig, texts: Texts, progress: Progress, yardsticks: Yardsticks
) -> dict[bool, FleetCosts]:
    """Step times and waits by batch size, from short runs on prompts of all domains mixed.

    Every drafter runs at the shortest and at the longest proposal, which settles what its tokens cost; the
    lengths between are run with the first of them, since the verifier does not care who proposed. Plain runs
    in between say how fast the machine was just then.

    Returns:
        Costs by whether the verifier samples: sampling costs time of its own.
    """
    effort = task.effort
    progress.stage("learning what steps cost")
    names = [candidate.name for candidate in task.models]
    sampled = [False] * (min(effort.temperatures) == 0) + [True] * (max(effort.temperatures) > 0)
    costs = {warm: FleetCosts(task.config.speculation, effort.longest) for warm in sampled}
    prompts = _mixed(texts)
    rig.time_batch(prompts[:1], 64, 0.0, names[0], 1, steps=_WARM_UP_STEPS, stop_at_end=False)
    parts = [(rows, warm) for rows in effort.batches for warm in sampled]
    for number, (rows, warm) in enumerate(parts):
        # Where both kinds are run, waits are known from the greedy ones: drafters do not sample.
        runs = _calibration_runs(names if warm == sampled[0] else names[:1], effort.predicted_lengths)
        timings: list[BatchTiming] = []
        for at, (name, length) in enumerate(runs):
            progress.step((number + at / len(runs)) / len(parts), f"batch {rows}, {name or 'plain'}")
            batch = [prompts[(at + row) % len(prompts)] for row in range(rows)]
            timings.append(
                rig.time_batch(
                    batch,
                    effort.calibration_tokens,
                    max(effort.temperatures) if warm else 0.0,
                    name,
                    length,
                    steps=effort.calibration_steps,
                    stop_at_end=False,
                )
            )
        plain = plain_steps(runs, timings)
        yardsticks.add(rows, warm, plain)
        for (name, _), samples in zip(runs, steadied(timings, plain), strict=True):
            costs[warm].observe(name, samples)
            if name is not None and warm == sampled[0]:
                for other in sampled[1:]:
                    costs[other].observe_waits(name, samples)
    return costs


def _calibration_runs(names: Sequence[str], lengths: Sequence[int]) -> list[Way]:
    runs: list[Way] = []
    for number, name in enumerate(names):
        chosen = lengths if number == 0 else sorted({lengths[0], lengths[-1]})
        runs += [(name, length) for length in chosen]
    return with_yardsticks(runs, PLAIN)


def plain_steps(runs: Sequence[Way], timings: Sequence[BatchTiming]) -> list[float | None]:
    """Seconds of a step of each plain run, hiccups left out; None for the others."""
    return [
        median(sample.verify_s for sample in timing.samples) if way == PLAIN and timing.samples else None
        for way, timing in zip(runs, timings, strict=True)
    ]


def steadied(timings: Sequence[BatchTiming], plain: Sequence[float | None]) -> list[list[StepSample]]:
    """The steps of each run as they would have been had the machine always been as fast as in the middle.

    Args:
        timings: the runs.
        plain: seconds of a step of each plain one, None for the others.
    """
    usual = median(value for value in plain if value is not None)
    return [
        [sample.scaled(usual / local) for sample in timing.samples]
        for timing, local in zip(timings, around(plain), strict=True)
    ]


def _mixed(texts: Texts) -> list[list[int]]:
    """Prompts of all domains in turn."""
    by_domain: dict[str, list[VerifierText]] = {}
    for (domain, _), found in texts.items():
        by_domain.setdefault(domain, found)
    longest = max(len(found) for found in by_domain.values())
    return [found[place % len(found)].prompt for place in range(longest) for found in by_domain.values()]
