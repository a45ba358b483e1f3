"""Number formats of weights: how many bytes they take and what they are multiplied in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cluster.planning.errors import PlanError

Arithmetic = Literal["fp32", "bf16", "fp8", "int8"]


@dataclass(frozen=True, slots=True)
class Precision:
    """A number format of the large matrices; embedding, output head and norms keep the model's own dtype.

    Attributes:
        name: as people write it.
        bits: bits of one weight.
        arithmetic: what the matrices are multiplied in. int4 is weight-only: dequantised to bf16.
        group: weights that share one scale; None is one scale for each output channel.
        scale_bits: bits of a scale; 0 where there is none.
        zero_bits: bits of a zero point.
    """

    name: str
    bits: int
    arithmetic: Arithmetic
    group: int | None = None
    scale_bits: int = 0
    zero_bits: int = 0

    @property
    def quantised(self) -> bool:
        """Whether this is less than the model was trained in."""
        return self.scale_bits > 0

    def bytes_of(self, weights: int, channels: int) -> float:
        """Bytes of `weights` numbers in matrices with `channels` output channels in all."""
        scales = channels if self.group is None else weights / self.group
        return (weights * self.bits + scales * (self.scale_bits + self.zero_bits)) / 8


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("fp32", 32, "fp32"),
    "bf16": Precision("bf16", 16, "bf16"),
    "fp8": Precision("fp8", 8, "fp8", scale_bits=32),
    "int8": Precision("int8", 8, "int8", scale_bits=32),
    "int4": Precision("int4", 4, "bf16", group=128, scale_bits=16, zero_bits=4),
}
_ALIASES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "bf16",  # same size, same speed
    "fp16": "bf16",
    "half": "bf16",
    "awq": "int4",
    "gptq": "int4",
    "w8a8": "int8",
}


def precision(name: str) -> Precision:
    """The format of that name.

    Raises:
        PlanError: there is none; the text lists those there are.
    """
    found = PRECISIONS.get(_ALIASES.get(name.lower(), name.lower()))
    if found is None:
        raise PlanError(f"unknown precision {name!r}", f"one of: {', '.join(PRECISIONS)}")
    return found


def declared(config: Mapping[str, Any]) -> Precision | None:
    """What a checkpoint's `quantization_config` says its matrices are in; None where it has none.

    Knows GPTQ, AWQ, FP8, compressed-tensors, ModelOpt, bitsandbytes and MXFP4, as transformers writes them.

    Raises:
        PlanError: a method that is not known here.
    """
    quantisation = config.get("quantization_config")
    if not isinstance(quantisation, Mapping) or not quantisation:
        return None
    method = str(quantisation.get("quant_method", "")).lower()
    group = quantisation.get("group_size")
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin"):
        return _of_bits(int(quantisation.get("bits", 4)), group)
    if method in ("fp8", "fbgemm_fp8"):
        return PRECISIONS["fp8"]
    if method == "compressed-tensors":
        groups = quantisation.get("config_groups") or {}
        weights = next((each.get("weights") or {} for each in groups.values()), {})
        if weights.get("type") == "float" and weights.get("num_bits") == 8:
            return PRECISIONS["fp8"]
        return _of_bits(int(weights.get("num_bits", 8)), weights.get("group_size"))
    if method == "modelopt":
        return PRECISIONS["fp8"] if "FP8" in str(quantisation.get("quant_algo", "")) else _of_bits(4, 16, 8)
    if method == "bitsandbytes":
        return _of_bits(4, 64) if quantisation.get("load_in_4bit") else PRECISIONS["int8"]
    if method == "mxfp4":
        return _of_bits(4, 32, 8)
    raise PlanError(
        f"the model's configuration names a quantisation that is not known here: {method or quantisation!r}",
        f"say what it amounts to with --verifier-precision or --draft-precision: {', '.join(PRECISIONS)}",
    )


def _of_bits(bits: int, group: object, scale_bits: int = 16) -> Precision:
    if bits == 8:
        return PRECISIONS["int8"]
    if bits != 4:
        raise PlanError(f"weights of {bits} bits are not modelled", "use int4 or int8 as the nearest")
    size = group if isinstance(group, int) and group > 0 else 128
    return replace(
        PRECISIONS["int4"], group=size, scale_bits=scale_bits, zero_bits=4 if scale_bits == 16 else 0
    )
