"""Shapes of public models for tests, from what their config.json says (https://huggingface.co/ID)."""

from __future__ import annotations

from functools import cache
from typing import Any

from cluster.planning.assumptions import Assumptions
from cluster.planning.count import count
from cluster.planning.fleet import Fleet, without_drafts
from cluster.planning.gpus import built_in
from cluster.planning.options import DraftModel
from cluster.planning.precision import Precision, precision
from cluster.planning.roofline import Engine
from cluster.planning.shape import ModelShape

#: The defaults; tests that fix a figure of theirs say so.
GIVEN = Assumptions()


def llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    """A Llama's configuration."""
    return {
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": 128256,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 131072,
        **more,
    }


_QWEN3 = {"model_type": "qwen3", "dtype": "bfloat16", "head_dim": 128, "vocab_size": 151936}

CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-2-7b": llama(4096, 11008, 32, 32, 32, vocab_size=32000, max_position_embeddings=4096),
    "Llama-2-70b": llama(8192, 28672, 80, 64, 8, vocab_size=32000, max_position_embeddings=4096),
    "Llama-3.1-8B": llama(4096, 14336, 32, 32, 8),
    "Llama-3.1-70B": llama(8192, 28672, 80, 64, 8),
    "Llama-3.2-1B": llama(2048, 8192, 16, 32, 8, head_dim=64, tie_word_embeddings=True),
    "Llama-3.2-3B": llama(3072, 8192, 28, 24, 8, head_dim=128, tie_word_embeddings=True),
    "SmolLM2-135M": llama(576, 1536, 30, 9, 3, vocab_size=49152, tie_word_embeddings=True),
    "Qwen2.5-7B": {
        "model_type": "qwen2",
        "dtype": "bfloat16",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "sliding_window": 131072,
        "use_sliding_window": False,
    },
    "Qwen3-8B": {
        **_QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "Qwen3-235B-A22B": {
        **_QWEN3,
        "model_type": "qwen3_moe",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 40960,
    },
    "Mistral-7B-v0.1": {
        "model_type": "mistral",
        "dtype": "bfloat16",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "sliding_window": 4096,
    },
    "Mixtral-8x7B": {
        "model_type": "mixtral",
        "dtype": "bfloat16",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "gemma-2-9b": {
        "model_type": "gemma2",
        "dtype": "bfloat16",
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "num_hidden_layers": 42,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "vocab_size": 256000,
        "sliding_window": 4096,
    },
    "opt-13b": {
        "model_type": "opt",
        "dtype": "float16",
        "hidden_size": 5120,
        "ffn_dim": 20480,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "vocab_size": 50272,
        "word_embed_proj_dim": 5120,
        "max_position_embeddings": 2048,
    },
}


@cache
def shape(name: str) -> ModelShape:
    """The shape of one of `CONFIGS`."""
    return count(CONFIGS[name], name)


def engine(
    name: str, gpu: str, parallel: int = 1, form: str | Precision = "bf16", kv_bytes: float = 2.0
) -> Engine:
    """A model on GPUs, with the default latencies."""
    used = form if isinstance(form, Precision) else precision(form)
    return Engine(shape(name), used, kv_bytes, built_in()[gpu], parallel, GIVEN.hardware.layer_us)


def fleet(verifier: Engine, replicas: int = 1, most_rows: int = 256) -> Fleet:
    """Verifiers alone."""
    return without_drafts(Fleet(verifier, replicas, (), most_rows, 0.0, 0.0))


def draft(
    name: str = "Llama-3.2-1B", acceptance: float = 0.6, share: float = 1.0, called: str = "d"
) -> DraftModel:
    """A draft in bf16."""
    return DraftModel(called, shape(name), precision("bf16"), 2.0, acceptance, share)
