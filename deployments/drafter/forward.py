"""What the engine needs from a model: extend some sessions by some tokens, and say what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deployments.drafter.kv import KVShape, KVSlots
from deployments.drafter.quantise import FloatLinear, Int8Linear, Linear, quantise_weight


@dataclass(frozen=True, slots=True)
class Row:
    """One session's share of a forward pass.

    Attributes:
        slot: its KV slot.
        start: tokens whose KV the slot already holds; they stay, what lies behind them is overwritten.
        tokens: token ids to add, at least one.
        predict: whether the next token is wanted.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    predict: bool


class Forward(Protocol):
    """A causal language model that works on KV slots.

    Attributes:
        kv: what it keeps per token.
        vocab_size: token ids it can read, 0 <= id < vocab_size.
        max_positions: longest context it was made for, in tokens; None when it has no bound.
        device: where it runs.
    """

    kv: KVShape
    vocab_size: int
    max_positions: int | None
    device: torch.device

    def step(self, slots: KVSlots, rows: Sequence[Row]) -> list[int]:
        """Compute the rows' tokens, leave their KV in the slots, and return each row's likeliest next token.

        Rows may differ in length; no slot may occur twice. For rows without `predict` the value is -1.
        """
        ...

    def best_after_each(self, slots: KVSlots, row: Row) -> list[int]:
        """Compute one row's tokens as `step` does, and return the likeliest next token after each of them."""
        ...


class Head:
    """The output layer, cut to the tokens that may be proposed, with the way back to the verifier's ids."""

    def __init__(self, linear: Linear, token_ids: Tensor | None, size: int) -> None:
        self._linear = linear
        self._token_ids = token_ids
        self.size = size

    @classmethod
    def build(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        *,
        token_ids: Sequence[int] | None,
        vocab_limit: int | None,
        quantise: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Head:
        """Cut and place an output layer.

        Args:
            weight: [vocabulary, hidden], one row per token id.
            bias: [vocabulary] or None.
            token_ids: ids that may be proposed; None is all of them.
            vocab_limit: ids from here on are padding of the vocabulary and never proposed.
            quantise: whether to run in 8 bits.
            device: where it runs.
            dtype: element type when not quantised.

        Raises:
            ValueError: no id is left, or one lies outside the weight.
        """
        limit = min(len(weight), vocab_limit if vocab_limit is not None else len(weight))
        chosen: Tensor | None = None
        if token_ids is not None:
            if any(not 0 <= token < len(weight) for token in token_ids):
                raise ValueError(
                    f"head_token_ids must be between 0 and {len(weight) - 1}: draft.json is damaged"
                )
            chosen = torch.tensor([token for token in token_ids if token < limit], dtype=torch.long)
            weight, bias = weight[chosen], None if bias is None else bias[chosen]
        else:
            weight, bias = weight[:limit], None if bias is None else bias[:limit]
        if not len(weight):
            raise ValueError("the output head has no token left to propose: check head_token_ids")
        placed_bias = None if bias is None else bias.to(device, dtype)
        linear: Linear
        if quantise:
            linear = Int8Linear(*quantise_weight(weight), placed_bias)
        else:
            linear = FloatLinear(weight.to(device, dtype).contiguous(), placed_bias)
        return cls(linear, None if chosen is None else chosen.to(device), len(weight))

    def best(self, hidden: Tensor) -> Tensor:
        """The likeliest token id [n] for final hidden states [n, hidden]."""
        return self.name(self._linear(hidden).argmax(-1))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [n, size] of the tokens that may be proposed."""
        return self._linear(hidden)

    def name(self, index: Tensor) -> Tensor:
        """The verifier's token ids for positions in the cut head."""
        return index if self._token_ids is None else self._token_ids[index]
