"""Drafts that were published already quantised: read where that can be, refused by name where not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from torch import Tensor

from deployments.drafter.checkpoint import load_draft
from deployments.drafter.engine import DraftEngine
from deployments.drafter.weights import DraftError
from deployments.models import IncompatibleDraft, check_compatible
from tests.drafter.conftest import VOCABULARY, Reference, draft, write_checkpoint

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "tie_word_embeddings": True,
}
FORMATS = {"int8": "int-quantized", "fp8": "float-quantized", "int4": "pack-quantized"}


def quantised(weight: Tensor, kind: str) -> tuple[dict[str, Tensor], Tensor]:
    """What a checkpoint stores for one linear layer, by the ends of its names, and what that stands for."""
    most = {"int8": 127, "fp8": 448, "int4": 7}[kind]
    scale = weight.abs().amax(1, keepdim=True) / most
    if kind == "fp8":
        values = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": values, "weight_scale": scale}, values.float() * scale
    values = (weight / scale).round().to(torch.int8)
    plain = values.float() * scale
    if kind == "int8":
        return {"weight": values, "weight_scale": scale}, plain
    shape = torch.tensor(weight.shape)
    return {"weight_packed": pack_to_int32(values, 4), "weight_scale": scale, "weight_shape": shape}, plain


def publish(folder: Path, kind: str, architecture: str) -> tuple[Path, Path]:
    """A checkpoint in compressed-tensors, and a plain one of exactly the same numbers."""
    plain = write_checkpoint(folder / "plain", architecture, seed=3, **SIZES)
    stored = shutil.copytree(plain, folder / "stored")
    save_file(store_quantised(stored, kind), plain / "model.safetensors", metadata={"format": "pt"})
    return stored, plain


def store_quantised(folder: Path, kind: str) -> dict[str, Tensor]:
    """Turn a plain checkpoint into one in compressed-tensors; returns the plain numbers it stands for."""
    ours: dict[str, Tensor] = {}
    theirs: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            ours[name] = theirs[name] = weight
            continue
        parts, ours[name] = quantised(weight, kind)
        theirs |= {name.removesuffix("weight") + end: part.contiguous() for end, part in parts.items()}
    save_file(theirs, folder / "model.safetensors", metadata={"format": "pt"})
    weights = {
        "num_bits": 4 if kind == "int4" else 8,
        "type": "float" if kind == "fp8" else "int",
        "symmetric": True,
        "strategy": "channel",
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    say(
        folder,
        quant_method="compressed-tensors",
        format=FORMATS[kind],
        quantization_status="compressed",
        ignore=["lm_head"],
        config_groups={"group_0": group},
    )
    return ours


def say(folder: Path, **quantisation: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": quantisation}))


@pytest.mark.parametrize(("architecture", "backend"), [("llama", "own"), ("qwen2", "transformers")])
@pytest.mark.parametrize("kind", list(FORMATS))
def test_compressed_tensors_say_what_the_same_plain_numbers_say(
    kind: str,
    architecture: str,
    backend: str,
    verifier: Path,
    tmp_path: Path,
    reference: Callable[..., Reference],
) -> None:
    stored, plain = publish(tmp_path, kind, architecture)
    assert check_compatible(verifier, stored, max_model_len=64) is None
    loaded = load_draft(stored, verifier, quantise=False)
    assert loaded.backend == backend
    text = [(13 * place) % VOCABULARY for place in range(10)]
    assert draft(DraftEngine(loaded.forward), 0, text, 8) == reference(plain).greedy(text, 8)


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "fp8", None])
def test_others_are_refused_by_name(method: str | None, verifier: Path, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "draft", "llama", **SIZES)
    say(folder, bits=4, **({"quant_method": method} if method else {}))
    named = method or "a method that is not named"
    for refuse, kind in ((check_compatible, IncompatibleDraft), (_load, DraftError)):
        with pytest.raises(kind, match=rf"stored quantised \({named}\).*take the model's unquantised"):
            refuse(verifier, folder)


def _load(verifier: Path, folder: Path) -> None:
    load_draft(folder, verifier)


@pytest.mark.parametrize("kind", list(FORMATS))
def test_a_checkpoint_that_lacks_weights_is_no_draft(kind: str, verifier: Path, tmp_path: Path) -> None:
    stored, _ = publish(tmp_path, kind, "llama")
    tensors = load_file(stored / "model.safetensors")
    prefix = "model.layers.1.mlp.up_proj."
    save_file(
        {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)},
        stored / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(DraftError, match=r"no weights for model\.layers\.1.*do not belong together"):
        load_draft(stored, verifier)
