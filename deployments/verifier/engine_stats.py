"""What vLLM's scheduler says of itself, for the registry: batch, queue, KV cache, its own proposals.

vLLM builds the class in the replica's process through the entry point group `vllm.stat_logger_plugins` and
calls `record` after every step. Only the latest figures and sums are kept.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any, Final

from vllm.v1.metrics.loggers import StatLoggerBase

# By engine index; one engine per replica, so there is one entry.
_latest: dict[int, dict[str, float]] = {}
#: Steps that the rate of tokens is taken from.
_RECENT: Final = 4096


class _Sums:
    """What was counted since the engine's start."""

    def __init__(self) -> None:
        self.generated = 0
        self.prompt = 0
        self.finished = 0
        self.proposed = 0
        self.accepted = 0
        self.steps = 0
        self.by_position: list[int] = []
        self.recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)

    def take(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        """Add one step's figures."""
        if iteration_stats is not None:
            self.generated += iteration_stats.num_generation_tokens
            self.prompt += iteration_stats.num_prompt_tokens
            self.finished += len(iteration_stats.finished_requests)
            self.recent.append((monotonic(), iteration_stats.num_generation_tokens))
        own = getattr(scheduler_stats, "spec_decoding_stats", None)
        if own is None:
            return
        self.proposed += own.num_draft_tokens
        self.accepted += own.num_accepted_tokens
        self.steps += own.num_drafts
        positions = own.num_accepted_tokens_per_pos
        self.by_position += [0] * (len(positions) - len(self.by_position))
        for position, accepted in enumerate(positions):
            self.by_position[position] += accepted


# One engine per replica, and the replica's process is the engine's.
_sums = _Sums()


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
        _sums.take(scheduler_stats, iteration_stats)
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


def counted(window_s: float = 10.0) -> dict[str, Any]:
    """Sums since the start, under the names of the registry's `VerifierSnapshot`.

    `acceptance` is what vLLM itself counts of proposals: one that it pads counts as proposed. Where drafts
    propose, the proposer's own figures are the exact ones.

    Args:
        window_s: seconds over which `tokens_per_second` is taken.
    """
    since = monotonic() - window_s
    return {
        "acceptance": {
            "proposed": _sums.proposed,
            "accepted": _sums.accepted,
            "steps": _sums.steps,
            "by_position": list(_sums.by_position),
        },
        "generation_tokens": _sums.generated,
        "prompt_tokens": _sums.prompt,
        "requests": {"finished": _sums.finished},
        "tokens_per_second": sum(tokens for at, tokens in _sums.recent if at >= since) / window_s,
    }
