"""Writing the finished draft in the form that the fleet serves: a folder that exists whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

from deployments.distillation.card import Story, card, measured
from deployments.distillation.errors import DistillError
from deployments.distillation.files import no_space_named
from deployments.distillation.student import Student
from deployments.drafter.pack import pack_draft
from deployments.drafter.weights import DraftError


def export(student: Student, out: Path, verifier: Path, story: Story) -> Path:
    """Write `draft.json`, the weights in 8 bits and the model card.

    Args:
        student: the trained draft.
        out: the folder; one that is there is replaced when the new one is complete.
        verifier: the verifier's checkpoint.
        story: how the draft came about.

    Raises:
        NoSpace: it does not fit; nothing is left of it, and an old folder is untouched.
        DistillError: it cannot be written for another reason.
    """
    description = {
        "architecture": student.config,
        "num_hidden_layers": student.config["num_hidden_layers"],
        "head_token_ids": student.head_ids,
        "initialised_from_layers": student.layers,
        "measured": measured(story),
    }
    for leftover in out.parent.glob(f".{out.name}.partial-*"):  # of a run that was killed while it wrote
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with no_space_named(out.parent):
            return pack_draft(
                student.trained(),
                description,
                out,
                name=story.name,
                verifier=verifier,
                verifier_name=story.verifier,
                card=card(story, student),
                most_bytes=None,
            )
    except (DraftError, OSError) as error:
        raise DistillError(f"{out} cannot be written: {error}") from error
