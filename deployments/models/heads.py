"""Whether a head that vLLM runs beside the verifier was made for that verifier."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.models.compatibility import check_compatible
from deployments.models.errors import IncompatibleDraft
from deployments.models.first_layers import read_configuration


def check_head(
    verifier: Path, head: Path, method: str, tokens: int, *, other_vocabulary: bool = False
) -> None:
    """Checks a head, or a draft inside the engine, against its verifier before either is loaded.

    vLLM itself finds most of this out minutes later, or not at all: Medusa heads that the checkpoint lacks
    would propose at random.

    Args:
        verifier: the verifier's checkpoint folder.
        head: the head's.
        method: vLLM's name of the way to propose.
        tokens: how many tokens are proposed in a step.
        other_vocabulary: whether vLLM translates between the two vocabularies.

    Raises:
        IncompatibleDraft: it was not made for this verifier; the text says why.
    """
    ours, theirs = read_configuration(verifier), read_configuration(head)
    if method == "draft_model":
        if not other_vocabulary:
            check_compatible(verifier, head)
        return
    if method == "medusa":
        heads = _medusa_heads(theirs)
        if heads is not None and heads < tokens:
            raise IncompatibleDraft(
                f"{head} has {heads} Medusa heads, one for each proposed token, and {tokens} tokens are "
                f"asked for: set num_speculative_tokens to {heads} or less"
            )
    if method in ("medusa", "eagle"):
        wanted, size = ours.get("hidden_size"), theirs.get("hidden_size")
        if isinstance(wanted, int) and isinstance(size, int) and wanted != size:
            raise IncompatibleDraft(
                f"{head} reads hidden states of size {size}, and those of the verifier, {verifier}, are of "
                f"size {wanted}: take the {method} head that was trained for this verifier"
            )


def _medusa_heads(config: Mapping[str, Any]) -> int | None:
    """As vLLM's `MedusaConfig` finds it: any key with "num" and "heads" in it."""
    for key, value in config.items():
        if "num" in key and "heads" in key and isinstance(value, int):
            return value
    return None
