"""Llama-family drafts without a framework in between: rows packed end to end, attention per session.

A drafted token of a small draft is tens of microseconds of arithmetic per layer; a general model library
spends more than that on its own calls. Packing also means that a long prompt does not pad the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deployments.drafter.forward import Head, Row
from deployments.drafter.kv import KVShape, KVSlots
from deployments.drafter.quantise import FloatLinear, Int8Linear, Linear, quantise_weight
from deployments.drafter.weights import Weight


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes of a Llama, read from its Hugging Face configuration."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope_theta: float
    max_positions: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LlamaConfig | None:
        """Read a configuration; None when it is not a plain Llama (another rotary scaling, biases, ...)."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        plain = (
            config.get("model_type") == "llama"
            and rope.get("rope_type", rope.get("type", "default")) == "default"
            and config.get("hidden_act", "silu") == "silu"
            and not config.get("attention_bias", False)
            and not config.get("mlp_bias", False)
        )
        if not plain:
            return None
        heads = int(config["num_attention_heads"])
        return cls(
            hidden=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            epsilon=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            max_positions=int(config.get("max_position_embeddings", 2048)),
        )


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class LlamaForward:
    """A Llama on KV slots (see `forward.Forward`)."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Weight],
        embedding: Tensor,
        head: Head,
        *,
        quantise: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Place the weights.

        Args:
            config: the sizes.
            weights: tensors under their Hugging Face names, `model.layers.*` and `model.norm.weight`.
            embedding: [vocabulary, hidden]; on CPUs it stays as it is: rows of a mapped file, read on use.
            head: the output layer.
            quantise: linear layers in 8 bits (CPU only).
            device: where to run.
            dtype: type of activations and KV.

        Raises:
            KeyError: a tensor is missing.
        """
        self.kv = KVShape(config.layers, config.kv_heads, config.head_dim, dtype)
        self.vocab_size = len(embedding)
        self.max_positions: int | None = config.max_positions
        self.device = device
        self._config = config
        self._dtype = dtype
        self._embedding = embedding if device.type == "cpu" else embedding.to(device, dtype)
        self._head = head
        self._norm = weights["model.norm.weight"].float().to(device, dtype)
        self._turns = _rotations(config).to(device)
        place = _Placer(config, weights, quantise, device, dtype)
        self._layers = [place.layer(index) for index in range(config.layers)]

    @torch.inference_mode()
    def step(self, slots: KVSlots, rows: Sequence[Row]) -> list[int]:
        """See `forward.Forward.step`."""
        hidden = self.hidden(slots, rows)
        wanted = [index for index, row in enumerate(rows) if row.predict]
        if not wanted:
            return [-1] * len(rows)
        if len(hidden) != len(wanted):
            ends, end = [], 0
            for row in rows:
                end += len(row.tokens)
                if row.predict:
                    ends.append(end - 1)
            hidden = hidden[torch.tensor(ends, device=self.device)]
        best = self._head.best(self._normed(hidden, self._norm)).tolist()
        if len(wanted) == len(rows):
            return best
        tokens = [-1] * len(rows)
        for index, token in zip(wanted, best, strict=True):
            tokens[index] = token
        return tokens

    @torch.inference_mode()
    def best_after_each(self, slots: KVSlots, row: Row) -> list[int]:
        """See `forward.Forward.best_after_each`."""
        hidden = self.hidden(slots, [row])
        best: list[int] = self._head.best(self._normed(hidden, self._norm)).tolist()
        return best

    def hidden(self, slots: KVSlots, rows: Sequence[Row]) -> Tensor:
        """Hidden states before the final norm, [tokens of all rows end to end, hidden]."""
        config = self._config
        ids = torch.tensor([token for row in rows for token in row.tokens], device=self.device)
        x = F.embedding(ids, self._embedding).to(self._dtype)
        if len(rows) == 1:
            turns = self._turns[rows[0].start : rows[0].start + len(rows[0].tokens)]
        else:
            places = [row.start + offset for row in rows for offset in range(len(row.tokens))]
            turns = self._turns[torch.tensor(places, device=self.device)]
        turned = config.heads + config.kv_heads
        spans = _spans(rows, config.heads // config.kv_heads, self.device)
        attend = self._attend_one if len(ids) == len(rows) else self._attend
        for layer, cache in zip(self._layers, slots.layers, strict=True):
            qkv = layer.qkv(self._normed(x, layer.attention_norm)).view(len(ids), -1, config.head_dim)
            _turn(qkv[:, :turned], turns)
            x = x.add_(layer.output(attend(qkv, cache, spans)))
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, -1)
            x = x.add_(layer.down(F.silu(gate).mul_(up)))
        return x

    def _attend_one(self, qkv: Tensor, cache: Tensor, spans: Sequence[_Span]) -> Tensor:
        """`_attend` for rows of one token each, as in drafting: no masks and nothing to reorder."""
        config, count = self._config, len(spans)
        kv = qkv[:, config.heads :].view(count, 2, config.kv_heads, config.head_dim)
        query = qkv[:, : config.heads].view(count, config.kv_heads, -1, config.head_dim)
        results = []
        for row, span in enumerate(spans):
            held = cache[span.slot : span.slot + 1, :, :, : span.total]
            held[0, :, :, span.known] = kv[row]
            results.append(F.scaled_dot_product_attention(query[row : row + 1], held[:, 0], held[:, 1]))
        out = results[0] if count == 1 else torch.cat(results)
        return out.reshape(count, -1)

    def _attend(self, qkv: Tensor, cache: Tensor, spans: Sequence[_Span]) -> Tensor:
        config = self._config
        groups = config.heads // config.kv_heads
        results = []
        for span in spans:
            count = span.stop - span.start
            new = qkv[span.start : span.stop]
            kv = new[:, config.heads :].view(count, 2, config.kv_heads, config.head_dim)
            held = cache[span.slot]
            held[:, :, span.known : span.total] = kv.permute(1, 2, 0, 3)
            # Query heads that share a key head become further queries of it: nothing is repeated in memory.
            query = new[:, : config.heads].view(count, config.kv_heads, groups, config.head_dim)
            query = query.permute(1, 2, 0, 3).reshape(1, config.kv_heads, groups * count, config.head_dim)
            keys, values = held[None, 0, :, : span.total], held[None, 1, :, : span.total]
            out = F.scaled_dot_product_attention(query, keys, values, attn_mask=span.mask)
            out = out.view(config.kv_heads, groups, count, config.head_dim).permute(2, 0, 1, 3)
            results.append(out.reshape(count, config.heads * config.head_dim))
        return results[0] if len(results) == 1 else torch.cat(results)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self._config.hidden,), weight, self._config.epsilon)


