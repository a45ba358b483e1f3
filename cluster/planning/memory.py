"""What fits on the GPUs of a verifier and of a drafter."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.planning.assumptions import Memory
from cluster.planning.precision import Precision
from cluster.planning.roofline import Engine
from cluster.planning.shape import ModelShape

GIB = float(1 << 30)
#: Tokens of a block of the paged KV cache, vLLM's default.
BLOCK = 16


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory of each GPU of one verifier, GiB, and what it holds.

    Attributes:
        usable: what vLLM may take.
        weights: weights.
        activations: peak of activations and logits, and the runtime.
        kv: what is left for KV; negative when the rest does not fit.
        kv_tokens: tokens that the KV memory of all its GPUs together holds, at the given length.
        requests: requests of the given length that fit at a time.
    """

    usable: float
    weights: float
    activations: float
    kv: float
    kv_tokens: int
    requests: int


def verifier_fit(
    engine: Engine,
    memory: Memory,
    length: int,
    *,
    logits: int,
    taken_gib: float = 0.0,
    kv_gib: float | None = None,
) -> MemoryFit:
    """What a verifier holds.

    Args:
        engine: the model on its GPUs.
        memory: assumptions.
        length: tokens of a request, prompt and answer; windows make long requests cheaper per token.
        logits: rows of logits at a time: requests times (1 + proposed tokens).
        taken_gib: memory of each GPU that somebody else takes, such as a drafter.
        kv_gib: KV memory of each GPU when the configuration fixes it.
    """
    shape, parallel = engine.shape, engine.parallel
    usable = min(engine.gpu.memory_gib * memory.gpu_memory_utilization, engine.gpu.memory_gib - taken_gib)
    weights = shape.weight_bytes(engine.precision) / parallel / GIB
    width = (2 * shape.inner / parallel + 4 * shape.hidden) * shape.base_bytes
    # Logits in the model's dtype and again in float32 for sampling.
    peak = memory.batched_tokens * width + logits * shape.vocabulary * (shape.base_bytes + 4)
    activations = peak / GIB + memory.runtime_gib
    kv = usable - weights - activations
    if kv_gib is not None:
        kv = min(kv, kv_gib)
    blocks = math.ceil(length / BLOCK) * BLOCK
    each = shape.kv_bytes(blocks, engine.kv_number_bytes) * shape.kv_share(parallel)
    room = max(kv, 0.0) * GIB / each
    return MemoryFit(usable, weights, activations, kv, int(room * blocks), int(room))


def drafter_gib(
    shape: ModelShape,
    precision: Precision,
    kv_number_bytes: float,
    sessions: float,
    length: int,
    runtime_gib: float,
) -> tuple[float, float]:
    """Memory of one drafter, GiB: (all of it, the KV of `sessions` requests of `length` tokens)."""
    kv = sessions * shape.kv_bytes(length, kv_number_bytes) / GIB
    return shape.weight_bytes(precision) / GIB + kv + runtime_gib, kv
