"""Training a draft on the verifier's texts: exact to resume, reproducible by its seed."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from deployments.distillation.batches import padded, training_steps
from deployments.distillation.checkpoints import Checkpoints, Standing, identity_of
from deployments.distillation.errors import DistillError, Stopped
from deployments.distillation.losses import Targets, loss_and_gradient
from deployments.distillation.progress import Report, Stop
from deployments.distillation.score import Score, score
from deployments.distillation.settings import DistillSettings, TrainingSettings
from deployments.distillation.student import Student
from deployments.distillation.texts import Text

#: Where the learning rate ends, as a share of its highest.
_LAST_RATE = 0.02
#: How often the held-back texts are looked at on the way.
_LOOKS = 5
#: Optimiser steps that are timed and then undone to turn minutes into steps; the first only warms up.
_TIMED = 4


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished training.

    Attributes:
        student: the draft, on the CPU.
        steps: optimiser steps.
        tokens: answer tokens seen, repetitions counted.
        seconds: of computing, over all the runs that it took.
        history: loss and held-back acceptance on the way.
    """

    student: Student
    steps: int
    tokens: int
    seconds: float
    history: list[dict[str, float]]


def train(
    student: Student,
    texts: Sequence[Text],
    held_back: Sequence[Text],
    settings: DistillSettings,
    folder: Path,
    report: Report,
    stop: Stop,
) -> Trained:
    """Train a draft, or go on with a training that was interrupted.

    Args:
        student: as it starts; always the same one for the same training.
        texts: to learn from.
        held_back: only looked at now and then, for people to see how it goes; decides nothing.
        settings: how.
        folder: of the checkpoints.
        report: told the progress in steps.
        stop: looked at after every step.

    Raises:
        Stopped: on request; a checkpoint is written, and the next call goes on from it.
        NoSpace: no room for a checkpoint; the one before is whole.
        DistillError: the loss is no longer a number.
    """
    return _Training(student, texts, held_back, settings, folder, report, stop).run()


class _Training:
    def __init__(
        self,
        student: Student,
        texts: Sequence[Text],
        held_back: Sequence[Text],
        settings: DistillSettings,
        folder: Path,
        report: Report,
        stop: Stop,
    ) -> None:
        self._settings = settings.training
        self._texts = texts
        self._held_back = held_back
        self._report = report
        self._stop = stop
        identity = identity_of(student, texts, self._settings)
        self._checkpoints = Checkpoints(folder, identity)
        self._places = student.places(_vocabulary(student, texts))
        torch.set_num_threads(self._settings.threads or len(os.sched_getaffinity(0)))
        self._accelerator = _accelerator(settings)
        student.train()
        prepared = self._accelerator.prepare(student, *_optimizers(student, self._settings))
        self._student: Student = prepared[0]
        self._optimizers: list[Any] = list(prepared[1:])
        # On a CPU, scores that stay in its caches are a tenth faster; a GPU wants large pieces.
        self._rows = 128 if self._accelerator.device.type == "cpu" else 2048
        self._history: list[dict[str, float]] = []
        self._begun = time.monotonic()
        self._before_s = 0.0

    def run(self) -> Trained:
        """Train to the end."""
        standing = self._checkpoints.latest()
        if standing is None:
            if self._checkpoints.others():
                self._report("training", 0, 1, "texts or settings have changed: training begins anew")
            step, total = 0, self._planned_steps()
        else:
            self._take_up(standing)
            step, total = standing.step, standing.total
        saved_at = time.monotonic()
        looked_at: float | None = None
        every = max(1, total // _LOOKS)
        for groups in itertools.islice(self._steps(), step, total):
            loss = self._one(groups, step, total)
            step += 1
            looks = step % every == 0 and step < total and bool(self._held_back)
            if looks:
                looked_at = score(self._student, self._held_back).first_two
            self._note(step, loss, looked_at if looks else None)
            self._report("training", step, total, _remark(loss, looked_at))
            due = time.monotonic() - saved_at >= 60 * self._settings.checkpoint_minutes
            if step == total or due or self._stop.wanted:
                self._save(step, total)
                saved_at = time.monotonic()
            if self._stop.wanted and step < total:
                raise Stopped(f"stopped after {step} of {total} steps; a checkpoint is written")
        student = self._accelerator.unwrap_model(self._student, keep_fp32_wrapper=False).cpu().eval()
        tokens = sum(
            len(self._texts[number].answer)
            for groups in itertools.islice(self._steps(), total)
            for group in groups
            for number in group
        )
        return Trained(student, total, tokens, self._seconds(), self._history)

    def _steps(self) -> Iterator[list[list[int]]]:
        return training_steps(
            [len(text.prompt) + len(text.answer) for text in self._texts],
            [len(text.answer) for text in self._texts],
            step_tokens=self._settings.step_tokens,
            micro_tokens=self._settings.micro_tokens,
            seed=self._settings.seed,
        )

    def _planned_steps(self) -> int:
        settings = self._settings
        if settings.steps is not None:
            return settings.steps
        if settings.minutes is None:
            tokens = sum(len(text.answer) for text in self._texts)
            return max(1, round(settings.passes * tokens / settings.step_tokens))
        self._report("training", 0, 1, "measuring the speed")
        untouched = self._accelerator.unwrap_model(self._student).trained()
        times = []
        for groups in itertools.islice(self._steps(), _TIMED):
            begun = time.monotonic()
            self._one(groups, 0, _TIMED)
            times.append(time.monotonic() - begun)
        self._restore(untouched)
        for optimizer in self._optimizers:
            optimizer.state.clear()
        return max(1, round(60 * settings.minutes * len(times[1:]) / sum(times[1:])))

    def _one(self, groups: Sequence[Sequence[int]], step: int, total: int) -> float:
        rate = self._settings.learning_rate * _rate(step, total, self._settings.warmup)
        loss = self._gradients(groups)
        if not math.isfinite(loss):
            raise DistillError(
                f"the loss is no number any more after {step} steps: lower training.learning_rate "
                f"(it is {self._settings.learning_rate:g})"
            )
        self._accelerator.clip_grad_norm_(self._student.parameters(), self._settings.clip)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def _gradients(self, groups: Sequence[Sequence[int]]) -> float:
        """Add up the gradients of one step; returns its loss per answer token in nats."""
        count = sum(len(self._texts[number].answer) for group in groups for number in group)
        device = self._accelerator.device
        whole = 0.0
        for group in groups:
            texts = [self._texts[number] for number in group]
            tokens, places, _ = padded(texts)
            targets = Targets.build(
                torch.cat([text.top_ids for text in texts]),
                torch.cat([text.top_logprobs for text in texts]),
                self._places,
            ).to(device)
            hidden = self._student(tokens.to(device), places.to(device))
            with self._accelerator.autocast():
                loss, gradient = loss_and_gradient(
                    self._settings.loss, hidden, self._scores, targets, self._settings.ce_share, self._rows
                )
            hidden.backward(gradient / count)
            whole += loss
        return whole / count

    def _scores(self, hidden: Tensor) -> Tensor:
        return self._accelerator.unwrap_model(self._student).scores(hidden)

    def _save(self, step: int, total: int) -> None:
        self._history[-1]["seconds"] = self._seconds()
        weights = self._accelerator.unwrap_model(self._student).trained()
        states = [optimizer.state_dict() for optimizer in self._optimizers]
        self._checkpoints.save(Standing(step, total, weights, states, self._history))

    def _take_up(self, standing: Standing) -> None:
        self._restore(standing.weights)
        for optimizer, state in zip(self._optimizers, standing.optimizers, strict=True):
            optimizer.load_state_dict(state)
        self._history = list(standing.history)
        self._before_s = self._history[-1].get("seconds", 0.0) if self._history else 0.0

    def _restore(self, weights: Mapping[str, Tensor]) -> None:
        own = dict(self._accelerator.unwrap_model(self._student).body.named_parameters())
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name.removeprefix("model.")].copy_(tensor)

    def _note(self, step: int, loss: float, first_two: float | None) -> None:
        note = {"step": float(step), "loss": loss}
        if first_two is not None:
            note["held_back_first_two"] = first_two
        self._history.append(note)

    def _seconds(self) -> float:
        return self._before_s + time.monotonic() - self._begun


