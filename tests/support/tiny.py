"""Tiny models with random weights, for tests that need a real engine and not a good one."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 64
CONTEXT = 512


def tiny_llama(folder: Path, *, seed: int = 0, spread: float = 0.6, context: int = CONTEXT) -> Path:
    """Write a two-layer Llama whose next-token distribution is far from flat and from certain.

    Args:
        folder: where to write the checkpoint.
        seed: of the weights.
        spread: standard deviation of the weights; larger means more certain.
        context: longest sequence.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.3)
    model.save_pretrained(folder)
    return folder