@dataclass(frozen=True, slots=True)
class _Span:
    """Where one row lies in the packed tensors and in its slot; `mask` [groups * tokens, total] or None."""

    start: int
    stop: int
    slot: int
    known: int
    total: int
    mask: Tensor | None


def _spans(rows: Sequence[Row], groups: int, device: torch.device) -> list[_Span]:
    spans, start = [], 0
    for row in rows:
        count = len(row.tokens)
        total = row.start + count
        mask = None
        if count > 1:
            mask = (
                torch.ones(count, total, dtype=torch.bool, device=device).tril_(row.start).repeat(groups, 1)
            )
        spans.append(_Span(start, start + count, row.slot, row.start, total, mask))
        start += count
    return spans


def _rotations(config: LlamaConfig) -> Tensor:
    """Rotary embedding as complex numbers [positions, 1, head_dim / 2], angles as in Hugging Face's Llama."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(
        torch.arange(config.max_positions, dtype=torch.float32), 1 / config.rope_theta**steps
    )
    return torch.polar(torch.ones_like(angles), angles)[:, None]


def _turn(heads: Tensor, turns: Tensor) -> None:
    """Rotate [tokens, heads, head_dim] in place; a pair's two halves lie side by side."""
    if heads.dtype == torch.float32:
        torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(turns)
        return
    turned = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2))) * turns
    heads.copy_(torch.view_as_real(turned).flatten(-2))


class _Placer:
    """Builds layers from named weights: fuses, reorders for `_turn`, quantises or casts, moves."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Weight],
        quantise: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._weights = weights
        self._quantise = quantise
        self._device = device
        self._dtype = dtype

    def layer(self, index: int) -> _Layer:
        """One layer, ready to run."""
        config, prefix = self._config, f"model.layers.{index}."
        q, k, v = (self._weights[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv")
        query = q.take(_interleaved(config.heads, config.head_dim))
        key = k.take(_interleaved(config.kv_heads, config.head_dim))
        return _Layer(
            attention_norm=self._vector(prefix + "input_layernorm.weight"),
            qkv=self._linear(query, key, v),
            output=self._linear(self._weights[prefix + "self_attn.o_proj.weight"]),
            mlp_norm=self._vector(prefix + "post_attention_layernorm.weight"),
            gate_up=self._linear(
                self._weights[prefix + "mlp.gate_proj.weight"], self._weights[prefix + "mlp.up_proj.weight"]
            ),
            down=self._linear(self._weights[prefix + "mlp.down_proj.weight"]),
        )

    def _vector(self, name: str) -> Tensor:
        return self._weights[name].float().to(self._device, self._dtype)

    def _linear(self, *parts: Weight) -> Linear:
        if not self._quantise:
            return FloatLinear(torch.cat([part.float() for part in parts]).to(self._device, self._dtype))
        pairs = [
            (part.values, part.scales) if part.scales is not None else quantise_weight(part.values)
            for part in parts
        ]
        return Int8Linear(
            torch.cat([values for values, _ in pairs]), torch.cat([scales for _, scales in pairs])
        )


def _interleaved(heads: int, head_dim: int) -> Tensor:
    """Output channels in the order 0, d/2, 1, d/2 + 1, ... of every head."""
    return torch.arange(heads * head_dim).view(heads, 2, head_dim // 2).transpose(1, 2).reshape(-1)
