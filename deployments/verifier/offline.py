"""A verifier without Ray: vLLM's offline engine, bound to the proposer as a replica binds its own.

For measuring and for tests. The caller drives it step by step, so that batches begin and end where a
measurement wants them to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from deployments.verifier.cores import leave_cores
from deployments.verifier.engine_arguments import engine_arguments, engine_environment
from deployments.verifier.plan import ProposerPlan
from deployments.verifier.requests import (
    DOMAIN_KEY,
    DRAFT_KEY,
    LENGTH_KEY,
    PROBABILITY_KEY,
    REQUEST_KEY,
)
from deployments.verifier.settings import VerifierSettings
from deployments.verifier.step_log import StepRecord
from router.types import PLAIN

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams

#: Arguments of vLLM's servers that its offline engine does not take.
SERVERS_ONLY: Final = ("enable_auto_tool_choice", "tool_call_parser")
#: Longest wait for an answer of the worker, in seconds.
CONTROL_TIMEOUT_S: Final = 60.0


@dataclass(slots=True)
class Written:
    """What became of one request of a batch.

    Attributes:
        tokens: the answer's token ids.
        arrivals: per token, seconds from the batch's start to the step's end that brought it.
        choices: per token, the likeliest token ids with their log probabilities, where they were asked for.
    """

    tokens: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    choices: list[dict[int, float]] = field(default_factory=list)


class OfflineEngine:
    """One vLLM engine in this process, driven step by step."""

    def __init__(self, settings: VerifierSettings, model: Path, width: int, **changes: Any) -> None:
        """Start the engine; takes as long as a replica's start.

        Args:
            settings: the model and its engine.
            model: folder of the verifier's checkpoint.
            width: most tokens that drafts propose in a step; not used where `settings.proposer` is set.
            changes: arguments of vLLM's engine that differ from the settings', under vLLM's names.

        Raises:
            ValueError: settings that cannot work; see `engine_arguments`.
            RuntimeError: vLLM does not start.
        """
        os.environ.update(engine_environment(settings))
        from vllm import LLM

        arguments: dict[str, Any] = {
            "disable_log_stats": True,
            # Log probabilities after temperature: the odds by which proposals are accepted.
            "logprobs_mode": "processed_logprobs",
            **engine_arguments(settings, width),
            **changes,
        }
        for name in SERVERS_ONLY:
            arguments.pop(name, None)
        self.llm: LLM = LLM(str(model), **arguments)
        if settings.device == "cpu":
            for child in psutil.Process().children():
                leave_cores(child, frozenset(settings.cpu_cores or ()))
        self._numbers = 0

    def close(self) -> None:
        """Stop the engine's processes. May be called twice."""
        self.llm.llm_engine.engine_core.shutdown()

    # -- requests -----------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        """Run the prompts, given as token ids, in one batch to their ends."""
        batch: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return self.llm.generate(batch, params, use_tqdm=False)

    def run_batch(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        enough: Callable[[Sequence[Written], bool], bool] | None = None,
    ) -> list[Written]:
        """Run the prompts in one batch and note when each token came.

        Args:
            prompts: token ids; all of them are sent at once.
            params: one per prompt.
            enough: called after every step with what was written so far and whether any request has ended;
                True ends all requests where they are.

        Returns:
            What was written, in the order of the prompts.
        """
        engine = self.llm.llm_engine
        written: dict[str, Written] = {}
        running: set[str] = set()
        began = time.perf_counter()
        for prompt, sampling in zip(prompts, params, strict=True):
            self._numbers += 1
            name = f"offline-{self._numbers}"
            request: Any = {"prompt_token_ids": list(prompt)}
            engine.add_request(name, request, sampling)
            written[name] = Written()
            running.add(name)
        try:
            while running:
                outputs = engine.step()
                now = time.perf_counter() - began
                for output in outputs:
                    name = output.request_id
                    _take(written[name], output, now)
                    if output.finished:
                        running.discard(name)
                if (
                    enough is not None
                    and outputs
                    and enough(list(written.values()), len(running) < len(written))
                ):
                    break
        finally:
            if running:
                engine.abort_request(list(running))
        return list(written.values())


class OfflineVerifier(OfflineEngine):
    """One verifier engine with the fleet's proposer in it."""

    def __init__(
        self,
        settings: VerifierSettings,
        model: Path,
        plan: ProposerPlan,
        **changes: Any,
    ) -> None:
        """Start the engine and bind the proposer.

        Args:
            settings: the model and its engine.
            model: folder of the verifier's checkpoint.
            plan: what the proposer needs; its `speculation.max_draft_tokens` is the engine's width.
            changes: arguments of vLLM's engine that differ from the settings', under vLLM's names.

        Raises:
            ValueError: settings that cannot work; see `engine_arguments`.
            RuntimeError: vLLM does not start, or runs without the proposer.
        """
        super().__init__(settings, model, plan.speculation.max_draft_tokens, **changes)
        answers = self.llm.collective_rpc(
            "specfleet_bind", timeout=CONTROL_TIMEOUT_S, args=(plan.model_dump(mode="json"),)
        )
        bound = next((answer for answer in answers if answer["bound"]), None)
        if bound is None:
            self.close()
            raise RuntimeError(
                f"no worker of verifier {settings.name!r} took the proposer: "
                "is another plugin of vLLM replacing the proposer or the worker?"
            )
        self.public_key: str = bound["public_key"]
        self.worker_pid: int = bound["pid"]

    # -- control ------------------------------------------------------------------------------------------

    def connect(self, peers: Sequence[Mapping[str, str]]) -> None:
        """Give the proposer exactly these drafters (`draft`, `replica`, `address`, `public_key` each)."""
        self._ask_worker("specfleet_peers", [dict(peer) for peer in peers])

    def snapshot(self) -> dict[str, Any]:
        """The proposer's counters."""
        return dict(next((one for one in self._ask_worker("specfleet_snapshot") if one), {}))

    def take_steps(self) -> list[StepRecord]:
        """The complete steps since the last call."""
        steps: list[list[float]] = next((steps for steps in self._ask_worker("specfleet_steps") if steps), [])
        return [StepRecord.read(step) for step in steps]

    def _ask_worker(self, method: str, *arguments: Any) -> list[Any]:
        return list(self.llm.collective_rpc(method, timeout=CONTROL_TIMEOUT_S, args=arguments))


def described(
    *, domain: str = "general", draft: str | None = None, length: int | None = None, request: str = "r"
) -> dict[str, str | float]:
    """`SamplingParams.extra_args` as the replica would set them.

    Args:
        domain: what the request is about, for sure.
        draft: the draft to use whatever happens; `none` decodes plainly; None leaves it to the router.
        length: tokens that this draft proposes in every step; None leaves it to the router.
        request: id of the request in responses.
    """
    extra: dict[str, str | float] = {REQUEST_KEY: request, DOMAIN_KEY: domain, PROBABILITY_KEY: 1.0}
    if draft is not None:
        extra[DRAFT_KEY] = draft
    if length is not None and draft != PLAIN:
        extra[LENGTH_KEY] = length
    return extra


def _take(written: Written, output: Any, now: float) -> None:
    """Take in what a step brought for one request. vLLM's offline outputs hold the whole answer so far."""
    completion = output.outputs[0]
    new = list(completion.token_ids[len(written.tokens) :])
    if completion.logprobs is not None:
        for place in range(len(written.tokens), len(completion.token_ids)):
            choices = completion.logprobs[place]
            written.choices.append({token: choice.logprob for token, choice in choices.items()})
    written.tokens += new
    written.arrivals += [now] * len(new)
