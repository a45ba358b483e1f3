"""How long a step takes, from the bytes it reads and the operations it does.

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009. Matrices and attention are taken one after the
other, each as slow as the slower of its memory traffic and its arithmetic; latencies that do not shrink with
the model come on top. docs/planning.md holds the figures that the factors were fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.planning.assumptions import Hardware
from cluster.planning.gpus import Gpu
from cluster.planning.precision import Precision
from cluster.planning.shape import ModelShape

#: Activations that GPUs exchange are in 16 bits.
_EXCHANGED_BYTES = 2


@dataclass(frozen=True, slots=True)
class Engine:
    """A model on GPUs: what a step's time depends on.

    Attributes:
        shape: the model.
        precision: what its matrices are in.
        kv_number_bytes: bytes of a number in its KV cache.
        gpu: one of its GPUs.
        parallel: how many of them share it.
        layer_us: least time of a layer, microseconds.
    """

    shape: ModelShape
    precision: Precision
    kv_number_bytes: float
    gpu: Gpu
    parallel: int
    layer_us: float

    def decode_seconds(self, rows: float, tokens: float, context: float, hardware: Hardware) -> float:
        """Seconds of one step.

        Args:
            rows: requests in the batch.
            tokens: tokens of each: 1 for plain decoding, 1 + k when k proposed ones are verified.
            context: tokens that each request has so far.
            hardware: what is reached of the peak.
        """
        every = rows * tokens
        matrices, rest = self.shape.read_bytes(self.precision, every)
        # The efficiency of unpacking counts for the packed matrices only.
        read = (matrices / self._unpacking(hardware) + rest) / self.parallel
        flops = every * (self.shape.matrix_flops() + self.shape.head_flops()) / self.parallel
        matrices_s = max(read / self._bandwidth(hardware), flops / self._matrix_rate(hardware))

        kv = rows * self.shape.kv_bytes(context, self.kv_number_bytes) * self.shape.kv_share(self.parallel)
        flops = every * self.shape.attention_flops(context) / self.parallel
        attention_s = max(kv / self._bandwidth(hardware), flops / self._attention_rate(hardware))
        return matrices_s + attention_s + self._latency(every, hardware)

    def prefill_seconds(self, prompt: float, cached: float, hardware: Hardware) -> float:
        """Seconds that computing a prompt of `prompt` tokens adds, `cached` of them being there already.

        The weights are read by the decode steps that it shares; only the arithmetic and the exchange between
        GPUs count.
        """
        new = max(prompt - cached, 1.0)
        flops = new * self.shape.matrix_flops() / self.parallel
        # Each new token sees the cached ones and, on average, half of the new ones.
        attention = new * self.shape.attention_flops(cached + new / 2) / self.parallel
        exchange = self._exchange(new) * self._exchanges()
        return flops / self._matrix_rate(hardware) + attention / self._attention_rate(hardware) + exchange

    def _latency(self, tokens: float, hardware: Hardware) -> float:
        # A single layer's latency also covers reading so little that bandwidth does not matter.
        layers = self.shape.layers * self.layer_us * 1e-6 if not self.gpu.cpu else 0.0
        exchange = hardware.all_reduce_us * 1e-6 + self._exchange(tokens) if self.parallel > 1 else 0.0
        return layers + self._exchanges() * exchange

    def _exchanges(self) -> int:
        return 2 * self.shape.layers  # after attention, after the MLP

    def _exchange(self, tokens: float) -> float:
        """Seconds of moving one all-reduce's data, in a ring."""
        if self.parallel == 1:
            return 0.0
        data = tokens * self.shape.hidden * _EXCHANGED_BYTES
        return data * 2 * (self.parallel - 1) / self.parallel / (self.gpu.link_gbs * 1e9)

    def _bandwidth(self, hardware: Hardware) -> float:
        return self.gpu.bandwidth_gbs * 1e9 * hardware.memory_efficiency

    def _matrix_rate(self, hardware: Hardware) -> float:
        return self.gpu.flops(self.precision.arithmetic) * hardware.compute_efficiency

    def _attention_rate(self, hardware: Hardware) -> float:
        return (
            self.gpu.flops("fp32" if self.precision.name == "fp32" else "bf16") * hardware.compute_efficiency
        )

    def _unpacking(self, hardware: Hardware) -> float:
        match self.precision.name:
            case "int8":
                return hardware.int8_read_efficiency
            case "int4":
                return hardware.int4_read_efficiency
            case _:
                return 1.0
