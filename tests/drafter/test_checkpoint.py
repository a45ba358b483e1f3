"""Drafts on disk: packing, loading, and what is said when something does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from deployments.drafter.checkpoint import load_draft, read_description
from deployments.drafter.engine import DraftEngine
from deployments.drafter.pack import main, pack_draft
from deployments.drafter.weights import Checkpoint, DraftError
from deployments.models import check_compatible
from tests.drafter.conftest import PADDED, VOCABULARY, Reference, draft, json_of

HEAD = [1, 4, 9, 16, 25, 36, 49, 60]


@pytest.fixture
def source(tmp_path: Path, verifier: Path) -> Path:
    """Layers 0 and 3 of the verifier as a draft's layers, as training leaves them."""
    tensors = load_file(verifier / "model.safetensors")
    layers = {"model.norm.weight": tensors["model.norm.weight"].bfloat16()}
    for new, old in enumerate((0, 3)):
        for name, tensor in tensors.items():
            if name.startswith(f"model.layers.{old}."):
                layers[name.replace(f"layers.{old}.", f"layers.{new}.")] = tensor.bfloat16()
    folder = tmp_path / "source"
    folder.mkdir()
    save_file(layers, folder / "layers.safetensors")
    description = {
        "num_hidden_layers": 2,
        "initialised_from_layers": [0, 3],
        "head_token_ids": HEAD,
        "measured": "nothing",
    }
    (folder / "draft.json").write_text(json.dumps(description))
    return folder


@pytest.fixture
def packed(source: Path, verifier: Path, tmp_path: Path) -> Path:
    main([str(source), str(tmp_path / "mine"), "--verifier", str(verifier), "--verifier-name", "Tiny"])
    return tmp_path / "mine"


