"""Types of GPU, with their sources in ``gpus.yaml`` and what a user changes in an assumptions file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict, Field

from cluster.planning.errors import PlanError
from cluster.planning.precision import Arithmetic

#: The entry that stands for one core of a CPU.
CPU_CORE = "CPU-CORE"
_SCALED = (
    "memory_gib",
    "bandwidth_gbs",
    "bf16_tflops",
    "fp8_tflops",
    "int8_tflops",
    "fp32_tflops",
    "price_per_hour",
)
_FORMS_OF_NAMES = {
    "a100": "A100-80",
    "h100-80": "H100",
    "h100-pcie-80": "H100-PCIE",
    "h200-141": "H200",
    "4090": "RTX-4090",
    "cpu": CPU_CORE,
}
#: Words of names that do not tell types apart here.
_LEFT_OUT = frozenset({"nvidia", "amd", "tesla", "geforce", "instinct", "sxm", "sxm4", "sxm5", "hbm3"})


class Gpu(BaseModel):
    """One type of GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Name of the type.")
    memory_gib: float = Field(gt=0, description="Memory that the driver reports, GiB.")
    bandwidth_gbs: float = Field(gt=0, description="Bandwidth of the memory, GB/s.")
    bf16_tflops: float = Field(gt=0, description="Dense bf16 matrix units, TFLOPS.")
    fp8_tflops: float | None = Field(default=None, gt=0, description="Dense fp8, TFLOPS; none: as bf16.")
    int8_tflops: float | None = Field(default=None, gt=0, description="Dense int8, TOPS; none: as bf16.")
    fp32_tflops: float | None = Field(default=None, gt=0, description="fp32, TFLOPS; none: bf16 / 16.")
    link_gbs: float = Field(gt=0, description="To other GPUs of the node, each way, GB/s.")
    price_per_hour: float = Field(gt=0, description="Price of one for an hour. An assumption.")
    source: str = Field(description="Where the figures are from.")
    cpu: bool = Field(default=False, description="Whether this is a CPU core: no kernels to launch.")

    def flops(self, arithmetic: Arithmetic) -> float:
        """Peak operations per second of dense matrices in a number format.

        A format that the hardware lacks is computed in bf16 (weights are converted on the way). fp32 runs
        outside the matrix units: a sixteenth on the A100 and H100.
        """
        peaks = {"fp8": self.fp8_tflops, "int8": self.int8_tflops, "fp32": self.fp32_tflops}
        default = self.bf16_tflops / 16 if arithmetic == "fp32" else self.bf16_tflops
        return 1e12 * (peaks.get(arithmetic) or default)

    def times(self, count: float) -> Gpu:
        """`count` of them as if they were one: for the cores of a CPU."""
        scale = {key: value * count for key in _SCALED if (value := getattr(self, key)) is not None}
        return self.model_copy(
            update={**scale, "name": f"{count:g} x {self.name}" if count != 1 else self.name}
        )


class GpuChange(BaseModel):
    """What an assumptions file says about one type of GPU; what it leaves out stays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_gib: float | None = Field(default=None, gt=0, description="Memory, GiB.")
    bandwidth_gbs: float | None = Field(default=None, gt=0, description="Memory bandwidth, GB/s.")
    bf16_tflops: float | None = Field(default=None, gt=0, description="Dense bf16, TFLOPS.")
    fp8_tflops: float | None = Field(default=None, gt=0, description="Dense fp8, TFLOPS.")
    int8_tflops: float | None = Field(default=None, gt=0, description="Dense int8, TOPS.")
    fp32_tflops: float | None = Field(default=None, gt=0, description="fp32, TFLOPS.")
    link_gbs: float | None = Field(default=None, gt=0, description="To other GPUs, each way, GB/s.")
    price_per_hour: float | None = Field(default=None, gt=0, description="Price of one for an hour.")
    source: str | None = Field(default=None, description="Where the figures are from.")


@cache
def built_in() -> Mapping[str, Gpu]:
    """The types of ``gpus.yaml``."""
    text = resources.files("cluster.planning").joinpath("gpus.yaml").read_text(encoding="utf-8")
    return {name: Gpu(name=name, **entry) for name, entry in yaml.safe_load(text).items()}


def catalogue(changes: Mapping[str, GpuChange]) -> dict[str, Gpu]:
    """All types, those of ``gpus.yaml`` with the changes made, and new ones.

    Raises:
        PlanError: a new type without all that is needed.
    """
    types = dict(built_in())
    for name, change in changes.items():
        given = change.model_dump(exclude_none=True)
        known = types.get(_canonical(name, types) or name)
        if known is not None:
            types[known.name] = known.model_copy(update=given)
            continue
        needed = ("memory_gib", "bandwidth_gbs", "bf16_tflops", "price_per_hour")
        missing = [key for key in needed if key not in given]
        if missing:
            raise PlanError(
                f"gpus.{name}: no known type of this name, and a new one lacks {', '.join(missing)}",
                _suggestion(name, types),
            )
        types[name] = Gpu(**{"name": name, "link_gbs": 32.0, "source": "the assumptions file", **given})
    return types


def find_gpu(name: str, types: Mapping[str, Gpu]) -> Gpu:
    """The type of that name, written in any case.

    Raises:
        PlanError: unknown; the text suggests the nearest.
    """
    found = _canonical(name, types)
    if found is None:
        raise PlanError(f"unknown GPU type {name!r}", _suggestion(name, types))
    return types[found]


def _canonical(name: str, types: Iterable[str]) -> str | None:
    """The type that `name` means, written by hand or as nvidia-smi does ("NVIDIA H100 80GB HBM3")."""
    words = re.split(r"[\s_-]+", name.lower())
    plain = "-".join(word.removesuffix("gb") for word in words if word not in _LEFT_OUT)
    plain = _FORMS_OF_NAMES.get(plain, plain).lower()
    return next((each for each in types if each.lower() in (plain, name.lower())), None)


def _suggestion(name: str, types: Iterable[str]) -> str:
    known = list(types)
    close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.5)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}known: {', '.join(known)}; add others under `gpus:` of an assumptions file"
