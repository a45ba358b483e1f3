"""The proposer: fetches proposals from the drafters inside the vLLM worker, one step at a time.

vLLM builds it (`method="custom_class"`) with nothing but its configuration; `worker.py` binds it to the
running worker. A step of the verifier then goes

    begin     execute_model is called: requests that ended are closed, new prompts go to their drafts, which
              prefill them while the verifier does the same
    propose   the step's tokens are known: book, decide, ask. Returns at once: the tokens go out to the users
    collect   vLLM asks for the drafts: take what has come by the deadline

Nothing here may raise into vLLM, return another number of rows, or more tokens than vLLM has room for:
each would end the engine. Whatever goes wrong inside costs proposals, never output.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from deployments.link.client import LinkClient
from deployments.link.peer import Peer
from deployments.verifier.progress import Progress, ProgressSender, StepReport, Use
from deployments.verifier.requests import RequestTable, TrackedRequest, cut_at_stop
from deployments.verifier.step_log import StepLog
from router.router import GENERAL, Router
from router.types import Decision

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

LOGGED_FAILURES: Final = 20  # tracebacks written; further ones are only counted


@dataclass(slots=True)
class _Row:
    """One row of the batch that decodes, and what is asked for it."""

    index: int
    request: TrackedRequest
    decision: Decision | None = None


class FleetProposer:
    """vLLM's proposer object. Proposes nothing until `bind` was called."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        assert vllm_config.speculative_config is not None
        self.width: int = vllm_config.speculative_config.num_speculative_tokens
        self.max_model_len: int = vllm_config.model_config.max_model_len
        self.vocab_size: int = vllm_config.model_config.get_vocab_size()
        self.failures = 0
        self._runner: Any = None
        self._router: Router
        self._link: LinkClient
        self._progress: ProgressSender | None = None
        self._requests: RequestTable
        self._step = 0
        self._begun_at = 0.0
        self._scheduled: dict[str, list[int]] = {}
        self._only_decodes = False
        self._asked: list[_Row] = []
        self._asked_at = 0.0
        self._deadline_s = 0.0
        self._rows: list[list[int]] = []
        self._log = StepLog()
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.finished = 0
        self.resumed = 0

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM offers the target model here; the drafts live in processes of their own."""

    def bind(
        self,
        runner: Any,
        router: Router,
        link: LinkClient,
        progress: ProgressSender | None,
        deadline_s: float,
    ) -> None:
        """Start to propose.

        Args:
            runner: vLLM's model runner. Kept itself, never its `input_batch`, which vLLM recreates.
            router: decides who proposes and how much.
            link: connection to the drafters.
            progress: where the replica hears about every step, if it wants to.
            deadline_s: longest that a step waits for proposals, in seconds.
        """
        self._router, self._link, self._progress = router, link, progress
        self._deadline_s = deadline_s
        self._requests = RequestTable(self.max_model_len, GENERAL)
        self._runner = runner

    @property
    def bound(self) -> bool:
        """Whether `bind` was called."""
        return self._runner is not None

    # -- the three moments of a step ------------------------------------------------------------------

    def begin(self, scheduler_output: Any) -> None:
        """Before the verifier computes: forget what ended, let drafts prefill what is new."""
        if self._runner is None:
            return
        try:
            self._step += 1
            self._begun_at = monotonic()
            self._log.begin(self._begun_at)
            self._scheduled = scheduler_output.scheduled_spec_decode_tokens
            scheduled = scheduler_output.num_scheduled_tokens
            self._only_decodes = bool(scheduled) and all(
                count == 1 + len(self._scheduled.get(name, ())) for name, count in scheduled.items()
            )
            for engine_id in scheduler_output.finished_req_ids:
                self._close(engine_id)
            self.resumed += len(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
            for new in scheduler_output.scheduled_new_reqs:
                self._only_decodes = False
                self._open(new)
            self._link.flush(self._step)
        except Exception:
            self._fail("begin")

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """After the verifier sampled: book, decide, ask. vLLM calls this once per step.

        Args:
            sampled_token_ids: per row the tokens this step produced; empty for a partial prefill.
            num_tokens_no_spec: [max rows], tokens of each row, this step's included.
            token_ids_cpu: [max rows, max_model_len], token ids of each row.
            slot_mappings: of vLLM's own drafts; not used.

        Returns:
            One list per row, empty now. `collect` fills the same lists when vLLM asks for them.
        """
        rows: list[list[int]] = [[] for _ in sampled_token_ids]
        self._rows, self._asked = rows, []
        if self._runner is None:
            return rows
        try:
            self._sweep()
            decoding = self._book(sampled_token_ids)
            self._decide(decoding, num_tokens_no_spec)
            self._ask(decoding, num_tokens_no_spec, token_ids_cpu)
            self._tell(decoding, sampled_token_ids)
        except Exception:
            self._fail("propose")
            self._asked = []
        return rows

    def collect(self) -> None:
        """vLLM takes the drafts now: fill in what the drafters sent, waiting to the deadline at most."""
        if self._runner is None or not self._asked:
            return
        asked, self._asked = self._asked, []
        try:
            began = monotonic()
            trips = self._round_trips(asked)
            answers: dict[int, list[int]] = self._link.collect(self._step, self._asked_at + self._deadline_s)
            for row in asked:
                assert row.decision is not None
                tokens = answers.get(row.request.session, [])[: row.decision.length]
                tokens = cut_at_stop(tokens, row.request.stops)
                row.request.proposal = tokens
                self._rows[row.index][:] = tokens
            self._observe_waits(asked, trips, began)
        except Exception:
            self._fail("collect")
            for row in asked:
                row.request.proposal = []
                self._rows[row.index].clear()

    # -- book, decide, ask, tell ------------------------------------------------------------------------

    def _book(self, sampled: list[list[int]]) -> list[_Row]:
        """Settle the previous proposals; returns the rows that decode."""
        log = self._log.now
        log.rows = sum(1 for tokens in sampled if tokens)
        log.decoding = self._only_decodes
        log.proposed = proposed = sum(len(tokens) for tokens in self._scheduled.values())
        log.written = sum(len(tokens) for tokens in sampled)
        if self._only_decodes:
            self._router.observe_step(len(sampled), proposed, monotonic() - self._begun_at)
        names = self._runner.input_batch.req_ids
        decoding = []
        for index, tokens in enumerate(sampled):
            if not tokens:
                continue
            request = self._requests.get(names[index]) or self._adopt(names[index])
            if request is None:
                continue
            # vLLM may have cut the proposal (budget, length, grammar), or scheduled padding in its place.
            verified = self._scheduled.get(request.engine_id, [])
            if not verified or verified != request.proposal[: len(verified)]:
                verified = []
            accepted = min(len(tokens) - 1, len(verified))
            self._router.book(request.engine_id, request.draft, len(verified), accepted, len(tokens))
            request.proposal = []
            request.generated += len(tokens)
            self.generated_tokens += len(tokens)
            decoding.append(_Row(index, request))
        return decoding

    def _decide(self, decoding: list[_Row], num_tokens: np.ndarray) -> None:
        decisions = self._router.decide(
            [row.request.engine_id for row in decoding],
            self._link.available(),
            [row.request.token_limit - int(num_tokens[row.index]) for row in decoding],
        )
        for row, decision in zip(decoding, decisions, strict=True):
            row.decision = decision
            row.request.draft = decision.draft

    def _ask(self, decoding: list[_Row], num_tokens: np.ndarray, token_ids: np.ndarray) -> None:
        for row in decoding:
            decision = row.decision
            if decision is None or decision.draft is None or decision.length < 1:
                continue
            context = token_ids[row.index, : int(num_tokens[row.index])]
            length = min(decision.length, self.width)
            if self._link.ask(decision.draft, row.request.session, context, length):
                self._asked.append(row)
        self._link.flush(self._step)
        self._asked_at = monotonic()

    def _tell(self, decoding: list[_Row], sampled: list[list[int]]) -> None:
        if self._progress is not None and decoding:
            tokens = sum(len(row) for row in sampled)
            rows = [self._totals(row.request) for row in decoding]
            self._progress.send(StepReport(rows, len(self._requests), tokens))

    def _totals(self, request: TrackedRequest) -> Progress:
        summary = self._router.summary(request.engine_id)
        if summary is None:  # the router forgot it: it remembers a bounded number of requests
            return Progress(request.response_id, request.engine_id, request.generated, 0, 0, 0, [])
        uses = [Use(use.name, use.from_token, use.reason) for use in summary.drafts]
        return Progress(
            request.response_id,
            request.engine_id,
            request.generated,
            summary.proposed,
            summary.accepted,
            summary.steps,
            uses,
        )

    # -- requests come and go ---------------------------------------------------------------------------

    def _open(self, new: Any) -> None:
        """A request was scheduled for the first time: its draft gets the prompt before the verifier does."""
        prompt = new.prompt_token_ids
        if prompt is None:  # prompt embeddings: there are no ids that a draft could read
            return
        self.prompt_tokens += len(prompt)
        request = self._track(new.req_id, len(prompt), new.sampling_params)
        draft = self._router.home(new.req_id)
        if draft is not None:
            self._link.ask(draft, request.session, prompt, 0)

    def _adopt(self, engine_id: str) -> TrackedRequest | None:
        """A request that was running before the proposer was bound."""
        state = self._runner.requests.get(engine_id)
        if state is None or state.prompt_token_ids is None:
            return None
        return self._track(engine_id, len(state.prompt_token_ids), state.sampling_params)

    def _track(self, engine_id: str, prompt_tokens: int, params: Any) -> TrackedRequest:
        request = self._requests.open(engine_id, prompt_tokens, params)
        try:
            self._router.open(request.profile)
        except ValueError:  # pinned to a draft that this fleet does not have: it decodes plainly
            self._fail("open")
        return request

    def _close(self, engine_id: str) -> None:
        request = self._requests.close(engine_id)
        if request is not None:
            self.finished += 1
            self._router.close(engine_id)
            self._link.close_session(request.session)

    def _sweep(self) -> None:
        """Close what vLLM no longer knows: a failure in `begin` must not leak sessions."""
        alive = self._runner.requests
        if len(self._requests) > len(alive):
            for engine_id in [name for name in self._requests if name not in alive]:
                self._close(engine_id)

    # -- what waiting costs -----------------------------------------------------------------------------

    def _round_trips(self, asked: list[_Row]) -> dict[str, float]:
        """Per draft, the seconds of all its round trips so far; only where several were asked."""
        if len(_longest_asked(asked)) < 2:
            return {}
        return {draft: figures["round_trip_seconds"] for draft, figures in self._link.stats().items()}

    def _observe_waits(self, asked: list[_Row], before: dict[str, float], began: float) -> None:
        """Tell the router by how much each draft held up this step."""
        longest = _longest_asked(asked)
        waited = monotonic() - began
        self._log.now.asked, self._log.now.waited_s = max(longest.values(), default=0), waited
        after = self._round_trips(asked)
        for draft, length in longest.items():
            if before:
                trip = after.get(draft, 0.0) - before.get(draft, 0.0)
                # No answer in time: it cost the whole wait.
                seconds = max(0.0, trip - (began - self._asked_at)) if trip else waited
            else:
                seconds = waited
            self._router.observe_wait(draft, length, seconds)

    # -- control, between steps ---------------------------------------------------------------------------

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """Connect to these drafters and to no others."""
        self._link.set_peers(peers)

    def snapshot(self) -> dict[str, Any]:
        """Counters and figures in plain types, for the registry."""
        return {
            **self._router.snapshot(),
            "link": self._link.stats(),
            "generation_tokens": self.generated_tokens,
            "prompt_tokens": self.prompt_tokens,
            "requests": {"finished": self.finished},
            "running": len(self._requests),
            "proposer": {
                "failures": self.failures,
                "steps": self._step,
                "resumed": self.resumed,  # requests that came back after a preemption
                "reports_dropped": self._progress.dropped if self._progress else 0,
            },
        }

    def take_steps(self) -> list[list[float]]:
        """The complete steps since the last call, as `StepRecord.plain`."""
        return self._log.take()

    def _fail(self, where: str) -> None:
        self.failures += 1
        if self.failures <= LOGGED_FAILURES:
            logger.exception("specfleet: %s failed, this step goes on without proposals", where)


def _longest_asked(asked: list[_Row]) -> dict[str, int]:
    longest: dict[str, int] = {}
    for row in asked:
        decision = row.decision
        if decision is not None and decision.draft is not None:
            longest[decision.draft] = max(longest.get(decision.draft, 0), decision.length)
    return longest
