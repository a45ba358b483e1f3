"""Counting models: against published figures, and refusing what is not modelled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.planning.count import count
from cluster.planning.errors import PlanError
from cluster.planning.precision import PRECISIONS, declared, precision
from cluster.planning.sources import find_model, known_models
from tests.planning.shapes import CONFIGS, llama, shape

KIB = 1024
GIB = 1 << 30


def _compressed(weights: dict[str, Any]) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


#: Parameters as the hub shows them from the safetensors' headers, at https://huggingface.co/ID
#: (meta-llama/Llama-3.1-8B, Qwen/Qwen2.5-7B-Instruct, mistralai/Mistral-7B-v0.1, google/gemma-2-9b, ...).
PUBLISHED = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.2-1B": 1_235_814_400,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen3-8B": 8_190_735_360,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mixtral-8x7B": 46_702_792_704,
    "gemma-2-9b": 9_241_705_984,
    "SmolLM2-135M": 134_515_008,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert shape(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "billions"),
    # "46.7B total parameters but only uses 12.9B parameters per token": https://mistral.ai/news/mixtral-of-experts
    # "235B in total and 22B activated": the model card of Qwen/Qwen3-235B-A22B.
    [("Mixtral-8x7B", 12.9), ("Qwen3-235B-A22B", 22.2)],
)
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert shape(name).active / 1e9 == pytest.approx(billions, abs=0.05)


def test_a_dense_model_uses_all_of_its_parameters() -> None:
    assert shape("Llama-3.1-8B").active == PUBLISHED["Llama-3.1-8B"]


@pytest.mark.process
def test_the_list_of_known_models_counts_to_what_it_says() -> None:
    entries = {entry["ids"][0]: entry for entry in known_models().values()}
    counted = {name: count(entry["config"], name).parameters for name, entry in entries.items()}
    assert counted == {name: entry["parameters"] for name, entry in entries.items()}
    assert len(counted) > 20


@pytest.mark.parametrize(
    ("name", "kib"),
    # OPT-13B: "the KV cache of a single token demands 800 KB", section 3 of the vLLM paper, arXiv 2309.06180.
    # Llama-3.1-8B: 2 x 32 layers x 8 KV heads x 128 x 2 bytes. Llama-2-7B keeps every head: four times that.
    [("opt-13b", 800), ("Llama-3.1-8B", 128), ("Llama-2-7b", 512), ("Llama-3.1-70B", 320)],
)
def test_kv_memory_of_a_token_is_the_published_one(name: str, kib: int) -> None:
    assert shape(name).kv_numbers * 2 == kib * KIB


def test_kv_memory_agrees_with_a_log_of_vllm_for_a_mixture_of_experts() -> None:
    # https://github.com/vllm-project/vllm/issues/21348: Qwen3-235B-A22B-FP8 on 4 GPUs, "Available KV cache
    # memory: 8.11 GiB", "GPU KV cache size: 178,880 tokens" on each.
    model = shape("Qwen3-235B-A22B")
    each = model.kv_bytes(1, 2.0) * model.kv_share(4)
    assert 8.11 * GIB / each == pytest.approx(178_880, rel=0.02)


def test_copies_of_kv_heads_take_room_when_there_are_more_gpus_than_heads() -> None:
    model = shape("Qwen3-235B-A22B")
    assert model.kv_share(8) == model.kv_share(4) == 0.25


def test_windows_bound_the_kv_memory_of_long_requests() -> None:
    whole, half = shape("Mistral-7B-v0.1"), shape("gemma-2-9b")
    assert whole.kv_bytes(4096, 2.0) == whole.kv_bytes(30_000, 2.0)
    assert half.kv_full == half.kv_numbers / 2  # every other layer
    grown = half.kv_bytes(8192, 2.0) - half.kv_bytes(4096, 2.0)
    assert grown == 4096 * half.kv_full * 2


def test_a_window_that_is_switched_off_does_not_count() -> None:
    assert shape("Qwen2.5-7B").kv_windows == ()


def test_few_tokens_read_few_experts_and_many_read_all() -> None:
    model, form = shape("Mixtral-8x7B"), precision("bf16")
    one, rest = model.read_bytes(form, 1)
    assert one + rest == pytest.approx(2 * (model.active - model.tables), rel=1e-6)
    assert model.read_bytes(form, 1000)[0] == pytest.approx(2 * (model.linear + model.experts), rel=1e-6)


@pytest.mark.parametrize(
    ("form", "gigabytes"),
    # Matrices in fewer bits, embedding and head (2 x 525,336,576) in bf16: 6,979,321,856 x 1 + 1,050,939,392
    # x 2, and 4 bits with a 16-bit scale and a 4-bit zero point for 128 weights.
    [("bf16", 16.061), ("fp8", 9.086), ("int8", 9.086), ("int4", 5.729)],
)
def test_weights_shrink_by_what_is_quantised(form: str, gigabytes: float) -> None:
    assert shape("Llama-3.1-8B").weight_bytes(precision(form)) / 1e9 == pytest.approx(gigabytes, abs=0.005)


@pytest.mark.parametrize(
    ("quantisation", "form", "group"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "int4", 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8", None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", None),
        (_compressed({"type": "float", "num_bits": 8}), "fp8", None),
        (_compressed({"type": "int", "num_bits": 4, "group_size": 32}), "int4", 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 64),
    ],
)  # fmt: skip
def test_a_checkpoint_says_what_it_is_quantised_to(
    quantisation: dict[str, Any], form: str, group: int | None
) -> None:
    found = declared({"quantization_config": quantisation})
    assert found is not None
    assert (found.name, found.group) == (form, group)


def test_an_unknown_quantisation_asks_for_a_precision() -> None:
    with pytest.raises(PlanError, match="--verifier-precision"):
        declared({"quantization_config": {"quant_method": "magic"}})


def test_a_quantised_model_is_counted_without_its_quantiser() -> None:
    config = {**CONFIGS["Llama-3.2-1B"], "quantization_config": {"quant_method": "awq", "bits": 4}}
    found = count(config, "quantised")
    assert found.stored.name == "int4"
    assert found.parameters == PUBLISHED["Llama-3.2-1B"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "deepseek_v3"}, "latent attention"),
        ({"model_type": "qwen3_next"}, "linear_attention"),
        ({"model_type": "no_such_thing"}, "does not know the architecture 'no_such_thing'"),
        ({"hidden_size": 64}, "no model_type"),
        (llama(64, 128, -2, 4, 2), "num_hidden_layers is -2"),
        (llama(64, 128, 2, 4, 0), "num_key_value_heads is 0"),
        (llama(64, 128, 10**9, 4, 2), "num_hidden_layers is 1000000000"),
        (llama(64, 128, 2, 4, 2, vocab_size="many"), "vocab_size is 'many'"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        count(config, "the-model")
    assert "the-model" in str(caught.value)


def test_precisions_have_the_names_people_use() -> None:
    assert precision("BFloat16") is PRECISIONS["bf16"]
    assert precision("awq") is PRECISIONS["int4"]
    with pytest.raises(PlanError, match="one of: fp32, bf16"):
        precision("fp7")


def _verifier(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**CONFIGS["SmolLM2-135M"], **changes}))
    return file


def test_a_draft_of_the_verifiers_layers_holds_them_and_embedding_and_head(tmp_path: Path) -> None:
    verifier = find_model(str(_verifier(tmp_path))).shape
    found = find_model("layers:3", verifier=str(tmp_path / "config.json"))
    outside = verifier.parameters - verifier.linear - 2 * 576 * verifier.layers  # two norms a layer
    assert found.shape.linear * 10 == verifier.linear
    assert found.shape.layers == 3
    assert found.shape.parameters == outside + verifier.linear // 10 + 2 * 576 * 3
    assert found.shape.kv_numbers * 10 == verifier.kv_numbers
    assert not found.own_format


@pytest.mark.parametrize(
    ("source", "changes", "said"),
    [
        ("layers:0", {}, "take 1 to 29"),
        ("layers:30", {}, "take 1 to 29"),
        ("layers:some", {}, "write layers:N"),
        ("layers:3", {"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"),
    ],
)
def test_layers_that_cannot_be_a_draft(
    tmp_path: Path, source: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        find_model(source, verifier=str(_verifier(tmp_path, **changes)))


def test_a_verifier_cannot_be_its_own_layers() -> None:
    with pytest.raises(PlanError, match="only a draft can be that"):
        find_model("layers:3")
