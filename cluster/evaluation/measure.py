"""Predictions against the clock, on the real engine with its drafters."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.evaluation.calibrate import PLAIN, YARDSTICK_EVERY, Way, plain_steps, with_yardsticks
from cluster.evaluation.result import Measurement, Speed
from deployments.evaluation.costs import FleetCosts
from deployments.evaluation.drift import Yardsticks, around
from deployments.evaluation.rig import BatchTiming, Rig
from deployments.evaluation.walk import BatchReplay, group, replay_batch

if TYPE_CHECKING:
    from cluster.evaluation.run import Findings, Progress, Scores, Task, Texts

#: Plain steps that differ by more than this come from a machine with something else to do.
_STEADY = 1.35


@dataclass(frozen=True, slots=True)
class _Block:
    """What is measured in turn on the same prompts: plain decoding, and drafts at several lengths."""

    domain: str
    temperature: float
    rows: int
    groups: list[list[int]]
    drafts: list[Way]


@dataclass(slots=True)
class _Clocked:
    """The runs of one way to decode, and plain steps beside them.

    Attributes:
        timings: the runs.
        plain_s: seconds of a plain step at the time of each.
    """

    timings: list[BatchTiming] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of all runs."""
        return sum(timing.seconds for timing in self.timings)

    @property
    def steps(self) -> int:
        """Of all runs."""
        return sum(timing.steps for timing in self.timings)

    @property
    def written(self) -> int:
        """Tokens of all runs."""
        return sum(timing.written for timing in self.timings)

    @property
    def plain_seconds(self) -> float:
        """What plain decoding would have taken for the same tokens, at the times of the runs."""
        return sum(
            timing.written / timing.rows * plain
            for timing, plain in zip(self.timings, self.plain_s, strict=True)
        )


def measure(
    task: Task,
    rig: Rig,
    findings: Findings,
    costs: Mapping[bool, FleetCosts],
    speeds: Sequence[Speed],
    deadline: float | None,
    progress: Progress,
    yardsticks: Yardsticks,
) -> tuple[list[Measurement], list[str]]:
    """Measure the domains' drafts, each against plain decoding of the same prompts right before or after.

    Args:
        task: what is evaluated.
        rig: the engine.
        findings: texts and scores.
        costs: as learnt.
        speeds: predictions, to find rivals of the domains' drafts.
        deadline: monotonic time in seconds after which nothing more begins; None for none.
        progress: who is told how far it is.
        yardsticks: of the costs; more are added.

    Returns:
        The measurements, and remarks on what was left out and on how steady the machine was.
    """
    progress.stage("measuring")
    blocks = _blocks(task, findings.texts, speeds)
    weights = [_expected_s(block, task, findings, costs) for block in blocks]
    measurements: list[Measurement] = []
    left_out = 0
    for number, block in enumerate(blocks):
        if deadline is not None and time.monotonic() + weights[number] > deadline:
            left_out += len(block.drafts)
            continue
        done = sum(weights[:number]) / max(sum(weights), 1e-9)
        sampled = f", temperature {block.temperature:g}" if block.temperature else ""
        progress.step(done, f"{block.domain}, batch {block.rows}{sampled}")
        measurements += _run(block, task, rig, findings, costs, yardsticks)
    progress.step(1.0)
    remarks = []
    if left_out:
        remarks.append(
            f"{left_out} of {left_out + len(measurements)} measurements were left out for lack of time; "
            "without --quick everything is measured."
        )
    if yardsticks.spread > _STEADY:
        remarks.append(
            f"The machine was not steady: the same plain steps took up to {yardsticks.spread:.1f} times as "
            "long as at best. Speeds are less sure than they look: end what else runs here, and repeat."
        )
    return measurements, remarks


