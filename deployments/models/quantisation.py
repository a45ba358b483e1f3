"""Checkpoints that were published already quantised: which of them drafters can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from deployments.models.errors import IncompatibleDraft

#: Methods whose weights drafters turn into plain ones at load. The package for it comes with vLLM; those of
#: the other methods (AWQ, GPTQ, bitsandbytes, ...) do not, and most of them need a GPU.
READABLE: Final = frozenset({"compressed-tensors"})


def quantisation_of(config: Mapping[str, Any]) -> str | None:
    """The method by which a checkpoint's weights are quantised, by its `config.json`; None: they are not."""
    given = config.get("quantization_config")
    if not given:
        return None
    method = given.get("quant_method") if isinstance(given, Mapping) else None
    return str(method) if method else "a method that is not named"


def check_readable(draft: Path, config: Mapping[str, Any]) -> None:
    """Checks that drafters can read a checkpoint's weights.

    Args:
        draft: the checkpoint's folder, for messages.
        config: what its `config.json` says.

    Raises:
        IncompatibleDraft: they cannot; the text names the quantisation and says what to do.
    """
    method = quantisation_of(config)
    if method is not None and method not in READABLE:
        raise IncompatibleDraft(
            f"draft {draft} is stored quantised ({method}), which drafters cannot read: take the model's "
            "unquantised checkpoint (on CPUs drafters make 8 bits of it themselves, drafts.NAME.quantise), "
            f"or one in {' or '.join(sorted(READABLE))}"
        )
