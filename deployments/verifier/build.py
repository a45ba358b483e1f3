"""From settings to the verifier's Serve deployment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.llm._internal.serve.core.configs.accelerators import CPUConfig, GPUConfig
from ray.serve.deployment import Application
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig, build_llm_deployment

from deployments.link.settings import LinkSettings
from deployments.verifier.plan import ProposerPlan
from deployments.verifier.server import Verifier
from deployments.verifier.settings import VerifierSettings
from router.settings import SpeculationSettings

GIB = 1 << 30
# Set by us; an operator who set them too would silently lose the fleet.
OURS = frozenset({"speculative_config", "worker_extension_cls", "model", "served_model_name"})


def llm_config(settings: VerifierSettings, *, max_draft_tokens: int) -> LLMConfig:
    """The `ray.serve.llm` configuration of a verifier.

    Raises:
        ValueError: `engine` holds an argument that the fleet sets itself, or pipeline parallelism, which
            vLLM's custom proposers do not work with.
    """
    clash = sorted(OURS & settings.engine.keys())
    if clash:
        raise ValueError(f"verifier.engine must not set {', '.join(clash)}: the fleet sets it")
    if int(settings.engine.get("pipeline_parallel_size", 1)) != 1:
        raise ValueError(
            "verifier.engine.pipeline_parallel_size must be 1: vLLM's custom proposers need the whole "
            "model in one stage; use tensor_parallel_size"
        )
    cpu = settings.device == "cpu"
    bundle: dict[str, float] = {"CPU": settings.num_cpus}
    if not cpu:
        bundle["GPU"] = settings.num_gpus or 1
    return LLMConfig(
        model_loading_config={"model_id": settings.name, "model_source": settings.model},
        engine_kwargs=_engine_arguments(settings, max_draft_tokens),
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
        runtime_env={"env_vars": _environment(settings)},
        # Default is 50 ms: tokens would be held back longer than a step takes.
        experimental_configs={"stream_batching_interval_ms": 0},
        log_engine_metrics=True,
    )


def _engine_arguments(settings: VerifierSettings, max_draft_tokens: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "dtype": settings.dtype,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "max_num_seqs": settings.max_num_seqs,
        "enforce_eager": settings.enforce_eager,
        "enable_prefix_caching": True,
        "speculative_config": {
            "method": "custom_class",
            "model": "deployments.verifier.proposer.FleetProposer",
            "num_speculative_tokens": max_draft_tokens,
        },
        "worker_extension_cls": "deployments.verifier.worker.FleetWorkerExtension",
        "per_request_spec_decode_metrics": "summary",
    }
    if settings.max_model_len is not None:
        arguments["max_model_len"] = settings.max_model_len
    if settings.kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * GIB)
    if settings.gpu_memory_utilization is not None:
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
    if settings.tool_call_parser is not None:
        arguments["enable_auto_tool_choice"] = True
        arguments["tool_call_parser"] = settings.tool_call_parser
    return {**arguments, **settings.engine}


def _environment(settings: VerifierSettings) -> dict[str, str]:
    environment = {
        # The verifier reports to nobody but its operator.
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # OpenAI's bound on `n`. vLLM's own of 16384 lets one request take the engine from everybody else.
        "VLLM_MAX_N_SEQUENCES": "128",
        "RAYLLM_ENGINE_START_TIMEOUT_S": str(int(settings.start_timeout_s)),
    }
    if settings.device == "cpu":
        if settings.cpu_cores is not None:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in settings.cpu_cores)
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        if openmp.exists():
            # vLLM: speculative decoding on CPUs loses much of its gain without Intel's OpenMP.
            environment["LD_PRELOAD"] = str(openmp)
    return environment


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
            "base_folder": str(base_folder) if base_folder else None,
            "encoder": encoder,
            "examples": {domain: list(texts) for domain, texts in examples.items()},
            "unsure_below": speculation.unsure_below,
            "registry": registry,
        },
    )
