"""Methods added to vLLM's worker: bind the proposer, hand it drafters, read its counters.

vLLM makes the class a base of its worker (`worker_extension_cls`); the replica calls the methods with
`collective_rpc`, between steps, with plain types only. Their names start with `specfleet_` since they must
not exist on the worker already. `__init__` never runs.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any, Final

from deployments.link.client import LinkClient
from deployments.link.peer import Peer
from deployments.verifier.plan import ProposerPlan
from deployments.verifier.progress import ProgressSender
from deployments.verifier.proposer import FleetProposer
from router.router import Router

# The scheduler cuts proposals per request; the runner's own check would drop everybody's as soon as one
# request comes near the end of its context (vllm issue 58080).
NO_LIMIT: Final = sys.maxsize


class FleetWorkerExtension:
    """See the module's text. `self` is vLLM's worker."""

    model_runner: Any
    rank: int

    def specfleet_bind(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Connect the proposer to this worker.

        Args:
            plan: a `ProposerPlan` as plain JSON types.

        Returns:
            `bound`: whether this rank proposes; `public_key`: its key on the link; `pid`.
        """
        proposer = getattr(self.model_runner, "drafter", None)
        if not isinstance(proposer, FleetProposer) or not self._specfleet_is_output_rank():
            return {"bound": False, "public_key": "", "pid": os.getpid()}
        settings = ProposerPlan.model_validate(plan)
        router = Router(settings.speculation, settings.domains, settings.generalist, settings.drafts)
        link = LinkClient(settings.verifier, settings=settings.link, vocab_size=proposer.vocab_size)
        progress = None
        if settings.progress_address and settings.progress_key:
            progress = ProgressSender(settings.progress_address, settings.progress_key)
        self.model_runner.effective_drafter_max_model_len = NO_LIMIT
        _wrap_runner(self.model_runner, proposer)
        proposer.bind(self.model_runner, router, link, progress, settings.link.step_deadline_ms / 1e3)
        return {"bound": True, "public_key": link.public_key, "pid": os.getpid()}

    def specfleet_peers(self, peers: list[dict[str, str]]) -> None:
        """Connect to exactly these drafters (`draft`, `replica`, `address`, `public_key` each)."""
        proposer = getattr(self.model_runner, "drafter", None)
        if isinstance(proposer, FleetProposer) and proposer.bound:
            proposer.set_peers([Peer(**peer) for peer in peers])

    def specfleet_snapshot(self) -> dict[str, Any]:
        """The proposer's counters; empty on ranks that do not propose."""
        proposer = getattr(self.model_runner, "drafter", None)
        if isinstance(proposer, FleetProposer) and proposer.bound:
            return proposer.snapshot()
        return {}

    def specfleet_steps(self) -> list[list[float]]:
        """Complete steps since the last call, as `StepRecord.plain`; empty on ranks that do not propose."""
        proposer = getattr(self.model_runner, "drafter", None)
        if isinstance(proposer, FleetProposer) and proposer.bound:
            return proposer.take_steps()
        return []

    def _specfleet_is_output_rank(self) -> bool:
        """With tensor parallelism vLLM takes the proposals of the first rank of the last stage only."""
        parallel = self.model_runner.vllm_config.parallel_config
        return bool(self.rank == parallel.world_size - parallel.tensor_parallel_size)


def _wrap_runner(runner: Any, proposer: FleetProposer) -> None:
    """Let the proposer see a step begin, and fill in its proposals when vLLM takes them."""
    execute_model, take_draft_token_ids = runner.execute_model, runner.take_draft_token_ids

    @wraps(execute_model)
    def execute_and_begin(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        proposer.begin(scheduler_output)
        return execute_model(scheduler_output, *args, **kwargs)

    @wraps(take_draft_token_ids)
    def collect_and_take() -> Any:
        proposer.collect()
        return take_draft_token_ids()

    runner.execute_model = execute_and_begin
    runner.take_draft_token_ids = collect_and_take
