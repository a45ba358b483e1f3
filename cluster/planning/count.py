"""Counts a model by building it without its weights: exact, for all that transformers knows."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cluster.planning.errors import PlanError
from cluster.planning.precision import PRECISIONS, Precision, declared, precision
from cluster.planning.shape import ModelShape

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

#: Counts above these are typing errors, and building such a model would not end.
_MOST = {
    "num_hidden_layers": 1024,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 1 << 14,
    "vocab_size": 1 << 22,
    "num_experts": 4096,
    "num_local_experts": 4096,
    "num_experts_per_tok": 4096,
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
#: Layers whose memory does not grow with the context; their state is not modelled.
_WINDOWED = frozenset({"sliding_attention", "chunked_attention"})


def count(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape of the model that a ``config.json`` describes.

    The model is built on torch's meta device: no memory, no weights, well under a second.

    Args:
        config: what the file says.
        name: what to call the model.

    Raises:
        PlanError: an architecture that transformers does not know, or one whose KV memory is not modelled.
    """
    _plausible(config, name)
    stored = declared(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = _read(config, name)
        text = whole.get_text_config(decoder=True)
        model = _build(text, name)
        beside = 0 if text is whole else max(0, _total(_build(whole, name)) - _total(model))
    _refuse_unmodelled(text, name)
    base = _base_bytes(config, text)
    kv_full, kv_windows = _kv(text, model, name)
    parts = _parts(model, text, name)
    heads = int(text.num_attention_heads)
    head_dim = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    hidden = int(text.hidden_size)
    used = int(parts["experts_per_token"])
    inner = max(
        int(getattr(text, "intermediate_size", None) or 4 * hidden),
        int(getattr(text, "moe_intermediate_size", None) or 0) * used,
    )
    return ModelShape(
        name=name,
        family=str(text.model_type),
        parameters=_total(model) + beside,
        beside=beside,
        layers=int(text.num_hidden_layers),
        hidden=hidden,
        inner=inner,
        query_width=heads * head_dim,
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        kv_full=kv_full,
        kv_windows=kv_windows,
        vocabulary=int(text.vocab_size),
        max_context=int(getattr(text, "max_position_embeddings", None) or 0),
        base_bytes=base,
        stored=stored or PRECISIONS["fp32" if base == 4 else "bf16"],
        **parts,
    )


def _plausible(config: Mapping[str, Any], name: str) -> None:
    for part in (config, config.get("text_config")):
        for key, most in _MOST.items():
            value = part.get(key) if isinstance(part, Mapping) else None
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                raise PlanError(f"{name}: {key} is {value!r} in its configuration", f"a number up to {most}")
            if value == 0 and key not in ("num_experts", "num_local_experts", "num_experts_per_tok"):
                raise PlanError(f"{name}: {key} is 0 in its configuration", "is this a model's config.json?")


def _read(config: Mapping[str, Any], name: str) -> PretrainedConfig:
    import transformers

    # Counting makes it warn about rope and attention settings that do not matter here.
    transformers.logging.set_verbosity_error()
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        raise PlanError(f"{name}: its configuration has no model_type", "is this a model's config.json?")
    # How weights are stored is read by `declared`; transformers would look for the quantiser's package.
    left_out = ("model_type", "quantization_config", "auto_map")
    rest = {key: value for key, value in config.items() if key not in left_out}
    try:
        return transformers.AutoConfig.for_model(family, **rest)
    except ValueError as error:
        if "Unrecognized model" in str(error) or "model identifier" in str(error):
            raise PlanError(
                f"{name}: transformers {transformers.__version__} does not know the architecture {family!r}",
                "point at the configuration of a model of the same size: --model-config MODEL=CONFIG",
            ) from error
        raise PlanError(f"{name}: {_first_line(error)}", "correct its config.json") from error
    except Exception as error:  # strict dataclasses of transformers raise many kinds
        raise PlanError(f"{name}: {_first_line(error)}", "correct its config.json") from error


def _build(config: PretrainedConfig, name: str) -> nn.Module:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    problem: Exception | None = None
    for kind in (AutoModelForCausalLM, AutoModelForImageTextToText):
        try:
            with torch.device("meta"):
                return kind.from_config(config)
        except Exception as error:  # a model's own constructor: anything may go wrong in it
            problem = problem or error
    raise PlanError(f"{name}: cannot be built as a language model: {_first_line(problem)}")


def _refuse_unmodelled(config: PretrainedConfig, name: str) -> None:
    if getattr(config, "kv_lora_rank", None):
        raise PlanError(f"{name}: multi-head latent attention (MLA) is not modelled yet")
    kinds = set(getattr(config, "layer_types", None) or ()) - _WINDOWED - {"full_attention"}
    recurrent = [key for key in ("ssm_cfg", "state_size", "mamba_d_state") if getattr(config, key, None)]
    if kinds or recurrent:
        what = ", ".join(sorted(kinds)) or "a recurrent state"
        raise PlanError(f"{name}: layers with {what} are not modelled; only attention with a KV cache is")
    if getattr(config, "is_encoder_decoder", False):
        raise PlanError(f"{name}: is an encoder-decoder, not a decoder that continues a text")


def _parts(model: nn.Module, config: PretrainedConfig, name: str) -> dict[str, int]:
    """Parameters by their use; see `ModelShape` for the names."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head_module = model.get_output_embeddings()  # type: ignore[operator]
    head_weight = getattr(head_module, "weight", None)
    tables = linear = experts = channels = 0
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            tables += 0 if module.weight is head_weight else module.weight.numel()
        elif isinstance(module, nn.Linear | Conv1D) and module is not head_module and ".experts." not in path:
            linear += module.weight.numel()
            channels += module.weight.shape[1 if isinstance(module, Conv1D) else 0]
    for path, weight in model.named_parameters():
        if ".experts." in path and weight.dim() >= 2 and not path.endswith("bias"):
            experts += weight.numel()
            channels += weight.numel() // weight.shape[-1]
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    many = next((int(value) for key in names if (value := getattr(config, key, None))), 0) if experts else 0
    names = ("num_experts_per_tok", "moe_topk", "top_k_experts", "moe_top_k")
    used = next((int(value) for key in names if (value := getattr(config, key, None))), 0) if experts else 0
    if experts and not 0 < used <= many:
        raise PlanError(f"{name}: has experts, but its configuration does not say how many a token uses")
    return {
        "tables": tables,
        "head": head_weight.numel() if head_weight is not None else 0,
        "linear": linear,
        "experts": experts,
        "channels": channels,
        "expert_count": many,
        "experts_per_token": used,
    }


def _kv(config: PretrainedConfig, model: nn.Module, name: str) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Numbers of K and V per token: in layers that see everything, and by window."""
    from torch import nn

    layers = int(config.num_hidden_layers)
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    built: dict[int, int] = {}
    for path, module in model.named_modules():
        found = _LAYER.search(path)
        if found and isinstance(module, nn.Linear) and path.endswith((".k_proj", ".v_proj")):
            built[int(found[1])] = built.get(int(found[1]), 0) + module.out_features
    # Layers may differ from each other; the modules know. Fused projections do not show K and V apart.
    each = [built.get(layer, 2 * kv_heads * head_dim) for layer in range(layers)]
    for layer in range(layers - int(getattr(config, "num_kv_shared_layers", None) or 0), layers):
        each[layer] = 0  # reads the KV of an earlier layer
    kinds = list(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    if not kinds and window and getattr(config, "use_sliding_window", True):
        kinds = ["sliding_attention"] * layers
    if kinds and len(kinds) != layers:
        raise PlanError(f"{name}: layer_types names {len(kinds)} layers of {layers}")
    windowed = sum(kv for kv, kind in zip(each, kinds, strict=True) if kind in _WINDOWED) if kinds else 0
    if windowed and not window:
        raise PlanError(f"{name}: has layers with a window, but no sliding_window")
    return sum(each) - windowed, ((int(window), windowed),) if windowed and window else ()


def _base_bytes(config: Mapping[str, Any], text: PretrainedConfig) -> int:
    found = config.get("dtype") or config.get("torch_dtype") or getattr(text, "dtype", None) or "bfloat16"
    known: Precision = precision(str(found).removeprefix("torch."))
    return 4 if known.name == "fp32" else 2


def _total(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _first_line(error: Exception | None) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
