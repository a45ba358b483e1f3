"""The two ways in which a model can be wrong before anything has started."""

from __future__ import annotations


class ModelSourceError(ValueError):
    """A model source names nothing that this machine can load. The text says what was tried."""


class IncompatibleDraft(ValueError):
    """A draft whose token ids do not mean what the verifier's mean, or that cannot take all of them."""
