"""A small Medusa head, trained on texts that its verifier wrote. None is public for models of this size.

Cai et al., Medusa, arXiv 2401.10774: head i reads the verifier's last hidden state at a place and says the
token i + 2 places further on, through a residual block and an output layer; here the verifier's own, cut to
the tokens that occur. The layout is that of vLLM's `model_executor/models/medusa.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM


def train_medusa(
    verifier: Path, out: Path, texts: Sequence[Sequence[int]], *, heads: int, steps: int, seed: int = 0
) -> list[float]:
    """Train and write a head.

    Args:
        verifier: the verifier's checkpoint folder.
        out: the folder to write.
        texts: token ids, prompts with the verifier's greedy answers.
        heads: tokens proposed at once.
        steps: updates of each head, over all texts at once.
        seed: of the order of texts.

    Returns:
        Per head, how often it was right on the texts it learnt from.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    output = model.get_output_embeddings().weight.detach()
    vocabulary, hidden = output.shape
    used = torch.tensor(sorted({token for text in texts for token in text}))
    place_of = torch.full((vocabulary,), -1, dtype=torch.long)
    place_of[used] = torch.arange(len(used))
    states = [_states(model, text) for text in texts]
    tokens = [torch.tensor(list(text)) for text in texts]
    tensors = {"lm_heads.0.weight": output[used].clone()}
    if len(used) < vocabulary:
        tensors["token_map"] = used
    right = []
    for head in range(heads):
        ahead = head + 2
        inputs = torch.cat([state[:-ahead] for state in states])
        wanted = place_of[torch.cat([text[ahead:] for text in tokens])]
        block = _train(inputs, wanted, output[used], steps)
        tensors[f"blocks.{head}.layers.0.weight"] = block
        said = _said(inputs, block, output[used]).argmax(-1)
        right.append(float((said == wanted).float().mean()))
    out.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors")
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": vocabulary,
        "truncated_vocab_size": len(used),
        "medusa_num_heads": heads,
        "medusa_num_layers": 1,
        "original_lm_head": True,
        "torch_dtype": "float32",
    }
    (out / "config.json").write_text(json.dumps(config))
    return right


@torch.inference_mode()
def _states(model: nn.Module, text: Sequence[int]) -> Tensor:
    """What the output layer reads at every place: [tokens, hidden]."""
    return model.model(input_ids=torch.tensor([list(text)])).last_hidden_state[0].clone()


def _said(inputs: Tensor, block: Tensor, output: Tensor) -> Tensor:
    return (inputs + F.silu(inputs @ block.T)) @ output.T


def _train(inputs: Tensor, wanted: Tensor, output: Tensor, steps: int) -> Tensor:
    block = torch.zeros(inputs.shape[1], inputs.shape[1], requires_grad=True)
    optimiser = torch.optim.AdamW([block], lr=3e-3, weight_decay=0.0)
    for _ in range(steps):
        chosen = torch.randperm(len(inputs))[:512]
        loss = F.cross_entropy(_said(inputs[chosen], block, output), wanted[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return block.detach()
