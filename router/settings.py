"""Settings of the router."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class DomainSettings(BaseModel):
    """One domain: who drafts for it, and what its prompts look like."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draft: str = Field(description="Name of the draft that proposes for this domain.")
    examples: list[str] = Field(
        default_factory=list,
        description="Example prompts to fit the classifier on; 20 to 40 short, varied ones are enough.",
    )


class SpeculationSettings(BaseModel):
    """How the router decides.

    Times before anything was measured (`prior_*`) matter only relative to each other: the first measured
    steps replace their level, and more of them their shape.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_draft_tokens: int = Field(
        default=4, ge=1, le=16, description="Most tokens proposed for one request in one step."
    )
    unsure_below: float = Field(
        default=0.5,
        ge=0.0,
        le=1.0,
        description="Probability of the likeliest domain under which the generalist is used.",
    )

    min_acceptance: float = Field(
        default=0.15,
        ge=0.0,
        le=1.0,
        description="A request leaves a draft of whose judged tokens fewer than this share are accepted.",
    )
    min_trials: int = Field(
        default=24,
        ge=1,
        description="Judged tokens of a draft that a request must have seen before it may leave it for that.",
    )
    prior_acceptance: float = Field(
        default=0.4,
        ge=0.01,
        le=0.99,
        description="Acceptance rate assumed of a draft in a domain where it has not been seen.",
    )
    prior_strength: float = Field(
        default=24.0,
        gt=0.0,
        description="How many judged tokens the assumed acceptance rate weighs as much as.",
    )
    acceptance_window: int = Field(
        default=2000,
        ge=16,
        description="Judged tokens after which old evidence on a (draft, domain) has mostly faded.",
    )
    request_strength: float = Field(
        default=48.0,
        gt=0.0,
        description="How many of a request's own judged tokens weigh as much as what is known of its domain.",
    )
    request_window: int = Field(
        default=48,
        ge=8,
        description="Judged tokens after which a request's own old evidence has mostly faded.",
    )

    switch_gain: float = Field(
        default=0.05,
        ge=0.0,
        le=1.0,
        description="A request changes its draft only for an expected gain of at least this share.",
    )
    length_gain: float = Field(
        default=0.02,
        ge=0.0,
        le=1.0,
        description="A request changes its draft length only for an expected gain of at least this share.",
    )
    min_dwell_steps: int = Field(
        default=8,
        ge=0,
        description="Steps a request stays with a choice before a merely better one is taken.",
    )
    unanswered_steps: int = Field(
        default=8,
        ge=1,
        description="Asked steps in a row without a proposal after which a request leaves a draft.",
    )
    probe_after_steps: int = Field(
        default=64,
        ge=1,
        description="Steps after which a given-up draft is tried again; doubles per failure, to 16-fold.",
    )
    probe_steps: int = Field(default=4, ge=1, description="Steps that such a try takes.")
    probe_share: float = Field(
        default=0.05,
        ge=0.0,
        le=1.0,
        description="Largest share of all steps in which anything is tried again.",
    )

    max_requests: int = Field(
        default=8192,
        ge=1,
        description="Open requests that are remembered; the oldest is forgotten beyond that.",
    )
    max_switches: int = Field(
        default=16, ge=1, description="Stretches with one draft that are remembered per request."
    )

    prior_step_ms: float = Field(
        default=34.0, gt=0.0, description="Assumed time of a verifier step apart from its tokens."
    )
    prior_row_ms: float = Field(
        default=4.0, ge=0.0, description="Assumed further time per request in the batch."
    )
    prior_token_ms: float = Field(
        default=3.5, ge=0.0, description="Assumed further time per proposed token in the batch."
    )
    prior_wait_ms: float = Field(
        default=2.0, ge=0.0, description="Assumed wait for a draft apart from its tokens."
    )
    prior_wait_token_ms: float = Field(
        default=2.0, ge=0.0, description="Assumed further wait per token that a draft proposes."
    )

    @model_validator(mode="after")
    def _window_holds_trials(self) -> Self:
        if self.min_trials > self.request_window // 2:
            raise ValueError(
                f"min_trials ({self.min_trials}) must be at most half of request_window "
                f"({self.request_window}): older trials fade, so a request would hardly ever reach it"
            )
        return self
