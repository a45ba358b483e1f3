"""What a distillation says when it cannot go on."""

from __future__ import annotations


class DistillError(ValueError):
    """Something a person has to mend. The text names it and says what to do; nothing half-written is left."""


class NoSpace(DistillError):
    """The disk is full, or a quota or size limit is reached."""


class Stopped(RuntimeError):
    """Stopped on request. What is done so far is kept, and the same command goes on from there."""
