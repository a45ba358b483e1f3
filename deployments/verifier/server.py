"""The verifier's Serve replica: vLLM behind `ray.serve.llm`, told per request what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig

from deployments.models.sources import resolve_model
from deployments.verifier.annotate import summarise
from deployments.verifier.plan import ProposerPlan
from deployments.verifier.progress import ProgressBoard
from deployments.verifier.reporting import CONTROL_TIMEOUT_S, ReportingVerifier
from deployments.verifier.requests import (
    DOMAIN_KEY,
    DRAFT_KEY,
    PROBABILITY_KEY,
    REQUEST_KEY,
)
from router.domains import DomainClassifier, DomainGuess, conversation_context, conversation_text
from router.encoder import load_encoder

# The last step's totals and the last tokens come from the worker on different ways, a few ms apart.
SETTLE_TIMEOUT_S = 0.25
DOMAIN_HEADER = "x-specfleet-domain"
DRAFT_HEADER = "x-specfleet-draft"
CLASSIFIED_PROMPT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class _Ticket:
    """What the replica remembers of a request until its response is written."""

    request_id: str
    guess: DomainGuess


class Verifier(ReportingVerifier):
    """A verifier with the fleet behind it.

    Added to vLLM: the domain of each prompt, the draft that a header pins, the proposer in the worker.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits constructors
        self,
        llm_config: LLMConfig,
        *,
        plan: dict[str, Any],
        model: str,
        cpu_cores: list[int] | None,
        base_folder: str | None,
        encoder: str,
        examples: dict[str, list[str]],
        unsure_below: float,
        registry: DeploymentHandle,
    ) -> None:
        base = Path(base_folder) if base_folder else None
        folder = resolve_model(model, base=base)
        self._board = ProgressBoard(ray.util.get_node_ip_address())
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="specfleet-domains")
        loop = asyncio.get_running_loop()
        classifier = loop.run_in_executor(
            self._threads, _fit_classifier, str(resolve_model(encoder, base=base)), examples, unsure_below
        )
        await super().__init__(llm_config, folder=folder, cpu_cores=cpu_cores, registry=registry)
        self._classifier = await classifier
        self._board.start()
        bound = await self._bind(plan)
        self._link_key = bound["public_key"]
        self._worker_pid = bound["pid"]
        await self._begin_reports()

    async def _bind(self, plan: dict[str, Any]) -> dict[str, Any]:
        parsed = ProposerPlan.model_validate(
            {
                **plan,
                "verifier": self._replica,
                "progress_address": self._board.address,
                "progress_key": self._board.public_key,
            }
        )
        answers = await self.collective_rpc(
            "specfleet_bind", timeout=60, args=(parsed.model_dump(mode="json"),)
        )
        for answer in answers:
            if answer["bound"]:
                return dict(answer)
        raise RuntimeError(
            f"no worker of verifier {self._model_name!r} took the proposer: vLLM runs without speculation. "
            "Is another plugin of vLLM replacing the proposer or the worker?"
        )

    # -- requests -----------------------------------------------------------------------------------------

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Chat completions; see LLMServer.chat."""
        text, context = conversation_text(request.messages), conversation_context(request.messages)
        ticket = await self._admit(request, raw_request_info, text, context)
        return self._annotated(ticket, await super().chat(request, raw_request_info))

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Text completions; see LLMServer.completions."""
        refused = self._refused(request)
        if refused is not None:
            return refused
        ticket = await self._admit(request, raw_request_info, await self._prompt_text(request.prompt))
        return self._annotated(ticket, await super().completions(request, raw_request_info))

    async def _admit(self, request: Any, raw_request_info: Any, text: str, context: str = "") -> _Ticket:
        """Classify the request and leave the result where the proposer finds it."""
        await self._maybe_add_request_id_to_request(request)
        headers = {k.lower(): v for k, v in (raw_request_info.headers if raw_request_info else {}).items()}
        domain, draft = headers.get(DOMAIN_HEADER), headers.get(DRAFT_HEADER)
        if domain:
            guess = DomainGuess(domain, 1.0, {domain: 1.0})
        else:
            loop = asyncio.get_running_loop()
            guess = await loop.run_in_executor(self._threads, self._classifier.classify, text, context)
        ticket = _Ticket(str(request.request_id), guess)
        extra: dict[str, Any] = {
            REQUEST_KEY: ticket.request_id,
            DOMAIN_KEY: guess.domain,
            PROBABILITY_KEY: float(guess.probability),
        }
        if draft:
            extra[DRAFT_KEY] = draft
        request.vllm_xargs = extra
        return ticket

    async def _prompt_text(self, prompt: Any) -> str:
        """The text of a completion's prompt, which may be text, token ids, or a list of either."""
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, list):
            engine: Any = self.engine
            tokenizer = await asyncio.to_thread(engine._engine_client.get_tokenizer)
            return str(tokenizer.decode(prompt[-CLASSIFIED_PROMPT_TOKENS:]))
        return str(prompt or "")

    async def _summary(self, request: _Ticket, answer: Mapping[str, Any]) -> dict[str, Any]:
        generated = answer["usage"].get("completion_tokens") or 0
        rows = await self._board.settled(request.request_id, generated, SETTLE_TIMEOUT_S)
        return summarise(request.request_id, request.guess.domain, request.guess.probability, rows)

    def _forget(self, request: _Ticket) -> None:
        self._board.forget(request.request_id)

    # -- control ------------------------------------------------------------------------------------------

    async def _snapshot(self) -> dict[str, Any]:
        snapshots = await self.collective_rpc("specfleet_snapshot", timeout=CONTROL_TIMEOUT_S)
        snapshot: dict[str, Any] = next((one for one in snapshots if one), {})
        snapshot["tokens_per_second"] = self._board.tokens_per_second()
        return snapshot

    async def _meet(self, peers: list[dict[str, str]]) -> None:
        await self.collective_rpc("specfleet_peers", timeout=CONTROL_TIMEOUT_S, args=(peers,))

    async def __del__(self) -> None:
        """Serve awaits this when the replica stops."""
        board = getattr(self, "_board", None)
        if board is not None:
            board.close()
        threads = getattr(self, "_threads", None)
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        await super().__del__()


def _fit_classifier(encoder: str, examples: dict[str, list[str]], unsure_below: float) -> DomainClassifier:
    return DomainClassifier(load_encoder(Path(encoder)), examples, unsure_below)
