"""Learning what steps cost, and predictions against the clock, on the real engine with its drafters."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.evaluation.result import Measurement, Speed
from deployments.evaluation.costs import FleetCosts
from deployments.evaluation.rig import BatchTiming, Rig
from deployments.evaluation.scoring import VerifierText
from deployments.evaluation.walk import BatchReplay, group, replay_batch

if TYPE_CHECKING:
    from cluster.evaluation.run import Findings, Progress, Scores, Task, Texts

#: Steps of a batch that only wake caches and connections.
_WARM_UP_STEPS = 4


def learn_costs(task: Task, rig: Rig, texts: Texts, progress: Progress) -> dict[bool, FleetCosts]:
    """Step times and waits by batch size, from short runs on prompts of all domains mixed.

    Every drafter runs at the shortest and at the longest proposal, which settles what its tokens cost; the
    lengths between are run with the first of them, since the verifier does not care who proposed.

    Returns:
        Costs by whether the verifier samples: sampling costs time of its own.
    """
    effort = task.effort
    progress.stage("learning what steps cost")
    lengths = effort.predicted_lengths
    names = [candidate.name for candidate in task.models]
    runs: list[tuple[bool, int, str | None, int]] = []
    sampled = [False] * (min(effort.temperatures) == 0) + [True] * (max(effort.temperatures) > 0)
    for rows in effort.batches:
        for warm in sampled:
            # Where both kinds are run, waits are known from the greedy ones: drafters do not sample.
            drafters = names if warm == sampled[0] else names[:1]
            runs.append((warm, rows, None, 0))
            for number, drafter in enumerate(drafters):
                ends = {lengths[0], lengths[-1]} if number or warm else set(lengths)
                runs += [(warm, rows, drafter, length) for length in sorted(ends)]
            runs.append((warm, rows, None, 0))  # at both ends, so that a machine that drifts is averaged
    costs = {warm: FleetCosts(task.config.speculation, effort.longest) for warm in sampled}
    prompts = _mixed(texts)
    rig.time_batch(prompts[:1], 64, 0.0, names[0], 1, steps=_WARM_UP_STEPS, stop_at_end=False)
    for number, (warm, rows, name, length) in enumerate(runs):
        temperature = max(effort.temperatures) if warm else 0.0
        steps, limit = effort.calibration_steps, effort.calibration_tokens
        batch = [prompts[(number + row) % len(prompts)] for row in range(rows)]
        timing = rig.time_batch(batch, limit, temperature, name, length, steps=steps, stop_at_end=False)
        costs[warm].observe(name, timing.samples)
        if name is not None and warm == sampled[0]:
            for other in sampled[1:]:
                costs[other].observe_waits(name, timing.samples)
        progress.step((number + 1) / len(runs), f"batch {rows}, {name or 'plain'}, k = {length}")
    return costs


def _mixed(texts: Texts) -> list[list[int]]:
    """Prompts of all domains in turn."""
    by_domain: dict[str, list[VerifierText]] = {}
    for (domain, _), found in texts.items():
        by_domain.setdefault(domain, found)
    longest = max(len(found) for found in by_domain.values())
    return [found[place % len(found)].prompt for place in range(longest) for found in by_domain.values()]


@dataclass(frozen=True, slots=True)
class _Block:
    """What is measured in turn on the same prompts: plain decoding, and drafts at several lengths."""

    domain: str
    temperature: float
    rows: int
    groups: list[list[int]]
    drafts: list[tuple[str, int]]


@dataclass(slots=True)
class _Clocked:
    """The batches of one way to decode."""

    timings: list[BatchTiming] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(timing.seconds for timing in self.timings)

    @property
    def steps(self) -> int:
        return sum(timing.steps for timing in self.timings)

    @property
    def written(self) -> int:
        return sum(timing.written for timing in self.timings)

    @property
    def rate(self) -> float:
        return self.written / self.seconds if self.seconds else 0.0


def measure(
    task: Task,
    rig: Rig,
    findings: Findings,
    costs: Mapping[bool, FleetCosts],
    speeds: Sequence[Speed],
    deadline: float | None,
    progress: Progress,
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

    Returns:
        The measurements, and remarks on what was left out.
    """
    progress.stage("measuring")
    blocks = _blocks(task, findings.texts, speeds)
    weights = [_expected_s(block, findings, costs) for block in blocks]
    measurements: list[Measurement] = []
    left_out = 0
    for number, block in enumerate(blocks):
        if deadline is not None and time.monotonic() + weights[number] > deadline:
            left_out += len(block.drafts)
            continue
        done = sum(weights[:number]) / max(sum(weights), 1e-9)
        sampled = f", temperature {block.temperature:g}" if block.temperature else ""
        progress.step(done, f"{block.domain}, batch {block.rows}{sampled}")
        measurements += _run(block, rig, findings, costs)
    progress.step(1.0)
    remarks = []
    if left_out:
        remarks.append(
            f"{left_out} of {left_out + len(measurements)} measurements were left out for lack of time; "
            "without --quick everything is measured."
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
                drafts = [(name, length) for name in names for length in lengths]
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


def _run(block: _Block, rig: Rig, findings: Findings, costs: Mapping[bool, FleetCosts]) -> list[Measurement]:
    texts = findings.texts[block.domain, block.temperature]
    ways: list[tuple[str | None, int]] = [(None, 0), *block.drafts]
    clocked = {way: _Clocked() for way in ways}
    for number, chosen in enumerate(block.groups):
        prompts = [texts[index].prompt for index in chosen]
        # Back and forth, so that whatever else the machine does falls on all alike.
        for name, length in ways if number % 2 == 0 else reversed(ways):
            timing = rig.time_batch(prompts, texts[0].limit, block.temperature, name, length)
            if timing.steps:
                clocked[name, length].timings.append(timing)
    plain = clocked[None, 0]
    return [
        _compare(block, name, length, clocked[name, length], plain, findings.scores, costs)
        for name, length in block.drafts
        if clocked[name, length].steps and plain.steps
    ]


def _compare(
    block: _Block,
    name: str,
    length: int,
    drafted: _Clocked,
    plain: _Clocked,
    scores: Scores,
    costs: Mapping[bool, FleetCosts],
) -> Measurement:
    learnt = costs[block.temperature > 0]
    foretold = _replays(block, scores, name, length)
    predicted = learnt.speedup(name, length, foretold)
    measured = drafted.rate / plain.rate
    steps = sum(replay.steps for replay in foretold)
    seconds = sum(
        learnt.step_s(replay.rows, proposed) + learnt.wait_s(name, replay.rows, length)
        for replay in foretold
        for proposed in replay.proposed
    )
    written = sum(replay.written for replay in foretold)
    return Measurement(
        domain=block.domain,
        candidate=name,
        temperature=block.temperature,
        length=length,
        batch=block.rows,
        predicted=round(predicted, 4),
        measured=round(measured, 4),
        error=round(predicted / measured - 1.0, 4),
        chance=round(_chance(foretold, drafted), 4) if block.temperature else 0.0,
        plain_rate=round(plain.rate, 2),
        drafted_rate=round(drafted.rate, 2),
        predicted_length=round(written / (steps * block.rows), 4),
        measured_length=round(drafted.written / (drafted.steps * block.rows), 4),
        predicted_step_ms=round(1e3 * seconds / steps, 3),
        measured_step_ms=round(1e3 * drafted.seconds / drafted.steps, 3),
    )


def _replays(block: _Block, scores: Scores, name: str, length: int) -> list[BatchReplay]:
    texts = scores[block.domain, name, block.temperature]
    return [replay_batch([texts[index] for index in chosen], length) for chosen in block.groups]


def _chance(foretold: Sequence[BatchReplay], drafted: _Clocked) -> float:
    """Relative standard error of foretold over seen tokens per step; both are samples of the same kind."""
    written = sum(replay.written for replay in foretold)
    variance = sum(replay.variance for replay in foretold)
    steps = sum(replay.steps * replay.rows for replay in foretold)
    seen = sum(timing.steps * timing.rows for timing in drafted.timings)
    relative = variance / written**2
    return math.sqrt(relative * (1.0 + steps / max(seen, 1)))


def _expected_s(block: _Block, findings: Findings, costs: Mapping[bool, FleetCosts]) -> float:
    """Seconds that a block will take, prompts included."""
    learnt = costs[block.temperature > 0]
    texts = findings.texts[block.domain, block.temperature]
    seconds = 0.0
    for chosen in block.groups:
        plain = min(len(texts[index].answer) for index in chosen) - 1
        seconds += plain * learnt.step_s(block.rows)
        seconds += (1 + len(block.drafts)) * 2 * learnt.step_s(block.rows, 4 * block.rows)
    for name, length in block.drafts:
        for replay in _replays(block, findings.scores, name, length):
            seconds += replay.steps * (
                learnt.step_s(block.rows, block.rows * length) + learnt.wait_s(name, block.rows, length)
            )
    return seconds
