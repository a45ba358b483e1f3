"""Everything that a plan takes for granted, in one object that is printed with it and can be edited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.planning.gpus import GpuChange
from cluster.problems import ConfigError, Problem
from cluster.yaml_source import dotted, read_yaml

Share = Annotated[float, Field(ge=0, le=1)]


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Load(_Group):
    """What the fleet has to do."""

    concurrency: int = Field(
        default=32, ge=1, le=100_000, description="Requests in flight at a time, in all."
    )
    prompt_tokens: int = Field(default=1000, ge=1, le=10_000_000, description="Tokens of a prompt.")
    answer_tokens: int = Field(default=500, ge=1, le=10_000_000, description="Tokens of an answer.")
    cached_share: float = Field(
        default=0.0, ge=0, lt=1, description="Share of a prompt that the prefix cache holds already."
    )


class Hardware(_Group):
    """How much of the hardware's peak figures is reached, and what every step costs besides.

    Defaults fit published measurements: docs/planning.md says which.
    """

    memory_efficiency: float = Field(
        default=0.8, gt=0, le=1, description="Share of the memory's peak bandwidth that reading reaches."
    )
    compute_efficiency: float = Field(
        default=0.55, gt=0, le=1, description="Share of the matrix units' peak that large batches reach."
    )
    int8_read_efficiency: float = Field(
        default=0.9, gt=0, le=1, description="Reading int8 matrices, relative to bf16 ones."
    )
    int4_read_efficiency: float = Field(
        default=0.75, gt=0, le=1, description="Reading and unpacking int4 matrices, relative to bf16 ones."
    )
    layer_us: float = Field(
        default=30,
        ge=0,
        description="Least time of a layer in CUDA graphs besides the reading, microseconds.",
    )
    all_reduce_us: float = Field(
        default=10, ge=0, description="Latency of one all-reduce between GPUs of a node; two for each layer."
    )
    step_ms: float = Field(default=0.5, ge=0, description="Scheduling and sampling of a plain step.")


class Memory(_Group):
    """What takes memory besides weights and KV."""

    gpu_memory_utilization: float = Field(
        default=0.9, gt=0, le=1, description="Share of a GPU's memory that vLLM takes, its own default."
    )
    runtime_gib: float = Field(
        default=0.3, ge=0, description="CUDA context, NCCL and graphs of a verifier on each GPU, GiB."
    )
    batched_tokens: int = Field(
        default=8192, ge=1, description="vLLM's max_num_batched_tokens: sizes the activations' peak."
    )
    kv_precision: Literal["auto", "fp8"] = Field(
        default="auto", description="Numbers of the verifier's KV cache; auto is the model's dtype."
    )
    drafter_runtime_gib: float = Field(
        default=0.8, ge=0, description="CUDA context and activations of one drafter's process, GiB."
    )


class Speculation(_Group):
    """How good drafts are and what asking them costs."""

    acceptance: float = Field(
        default=0.6,
        ge=0,
        lt=1,
        description="Chance that a proposed token is accepted, given that those before it were. "
        "The most important figure here: measure it (docs/planning.md says how).",
    )
    acceptance_of: dict[str, Annotated[float, Field(ge=0, lt=1)]] = Field(
        default_factory=dict, description="The same for single drafts, by name."
    )
    share_of: dict[str, Share] = Field(
        default_factory=dict,
        description="Share of the requests that a draft serves; the rest share the rest.",
    )
    max_draft_tokens: int = Field(default=5, ge=1, le=16, description="Longest proposal that is considered.")
    link_ms: float = Field(default=0.5, ge=0, description="Round trip between verifier and drafter.")
    turn_ms: float = Field(default=0.5, ge=0, description="A drafter's work per question besides the model.")
    draft_layer_us: float = Field(
        default=120,
        ge=0,
        description="Least time of a draft's layer. Drafters launch kernels one by one: 4 times `layer_us`.",
    )
    gap_overlap: Share = Field(
        default=0.5,
        description="Share of the time between a draft's kernels that other drafters on its GPU can use.",
    )
    verifier_ms: float = Field(
        default=1.5,
        ge=0,
        description="What a verifier with drafts pays on every step: no asynchronous scheduling, proposer.",
    )


class Assumptions(_Group):
    """All assumptions of a plan."""

    gpu: str = Field(default="H100", description="Type of the verifier's GPUs.")
    load: Load = Field(default_factory=Load, description="What the fleet has to do.")
    hardware: Hardware = Field(default_factory=Hardware, description="What is reached of peak figures.")
    memory: Memory = Field(default_factory=Memory, description="Memory besides weights and KV.")
    speculation: Speculation = Field(default_factory=Speculation, description="Drafts.")
    gpus: dict[str, GpuChange] = Field(
        default_factory=dict,
        description="Types of GPU: changed figures of known ones, such as price_per_hour, and new ones.",
    )
    models: dict[str, str] = Field(
        default_factory=dict,
        description="Where the configuration of a model is: a config.json, a folder, or a model like it.",
    )


def load_assumptions(path: Path) -> Assumptions:
    """Reads an assumptions file; what it leaves out keeps its default.

    Raises:
        ConfigError: unreadable, empty, unknown keys, wrong values: all of them named.
    """
    source = read_yaml(path)
    if source.data is None:
        raise ConfigError(
            str(path), [Problem("", "is empty", "start from `specfleet plan --print-assumptions`")]
        )
    if not isinstance(source.data, dict):
        raise ConfigError(str(path), [Problem("", f"holds a {type(source.data).__name__}, not assumptions")])
    problems = list(source.problems)
    try:
        found = Assumptions.model_validate(source.data)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            where = tuple(details["loc"])
            unknown = details["type"] == "extra_forbidden"
            what = "unknown key" if unknown else f"{details['msg'].lower()}, not {details.get('input')!r}"
            todo = "specfleet plan --print-assumptions shows all keys" if unknown else ""
            problems.append(Problem(dotted(where), what, todo, source.line_of(where)))
    if problems:
        raise ConfigError(str(path), sorted(problems, key=lambda problem: problem.line or 0))
    return found


def as_yaml(assumptions: Assumptions) -> str:
    """The assumptions as a file that `load_assumptions` reads, every key with its description."""
    lines = [
        "# Assumptions of `specfleet plan`. Edit what you know better, delete what you do not change,",
        "",
    ]
    lines[0:1] = [lines[0], "# and give the file back: specfleet plan ... --assumptions FILE"]
    return "\n".join([*lines, *_lines(assumptions, 0)]) + "\n"


def _lines(group: BaseModel, depth: int) -> list[str]:
    indent = "  " * depth
    lines: list[str] = []
    for name, field in type(group).model_fields.items():
        value = getattr(group, name)
        if isinstance(value, _Group):
            lines += [f"{indent}{name}:", *_lines(value, depth + 1)]
            continue
        lines += [f"{indent}# {field.description}", f"{indent}{name}: {_inline(value)}"]
    return lines


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        value = {
            key: each.model_dump(exclude_none=True) if isinstance(each, BaseModel) else each
            for key, each in value.items()
        }
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
