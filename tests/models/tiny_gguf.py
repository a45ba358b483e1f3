"""A tiny Llama as a GGUF file, as the embedded verifier is a small one."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

from tests.models.checkpoints import content, train_bpe

HIDDEN, HEADS, LAYERS, FEED_FORWARD, CONTEXT = 32, 2, 1, 64, 128


def write_gguf(path: Path) -> None:
    """Writes random weights and a real byte-level BPE tokenizer."""
    tokenizer = content(train_bpe())
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(vocab))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([text for text, _ in vocab])
    writer.add_token_merges(merges)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(vocab) - 2))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    shapes = {"token_embd": (len(vocab), HIDDEN), "output_norm": (HIDDEN,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{name}"] = (HIDDEN, HIDDEN)
    shapes |= {"blk.0.ffn_gate": (FEED_FORWARD, HIDDEN), "blk.0.ffn_up": (FEED_FORWARD, HIDDEN)}
    shapes |= {"blk.0.ffn_down": (HIDDEN, FEED_FORWARD)}
    shapes |= {"blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,)}
    for name, shape in shapes.items():
        data = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 2 and shape[1] % 32 == 0:
            quantised = gguf.quantize(data, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"{name}.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(f"{name}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]))