def _blocks(task: Task, texts: Texts, speeds: Sequence[Speed]) -> list[_Block]:
    effort = task.effort
    blocks = []
    for temperature in sorted(effort.temperatures):
        # Sampled texts differ from run to run: one length, many texts. Large batches give the most of them.
        batches = effort.batches if temperature == 0 else effort.batches[-1:]
        lengths = effort.lengths if temperature == 0 else effort.lengths[-1:]
        most = effort.timed_prompts if temperature == 0 else effort.timed_samples
        for rows in batches:
            for domain, settings in task.config.domains.items():
                # One request at a time is what takes longest.
                count = min(len(texts[domain, temperature]), most if rows > 1 else max(2, most // 2))
                names = [settings.draft]
                if effort.rivals:
                    names += _rivals(task, speeds, domain, temperature, rows, settings.draft)
                drafts: list[Way] = [(name, length) for name in names for length in lengths]
                groups = group(count, rows)
                blocks.append(_Block(domain, temperature, rows, groups, drafts))
    return blocks


def _rivals(
    task: Task, speeds: Sequence[Speed], domain: str, temperature: float, rows: int, present: str
) -> list[str]:
    """Who is predicted to beat the domain's own draft, if anybody."""
    served = {candidate.name for candidate in task.models}
    here = [
        one
        for one in speeds
        if (one.domain, one.temperature, one.batch) == (domain, temperature, rows) and one.candidate in served
    ]
    best = max(here, key=lambda one: one.predicted)
    return [] if best.candidate == present else [best.candidate]


def _run(
    block: _Block,
    task: Task,
    rig: Rig,
    findings: Findings,
    costs: Mapping[bool, FleetCosts],
    yardsticks: Yardsticks,
) -> list[Measurement]:
    texts = findings.texts[block.domain, block.temperature]
    order: list[tuple[Way, int]] = []
    for number in range(len(block.groups)):
        # Back and forth, so that whatever else the machine does falls on all alike.
        drafts = block.drafts if number % 2 == 0 else list(reversed(block.drafts))
        order += [(draft, number) for draft in drafts]
    runs: list[Way] = []
    timings: list[BatchTiming] = []
    groups: list[int] = []
    for way, number in with_yardsticks(order, (PLAIN, -1)):
        chosen = number if number >= 0 else (groups[-1] if groups else 0)
        prompts = [texts[index].prompt for index in block.groups[chosen]]
        timing = rig.time_batch(
            prompts, texts[0].limit, block.temperature, *way, steps=task.effort.timed_steps
        )
        if timing.steps:
            runs.append(way)
            timings.append(timing)
            groups.append(chosen)
    plain = [
        timing.seconds / timing.steps if way == PLAIN else None
        for way, timing in zip(runs, timings, strict=True)
    ]
    yardsticks.add(block.rows, block.temperature > 0, plain_steps(runs, timings))
    clocked: dict[Way, _Clocked] = {way: _Clocked() for way in block.drafts}
    if any(value is not None for value in plain):
        for way, timing, local in zip(runs, timings, around(plain), strict=True):
            if way != PLAIN:
                clocked[way].timings.append(timing)
                clocked[way].plain_s.append(local)
    return [
        _compare(block, way, clocked[way], _replays(block, task, findings.scores, way), costs)
        for way in block.drafts
        if clocked[way].steps
    ]


def _compare(
    block: _Block,
    way: Way,
    clocked: _Clocked,
    foretold: Sequence[BatchReplay],
    costs: Mapping[bool, FleetCosts],
) -> Measurement:
    learnt = costs[block.temperature > 0]
    name, length = way
    predicted = learnt.speedup(name, length, foretold)
    measured = clocked.plain_seconds / clocked.seconds
    steps = sum(replay.steps for replay in foretold)
    written = sum(replay.written for replay in foretold)
    return Measurement(
        domain=block.domain,
        candidate=str(name),
        temperature=block.temperature,
        length=length,
        batch=block.rows,
        predicted=round(predicted, 4),
        measured=round(measured, 4),
        error=round(predicted / measured - 1.0, 4),
        chance=round(_chance(foretold, clocked), 4) if block.temperature else 0.0,
        plain_rate=round(clocked.written / clocked.plain_seconds, 2),
        drafted_rate=round(clocked.written / clocked.seconds, 2),
        predicted_length=round(written / (steps * block.rows), 4),
        measured_length=round(clocked.written / (clocked.steps * block.rows), 4),
        predicted_step_ratio=round(written / (steps * block.rows) / predicted, 4),
        measured_step_ratio=round(clocked.written / (clocked.steps * block.rows) / measured, 4),
        step_ms=round(1e3 * clocked.seconds / clocked.steps, 3),
    )


def _replays(block: _Block, task: Task, scores: Scores, way: Way) -> list[BatchReplay]:
    name, length = way
    texts = scores[block.domain, str(name), block.temperature]
    return [
        replay_batch([texts[index] for index in chosen], length, most=task.effort.timed_steps)
        for chosen in block.groups
    ]


def _chance(foretold: Sequence[BatchReplay], clocked: _Clocked) -> float:
    """Relative standard error of foretold over seen tokens per step; both are samples of the same kind."""
    written = sum(replay.written for replay in foretold)
    variance = sum(replay.variance for replay in foretold)
    steps = sum(replay.steps * replay.rows for replay in foretold)
    seen = sum(timing.steps * timing.rows for timing in clocked.timings)
    relative = variance / written**2
    return math.sqrt(relative * (1.0 + steps / max(seen, 1)))


def _expected_s(block: _Block, task: Task, findings: Findings, costs: Mapping[bool, FleetCosts]) -> float:
    """Seconds that a block will take, prompts included."""
    learnt = costs[block.temperature > 0]
    texts = findings.texts[block.domain, block.temperature]
    prompt_s = 2 * learnt.step_s(block.rows, 4 * block.rows)
    shortest = min(len(texts[index].answer) for chosen in block.groups for index in chosen) - 1
    runs = len(block.groups) * len(block.drafts)
    plain = -(-runs // YARDSTICK_EVERY) + 1
    seconds = plain * (prompt_s + min(shortest, task.effort.timed_steps) * learnt.step_s(block.rows))
    for name, length in block.drafts:
        for replay in _replays(block, task, findings.scores, (name, length)):
            ratio = learnt.step_ratio(name, block.rows, length)
            seconds += prompt_s + replay.steps * ratio * learnt.step_s(block.rows)
    return seconds
