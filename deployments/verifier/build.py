"""From settings to the verifier's Serve deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ray.llm._internal.serve.core.configs.accelerators import CPUConfig, GPUConfig
from ray.serve.deployment import Application
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig, build_llm_deployment

from deployments.link.settings import LinkSettings
from deployments.verifier.engine_arguments import engine_arguments, engine_environment
from deployments.verifier.fixed import FixedVerifier
from deployments.verifier.plan import ProposerPlan
from deployments.verifier.server import Verifier
from deployments.verifier.settings import VerifierSettings
from router.settings import SpeculationSettings


def llm_config(settings: VerifierSettings, *, max_draft_tokens: int) -> LLMConfig:
    """The `ray.serve.llm` configuration of a verifier.

    Raises:
        ValueError: see `engine_arguments`.
    """
    cpu = settings.device == "cpu"
    bundle: dict[str, float] = {"CPU": settings.num_cpus}
    if not cpu:
        bundle["GPU"] = settings.num_gpus or 1
    return LLMConfig(
        model_loading_config={"model_id": settings.name, "model_source": settings.model},
        engine_kwargs=engine_arguments(settings, max_draft_tokens),
        accelerator_config=CPUConfig() if cpu else GPUConfig(),
        placement_group_config={"bundle_per_worker": bundle},
        deployment_config={
            "num_replicas": settings.replicas,
            # Default is 1e9 in ray.serve.llm: a queue without end in front of the engine.
            "max_ongoing_requests": settings.max_ongoing_requests,
            "max_queued_requests": settings.max_queued_requests,
            "health_check_period_s": 5,
            "health_check_timeout_s": 20,
            "graceful_shutdown_timeout_s": settings.drain_s,
            "graceful_shutdown_wait_loop_s": 1,
            # The replica's own CPU share; the engine's is in the bundle, which Ray adds to it.
            "ray_actor_options": {"num_cpus": 0.01},
        },
        runtime_env={"env_vars": engine_environment(settings)},
        # Default is 50 ms: tokens would be held back longer than a step takes.
        experimental_configs={"stream_batching_interval_ms": 0},
        log_engine_metrics=True,
    )


def build_verifier(
    settings: VerifierSettings,
    *,
    speculation: SpeculationSettings,
    domains: Mapping[str, str],
    examples: Mapping[str, Sequence[str]],
    generalist: str,
    drafts: Sequence[str],
    link: LinkSettings,
    encoder: str,
    base_folder: Path | None,
    registry: DeploymentHandle | Application,
) -> Application:
    """The verifier's Serve deployment, not yet started.

    Args:
        settings: the model and its engine.
        speculation: how the router decides.
        domains: domain -> draft.
        examples: domain -> example prompts for the classifier.
        generalist: the draft used where no domain draft is known to be better.
        drafts: names of all drafts.
        link: deadlines and bounds of the link.
        encoder: source of the sentence encoder.
        base_folder: where relative model folders start.
        registry: the fleet's registry.

    Raises:
        ValueError: settings that cannot work together; the text says which.
    """
    plan = ProposerPlan(
        verifier="",  # each replica fills in its own name
        generalist=generalist,
        domains=dict(domains),
        drafts=list(drafts),
        speculation=speculation,
        link=link,
    )
    return build_llm_deployment(
        llm_config(settings, max_draft_tokens=speculation.max_draft_tokens),
        deployment_cls=Verifier,  # type: ignore[arg-type]  # its constructor is async, as LLMServer's is
        name_prefix="verifier-",
        bind_kwargs={
            "plan": plan.model_dump(mode="json"),
            "model": settings.model,
            "cpu_cores": settings.cpu_cores if settings.device == "cpu" else None,
            "base_folder": str(base_folder) if base_folder else None,
            "encoder": encoder,
            "examples": {domain: list(texts) for domain, texts in examples.items()},
            "unsure_below": speculation.unsure_below,
            "registry": registry,
        },
    )


def build_fixed_verifier(
    settings: VerifierSettings, *, base_folder: Path | None, registry: DeploymentHandle | Application
) -> Application:
    """The Serve deployment of a verifier in which one of vLLM's own ways proposes, not yet started.

    Args:
        settings: the model and its engine; `proposer` says which way.
        base_folder: where relative model folders start.
        registry: the fleet's registry.

    Raises:
        ValueError: settings that cannot work together; the text says which.
    """
    if settings.proposer is None:
        raise ValueError("verifier.proposer is not set")
    return build_llm_deployment(
        llm_config(settings, max_draft_tokens=settings.proposer.num_speculative_tokens),
        deployment_cls=FixedVerifier,  # type: ignore[arg-type]  # its constructor is async, as LLMServer's is
        name_prefix="verifier-",
        bind_kwargs={
            "proposer": settings.proposer.model_dump(mode="json"),
            "model": settings.model,
            "cpu_cores": settings.cpu_cores if settings.device == "cpu" else None,
            "base_folder": str(base_folder) if base_folder else None,
            "registry": registry,
        },
    )