def score_of(student: Student, texts: Sequence[Text]) -> Score:
    """The score of a draft that is not in training."""
    return score(student.eval(), texts)


def _accelerator(settings: DistillSettings) -> Accelerator:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise DistillError(
            "a distillation trains on one device: start it with plain `specfleet distill`, without a launcher"
        )
    # Accelerate keeps its state in the process; a second training may want another precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    device = settings.device
    if device == "cuda" and not torch.cuda.is_available():
        raise DistillError("device is cuda and torch sees no GPU here: choose cpu, or install the GPU build")
    precision = "no" if settings.training.precision == "float32" else "bf16"
    return Accelerator(cpu=device == "cpu" or not torch.cuda.is_available(), mixed_precision=precision)


def _optimizers(student: Student, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim == 2]
    vectors = [parameter for parameter in trained if parameter.ndim != 2]
    decay, rate = settings.weight_decay, settings.learning_rate
    if settings.optimizer == "muon":
        # Updates scaled to those of AdamW, so that one rate serves both.
        first: torch.optim.Optimizer = torch.optim.Muon(
            matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
        )
    else:
        first = torch.optim.AdamW(matrices, lr=rate, weight_decay=decay, betas=(0.9, 0.98))
    second: Iterable[torch.optim.Optimizer] = (
        [torch.optim.AdamW(vectors, lr=rate, weight_decay=0.0, betas=(0.9, 0.98))] if vectors else []
    )
    return [first, *second]


def _rate(step: int, total: int, warmup: float) -> float:
    """The learning rate as a share of its highest: up in a line, down in half a cosine."""
    rise = min(1.0, (step + 1) / max(1.0, warmup * total))
    return rise * (_LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * step / total)))


def _vocabulary(student: Student, texts: Sequence[Text]) -> int:
    ids: Tensor = student.ids  # type: ignore[assignment]
    return 1 + max(int(ids.max()), *(int(text.top_ids.max()) for text in texts))


def _remark(loss: float, first_two: float | None) -> str:
    seen = "" if first_two is None else f", held-back acceptance over positions 1 and 2: {first_two:.3f}"
    return f"loss {loss:.3f}{seen}"
