"""The proposer's end of the link: ask many drafters at once, take what comes in time, never block.

One step reads: `ask` for every request, `flush` once, `collect` once. Only what a drafter has acknowledged
is left out of the next message, so a lost or reordered message can cost proposals and nothing else.
"""

from __future__ import annotations

import functools
import logging
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import zmq

from deployments.link.exchange import Exchange
from deployments.link.keys import is_public_key, new_keypair
from deployments.link.messages import MAX_ITEMS, MAX_PROPOSED, Item
from deployments.link.peer import Asked, Connection, Figures, Peer
from deployments.link.sessions import Known, Sessions
from deployments.link.settings import LinkSettings

logger = logging.getLogger(__name__)

_SHORTEST_SLEEP_S = 0.0001

P = ParamSpec("P")
R = TypeVar("R")


class TokenSource(Protocol):
    """A session's verified tokens: a list of ints, or a view of an integer array."""

    def __len__(self) -> int:
        """Context length."""

    def __getitem__(self, part: slice, /) -> Iterable[int]:
        """Some of the tokens; only what the drafter lacks is read."""


def _never_raises(
    fallback: Callable[[], R],
) -> Callable[[Callable[Concatenate[LinkClient, P], R]], Callable[Concatenate[LinkClient, P], R]]:
    """Turn any error into "no proposals": an exception here would end the verifier's engine."""

    def wrap(method: Callable[Concatenate[LinkClient, P], R]) -> Callable[Concatenate[LinkClient, P], R]:
        @functools.wraps(method)
        def guarded(self: LinkClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(self, *args, **kwargs)
            except Exception:
                self.errors += 1
                if self.errors & (self.errors - 1) == 0:  # the 1st, 2nd, 4th, 8th ... one
                    logger.exception("link error %d: going on without proposals", self.errors)
                return fallback()

        return guarded

    return wrap


class LinkClient:
    """All drafters of one verifier worker. Every method belongs to one thread.

    Session numbers must not be used again after `close_session` (count them up); `forget_all` starts anew.
    """

    def __init__(self, verifier: str, *, vocab_size: int, settings: LinkSettings | None = None) -> None:
        """Make a key pair and an epoch; connects to nobody yet.

        Args:
            verifier: name of the verifier replica.
            vocab_size: token ids, in contexts and in proposals, must be below it.
            settings: deadlines and bounds.
        """
        self.errors = 0
        self._vocab_size = vocab_size
        self._settings = settings or LinkSettings()
        self._keys = new_keypair()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._connections: dict[Peer, Connection] = {}
        self._by_draft: dict[str, list[Connection]] = {}
        self._figures: dict[str, Figures] = {}
        self._sessions = Sessions(self._settings.max_sessions, _tell_closed)
        self._exchange = Exchange(verifier, vocab_size, self._sessions, self._settings)
        self._up_to_date = False

    @property
    def public_key(self) -> str:
        """What drafters must admit (`LinkServer.admit`)."""
        return self._keys.public

    @property
    def epoch(self) -> int:
        """This life of the proposer, in nanoseconds since 1970; rises with `forget_all`."""
        return self._exchange.epoch

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """Connect to new drafters and drop those that are not in `peers` any more.

        One that cannot be connected to (malformed address or key) is logged and left out.
        """
        wanted = set(peers)
        for peer in [peer for peer in self._connections if peer not in wanted]:
            self._disconnect(peer)
        for peer in peers:
            if peer not in self._connections:
                self._connect(peer)

    @_never_raises(lambda: set[str]())
    def available(self) -> set[str]:
        """Drafts that have a replica which is connected and has not fallen silent."""
        now = self._catch_up()
        return {
            draft for draft, replicas in self._by_draft.items() if any(one.usable(now) for one in replicas)
        }

    @_never_raises(lambda: False)
    def ask(self, draft: str, session: int, context: TokenSource, length: int) -> bool:
        """Queue one item for this step: `length` proposals after `context`, or 0 to prefill or catch up only.

        Only the tokens that the drafter has not acknowledged are read, now, and sent by `flush`. In one step
        a session may ask one draft for proposals, and others to catch up.

        Returns:
            False if no answer will come in this step: no live replica, a drafter that is late or still busy
            catching up with this session, or a context beyond the draft's window.
        """
        session, length = operator.index(session), min(max(operator.index(length), 0), MAX_PROPOSED)
        if not 0 <= session < 2**63:
            raise ValueError(f"session {session} must be an int from 0 below 2**63")
        now = self._catch_up()
        known = self._place(draft, session, now)
        if known is None:
            return False
        connection = known.connection
        up = connection.health.state(now) == "up"
        pending = known.asked is not None and known.asked.open and not (up and known.asked.length > 0)
        base = min(known.acknowledged, len(context))
        missing = len(context) - base
        too_much = missing > self._settings.max_message_tokens - connection.queued_tokens
        if (
            known.too_long
            or pending
            or too_much
            or len(connection.queued) >= MAX_ITEMS
            or not (up or connection.health.probe_due(now))
        ):
            connection.figures.skipped += 1
            return False
        tokens = self._read_tokens(context, base)
        # Proposals of a late drafter would be stale when they come: let it keep up, no more.
        asked = Asked(base, base + len(tokens), length if up else 0)
        connection.queued[session] = (Item(session, base, tokens, asked.length), asked)
        connection.queued_tokens += len(tokens)
        return up

    @_never_raises(lambda: None)
    def flush(self, step: int) -> None:
        """Send what was asked, closed sessions and due probes: one message per drafter, none waited for.

        `step` must rise from step to step; it may be repeated to send what was asked or closed since.
        """
        now = self._catch_up()
        self._exchange.begin(step)
        for connection in self._connections.values():
            connection.useless = 0
            try:
                self._exchange.send(connection, now)
            finally:
                connection.queued = {}
                connection.queued_tokens = 0
        self._up_to_date = False

    @_never_raises(lambda: dict[int, list[int]]())
    def collect(self, step: int, deadline: float) -> dict[int, list[int]]:
        """Wait for the proposals of the step that was flushed last, and no longer.

        Returns as soon as every drafter that is worth waiting for has answered. One that has not by the
        deadline is late from then on: no step waits for it until it answers.

        Args:
            step: as given to `flush`.
            deadline: on the clock of `time.monotonic()`, in seconds; one that has passed only looks.

        Returns:
            Proposals by session; a session without any is left out.
        """
        exchange = self._exchange
        if step != exchange.step or not exchange.collecting:
            return {}
        waiting = [one for one in self._connections.values() if one.awaits(step)]
        while waiting:
            now = time.monotonic()
            for connection in waiting:
                exchange.read(connection, now)
            waiting = [one for one in waiting if one.awaits(step)]
            if now >= deadline:
                break
            if waiting:
                _wait(waiting, deadline - now)
        for connection in waiting:
            exchange.miss(connection, now)
        self._up_to_date = False
        return exchange.end()

    def close_session(self, session: int) -> None:
        """Forget a session everywhere. Its drafters are told with the next `flush`."""
        for connection in self._connections.values():
            connection.queued.pop(session, None)
        self._sessions.close(session)

    def forget_all(self) -> None:
        """Start a new epoch: no session is known anywhere, and replies to older messages are ignored."""
        self._sessions.clear()
        now = time.monotonic()
        for connection in self._connections.values():
            connection.queued = {}
            connection.queued_tokens = 0
            self._exchange.send(connection, now)  # closes belong to the epoch that opened
            connection.closed.clear()
            connection.in_flight.clear()
        self._exchange.renew()

    def acknowledged(self, draft: str, session: int) -> int:
        """How many context tokens of a session the draft surely has; `ask` sends the rest."""
        known = self._sessions.find(session, draft)
        return 0 if known is None else known.acknowledged

    def stats(self) -> dict[str, dict[str, Any]]:
        """Counters by draft since start, and its replicas now (`up`: one is connected and not silent)."""
        now = time.monotonic()
        stats: dict[str, dict[str, Any]] = {}
        for draft, figures in self._figures.items():
            replicas = self._by_draft.get(draft, [])
            stats[draft] = {
                **asdict(figures),
                "up": any(one.usable(now) for one in replicas),
                "sessions": sum(one.sessions for one in replicas),
                "replicas": {
                    one.peer.replica: one.health.state(now) if one.connected(now) else "down"
                    for one in replicas
                },
            }
        return stats

    def close(self) -> None:
        """Close every connection and end the link's thread. May be called twice."""
        self.set_peers([])
        self._context.destroy(linger=0)

    def _connect(self, peer: Peer) -> None:
        figures = self._figures.setdefault(peer.draft, Figures())
        try:
            if not is_public_key(peer.public_key):
                raise ValueError("its public key is no CURVE key")
            connection = Connection(peer, self._context, self._keys, self._settings, figures)
        except (zmq.ZMQError, ValueError) as error:
            logger.error(
                "cannot connect to %s of %s at %s: %s", peer.replica, peer.draft, peer.address, error
            )
            return
        self._connections[peer] = connection
        self._by_draft.setdefault(peer.draft, []).append(connection)

    def _disconnect(self, peer: Peer) -> None:
        connection = self._connections.pop(peer)
        self._by_draft[peer.draft].remove(connection)
        if not self._by_draft[peer.draft]:
            del self._by_draft[peer.draft]
        self._sessions.leave(connection)
        connection.close()

    def _catch_up(self) -> float:
        """Once per step, before anything is asked: read what late drafters have answered meanwhile."""
        now = time.monotonic()
        if not self._up_to_date:
            self._up_to_date = True
            for connection in self._connections.values():
                self._exchange.read(connection, now)
        return now

    def _place(self, draft: str, session: int, now: float) -> Known | None:
        """Where a session lives: it stays with its replica as long as that one is usable."""
        known = self._sessions.find(session, draft)
        if known is not None and known.connection.usable(now):
            return known
        usable = [one for one in self._by_draft.get(draft, ()) if one.usable(now)]
        if not usable:
            return None
        best = min(usable, key=lambda one: (one.health.state(now) != "up", one.sessions))
        return self._sessions.open(session, draft, best)

    def _read_tokens(self, context: TokenSource, base: int) -> list[int]:
        part = context[base:]
        tolist = getattr(part, "tolist", None)  # arrays: one call instead of one object per token
        tokens = list(map(operator.index, part if tolist is None else tolist()))
        if tokens and (min(tokens) < 0 or max(tokens) >= self._vocab_size):
            raise ValueError(f"context holds token ids outside 0..{self._vocab_size - 1}")
        return tokens


def _tell_closed(session: int, known: Known) -> None:
    if known.asked is not None:  # otherwise the drafter never heard of it
        known.connection.closed.append(session)


def _wait(connections: Sequence[Connection], seconds: float) -> None:
    """Sleep until one of them has something to read, at most `seconds` and never longer."""
    milliseconds = int(seconds * 1000)
    poller = zmq.Poller()
    for connection in connections:
        if connection.socket is not None:
            poller.register(connection.socket, zmq.POLLIN)
    if milliseconds:
        poller.poll(milliseconds)
    elif not poller.poll(0):  # ZMQ cannot wait for less than a millisecond
        time.sleep(min(seconds, _SHORTEST_SLEEP_S))
