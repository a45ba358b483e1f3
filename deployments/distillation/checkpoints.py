"""Where a training stands, on disk: whole or not at all, and only ever taken up by the same training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deployments.distillation.errors import DistillError
from deployments.distillation.files import remove_partial, write_atomically
from deployments.distillation.settings import TrainingSettings
from deployments.distillation.student import Student
from deployments.distillation.texts import Text

#: What does not change the result, so that a run may go on with another value.
_HARMLESS = {"threads", "checkpoint_minutes"}
_KEPT = 2


@dataclass(frozen=True, slots=True)
class Standing:
    """A training in the middle of it.

    Attributes:
        step: optimiser steps done.
        total: optimiser steps planned.
        weights: what is trained.
        optimizers: states of the optimisers, in their order.
        history: what was noted on the way.
    """

    step: int
    total: int
    weights: dict[str, Tensor]
    optimizers: list[dict[str, Any]]
    history: list[dict[str, float]]


class Checkpoints:
    """The checkpoints of one training.

    Args:
        folder: made when missing.
        identity: a digest of everything that decides the result. Checkpoints of another are not read, and go
            with the first one written.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        remove_partial(folder)
        self._folder = folder
        self._identity = identity[:16]

    def save(self, standing: Standing) -> Path:
        """Write where the training stands; the one before is kept, older ones go.

        Raises:
            NoSpace: it does not fit; the ones before are untouched.
        """
        path = self._folder / f"{self._identity}-{standing.step:08d}.pt"
        content = {
            "step": standing.step,
            "total": standing.total,
            "weights": standing.weights,
            "optimizers": standing.optimizers,
            "history": standing.history,
        }
        write_atomically(path, lambda file: torch.save(content, file))
        for old in self._all()[:-_KEPT]:
            old.unlink(missing_ok=True)
        for foreign in set(self._folder.glob("*.pt")) - set(self._all()):
            foreign.unlink(missing_ok=True)
        return path

    def latest(self) -> Standing | None:
        """Where the training stood last; None when it has not begun.

        Raises:
            DistillError: the checkpoint is damaged.
        """
        paths = self._all()
        if not paths:
            return None
        try:
            content = torch.load(paths[-1], map_location="cpu", weights_only=True)
            return Standing(**content)
        except Exception as error:  # torch raises whatever the damaged part runs into
            raise DistillError(
                f"checkpoint {paths[-1]} is damaged ({type(error).__name__}): remove it, and the "
                "training goes on from the one before"
            ) from error

    def others(self) -> int:
        """How many checkpoints of other trainings lie here."""
        return len(set(self._folder.glob("*.pt")) - set(self._all()))

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._identity}-*.pt"))


def identity_of(student: Student, texts: Sequence[Text], settings: TrainingSettings) -> str:
    """A digest of everything that decides what a training ends in, but for the machine."""
    digest = hashlib.sha256()
    digest.update(settings.model_dump_json(exclude=_HARMLESS).encode())
    digest.update(json.dumps([student.config, student.head_ids, student.layers], sort_keys=True).encode())
    for name, tensor in sorted(student.trained().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    for text in texts:
        for tensor in (text.prompt, text.answer):
            digest.update(tensor.numpy().tobytes() + b"|")
    return digest.hexdigest()
