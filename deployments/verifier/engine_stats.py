"""What vLLM's scheduler says of itself, for the registry: batch, queue, KV cache.

vLLM builds the class in the replica's process through the entry point group `vllm.stat_logger_plugins` and
calls `record` after every step. Only the latest figures are kept.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

# By engine index; one engine per replica, so there is one entry.
_latest: dict[int, dict[str, float]] = {}


class EngineStats(StatLoggerBase):
    """Keeps vLLM's latest scheduler figures where `latest` finds them."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        _latest.setdefault(engine_index, {"running": 0, "waiting": 0, "usage": 0.0, "queries": 0, "hits": 0})

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Note one step's figures; steps without any change nothing."""
        if scheduler_stats is None:
            return
        figures = _latest.setdefault(engine_idx, {"queries": 0, "hits": 0})
        figures["running"] = scheduler_stats.num_running_reqs
        figures["waiting"] = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        figures["usage"] = scheduler_stats.kv_cache_usage
        figures["queries"] += scheduler_stats.prefix_cache_stats.queries
        figures["hits"] += scheduler_stats.prefix_cache_stats.hits

    def log_engine_initialized(self) -> None:
        """Nothing to say then."""


def latest() -> dict[str, float]:
    """Requests `running` and `waiting`, KV cache `usage` (0 to 1), prefix cache `queries` and `hits`.

    The last two count tokens since the start. Empty before the engine has started.
    """
    return dict(next(iter(_latest.values()), {}))
