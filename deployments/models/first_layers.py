"""`layers:N` as a draft's model: the first N layers of the fleet's own verifier.

Here is what can be said before anything is loaded; `deployments.drafter.layers` makes the draft.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from deployments.models.errors import IncompatibleDraft, ModelSourceError
from deployments.models.quantisation import quantisation_of

LAYERS_PREFIX: Final = "layers:"
#: A decoder layer's tensor, as Llama and its kin name it.
LAYER_NAME: Final = re.compile(r"^model\.layers\.(\d+)\.")
#: The norm in front of the head, likewise.
NORM_NAME: Final = "model.norm.weight"
#: Keys under which configurations count experts.
_EXPERT_KEYS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
#: A safetensors header of a large model is a few hundred kilobytes; above this it is none.
_MOST_HEADER_BYTES: Final = 100 * 2**20


def layers_of(source: str) -> int | None:
    """How many of the verifier's layers a draft's source asks for; None for every other source.

    Raises:
        ModelSourceError: it begins like such a source and is none.
    """
    if source != LAYERS_PREFIX[:-1] and not source.startswith(LAYERS_PREFIX):
        return None
    number = source.removeprefix(LAYERS_PREFIX)
    if not re.fullmatch(r"[0-9]{1,6}", number):
        raise ModelSourceError(f"{source!r} is no draft: write layers:N, for example layers:8")
    return int(number)


def count_layers(verifier: Path) -> int:
    """Layers of a checkpoint, by its configuration.

    Raises:
        IncompatibleDraft: the configuration cannot be read or does not say.
    """
    return _stated(read_configuration(verifier), str(verifier / "config.json"))


def check_first_layers(verifier: Path, count: int) -> None:
    """Checks whether the first layers of a checkpoint can be its draft; nothing is loaded.

    Args:
        verifier: the verifier's checkpoint folder. Weights that are not there are not looked at.
        count: how many layers.

    Raises:
        IncompatibleDraft: they cannot; the text says why and what to do.
    """
    check_configuration(read_configuration(verifier), count, str(verifier / "config.json"))
    names = tensor_names(verifier)
    if names:
        first_layers_tensors(names, count, verifier)


def check_configuration(config: Mapping[str, Any], count: int, where: str) -> None:
    """Checks what a verifier's configuration alone can tell of its first layers as a draft.

    Args:
        config: what `config.json` says.
        count: how many layers.
        where: what to call the configuration.

    Raises:
        IncompatibleDraft: they cannot be one; the text says why and what to do.
    """
    there = _stated(config, where)
    if not 1 <= count < there:
        raise IncompatibleDraft(
            f"layers:{count} is not possible: the verifier has {there} layers; take 1 to {there - 1}"
        )
    method = quantisation_of(config)
    if method is not None:
        raise IncompatibleDraft(
            f"layers:{count} is not possible: the verifier's weights are quantised ({method}), and drafters "
            "read plain ones; name a small model of its family as the draft, or make one with "
            "`specfleet distill` from the unquantised verifier"
        )
    if any(isinstance(config.get(key), int) and config[key] > 1 for key in _EXPERT_KEYS):
        raise IncompatibleDraft(
            f"layers:{count} is not possible: the verifier is a mixture of experts, whose layers are as "
            "large as whole drafts; name a small dense model of its family as the draft"
        )


def first_layers_tensors(names: Iterable[str], count: int, verifier: Path) -> list[str]:
    """The names of the tensors that the draft takes from the verifier's checkpoint, sorted.

    Args:
        names: those of all tensors of the checkpoint.
        count: how many layers.
        verifier: its folder, for messages.

    Raises:
        IncompatibleDraft: the checkpoint does not name its layers as Llama and its kin do.
    """
    all_names = set(names)
    wanted = {name for name in all_names if (at := LAYER_NAME.match(name)) and int(at[1]) < count}
    found = {int(at[1]) for name in wanted if (at := LAYER_NAME.match(name))}
    if found != set(range(count)) or NORM_NAME not in all_names:
        raise IncompatibleDraft(
            f"{verifier} does not name its layers model.layers.N as Llama and its kin do: its first layers "
            "cannot be taken as a draft; name a small model of its family, or make one with `specfleet "
            "distill`"
        )
    return sorted({*wanted, NORM_NAME})


def tensor_names(folder: Path) -> set[str]:
    """Names of the tensors in a checkpoint folder, from its index or its file's header; empty: no weights.

    Raises:
        IncompatibleDraft: index or header are damaged.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.is_file():
            return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        if not single.is_file():
            return set()
        with single.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size <= _MOST_HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            return set(json.loads(file.read(size))) - {"__metadata__"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IncompatibleDraft(f"the weights in {folder} cannot be read: {error}") from error


def read_configuration(verifier: Path) -> dict[str, Any]:
    """A checkpoint's `config.json`.

    Raises:
        IncompatibleDraft: it cannot be read.
    """
    path = verifier / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IncompatibleDraft(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise IncompatibleDraft(f"{path} does not hold a JSON object")
    return config


def _stated(config: Mapping[str, Any], where: str) -> int:
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int):
        inner = config.get("text_config")
        what = " at its top level: the model is multimodal" if isinstance(inner, dict) else ""
        raise IncompatibleDraft(f"{where} does not say num_hidden_layers{what}")
    return layers
