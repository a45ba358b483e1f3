"""A draft made of the verifier's own first layers, untrained.

`model: layers:8` in the configuration; `python -m deployments.drafter.layers VERIFIER 8 OUT` writes one.
The draft is a description only: layers, norm, embedding and head are read from the verifier's checkpoint.
(Self-speculation by early exit; Elhoushi et al., LayerSkip, arXiv 2404.16710. Models not trained for it
agree with their own first layers rather seldom, which is what such a candidate is there to show.)
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

from deployments.drafter.checkpoint import DESCRIPTION_FILE, DraftDescription
from deployments.models import check_first_layers, layers_of, resolve_model, tokenizer_sha256
from deployments.models.first_layers import read_configuration
from deployments.models.packages import build_once, default_cache

#: Of the verifier's configuration: what is not the architecture, or is worked out from the layers' number.
_LEFT_OUT = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "layer_types")


def resolve_draft(source: str, verifier: Path, *, base: Path | None = None) -> Path:
    """The folder of a draft: `resolve_model`, and `layers:N` besides.

    Args:
        source: what the configuration names as the draft's model.
        verifier: the verifier's checkpoint folder.
        base: the folder against which a relative path is tried first.

    Raises:
        ModelSourceError: the source names nothing, or it cannot be prepared or fetched.
        IncompatibleDraft: `layers:N` of a verifier that cannot be cut so.
    """
    count = layers_of(source)
    return resolve_model(source, base=base) if count is None else first_layers(verifier, count)


def first_layers(verifier: Path, count: int) -> Path:
    """The draft of the verifier's first layers, described once per verifier and count in the cache folder.

    Raises:
        IncompatibleDraft: the verifier cannot be cut so.
        ModelSourceError: the cache cannot be written.
    """
    check_first_layers(verifier, count)
    # A verifier that was changed lies in the same folder and is another one all the same.
    state = [str(verifier.resolve())]
    for file in ("config.json", "tokenizer.json"):
        path = verifier / file
        state.append(f"{file}:{path.stat().st_mtime_ns if path.is_file() else 0}")
    digest = hashlib.sha256("\n".join(state).encode()).hexdigest()[:10]
    target = default_cache().parent / "layers" / f"{verifier.name}-{digest}-shares-first-{count}"
    return build_once(target, lambda folder: write_first_layers(verifier, count, folder))


def write_first_layers(verifier: Path, count: int, out: Path) -> None:
    """Write a draft that is the verifier up to a layer, with the verifier's own norm, embedding and head.

    Args:
        verifier: the verifier's checkpoint folder.
        count: how many layers.
        out: an existing folder, filled with the draft.

    Raises:
        IncompatibleDraft: the verifier has fewer layers, is quantised or a mixture of experts, or does not
            name its tensors as Llama and its kin do.
    """
    check_first_layers(verifier, count)
    config = {key: value for key, value in read_configuration(verifier).items() if key not in _LEFT_OUT}
    description = DraftDescription(
        format_version=1,
        name=f"first-{count}-layers",
        architecture={**config, "num_hidden_layers": count},
        shares=["embedding", "head", "layers"],
        quantisation="none",
        initialised_from_layers=list(range(count)),
        verifier=verifier.name,
        tokenizer_sha256=tokenizer_sha256(verifier),
    )
    (out / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=1) + "\n", encoding="utf-8")


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
