"""A small EAGLE head, trained on texts that its verifier wrote. None is public for models of this size.

Li et al., EAGLE, arXiv 2401.15077: one decoder layer reads the verifier's last hidden state at a place beside
the embedding of the token that came next, and says what the next hidden state will be; the verifier's own
output layer makes a token of it. The layout is that of vLLM's `model_executor/models/llama_eagle.py`.
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
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding


def train_eagle(
    verifier: Path, out: Path, texts: Sequence[Sequence[int]], *, steps: int, seed: int = 0
) -> float:
    """Train and write a head for a Llama.

    Args:
        verifier: the verifier's checkpoint folder.
        out: the folder to write.
        texts: token ids, prompts with the verifier's greedy answers, all of one length.
        steps: updates, each on a few texts.
        seed: of the first weights and of the order of texts.

    Returns:
        How often its first proposal was right on the texts it learnt from.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    tokens = torch.tensor([list(text) for text in texts])
    with torch.no_grad():
        states = model.model(input_ids=tokens).last_hidden_state
        embeddings = model.get_input_embeddings()(tokens)
    output = model.get_output_embeddings().weight.detach()
    head = _Head(model.config)
    optimiser = torch.optim.AdamW(head.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(steps):
        chosen = torch.randperm(len(tokens))[:16]
        said = head(embeddings[chosen, 1:-1], states[chosen, :-2])
        close = F.smooth_l1_loss(said, states[chosen, 1:-1])
        right = F.cross_entropy((said @ output.T).flatten(0, 1), tokens[chosen, 2:].flatten())
        optimiser.zero_grad()
        (close + right).backward()
        optimiser.step()
    with torch.no_grad():
        said = head(embeddings[:, 1:-1], states[:, :-2]) @ output.T
    out.mkdir(parents=True)
    tensors = {"fc.weight": head.fc.weight}
    tensors |= {f"layers.0.{name}": tensor for name, tensor in head.layer.named_parameters()}
    save_file({name: one.detach().contiguous() for name, one in tensors.items()}, out / "model.safetensors")
    config = {**model.config.to_dict(), "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    (out / "config.json").write_text(json.dumps(config))
    return float((said.argmax(-1) == tokens[:, 2:]).float().mean())


class _Head(nn.Module):
    """One decoder layer without its first norm, over embedding and hidden state side by side."""

    def __init__(self, config: object) -> None:
        super().__init__()
        size = config.hidden_size  # type: ignore[attr-defined]
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layer = LlamaDecoderLayer(config, 0)
        self.layer.input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embeddings: Tensor, states: Tensor) -> Tensor:
        """[texts, places, hidden] each; the hidden states that are to come."""
        mixed = self.fc(torch.cat([embeddings, states], -1))
        places = torch.arange(mixed.shape[1])[None]
        mask = torch.full((mixed.shape[1], mixed.shape[1]), torch.finfo(mixed.dtype).min).triu(1)
        turns = self.rotary(mixed, places)
        said = self.layer(
            mixed, attention_mask=mask[None, None], position_ids=places, position_embeddings=turns
        )
        return said[0] if isinstance(said, tuple) else said
