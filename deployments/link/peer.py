"""One drafter as the proposer sees it: its socket, what it still owes, its figures."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field

import zmq

from deployments.link.health import Health
from deployments.link.keys import KeyPair
from deployments.link.messages import MAX_ITEMS, Item
from deployments.link.settings import LinkSettings
from deployments.link.sockets import prepare

logger = logging.getLogger(__name__)

MAX_REPLY_BYTES = 2 * 2**20
_RECONNECT_FIRST_MS = 50
_RECONNECT_LONGEST_MS = 500
# Messages given up but remembered, so that a very late answer still tells what the drafter knows.
_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a replica of a draft listens, as the registry tells it."""

    draft: str
    replica: str
    address: str
    public_key: str


@dataclass(slots=True)
class Figures:
    """Counters of one draft, over all its replicas, since the proposer started."""

    sent: int = 0
    answered: int = 0
    missed: int = 0
    late: int = 0
    dropped: int = 0
    skipped: int = 0
    resyncs: int = 0
    too_long: int = 0
    busy: int = 0
    refused: int = 0
    foreign: int = 0
    bad: int = 0
    tokens_sent: int = 0
    bytes_sent: int = 0
    round_trips: int = 0
    round_trip_seconds: float = 0.0
    drafter_busy_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Asked:
    """One item in flight: what was asked, to compare the answer with. `open` until answered or given up."""

    base: int
    position: int
    length: int
    open: bool = True


@dataclass(slots=True, eq=False)
class Message:
    """One message in flight: its items by session, and how many of them the step waits for."""

    sent_at: float
    items: dict[int, Asked] = field(default_factory=dict)
    wanted: int = 0
    missed: bool = False
    given_up: bool = False

    def give_up(self) -> None:
        """Expect no answer any more; one that comes still tells what the drafter knows."""
        self.given_up = True
        self.missed = True
        self.wanted = 0
        for asked in self.items.values():
            asked.open = False


class Connection:
    """A DEALER socket to one drafter. Nothing here ever blocks."""

    def __init__(
        self,
        peer: Peer,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: KeyPair,
        settings: LinkSettings,
        figures: Figures,
    ) -> None:
        """Start to connect.

        Raises:
            ValueError, zmq.ZMQError: the address or the key is malformed.
        """
        self.peer = peer
        self.figures = figures
        self.health = Health(settings)
        self.incarnation: str | None = None
        self.sessions = 0
        self.closed: deque[int] = deque(maxlen=MAX_ITEMS)
        self.in_flight: dict[int, Message] = {}
        self.queued: dict[int, tuple[Item, Asked]] = {}
        self.queued_tokens = 0
        self.useless = 0
        self._context = context
        self._keys = keys
        self._settings = settings
        self._socket: zmq.Socket[bytes] | None = None
        self._connected = False
        self._changed_at = time.monotonic()
        self._renew_after = max(2 * settings.handshake_ms, settings.probe_longest_ms) / 1000
        self._open()

    @property
    def socket(self) -> zmq.Socket[bytes] | None:
        """The socket, to poll for answers; None while a misbehaving drafter is shut out."""
        return self._socket

    @property
    def name(self) -> str:
        """For people."""
        return f"drafter {self.peer.replica} of draft {self.peer.draft} at {self.peer.address}"

    def connected(self, now: float) -> bool:
        """Whether the drafter has completed a handshake and still holds the connection.

        ZMQ reconnects by itself, but not after every error, so a socket that stays unconnected is renewed.
        """
        up = self._socket is not None and bool(self._events() & zmq.POLLOUT)
        if up != self._connected:
            self._connected = up
            self._changed_at = now
            if up:
                self.health.connected(now)
            else:
                self.lose(now, "disconnected")
        elif not up and now - self._changed_at > self._renew_after:
            self._close()
            self._open()
            self._changed_at = now
        return up

    def usable(self, now: float) -> bool:
        """Whether sessions should be sent here: connected, and not silent for too long."""
        return self.connected(now) and self.health.state(now) != "down"

    def lose(self, now: float, why: str) -> None:
        """It is silent, gone or refuses: nothing in flight will be waited for."""
        if self.health.state(now) != "down":
            logger.warning("%s is down: %s", self.name, why)
        self.health.lost(now)
        for message in self.in_flight.values():
            message.give_up()

    def silent_for(self, now: float) -> float:
        """Seconds that its oldest message has been unanswered."""
        return now - min((m.sent_at for m in self.in_flight.values() if not m.given_up), default=now)

    def send(self, data: bytes) -> bool:
        """Queue one message; False if there is no connection or its queue is full."""
        if self._socket is None:
            return False
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def receive(self, limit: int) -> list[bytes]:
        """Up to `limit` messages that have come. One of several frames counts as its frames joined."""
        messages: list[bytes] = []
        while self._socket is not None and len(messages) < limit:
            try:
                messages.append(b"".join(self._socket.recv_multipart(zmq.NOBLOCK)))
            except zmq.ZMQError:
                break
        return messages

    def unanswered(self) -> int:
        """Messages in flight that were not given up."""
        return sum(not message.given_up for message in self.in_flight.values())

    def awaits(self, step: int) -> bool:
        """Whether proposals for this step are still to come."""
        message = self.in_flight.get(step)
        return message is not None and message.wanted > 0

    def remember(self, step: int, message: Message) -> None:
        """Book a message that was sent, forgetting the oldest that was given up if there are too many."""
        self.in_flight[step] = message
        given_up = [step for step, message in self.in_flight.items() if message.given_up]
        for old in given_up[: max(0, len(given_up) - _REMEMBERED)]:
            del self.in_flight[old]

    def shut_out(self, now: float) -> None:
        """Cut a misbehaving drafter off for a while, unread messages and all."""
        self._close()
        self._changed_at = now

    def close(self) -> None:
        """Close the socket at once, with whatever it holds."""
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        self._connected = False

    def _events(self) -> int:
        assert self._socket is not None
        events = self._socket.getsockopt(zmq.EVENTS)
        return events if isinstance(events, int) else 0

    def _open(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        try:
            prepare(socket, self._keys, self._settings)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_REPLY_BYTES)
            socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues towards a drafter that is not there
            socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_FIRST_MS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_LONGEST_MS)
            socket.setsockopt(zmq.IPV6, int("[" in self.peer.address))
            socket.setsockopt(zmq.CURVE_SERVERKEY, self.peer.public_key.encode("ascii"))
            socket.connect(self.peer.address)
        except BaseException:
            socket.close(linger=0)
            raise
        self._socket = socket
