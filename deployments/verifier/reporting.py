"""What every verifier replica has: vLLM behind `ray.serve.llm`, annotated answers, reports on itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Collection, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve
from ray.llm._internal.serve.core.server.llm_server import LLMServer
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig

from deployments.verifier import engine_stats
from deployments.verifier.annotate import event_of, usage_chunk
from deployments.verifier.cores import leave_cores
from deployments.verifier.prompts import wrong_token_id
from deployments.verifier.shared_memory import note_engine, remove_left_behind

logger = logging.getLogger(__name__)

REPORT_PERIOD_S = 1.0
CONTROL_TIMEOUT_S = 5.0


class ReportingVerifier(LLMServer):
    """`ray.serve.llm`'s LLMServer with a `specfleet` object on its answers, known to the registry.

    Everything of vLLM's OpenAI surface is inherited. Subclasses say who proposes: they admit requests, sum
    up how an answer came about, and report what they count.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits constructors
        self,
        llm_config: LLMConfig,
        *,
        folder: Path,
        cpu_cores: Collection[int] | None,
        registry: DeploymentHandle,
    ) -> None:
        """Start the engine.

        Args:
            llm_config: model and engine.
            folder: the model's folder on this node.
            cpu_cores: cores that compute, where they are named; nothing else of this replica runs there.
            registry: handle of the registry.
        """
        self._cores = frozenset(cpu_cores or ())
        loading: Any = llm_config.model_loading_config
        loading.model_source = str(folder)
        llm_config._engine_config = None  # was made from the source's name, before it was a folder here
        self._registry = registry
        self._model_name = llm_config.model_id
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._link_key = ""
        self._last_peers: list[dict[str, str]] | None = None
        self._report_task: asyncio.Task[None] | None = None
        await super().__init__(llm_config)
        engine: Any = self.engine
        if engine._oai_serving_tokenization is None:
            # ray.serve.llm 2.60 looks for it under the name that it had before vLLM 0.29.
            engine._oai_serving_tokenization = getattr(engine._app_state, "serving_tokenization", None)

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

    async def _begin_reports(self) -> None:
        """Report once, now, and then every second."""
        await self._exchange()
        self._report_task = asyncio.get_running_loop().create_task(self._report_forever())

    # -- what subclasses say ------------------------------------------------------------------------------

    @abstractmethod
    async def _summary(self, request: Any, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The `specfleet` object of an answer.

        Args:
            request: what the subclass remembers of the request.
            answer: the whole answer, or the usage chunk of a stream, as JSON data.
        """

    @abstractmethod
    def _forget(self, request: Any) -> None:
        """The answer has been written, or its reader is gone."""

    @abstractmethod
    async def _snapshot(self) -> dict[str, Any]:
        """Counters for the registry (`deployments.registry.reports.VerifierSnapshot`)."""

    async def _meet(self, peers: list[dict[str, str]]) -> None:
        """Take in which drafters there are now; those who have none have nothing to do."""

    # -- requests -----------------------------------------------------------------------------------------

    def _refused(self, request: Any) -> AsyncGenerator[Any, None] | None:
        """The answer to a completion request that the engine would break on; None lets it pass."""
        engine: Any = self.engine
        fault = wrong_token_id(request.prompt, engine._engine_client.model_config.get_vocab_size())
        return None if fault is None else _only(engine._make_error(fault))

    async def _annotated(self, request: Any, stream: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """The engine's stream with the `specfleet` object on its response or its usage chunk."""
        try:
            async for item in stream:
                if isinstance(item, list):
                    yield [await self._annotate_event(request, event) for event in item]
                    continue
                if getattr(item, "usage", None) is not None:
                    item.specfleet = await self._summary(
                        request, item.model_dump(include={"usage", "metrics"})
                    )
                yield item
        finally:
            self._forget(request)
            with contextlib.suppress(RuntimeError):  # it is closed already when it ended by itself
                await stream.aclose()

    async def _annotate_event(self, request: Any, event: Any) -> Any:
        chunk = usage_chunk(event) if isinstance(event, str) else None
        if chunk is None:
            return event
        chunk["specfleet"] = await self._summary(request, chunk)
        return event_of(chunk)

    # -- control ------------------------------------------------------------------------------------------

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(REPORT_PERIOD_S)
            await self._exchange()

    async def _exchange(self) -> None:
        """Tell the registry how things stand, and learn which drafters there are. Never raises."""
        try:
            snapshot = await self._snapshot()
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
                await self._meet(peers)
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
        await super().__del__()


async def _only(item: Any) -> AsyncGenerator[Any, None]:
    yield item
