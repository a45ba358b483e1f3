"""Costs, predictions and the clock on a simulated machine whose true speeds are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cluster.config import FleetConfig
from cluster.evaluation.calibrate import learn_costs
from cluster.evaluation.candidates import Candidate
from cluster.evaluation.effort import FULL, QUICK, Effort
from cluster.evaluation.measure import measure
from cluster.evaluation.prompts import DomainPrompts
from cluster.evaluation.result import Measurement
from cluster.evaluation.run import Findings, Task
from cluster.evaluation.tables import acceptance_of, costs_of, speeds_of
from deployments.drafter.settings import DraftSettings
from deployments.evaluation.costs import StepSample
from deployments.evaluation.drift import Yardsticks
from deployments.evaluation.rig import BatchTiming
from deployments.evaluation.scoring import VerifierText
from deployments.evaluation.walk import ScoredText, replay_batch
from tests.cluster.configs import small
from tests.evaluation.test_walk import scored

TOKENS = 64
RATES = {
    ("code", "code"): 0.7,
    ("code", "general"): 0.3,
    ("general", "code"): 0.2,
    ("general", "general"): 0.4,
}


@dataclass
class SimulatedRig:
    """Replays scored texts on a machine with affine times, whose speed changes as `pace` says."""

    scores: dict[tuple[int, str], ScoredText]
    drift: float = 0.0
    now_s: float = 0.0
    runs: int = 0
    asked: list[tuple[str | None, int, int]] = field(default_factory=list)

    def pace(self) -> float:
        """A slow wave: within a minute the machine is up to `drift` slower and faster."""
        phase = (self.now_s % 60.0) / 60.0
        return 1.0 + self.drift * (4 * phase - 1 if phase < 0.5 else 3 - 4 * phase)

    def time_batch(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        temperature: float,
        draft: str | None,
        length: int,
        *,
        steps: int | None = None,
        stop_at_end: bool = True,
    ) -> BatchTiming:
        rows = len(prompts)
        self.asked.append((draft, length, rows))
        texts = [self.scores[prompt[0], draft or "code"] for prompt in prompts]
        run = replay_batch(texts, length if draft else 0, most=steps)
        samples = []
        for proposed in run.proposed:
            wait = (0.001 + 0.002 * length * rows**0.5) if draft else 0.0
            sample = StepSample(
                rows, proposed, 0.05 + 0.004 * rows + 0.003 * proposed, length if draft else 0, wait
            ).scaled(self.pace())
            self.now_s += sample.verify_s + sample.wait_s
            samples.append(sample)
        seconds = sum(sample.verify_s + sample.wait_s for sample in samples)
        return BatchTiming(rows, seconds, round(run.written), run.steps, tuple(samples), (1,) * rows)


def stage(effort: Effort, drift: float = 0.0) -> tuple[Task, SimulatedRig, Findings]:
    """Two drafts that are each better in a domain of their own."""
    rng = random.Random(5)
    config = FleetConfig.model_validate(small())
    findings = Findings()
    rig = SimulatedRig({}, drift)
    number = 0
    for domain in ("code", "general"):
        for _ in range(effort.prompts):
            number += 1
            text = VerifierText([number], [0] * TOKENS, TOKENS, [])
            findings.texts.setdefault((domain, 0.0), []).append(text)
            for name in ("code", "general"):
                rate = RATES[domain, name]
                rig.scores[number, name] = scored([rng.random() < rate for _ in range(TOKENS)])
                findings.scores.setdefault((domain, name, 0.0), []).append(rig.scores[number, name])
    settings = DraftSettings(model="-")
    task = Task(
        config=config,
        file="fleet.yaml",
        verifier=Path("verifier"),
        candidates=[
            Candidate(name, "draft", name, Path(name), settings, configured=True)
            for name in ("code", "general")
        ],
        prompts={domain: DomainPrompts(["?"], "nowhere", False) for domain in ("code", "general")},
        effort=replace(effort, temperatures=(0.0,), max_tokens=TOKENS),
        quick=True,
        remarks=[],
    )
    return task, rig, findings


class Silent:
    """Progress that nobody watches."""

    def stage(self, name: str) -> None: ...

    def step(self, done: float, what: str = "") -> None:
        assert 0.0 <= done <= 1.0


def evaluated(
    effort: Effort, drift: float = 0.0, deadline: float | None = None
) -> tuple[Task, SimulatedRig, list[Measurement], list[str]]:
    task, rig, findings = stage(effort, drift)
    yardsticks = Yardsticks()
    costs = learn_costs(task, rig, findings.texts, Silent(), yardsticks)  # type: ignore[arg-type]
    speeds = speeds_of(task, findings.scores, costs)
    measurements, remarks = measure(task, rig, findings, costs, speeds, deadline, Silent(), yardsticks)  # type: ignore[arg-type]
    assert len(costs_of(task, costs)) == 2 * len(effort.batches)
    assert len(acceptance_of(task, findings.scores)) == 4
    return task, rig, measurements, remarks


def test_predictions_come_true_on_a_steady_machine() -> None:
    _, _, measurements, remarks = evaluated(QUICK)
    assert {(one.domain, one.candidate, one.length, one.batch) for one in measurements} == {
        (domain, domain, length, batch)
        for domain in ("code", "general")
        for length in QUICK.lengths
        for batch in QUICK.batches
    }
    for one in measurements:
        assert abs(one.error) < 0.03
        assert one.measured_length == pytest.approx(one.predicted_length)
        assert one.drafted_rate / one.plain_rate == pytest.approx(one.measured, rel=1e-2)
    assert remarks == []


def test_a_machine_that_is_not_always_equally_fast_does_not_mislead() -> None:
    """By half slower and faster again within a minute: plain runs in between take it out."""
    _, _, measurements, remarks = evaluated(QUICK, drift=0.5)
    assert max(abs(one.error) for one in measurements) < 0.10
    assert "The machine was not steady" in remarks[0]


def test_drift_is_what_plain_runs_take_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same machine, with one plain run at the ends only."""
    monkeypatch.setattr("cluster.evaluation.calibrate.YARDSTICK_EVERY", 1000)
    _, _, measurements, _ = evaluated(QUICK, drift=0.5)
    assert max(abs(one.error) for one in measurements) > 0.12


