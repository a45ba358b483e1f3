"""What a verifier replica tells its worker processes once, before the first request."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from deployments.link.settings import LinkSettings
from router.settings import SpeculationSettings


class ProposerPlan(BaseModel):
    """Everything the proposer needs; crosses to the worker as plain JSON types."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verifier: str = Field(description="Name of the verifier replica: the client's name on the link.")
    progress_address: str | None = Field(default=None, description="Where the replica reads step reports.")
    progress_key: str | None = Field(default=None, description="CURVE key of that address.")
    generalist: str = Field(description="The draft used where no domain draft is known to be better.")
    domains: dict[str, str] = Field(description="Domain -> draft.")
    drafts: list[str] = Field(description="Names of all drafts.")
    speculation: SpeculationSettings = Field(description="How the router decides.")
    link: LinkSettings = Field(description="Deadlines and bounds of the link.")
