"""One drafter: a link server and an engine in a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from typing import Any

import torch

from deployments.drafter.clients import Clients, SessionKey
from deployments.drafter.engine import Answer, Ask, DraftEngine
from deployments.drafter.turn import Turn, gather, split
from deployments.link.messages import Proposals
from deployments.link.server import LinkServer, Request
from deployments.link.settings import LinkSettings

logger = logging.getLogger(__name__)

# Longest wait for requests, in seconds: how soon stop() is noticed and silent verifiers are looked for.
_POLL_S = 0.2
# Sessions per pass: bounds how long the first of many waits for the last, and the memory of a pass.
_MOST_ROWS = 64
# Without progress for so long with work at hand, the thread hangs.
_STUCK_S = 10.0


class DrafterService:
    """Serves one draft to all verifiers that are admitted.

    The thread polls the link, answers all that waits in one turn, and computes long prompts in between.
    """

    def __init__(
        self,
        engine: DraftEngine,
        *,
        bind_host: str = "127.0.0.1",
        advertise_host: str | None = None,
        link: LinkSettings | None = None,
        idle_session_s: float = 300.0,
        threads: int | None = None,
    ) -> None:
        """Prepare a service; `start` runs it.

        Args:
            engine: the draft; from `start` on it belongs to the service's thread.
            bind_host: IP address to listen on.
            advertise_host: host that verifiers connect to, if it differs.
            link: deadlines and bounds of the link.
            idle_session_s: seconds of silence after which a verifier's sessions are freed.
            threads: threads for arithmetic; None leaves torch's setting.

        Raises:
            LinkError: the address cannot be bound.
        """
        self._engine = engine
        self._server = LinkServer(bind_host, advertise_host=advertise_host, settings=link)
        self._clients = Clients(idle_session_s)
        self._threads = threads
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drafter", daemon=True)
        self._progress = time.monotonic()
        self._busy_s = 0.0
        self._failures = 0
        self._superseded = 0
        self._requests = 0
        self._fatal: BaseException | None = None

    @property
    def address(self) -> str:
        """Where verifiers connect."""
        return self._server.address

    @property
    def public_key(self) -> str:
        """The key by which verifiers recognise this drafter."""
        return self._server.public_key

    def start(self) -> None:
        """Warm the model up and begin to serve."""
        self._progress = time.monotonic()
        self._thread.start()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the model is warm and requests are answered.

        Raises:
            RuntimeError: the thread ended, or it took longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ready.wait(0.05):
            if not self._thread.is_alive():
                raise RuntimeError(f"the drafter did not start: {self._fatal!r}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the drafter was not ready after {timeout_s:.0f} s")

    @property
    def ready(self) -> bool:
        """Whether requests are answered now."""
        return self._ready.is_set() and self._thread.is_alive() and not self._stopping.is_set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop serving, close the socket; waits for the turn that is running. May be called twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        elif self._thread.ident is None:
            self._server.close()

    def admit(self, public_keys: Collection[str]) -> None:
        """Serve exactly the verifiers with these keys. May be called from any thread."""
        self._server.admit(public_keys)

    def check_health(self) -> None:
        """Raise when the service does not serve any more.

        Raises:
            RuntimeError: its thread ended, or made no progress for 10 s.
        """
        if self._stopping.is_set():
            return
        if not self._thread.is_alive():
            raise RuntimeError(f"the drafter's thread ended: {self._fatal!r}")
        silent = time.monotonic() - self._progress
        if silent > _STUCK_S:
            raise RuntimeError(f"the drafter's thread has made no progress for {silent:.0f} s")

    def stats(self) -> dict[str, int | float]:
        """Counters since the start and figures of now; may be read from any thread."""
        counts = self._engine.counts
        return {
            "sessions": len(self._engine),
            "capacity": self._engine.capacity,
            "window": self._engine.window,
            "verifiers": len(self._clients),
            "requests": self._requests,
            "turns": counts.turns,
            "tokens_drafted": counts.drafted,
            "tokens_computed": counts.computed,
            "tokens_reused": counts.reused,
            "busy_seconds": round(self._busy_s, 6),
            "evictions": self._engine.evictions,
            "resyncs": counts.resyncs,
            "too_long": counts.too_long,
            "busy": counts.busy,
            "superseded": self._superseded,
            "failures": self._failures,
            **{f"link_{name}": value for name, value in self._server.stats().items()},
        }

    def _run(self) -> None:
        try:
            if self._threads is not None:
                torch.set_num_threads(self._threads)
            self._warm_up()
            self._ready.set()
            while not self._stopping.is_set():
                self._progress = time.monotonic()
                requests = self._server.poll(0.0 if self._engine.behind else _POLL_S)
                self._expire()
                if requests:
                    self._serve(requests)
                elif self._engine.behind:
                    self._advance()
        except BaseException as error:
            self._fatal = error
            logger.exception("the drafter's thread ends")
        finally:
            self._server.close()

    def _serve(self, requests: list[Request]) -> None:
        """One turn: catch up and answer everything that waits."""
        began = time.monotonic()
        self._requests += len(requests)
        current = [request for request in requests if self._is_current(request, began)]
        turn = gather(current)
        self._superseded += sum(len(request.message.items) for request in current) - len(turn.asks)
        for key in turn.closed:
            self._close(key)
        rounds = range(0, max(1, len(turn.asks)), _MOST_ROWS)
        for start in rounds:
            asks = turn.asks[start : start + _MOST_ROWS]
            answers = self._propose(asks)
            self._reply(current, turn, answers, began, everyone=start == rounds[-1])
        self._busy_s += time.monotonic() - began

    def _is_current(self, request: Request, now: float) -> bool:
        message = request.message
        counts, ended = self._clients.heard((request.public_key, message.verifier), message.epoch, now)
        self._engine.close_all(ended)
        return counts

    def _propose(self, asks: list[Ask]) -> list[Answer]:
        if not asks:
            return []
        try:
            answers = self._engine.propose(asks)
        except Exception:
            self._failures += 1
            logger.exception("a turn failed: its %d sessions start again", len(asks))
            answers = [Answer(ask.session, [], ask.position, "resync") for ask in asks]
            for ask in asks:
                self._close(_key(ask.session))
            return answers
        for answer in answers:
            key = _key(answer.session)
            if answer.state == "ok":
                self._clients.opened(key)
            else:
                self._clients.closed(key)
        return answers

    def _reply(
        self, requests: list[Request], turn: Turn, answers: list[Answer], began: float, everyone: bool
    ) -> None:
        """Send answers; with `everyone` also to requests that have none, so that all know we live."""
        busy_ms = (time.monotonic() - began) * 1e3
        for request, items in zip(requests, split(requests, turn.owner, answers), strict=True):
            if items or everyone:
                reply = Proposals(
                    drafter=self._server.incarnation,
                    epoch=request.message.epoch,
                    step=request.message.step,
                    items=items,
                    sessions=len(self._engine),
                    busy_ms=busy_ms,
                )
                self._server.reply(request.peer, reply)

    def _advance(self) -> None:
        began = time.monotonic()
        try:
            self._engine.advance()
        except Exception:
            self._failures += 1
            logger.exception("computing a prompt failed: all sessions start again")
            self._engine.close_all()
        self._busy_s += time.monotonic() - began

    def _expire(self) -> None:
        ended = self._clients.silent(time.monotonic())
        if ended:
            logger.info("freed %d sessions of silent verifiers", self._engine.close_all(ended))

    def _close(self, key: SessionKey) -> None:
        self._engine.close(key)
        self._clients.closed(key)

    def _warm_up(self) -> None:
        """The first passes allocate and select kernels; do that before anyone waits."""
        key = ("warm-up",)
        for count in (1, 2, 8):
            self._engine.propose([Ask((*key, row), 0, [0] * 8, 2) for row in range(count)])
            self._engine.close_all()
        self._engine.counts = type(self._engine.counts)()


def _key(session: Any) -> SessionKey:
    assert isinstance(session, tuple)
    return session
