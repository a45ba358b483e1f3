"""The size of a model: parameters by what happens to them in a step, and the KV memory of a token."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.planning.precision import Precision


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything about a model that its memory and its speed depend on.

    Attributes:
        name: for people.
        family: transformers' model type.
        parameters: all of them, tied ones once.
        beside: parameters of towers for images or sound: held in memory, idle while text is written.
        tables: embeddings that are looked up, not read in full: the input's, and those of positions.
        head: the output head, read in full once a step. Tied to the input embedding it counts here.
        linear: weights of dense matrices, those that quantisation shrinks.
        experts: weights of all experts, likewise.
        channels: output channels of `linear` and `experts` together: the scales of 8-bit formats.
        expert_count: experts of a layer; 0 for a dense model.
        experts_per_token: experts that a token uses.
        layers: decoder layers.
        hidden: width of the residual stream.
        inner: width of the widest activation of a token, for the activations' peak memory.
        query_width: query heads times their size.
        heads: query heads; tensor parallelism has to divide them.
        kv_heads: KV heads; tensor parallelism beyond them stores copies.
        kv_full: numbers of K and V of one token in all layers that see the whole context.
        kv_windows: (window in tokens, numbers of K and V of one token in all layers with it).
        vocabulary: rows of the output head.
        max_context: tokens the model was made for.
        base_bytes: bytes of a number that is not quantised.
        stored: what the checkpoint's matrices are in.
    """

    name: str
    family: str
    parameters: int
    beside: int
    tables: int
    head: int
    linear: int
    experts: int
    channels: int
    expert_count: int
    experts_per_token: int
    layers: int
    hidden: int
    inner: int
    query_width: int
    heads: int
    kv_heads: int
    kv_full: int
    kv_windows: tuple[tuple[int, int], ...]
    vocabulary: int
    max_context: int
    base_bytes: int
    stored: Precision

    @property
    def kv_numbers(self) -> int:
        """Numbers of K and V that one more token adds, while no window is full."""
        return self.kv_full + sum(numbers for _, numbers in self.kv_windows)

    @property
    def active(self) -> int:
        """Parameters that one token meets: all but the experts it does not use."""
        return self.parameters - self.beside - self.experts + round(self.experts * self._used)

    @property
    def _used(self) -> float:
        return self.experts_per_token / self.expert_count if self.expert_count else 1.0

    def weight_bytes(self, precision: Precision) -> float:
        """Memory of all weights, matrices in `precision`, bytes."""
        large = self.linear + self.experts
        return precision.bytes_of(large, self.channels) + (self.parameters - large) * self._base(precision)

    def read_bytes(self, precision: Precision, tokens: float) -> tuple[float, float]:
        """Weights that a step of `tokens` tokens reads, bytes: (quantised matrices, the rest).

        An expert is read when at least one token chose it. With tokens choosing alike and independently,
        the share of experts read is ``1 - (1 - used / count) ** tokens``; real routing is more uneven,
        so that fewer are read.
        """
        large = self.linear + self.experts
        each = precision.bytes_of(large, self.channels) / large if large else 0.0
        read = 1.0 - (1.0 - self._used) ** max(tokens, 1.0) if self.expert_count else 1.0
        rest = self.parameters - large - self.tables - self.beside
        return (self.linear + self.experts * read) * each, rest * self._base(precision)

    def matrix_flops(self) -> float:
        """Floating point operations for one token in the layers: two for each weight that it meets."""
        rest = self.parameters - self.linear - self.experts - self.tables - self.beside - self.head
        return 2.0 * (self.linear + self.experts * self._used + rest)

    def head_flops(self) -> float:
        """Floating point operations of the output head for one token."""
        return 2.0 * self.head

    def attention_flops(self, context: float) -> float:
        """Floating point operations of attention for one token that sees `context` tokens."""
        seen = context * self.kv_full + sum(min(context, window) * kv for window, kv in self.kv_windows)
        return 4.0 * self.query_width * self.layers * (seen / self.kv_numbers if self.kv_numbers else 0.0)

    def kv_bytes(self, length: float, number_bytes: float) -> float:
        """KV memory of one request of `length` tokens, bytes."""
        windows = sum(min(length, window) * numbers for window, numbers in self.kv_windows)
        return (length * self.kv_full + windows) * number_bytes

    def kv_share(self, parallel: int) -> float:
        """The share of the KV memory that each of `parallel` GPUs holds: copies where heads run out."""
        return 1.0 / min(parallel, self.kv_heads)

    def kv_number_bytes(self, kv_precision: str) -> float:
        """Bytes of one number in the KV cache; ``auto`` is the model's own dtype."""
        return 1.0 if kv_precision == "fp8" else float(self.base_bytes)

    def parallel_sizes(self, most: int) -> list[int]:
        """The tensor parallel sizes up to `most` that divide the heads: powers of two."""
        return [size for size in (1, 2, 4, 8, 16) if size <= most and self.heads % size == 0]

    def _base(self, precision: Precision) -> int:
        return 4 if precision.name == "fp32" else self.base_bytes
