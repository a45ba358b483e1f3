"""The verifier's Serve replica: vLLM behind `ray.serve.llm`, told per request what it is about."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve
from ray.llm._internal.serve.core.server.llm_server import LLMServer
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig

from deployments.models.sources import resolve_model
from deployments.verifier import engine_stats
from deployments.verifier.annotate import event_of, summarise, usage_chunk
from deployments.verifier.cores import leave_cores
from deployments.verifier.plan import ProposerPlan
from deployments.verifier.progress import ProgressBoard
from deployments.verifier.prompts import wrong_token_id
from deployments.verifier.requests import (
    DOMAIN_KEY,
    DRAFT_KEY,
    PROBABILITY_KEY,
    REQUEST_KEY,
)
from deployments.verifier.shared_memory import note_engine, remove_left_behind
from router.domains import DomainClassifier, DomainGuess, conversation_context, conversation_text
from router.encoder import load_encoder

logger = logging.getLogger(__name__)

REPORT_PERIOD_S = 1.0
CONTROL_TIMEOUT_S = 5.0
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


class Verifier(LLMServer):
    """`ray.serve.llm`'s LLMServer with the fleet behind it.

    Everything of vLLM's OpenAI surface is inherited. Added: the domain of each prompt, the draft that a
    header pins, the `specfleet` object on responses, and the exchange with the registry.
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
        loading: Any = llm_config.model_loading_config
        loading.model_source = str(folder)
        llm_config._engine_config = None  # was made from the source's name, before it was a folder here
        self._cores = frozenset(cpu_cores or ())
        self._registry = registry
        self._model_name = llm_config.model_id
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._board = ProgressBoard(ray.util.get_node_ip_address())
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="specfleet-domains")
        self._last_peers: list[dict[str, str]] | None = None
        self._report_task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        classifier = loop.run_in_executor(
            self._threads, _fit_classifier, str(resolve_model(encoder, base=base)), examples, unsure_below
        )
        await super().__init__(llm_config)
        engine: Any = self.engine
        if engine._oai_serving_tokenization is None:
            # ray.serve.llm 2.60 looks for it under the name that it had before vLLM 0.29.
            engine._oai_serving_tokenization = getattr(engine._app_state, "serving_tokenization", None)
        self._classifier = await classifier
        self._board.start()
        bound = await self._bind(plan)
        self._link_key = bound["public_key"]
        self._worker_pid = bound["pid"]
        await self._exchange()
        self._report_task = loop.create_task(self._report_forever())

    async def _start_engine(self) -> None:
        """Start vLLM and nothing else.

        Ray's own version adds an actor of 400 MB that reports usage, and a process that imports everything
        once more to download a model which is a folder here already.
        """
        assert self.engine is not None
        callback = self._llm_config.get_or_create_callback()
        assert callback is not None
        callback.ctx.run_init_node = False
        await asyncio.to_thread(remove_left_behind)
        await self.engine.start()
        await asyncio.to_thread(note_engine, psutil.Process())
        await asyncio.to_thread(leave_cores, psutil.Process(), self._cores)

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
        engine: Any = self.engine
        fault = wrong_token_id(request.prompt, engine._engine_client.model_config.get_vocab_size())
        if fault is not None:
            return _only(engine._make_error(fault))
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

    async def _annotated(
        self, ticket: _Ticket, stream: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Any, None]:
        """The engine's stream with the `specfleet` object on its response or its usage chunk."""
        try:
            async for item in stream:
                if isinstance(item, list):
                    yield [await self._annotate_event(ticket, event) for event in item]
                    continue
                usage = getattr(item, "usage", None)
                if usage is not None:
                    item.specfleet = await self._summary(ticket, usage.completion_tokens or 0)
                yield item
        finally:
            self._board.forget(ticket.request_id)
            with contextlib.suppress(RuntimeError):  # it is closed already when it ended by itself
                await stream.aclose()

    async def _annotate_event(self, ticket: _Ticket, event: Any) -> Any:
        chunk = usage_chunk(event) if isinstance(event, str) else None
        if chunk is None:
            return event
        chunk["specfleet"] = await self._summary(ticket, chunk["usage"].get("completion_tokens") or 0)
        return event_of(chunk)

    async def _summary(self, ticket: _Ticket, generated: int) -> dict[str, Any]:
        rows = await self._board.settled(ticket.request_id, generated, SETTLE_TIMEOUT_S)
        return summarise(ticket.request_id, ticket.guess.domain, ticket.guess.probability, rows)

    # -- control ------------------------------------------------------------------------------------------

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(REPORT_PERIOD_S)
            await self._exchange()

    async def _exchange(self) -> None:
        """Tell the registry how things stand, and learn which drafters there are. Never raises."""
        try:
            snapshots = await self.collective_rpc("specfleet_snapshot", timeout=CONTROL_TIMEOUT_S)
            snapshot: dict[str, Any] = next((one for one in snapshots if one), {})
            snapshot["tokens_per_second"] = self._board.tokens_per_second()
            engine = engine_stats.latest()
            snapshot["running"] = int(engine.pop("running", 0))
            snapshot["waiting"] = int(engine.pop("waiting", 0))
            snapshot["cache"] = engine
            report = {
                "replica": self._replica,
                "model": self._model_name,
                "public_key": self._link_key,
                "pid": os.getpid(),
                "node": ray.util.get_node_ip_address(),
                "state": "ready",
                "sent_at": time.monotonic(),
                "snapshot": snapshot,
            }
            answer = await asyncio.wait_for(self._registry.report.remote(report), CONTROL_TIMEOUT_S)
            peers = [dict(peer) for peer in answer["drafters"]]
            if peers != self._last_peers:
                await self.collective_rpc("specfleet_peers", timeout=CONTROL_TIMEOUT_S, args=(peers,))
                self._last_peers = peers
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Registry or engine are away for a moment: the last known drafters stay connected.
            logger.warning("specfleet: exchange with the registry failed, trying again: %r", error)

    async def __del__(self) -> None:
        """Serve awaits this when the replica stops."""
        task = getattr(self, "_report_task", None)
        if task is not None:
            task.cancel()
        board = getattr(self, "_board", None)
        if board is not None:
            board.close()
        threads = getattr(self, "_threads", None)
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        await super().__del__()


async def _only(item: Any) -> AsyncGenerator[Any, None]:
    yield item


def _fit_classifier(encoder: str, examples: dict[str, list[str]], unsure_below: float) -> DomainClassifier:
    return DomainClassifier(load_encoder(Path(encoder)), examples, unsure_below)
