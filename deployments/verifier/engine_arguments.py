"""From settings to the arguments and the environment of vLLM's engine, with or without Ray around it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from deployments.verifier.settings import VerifierSettings

GIB: Final = 1 << 30
# Set by us; an operator who set them too would silently lose the fleet.
OURS: Final = frozenset({"speculative_config", "worker_extension_cls", "model", "served_model_name"})


def engine_arguments(settings: VerifierSettings, max_draft_tokens: int) -> dict[str, Any]:
    """The engine's keyword arguments under vLLM's own names; the model itself is not among them.

    Args:
        settings: the model and its engine.
        max_draft_tokens: most tokens that drafts propose for one request in one step; not used where one of
            vLLM's own ways proposes.

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
    arguments: dict[str, Any] = {
        "dtype": settings.dtype,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "max_num_seqs": settings.max_num_seqs,
        "enforce_eager": settings.enforce_eager,
        "enable_prefix_caching": True,
        "per_request_spec_decode_metrics": "summary",
    }
    if settings.proposer is not None:
        arguments["speculative_config"] = settings.proposer.speculative_config()
    else:
        arguments["worker_extension_cls"] = "deployments.verifier.worker.FleetWorkerExtension"
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": "deployments.verifier.proposer.FleetProposer",
            "num_speculative_tokens": max_draft_tokens,
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


def engine_environment(settings: VerifierSettings) -> dict[str, str]:
    """The environment variables of the engine's processes."""
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
