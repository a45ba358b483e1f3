"""What an operator says about one draft."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Memory for the KV slots of one drafter when the configuration names none, in MiB.
DEFAULT_KV_MEMORY_MIB = 512

#: How a drafter may hold its linear layers.
QUANTISATIONS: Final = ("none", "int8")

Core = Annotated[int, Field(ge=0)]


class DraftSettings(BaseModel):
    """One draft and the drafters that serve it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        min_length=1,
        description="The draft: a folder (Hugging Face checkpoint or our own format), a Hugging Face id, or "
        "layers:N for the verifier's own first N layers.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the draft runs; auto is cuda where num_gpus is above 0, else cpu."
    )
    num_cpus: float = Field(default=1, ge=0, description="CPUs that Ray reserves for each replica.")
    num_gpus: float = Field(
        default=0, ge=0, description="GPUs, or a fraction of one, that Ray reserves for each replica."
    )
    cpu_cores: list[Core] | None = Field(
        default=None,
        min_length=1,
        description="Cores of the node that the process is pinned to; None leaves it to the system.",
    )
    threads: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Threads for arithmetic on CPUs; small drafts gain nothing from more.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Weights and KV outside int8; auto is float32 on CPUs, bfloat16 on GPUs."
    )
    quantise: Literal["none", "int8"] = Field(
        default="int8",
        description="int8: linear layers in 8 bits, on CPUs in float32. GPUs, and other types, run in dtype.",
    )
    max_sessions: int = Field(default=64, ge=1, le=4096, description="Requests whose KV one replica keeps.")
    max_context: int | None = Field(
        default=None,
        ge=16,
        description="Context in tokens past which the draft does not propose; None: the model's.",
    )
    kv_memory_mib: int | None = Field(
        default=None,
        ge=1,
        description=f"Most KV memory in MiB; None is {DEFAULT_KV_MEMORY_MIB}. Full: idle sessions go.",
    )
    prefill_chunk: int = Field(
        default=128,
        ge=8,
        le=8192,
        description="Prompt tokens computed at once; longer prompts take several turns so that others go on.",
    )
    replicas: int = Field(default=1, ge=1, description="Drafters serving this draft.")
    idle_session_s: float = Field(
        default=300, gt=0, description="Seconds of silence after which a verifier's sessions are freed."
    )

    @property
    def on_gpu(self) -> bool:
        """Whether its drafters run on GPUs."""
        return self.device == "cuda" or (self.device == "auto" and self.num_gpus > 0)

    def runs_int8(self, quantise: str | None = None) -> bool:
        """Whether its drafters hold linear layers in 8 bits.

        Args:
            quantise: instead of the settings' own `quantise`.
        """
        wanted = (quantise or self.quantise) == "int8"
        return wanted and not self.on_gpu and self.dtype in ("auto", "float32")
