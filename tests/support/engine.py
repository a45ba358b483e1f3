"""A real vLLM engine with the fleet's proposer in it, without Ray."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployments.link.settings import LinkSettings
from deployments.verifier.offline import OfflineVerifier, described
from deployments.verifier.plan import ProposerPlan
from deployments.verifier.settings import VerifierSettings
from router.settings import SpeculationSettings

__all__ = ["WIDTH", "FleetEngine", "ask_as_the_router_says", "ask_for_long_proposals", "described"]

WIDTH = 4


class FleetEngine(OfflineVerifier):
    """The offline verifier with what tests want: small, eager, patient."""

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
        settings = VerifierSettings(
            model=str(model),
            name="test",
            dtype="float32",
            enforce_eager=True,
            max_num_seqs=8,
            kv_cache_gib=0.25,
            cpu_cores=[0],
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
        super().__init__(settings, model, plan, **engine)


def prepare_environment() -> None:
    """What tests need beside what the verifier sets for its processes itself."""
    # Tests plant faults by sending functions to the worker; the product only sends names.
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if "VLLM_RPC_BASE_PATH" not in os.environ:  # vLLM leaves its sockets where this says
        sockets = tempfile.mkdtemp(prefix="sf-test-")
        atexit.register(shutil.rmtree, sockets, ignore_errors=True)
        os.environ["VLLM_RPC_BASE_PATH"] = sockets


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
