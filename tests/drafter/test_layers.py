"""Drafts made of the verifier's first layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.drafter.checkpoint import load_draft, read_description
from deployments.drafter.engine import DraftEngine
from deployments.drafter.layers import main, resolve_draft, write_first_layers
from deployments.models import IncompatibleDraft, ModelSourceError, check_compatible
from deployments.models.first_layers import count_layers
from tests.drafter.conftest import VOCABULARY, Reference, draft, write_checkpoint

HEADS = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_all_layers_but_the_last_that_does_nothing_say_what_the_verifier_says(
    architecture: str, tmp_path: Path, reference: Callable[..., Reference]
) -> None:
    verifier = write_checkpoint(
        tmp_path / "verifier", architecture, **HEADS, num_hidden_layers=3, tie_word_embeddings=True
    )
    silence_last_layer(verifier, 2)
    (tmp_path / "draft").mkdir()
    write_first_layers(verifier, 2, tmp_path / "draft")
    assert check_compatible(verifier, tmp_path / "draft") is None
    engine = DraftEngine(load_draft(tmp_path / "draft", verifier, quantise=False).forward)
    text = [(11 * place) % VOCABULARY for place in range(12)]
    assert draft(engine, 0, text, 6) == reference(verifier).greedy(text, 6)


def silence_last_layer(folder: Path, layer: int) -> None:
    """A layer that adds nothing: the layers before it then say what the whole model says."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"model.layers.{layer}.{name}.weight"].zero_()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_it_is_described_and_nothing_of_the_verifier_is_copied(verifier: Path, tmp_path: Path) -> None:
    main([str(verifier), "1", str(tmp_path / "out")])
    description = read_description(tmp_path / "out")
    assert description.name == "first-1-layers"
    assert description.initialised_from_layers == [0]
    assert count_layers(verifier) == 4
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["draft.json"]


def test_a_source_of_layers_becomes_one_folder(
    verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = resolve_draft("layers:2", verifier)
    assert folder == resolve_draft("layers:2", verifier) != resolve_draft("layers:1", verifier)
    assert folder.is_relative_to(tmp_path)
    assert load_draft(folder, verifier).forward.kv.layers == 2
    assert resolve_draft(str(verifier), verifier) == verifier
    for source in ("layers:", "layers:many", "layers:-1", "layers:1.5"):
        with pytest.raises(ModelSourceError, match="write layers:N"):
            resolve_draft(source, verifier)


@pytest.mark.parametrize("count", [0, 4, 9])
def test_impossible_counts_say_what_is_possible(verifier: Path, tmp_path: Path, count: int) -> None:
    with pytest.raises(IncompatibleDraft, match=r"4 layers; take 1 to 3"):
        write_first_layers(verifier, count, tmp_path)


def test_other_names_of_layers_are_an_error_for_people(tmp_path: Path) -> None:
    gpt2 = write_checkpoint(tmp_path / "gpt2", "gpt2", n_embd=32, n_layer=3, n_head=4)
    with pytest.raises(IncompatibleDraft, match="does not say num_hidden_layers"):
        write_first_layers(gpt2, 1, tmp_path)
    falcon = write_checkpoint(
        tmp_path / "falcon", "falcon", hidden_size=32, num_hidden_layers=3, num_attention_heads=4
    )
    with pytest.raises(IncompatibleDraft, match=r"does not name its layers model\.layers\.N"):
        write_first_layers(falcon, 1, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq\)"),
        ({"num_local_experts": 8}, "mixture of experts"),
    ],
)
def test_verifiers_that_cannot_be_cut(
    verifier: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    import json
    import shutil

    other = shutil.copytree(verifier, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(IncompatibleDraft, match=said):
        resolve_draft("layers:2", other)
