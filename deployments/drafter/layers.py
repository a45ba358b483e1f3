"""A draft made of the verifier's own first layers, untrained.

`python -m deployments.drafter.layers VERIFIER 8 OUT` writes one.
(Self-speculation by early exit; Elhoushi et al., LayerSkip, arXiv 2404.16710. Models not trained for it
agree with their own first layers rather seldom, which is what such a candidate is there to show.)
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file

from deployments.drafter.checkpoint import DESCRIPTION_FILE, WEIGHTS_FILE, DraftDescription
from deployments.drafter.weights import Checkpoint, DraftError
from deployments.models import resolve_model, tokenizer_sha256

_LAYER: Final = re.compile(r"^model\.layers\.(\d+)\.")
_NORM: Final = "model.norm.weight"


def count_layers(verifier: Path) -> int:
    """Layers of a checkpoint, by its configuration.

    Raises:
        DraftError: the configuration cannot be read or does not say.
    """
    layers = _configuration(verifier).get("num_hidden_layers")
    if not isinstance(layers, int):
        raise DraftError(f"{verifier / 'config.json'} does not say num_hidden_layers")
    return layers


def write_first_layers(verifier: Path, count: int, out: Path) -> None:
    """Write a draft that is the verifier up to a layer, with the verifier's own norm, embedding and head.

    Args:
        verifier: the verifier's checkpoint folder.
        count: how many layers.
        out: an existing folder, filled with the draft.

    Raises:
        DraftError: the verifier has fewer layers, or does not name its tensors as Llama and its kin do.
    """
    config = _configuration(verifier)
    there = count_layers(verifier)
    if not 1 <= count < there:
        raise DraftError(
            f"layers:{count} is not possible: the verifier has {there} layers; take 1 to {there - 1}"
        )
    checkpoint = Checkpoint(verifier)
    wanted = [name for name in checkpoint.names if (at := _LAYER.match(name)) and int(at[1]) < count]
    if not wanted or _NORM not in checkpoint.names:
        raise DraftError(
            f"{verifier} does not name its layers model.layers.N: its first layers cannot be taken as a draft"
        )
    for key in ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "layer_types"):
        config.pop(key, None)
    description = DraftDescription(
        format_version=1,
        name=f"first-{count}-layers",
        architecture={**config, "num_hidden_layers": count},
        shares=["embedding", "head"],
        quantisation="none",
        initialised_from_layers=list(range(count)),
        verifier=verifier.name,
        tokenizer_sha256=tokenizer_sha256(verifier),
    )
    tensors = {name: checkpoint.tensor(name).contiguous() for name in [*wanted, _NORM]}
    save_file(tensors, out / WEIGHTS_FILE, metadata={"format": "pt"})
    (out / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _configuration(verifier: Path) -> dict[str, Any]:
    path = verifier / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DraftError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise DraftError(f"{path} does not hold a JSON object")
    return config


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: write such a draft into a new folder."""
    parser = argparse.ArgumentParser(prog="python -m deployments.drafter.layers", description=__doc__)
    parser.add_argument("verifier", help="model source of the verifier")
    parser.add_argument("count", type=int, help="how many of its layers")
    parser.add_argument("out", type=Path, help="draft folder to write; must not exist")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True)
    write_first_layers(resolve_model(options.verifier), options.count, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
