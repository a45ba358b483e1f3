"""The fleet as one Serve application.

`build` is what a Serve configuration names as ``import_path: cluster.app:build``; its ``args`` are the
fleet's YAML, unchanged. The same function serves ``specfleet up``, ``serve deploy`` and KubeRay's
``serveConfigV2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import ModelCard
from ray.serve import Application

from cluster.checks import check_fleet
from cluster.config import FleetConfig
from cluster.problems import ConfigError, errors
from deployments.drafter.replica import Drafter
from deployments.gateway.gateway import build_gateway
from deployments.registry.replica import build_registry
from deployments.verifier.build import build_fixed_verifier, build_verifier

#: Drafters' deployments are named after their draft, so that each can be scaled and looked at on its own.
DRAFTER_PREFIX = "draft-"


@dataclass(frozen=True)
class FleetHandles:
    """What the gateway holds of the rest of the fleet: the registry that it asks, and the drafters.

    Serve deploys exactly what the root of the application refers to. Nobody calls a drafter through Serve,
    so without this reference drafters would not be part of the application. A handle is only a name: a
    drafter that is down keeps nothing from starting.
    """

    registry: Any
    drafters: tuple[Any, ...]

    @property
    def view(self) -> Any:
        """The registry's `view`, as if this were the registry's own handle."""
        return self.registry.view


def build(args: FleetConfig | Mapping[str, Any]) -> Application:
    """Puts the fleet's deployments together; nothing is loaded or started here.

    Args:
        args: the fleet's configuration, as an object or as the mapping it is read from.

    Raises:
        ConfigError: parts that cannot work together, all of them named.
        pydantic.ValidationError: unknown keys or wrong values.
    """
    config = args if isinstance(args, FleetConfig) else FleetConfig.model_validate(args)
    wrong = errors(check_fleet(config))
    if wrong:
        raise ConfigError(config.name, wrong)
    proposer = config.verifier.proposer
    method = proposer.method if proposer is not None else None
    names = list(config.drafts)
    registry = build_registry(names, list(config.domains), method)
    drafters = tuple(build_drafter(config, name, registry) for name in names)
    base_folder = Path(config.base_folder) if config.base_folder else None
    if proposer is not None:
        verifier = build_fixed_verifier(config.verifier, base_folder=base_folder, registry=registry)
    else:
        verifier = build_verifier(
            config.verifier,
            speculation=config.speculation,
            domains={name: domain.draft for name, domain in config.domains.items()},
            examples={name: domain.examples for name, domain in config.domains.items()},
            generalist=config.generalist,
            drafts=names,
            link=config.link,
            encoder=config.encoder,
            base_folder=base_folder,
            registry=registry,
        )
    handles: Any = FleetHandles(registry, drafters)
    model = config.verifier.name
    return build_gateway(
        {model: verifier},
        {model: _card(config)},
        handles,
        config.gateway,
        list(config.domains),
        names,
        method,
    )


def build_drafter(config: FleetConfig, name: str, registry: Application) -> Application:
    """The Serve deployment of one draft, ready to be bound into the application."""
    settings = config.drafts[name]
    deployment = serve.deployment(
        name=f"{DRAFTER_PREFIX}{name}",
        num_replicas=settings.replicas,
        # Tokens come over the link and never as Serve requests, so this bounds only strays.
        max_ongoing_requests=4,
        # A hung drafter costs proposals until it is replaced: Serve's own 10 s and 30 s are too long.
        health_check_period_s=2,
        health_check_timeout_s=5,
        # Nothing is lost with a drafter: its requests go on without proposals. So it may leave at once.
        graceful_shutdown_timeout_s=2,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
    )(Drafter)
    return deployment.bind(
        name,
        settings,
        config.base_folder,
        config.verifier.model,
        config.verifier.max_model_len,
        config.link,
        registry,
    )


def _card(config: FleetConfig) -> ModelCard:
    """What `/v1/models` says of the verifier."""
    metadata: dict[str, Any] = {
        "max_model_len": config.verifier.max_model_len,
        "drafts": list(config.drafts),
    }
    if config.verifier.proposer is not None:
        metadata["proposer"] = config.verifier.proposer.method
    return ModelCard(
        id=config.verifier.name, object="model", owned_by="specfleet", permission=[], metadata=metadata
    )