def dequantised(packed: Path, verifier: Path, folder: Path) -> Path:
    """The packed draft as an ordinary checkpoint, put together without the code under test."""
    stored = load_file(packed / "model.safetensors")
    tensors = {
        name: tensor.float() * stored[name + "_scale"][:, None] if name + "_scale" in stored else tensor
        for name, tensor in stored.items()
        if not name.endswith("_scale")
    }
    config = json.loads((verifier / "config.json").read_text()) | {"num_hidden_layers": 2}
    shutil.copytree(verifier, folder)
    (folder / "config.json").write_text(json.dumps(config))
    embedding = load_file(verifier / "model.safetensors")["model.embed_tokens.weight"]
    save_file(
        tensors | {"model.embed_tokens.weight": embedding}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder


def test_a_packed_draft_says_what_it_is(packed: Path, verifier: Path) -> None:
    assert {file.name for file in packed.iterdir()} == {"draft.json", "model.safetensors", "README.md"}
    description = read_description(packed)
    assert (description.name, description.verifier, description.format_version) == ("mine", "Tiny", 1)
    assert description.head_token_ids == HEAD
    assert description.shares == ["embedding", "head"]
    card = (packed / "README.md").read_text()
    for part in ("# mine: a draft for Tiny", "layers 0, 3", "8 token ids", "nothing", "Licence", "Limits"):
        assert part in card
    assert check_compatible(verifier, packed) is None
    stored = load_file(packed / "model.safetensors")
    assert stored["model.layers.0.mlp.up_proj.weight"].dtype == torch.int8
    assert not any("embed" in name or "lm_head" in name for name in stored)


@pytest.mark.parametrize("backend", ["own", "transformers"])
def test_the_cut_head_proposes_the_verifiers_ids(
    packed: Path,
    verifier: Path,
    tmp_path: Path,
    backend: Literal["own", "transformers"],
    reference: Callable[..., Reference],
) -> None:
    truth = reference(dequantised(packed, verifier, tmp_path / "plain"), HEAD)
    engine = DraftEngine(load_draft(packed, verifier, quantise=False, backend=backend).forward)
    seen = set()
    for start in range(VOCABULARY):
        tokens = draft(engine, start, [start, 3, start], 4)
        assert tokens == truth.greedy([start, 3, start], 4)
        seen.update(tokens)
    assert seen <= set(HEAD)
    assert len(seen) > 1


@pytest.mark.parametrize("backend", ["own", "transformers"])
@pytest.mark.parametrize("quantise", [False, True])
def test_padding_of_the_vocabulary_is_never_proposed(
    tmp_path: Path, tiny_llama: Path, verifier: Path, backend: Literal["own", "transformers"], quantise: bool
) -> None:
    # Make a padding id the likeliest by far wherever it may win.
    folder = tmp_path / "loud"
    shutil.copytree(tiny_llama, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        model.lm_head.weight[VOCABULARY:] = model.lm_head.weight[:3] * 50
    model.save_pretrained(folder)
    contexts = [[token, 5, 2] for token in range(VOCABULARY)]
    with torch.inference_mode():
        assert (model(torch.tensor(contexts)).logits[:, -1].argmax(-1) >= VOCABULARY).any()
    engine = DraftEngine(load_draft(folder, verifier, quantise=quantise, backend=backend).forward)
    assert all(max(draft(engine, tuple(c), c, 4)) < VOCABULARY < PADDED for c in contexts)


def test_only_shared_tensors_of_the_verifier_are_read(packed: Path, verifier: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(verifier / name, bare / name)
    embedding = load_file(verifier / "model.safetensors")["model.embed_tokens.weight"]
    save_file({"model.embed_tokens.weight": embedding}, bare / "model-00001-of-00002.safetensors")
    index = {"model.embed_tokens.weight": "model-00001-of-00002.safetensors", "model.x": "absent.safetensors"}
    (bare / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    one = DraftEngine(load_draft(packed, bare).forward)
    other = DraftEngine(load_draft(packed, verifier).forward)
    assert draft(one, 0, [1, 2, 3], 6) == draft(other, 0, [1, 2, 3], 6)


def change(folder: Path, **values: Any) -> None:
    (folder / "draft.json").write_text(json.dumps(json_of(folder) | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format_version": 2}, "not a draft of format 1: format_version"),
        ({"colour": "red"}, "not a draft of format 1: colour"),
        ({"head_token_ids": [1, 64]}, "head_token_ids must be between 0 and 63"),
        ({"head_token_ids": [61, 63]}, "no token left to propose"),
        ({"shares": ["head"]}, "neither shares nor stores its embedding"),
    ],
)
def test_a_damaged_description_is_named(
    packed: Path, verifier: Path, values: dict[str, Any], message: str
) -> None:
    change(packed, **values)
    with pytest.raises(DraftError, match=message):
        load_draft(packed, verifier)


def test_a_draft_for_another_size_is_refused(packed: Path, verifier: Path) -> None:
    change(packed, architecture=json_of(packed)["architecture"] | {"hidden_size": 96})
    with pytest.raises(DraftError, match=r"hidden size 96.*made for Tiny"):
        load_draft(packed, verifier)


def test_missing_and_truncated_weights_are_named(packed: Path, verifier: Path, tmp_path: Path) -> None:
    change(packed, architecture=json_of(packed)["architecture"] | {"num_hidden_layers": 3})
    with pytest.raises(DraftError, match=r"lacks the tensor 'model\.layers\.2\.self_attn\.q_proj\.weight'"):
        load_draft(packed, verifier)
    weights = packed / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DraftError, match="no readable safetensors weights"):
        load_draft(packed, verifier)
    with pytest.raises(DraftError, match=r"neither a draft \(no draft\.json\) nor a Hugging Face checkpoint"):
        load_draft(tmp_path, verifier)


def test_packing_replaces_whole_or_not_at_all(packed: Path, source: Path, verifier: Path) -> None:
    before = (packed / "model.safetensors").read_bytes()
    description = json_of(source) | {"num_hidden_layers": 3}
    arguments = {"name": "mine", "verifier": verifier, "verifier_name": "Tiny"}
    with pytest.raises(DraftError, match=r"layers 0 to 2, found layers \['0', '1'\]"):
        pack_draft(source / "layers.safetensors", description, packed, **arguments)  # type: ignore[arg-type]
    assert (packed / "model.safetensors").read_bytes() == before
    pack_draft(source / "layers.safetensors", json_of(source), packed, **arguments)  # type: ignore[arg-type]
    assert {path.name for path in packed.parent.iterdir()} == {"mine", "source"}


def test_the_embedding_is_mapped_and_not_copied(verifier: Path) -> None:
    checkpoint = Checkpoint(verifier)
    assert checkpoint.embedding().shape == (PADDED, 48)
    with pytest.raises(DraftError, match=r"no tensor model\.layers\.9"):
        checkpoint.tensor("model.layers.9")
