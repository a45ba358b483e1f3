"""Linear layers in 8 bits on CPUs, with the same bits out for a row whatever batch it is in.

Weights: one scale per output channel. Activations: every row is divided by its own largest magnitude, so a
fixed scale serves all rows and no row's result depends on its neighbours (torch's own dynamic
quantisation takes one scale from the whole batch). Sums are exact integers.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

_ZERO_POINT = 128
_TINY = 1e-30


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight to 8 bits, symmetric, per output channel.

    Args:
        weight: [out, in], floating point.

    Returns:
        int8 values [out, in] in -127..127 and float32 scales [out]; weight is about values * scales[:, None].
    """
    wide = weight.detach().to(torch.float32)
    scales = (wide.abs().amax(dim=1) / 127).clamp_min(_TINY)
    return (wide / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def dequantise_weight(values: Tensor, scales: Tensor) -> Tensor:
    """The float32 weight [out, in] that int8 values [out, in] and scales [out] stand for."""
    return values.to(torch.float32) * scales.to(torch.float32)[:, None]


def activation_steps() -> int:
    """Steps on each side of zero for activations.

    Without VNNI the CPU adds pairs of products in 16 bits and would saturate on full 8-bit activations.
    """
    return 127 if torch.cpu._is_vnni_supported() else 63


class Int8Linear:
    """y = x W^T (+ b) with int8 weights, callable on float32 rows [n, in], returning float32 [n, out]."""

    def __init__(self, values: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with warnings.catch_warnings():
            # torch means to retire these tensors one day; nothing else in it is as fast at 1 to 16 rows.
            warnings.simplefilter("ignore", UserWarning)
            weight = torch._make_per_channel_quantized_tensor(values.contiguous(), scales.double(), zeros, 0)
        self._packed = torch.ops.quantized.linear_prepack(weight, None)
        self._bias = bias
        self._scale = 1 / activation_steps()
        self._run = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply [n, in] rows."""
        largest = rows.abs().amax(-1, True).clamp_min_(_TINY)
        result = self._run(rows / largest, self._scale, _ZERO_POINT, self._packed).mul_(largest)
        return result if self._bias is None else result.add_(self._bias)


class FloatLinear:
    """y = x W^T (+ b) in the weights' own type, as a plain callable like `Int8Linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply [n, in] rows."""
        return torch.nn.functional.linear(rows, self._weight, self._bias)


Linear = Int8Linear | FloatLinear
