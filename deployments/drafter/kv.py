"""KV slots: one per session, contiguous, rolled back by forgetting a length."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a model keeps per token.

    Attributes:
        layers: number of attention layers.
        heads: key/value heads of each layer.
        head_dim: width of one head.
        dtype: element type.
    """

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


class KVSlots:
    """A pool of equal slots, allocated once.

    Memory of a slot that was never used costs nothing on CPUs (the pages are not touched). What a slot holds
    beyond a session's length is garbage: rolling back is only a matter of the length that the owner keeps.

    Attributes:
        count: number of slots.
        length: tokens that fit into one slot.
        layers: per layer a tensor [slots, 2, heads, length, head_dim]; keys at 0 of axis 1, values at 1.
    """

    def __init__(self, shape: KVShape, count: int, length: int, device: torch.device) -> None:
        self.shape = shape
        self.count = count
        self.length = length
        size = (count, 2, shape.heads, length, shape.head_dim)
        self.layers = [_zeros(size, shape.dtype, device) for _ in range(shape.layers)]
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots that no session holds."""
        return len(self._free)

    def take(self) -> int | None:
        """A free slot, or None when all are held."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """Return a slot.

        Raises:
            ValueError: the slot is free already or does not exist; two sessions would share it later.
        """
        if not 0 <= slot < self.count or slot in self._free:
            raise ValueError(f"KV slot {slot} is not held by anyone")
        self._free.append(slot)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros: masked positions are multiplied by a weight of 0, and 0 times leftover NaN would be NaN."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # torch.zeros would write, and so occupy, every page now; a fresh mapping is zero without being touched.
    pages = mmap.mmap(-1, math.prod(size) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(size)


def slots_within(shape: KVShape, length: int, most: int, memory_mib: int) -> int:
    """How many slots of `length` tokens fit into `memory_mib`, at most `most`.

    Raises:
        ValueError: not even one fits; the text says what to change.
    """
    each = shape.bytes_per_token * length
    count = min(most, memory_mib * 2**20 // each)
    if count < 1:
        raise ValueError(
            f"one session of {length} tokens needs {each / 2**20:.1f} MiB of KV and kv_memory_mib is "
            f"{memory_mib}: raise kv_memory_mib or lower max_context"
        )
    return count