def test_without_quick_the_candidate_that_is_predicted_to_be_better_is_measured_too() -> None:
    effort = replace(FULL, prompts=4, timed_prompts=4, batches=(1, 4))
    task, rig, findings = stage(effort)
    swapped = {"code": "general", "general": "code"}  # the configuration has it the wrong way round
    domains = {
        name: domain.model_copy(update={"draft": swapped[name]})
        for name, domain in task.config.domains.items()
    }
    task = replace(task, config=task.config.model_copy(update={"domains": domains}))
    yardsticks = Yardsticks()
    costs = learn_costs(task, rig, findings.texts, Silent(), yardsticks)  # type: ignore[arg-type]
    speeds = speeds_of(task, findings.scores, costs)
    measurements, _ = measure(task, rig, findings, costs, speeds, None, Silent(), yardsticks)  # type: ignore[arg-type]
    assert {(one.domain, one.candidate) for one in measurements} == {
        (domain, name) for domain in ("code", "general") for name in ("code", "general")
    }
    best = {
        domain: max(
            (one for one in measurements if one.domain == domain), key=lambda one: one.measured
        ).candidate
        for domain in ("code", "general")
    }
    assert best == {"code": "code", "general": "general"}


def test_what_no_time_is_left_for_is_said() -> None:
    _, _, measurements, remarks = evaluated(QUICK, deadline=0.0)
    assert measurements == []
    assert "8 of 8 measurements were left out for lack of time" in remarks[0]


def test_every_drafter_is_run_at_both_ends_and_one_in_between() -> None:
    _, rig, _, _ = evaluated(QUICK, deadline=0.0)
    for batch in QUICK.batches:
        lengths = {
            name: {length for draft, length, rows in rig.asked if (draft, rows) == (name, batch)}
            for name in ("code", "general")
        }
        assert lengths == {"code": {1, 2, 3, 4}, "general": {1, 4}}
