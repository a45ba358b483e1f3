"""How long the link waits, and how much it may hold."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class LinkSettings(BaseModel):
    """Deadlines and bounds of the link. The same object serves both ends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_deadline_ms: float = Field(
        default=40, gt=0, le=10_000, description="Longest that a step waits for proposals, in milliseconds."
    )
    peer_silence_s: float = Field(
        default=2, gt=0, le=60, description="A drafter that left a message unanswered for so long is down."
    )
    probe_first_ms: float = Field(
        default=50, gt=0, le=10_000, description="First pause between probes of a late drafter; doubles."
    )
    probe_longest_ms: float = Field(
        default=1_000, gt=0, le=60_000, description="Longest pause between probes of a late or down drafter."
    )
    max_unanswered: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Messages in flight to one drafter before further ones are skipped.",
    )
    max_sessions: int = Field(
        default=4_096,
        ge=1,
        description="(session, draft) pairs remembered; the least recently used go first.",
    )
    max_message_mib: int = Field(
        default=16, ge=1, le=1_024, description="Longest message that either end accepts, in MiB."
    )
    queue_messages: int = Field(
        default=64, ge=2, le=10_000, description="Messages queued per connection and direction."
    )
    heartbeat_ms: int = Field(
        default=500, ge=10, le=60_000, description="Pause between heartbeats on an idle connection."
    )
    heartbeat_timeout_ms: int = Field(
        default=2_000,
        ge=20,
        le=300_000,
        description="A connection without a heartbeat for so long is dropped.",
    )
    # Also how soon a verifier that was turned away tries again, so it must not be long.
    handshake_ms: int = Field(
        default=1_000, ge=50, le=60_000, description="A connection not encrypted after so long is dropped."
    )

    @model_validator(mode="after")
    def _ordered(self) -> LinkSettings:
        if self.probe_longest_ms < self.probe_first_ms:
            raise ValueError("probe_longest_ms must not be below probe_first_ms")
        if self.heartbeat_timeout_ms <= self.heartbeat_ms:
            raise ValueError("heartbeat_timeout_ms must be above heartbeat_ms")
        return self

    @property
    def max_message_bytes(self) -> int:
        """Longest message in bytes."""
        return self.max_message_mib * 2**20

    @property
    def max_message_tokens(self) -> int:
        """Context tokens that surely fit in one message: 5 bytes each at most, and room for the rest."""
        return self.max_message_bytes // 8
