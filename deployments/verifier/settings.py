"""What an operator can say about the verifier."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deployments.verifier.methods import METHODS, ProposerSettings


class VerifierSettings(BaseModel):
    """The main model and the engine that runs it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="Where the weights are: a Hugging Face id, a folder, or package:NAME.")
    name: str = Field(min_length=1, description="The model id that clients ask for in the OpenAI API.")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="What the verifier runs on.")
    replicas: int = Field(default=1, ge=1, le=64, description="How many verifiers run side by side.")
    num_cpus: float = Field(
        default=1, gt=0, description="CPUs that Ray reserves for each worker process of one verifier."
    )
    num_gpus: float = Field(
        default=0, ge=0, description="GPUs for each worker process of one verifier (1 for a whole GPU)."
    )
    cpu_cores: list[int] | None = Field(
        default=None,
        description="On CPUs: pin the computing threads to these cores, so that drafts do not take them.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Number format of weights and activations. float32 on CPUs makes greedy output equal "
        "to plain decoding, token for token.",
    )
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs that share one verifier.")
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        description="Longest prompt plus answer, in tokens. Default: the model's own limit.",
    )
    max_num_seqs: int = Field(default=32, ge=1, description="Requests that are decoded in one batch.")
    kv_cache_gib: float | None = Field(
        default=None, gt=0, description="Memory for the paged KV cache in GiB. Default: vLLM decides."
    )
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="Share of the GPU's memory that vLLM may take."
    )
    max_ongoing_requests: int = Field(
        default=128, ge=1, description="Requests one verifier accepts at once; more wait in the gateway."
    )
    max_queued_requests: int = Field(
        default=256, ge=-1, description="Requests that may wait per gateway replica; more get a 503 at once."
    )
    drain_s: float = Field(
        default=120,
        ge=0,
        description="Seconds a verifier that is being replaced or stopped gets to finish its answers. "
        "Ray Serve's own default of 20 s would cut long ones.",
    )
    start_timeout_s: float = Field(
        default=900, gt=0, description="Longest a verifier may take to start, in seconds."
    )
    tool_call_parser: str | None = Field(
        default=None,
        description="vLLM's name of the parser for tool calls of this model; none: no tool calls.",
    )
    enforce_eager: bool = Field(
        default=False,
        description="Run without compiled graphs: starts faster, decodes slower. Good for tests.",
    )
    proposer: ProposerSettings | None = Field(
        default=None,
        description="One of vLLM's own ways to propose, in the verifier's engine instead of drafts. None: "
        "the fleet's drafts propose.",
    )
    engine: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of the vLLM engine, passed on as they are (vLLM's own names).",
    )

    @model_validator(mode="after")
    def _proposer_runs_here(self) -> Self:
        if self.proposer is not None and self.device == "cpu" and not METHODS[self.proposer.method].cpu:
            able = ", ".join(name for name, method in METHODS.items() if method.cpu)
            raise ValueError(
                f"proposer.method {self.proposer.method} is offered on GPUs only (device: cuda); on CPUs: "
                f"{able}"
            )
        return self
