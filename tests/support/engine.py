"""A real vLLM engine with the fleet's proposer in it, without Ray."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployments.link.settings import LinkSettings
from deployments.verifier.plan import ProposerPlan
from deployments.verifier.requests import DOMAIN_KEY, DRAFT_KEY, PROBABILITY_KEY, REQUEST_KEY
from router.settings import SpeculationSettings

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams

WIDTH = 4


class FleetEngine:
    """vLLM's offline engine, bound as the verifier's replica binds it."""

    def __init__(
        self,
        model: Path,
        drafts: Sequence[str],
        *,
        generalist: str = "general",
        domains: dict[str, str] | None = None,
        speculation: dict[str, Any] | None = None,
        link: dict[str, Any] | None = None,
        **engine: Any,
    ) -> None:
        prepare_environment()
        from vllm import LLM

        arguments: dict[str, Any] = {
            "dtype": "float32",
            "enforce_eager": True,
            "disable_log_stats": True,
            "max_num_seqs": 8,
            "kv_cache_memory_bytes": 1 << 28,
            "enable_prefix_caching": True,
            **engine,
        }
        self.llm: LLM = LLM(
            str(model),
            speculative_config={
                "method": "custom_class",
                "model": "deployments.verifier.proposer.FleetProposer",
                "num_speculative_tokens": WIDTH,
            },
            worker_extension_cls="deployments.verifier.worker.FleetWorkerExtension",
            **arguments,
        )
        plan = ProposerPlan(
            verifier="test",
            generalist=generalist,
            domains=domains or {},
            drafts=list(drafts),
            speculation=SpeculationSettings(max_draft_tokens=WIDTH, **(speculation or {})),
            # Generous: under load a proposal that comes late is no fault of the code under test.
            link=LinkSettings(**{"step_deadline_ms": 2000, **(link or {})}),
        )
        (answer,) = self.llm.collective_rpc("specfleet_bind", args=(plan.model_dump(mode="json"),))
        assert answer["bound"]
        self.public_key: str = answer["public_key"]
        self.worker_pid: int = answer["pid"]

    def connect(self, peers: Sequence[dict[str, str]]) -> None:
        """Give the proposer exactly these drafters."""
        self.llm.collective_rpc("specfleet_peers", args=(list(peers),))

    def snapshot(self) -> dict[str, Any]:
        """The proposer's counters."""
        (snapshot,) = self.llm.collective_rpc("specfleet_snapshot")
        return dict(snapshot)

    def generate(
        self, prompts: Sequence[list[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        """Run the prompts in one batch."""
        batch: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return self.llm.generate(batch, params, use_tqdm=False)  # type: ignore[arg-type]

    def close(self) -> None:
        """Stop the engine's processes."""
        self.llm.llm_engine.engine_core.shutdown()


def prepare_environment() -> None:
    """What the verifier's deployment sets for its processes."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Tests plant faults by sending functions to the worker; the product only sends names.
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if "VLLM_RPC_BASE_PATH" not in os.environ:  # vLLM leaves its sockets where this says
        sockets = tempfile.mkdtemp(prefix="sf-test-")
        atexit.register(shutil.rmtree, sockets, ignore_errors=True)
        os.environ["VLLM_RPC_BASE_PATH"] = sockets
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if openmp.exists():
        os.environ.setdefault("LD_PRELOAD", str(openmp))


def described(
    *, domain: str = "general", draft: str | None = None, request: str = "r"
) -> dict[str, str | float]:
    """`extra_args` as the replica would set them."""
    extra: dict[str, str | float] = {REQUEST_KEY: request, DOMAIN_KEY: domain, PROBABILITY_KEY: 1.0}
    if draft is not None:
        extra[DRAFT_KEY] = draft
    return extra


def ask_for_long_proposals(worker: Any) -> None:
    """Whatever the router would find worth its price: the odds must hold at every position of a proposal."""
    from router.types import Decision

    router = worker.model_runner.drafter._router
    decide = router.decide

    def long(requests: Any, available: Any, left: Any) -> list[Decision]:
        decisions = decide(requests, available, left)
        return [
            one if one.draft is None else Decision(one.draft, min(3, tokens - 1), one.reason)
            for one, tokens in zip(decisions, left, strict=True)
        ]

    router.decide = long


def ask_as_the_router_says(worker: Any) -> None:
    """Undo `ask_for_long_proposals`."""
    del worker.model_runner.drafter._router.decide
