"""What an operator can say about the gateway."""

from pydantic import BaseModel, ConfigDict, Field


class GatewaySettings(BaseModel):
    """The OpenAI-compatible entrance: how many, how large, and what one request may take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: int = Field(default=1, ge=1, le=256, description="How many gateways run side by side.")
    num_cpus: float = Field(default=0.1, ge=0, description="CPUs that Ray reserves for each gateway.")
    max_ongoing_requests: int = Field(
        default=512,
        ge=1,
        description="Requests to the model that one gateway serves at once; one more gets a 503.",
    )
    max_body_mib: float = Field(
        default=4, gt=0, le=1024, description="Largest request body in MiB; a larger one gets a 413."
    )
    body_timeout_s: float = Field(
        default=30, gt=0, description="Longest that a client may take to send its request, in seconds."
    )
    request_timeout_s: float = Field(
        default=600, gt=0, description="Longest that an answer may take, streamed ones too, in seconds."
    )
    retry_after_s: int = Field(
        default=1, ge=1, description="Seconds that clients are asked to wait when the fleet is full or away."
    )
    registry_timeout_s: float = Field(
        default=1.0,
        gt=0,
        description="Longest wait for the registry when its figures are asked for, in seconds.",
    )
    registry_cache_s: float = Field(
        default=0.5, ge=0, description="How long the registry's answer is used again, in seconds."
    )
    registry_patience_s: float = Field(
        default=30,
        ge=0,
        description="How long /health trusts what is last known while the registry is away, in seconds.",
    )
    drain_s: float = Field(
        default=120,
        ge=0,
        description="Seconds a gateway that is stopped gets to finish its answers.",
    )

    @property
    def max_body_bytes(self) -> int:
        """Largest request body in bytes."""
        return int(self.max_body_mib * 2**20)
