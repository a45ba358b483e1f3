"""A drafter without a model: the resync rule over a real `LinkServer`, and ways to misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import zmq

from deployments.link.client import LinkClient, Peer
from deployments.link.keys import KeyPair
from deployments.link.messages import Item, Proposal, Proposals
from deployments.link.server import LinkServer, Request
from deployments.link.settings import LinkSettings
from deployments.link.sockets import prepare

VOCAB = 1_000
# A bound against hanging for ever, nothing that a healthy run comes near.
PATIENCE_S = 20.0
T = TypeVar("T")


def continuation(context: Sequence[int], length: int) -> list[int]:
    """Proposals that give away any difference in the context."""
    seed = hash(tuple(context))
    return [(seed + i) % VOCAB for i in range(length)]


def eventually(probe: Callable[[], T]) -> T:
    """Wait until `probe` returns something true, and return it."""
    end = time.monotonic() + PATIENCE_S
    while not (value := probe()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)
    return value


class Contexts:
    """What a drafter knows, by session."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str, int, int], list[int]] = {}

    def answer(self, request: Request, item: Item) -> Proposal:
        key = request.key(item.session)
        known = self.known.get(key, [])
        if item.base > len(known):
            return Proposal(item.session, len(known), [], "resync")
        context = self.known[key] = known[: item.base] + item.tokens
        return Proposal(item.session, len(context), continuation(context, item.length))

    def reply(self, request: Request, drafter: str) -> Proposals:
        for session in request.message.closed:
            self.known.pop(request.key(session), None)
        return Proposals(
            drafter=drafter,
            epoch=request.message.epoch,
            step=request.message.step,
            items=[self.answer(request, item) for item in request.message.items],
            sessions=len(self.known),
        )


Behaviour = Callable[["FakeDrafter", Request], None]


class FakeDrafter:
    """Serves in a thread of its own; `behaviour` may be swapped at any time."""

    def __init__(self, draft: str = "code", *, settings: LinkSettings | None = None) -> None:
        self.draft = draft
        self.server = LinkServer("127.0.0.1", settings=settings)
        self.contexts = Contexts()
        self.requests: list[Request] = []
        self.behaviour: Behaviour = honest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fake-{draft}")
        self._thread.start()

    @property
    def peer(self) -> Peer:
        return Peer(
            self.draft,
            f"{self.draft}#{self.server.incarnation[:4]}",
            self.server.address,
            self.server.public_key,
        )

    def items(self) -> list[Item]:
        return [item for request in self.requests for item in request.message.items]

    def reply(self, request: Request) -> Proposals:
        return self.contexts.reply(request, self.server.incarnation)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.server.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for request in self.server.poll(0.02):
                self.requests.append(request)
                self.behaviour(self, request)


def honest(drafter: FakeDrafter, request: Request) -> None:
    drafter.server.reply(request.peer, drafter.reply(request))


def mute(drafter: FakeDrafter, request: Request) -> None:
    """Never answers."""


def raw(drafter: FakeDrafter, request: Request, *frames: bytes) -> None:
    """Send bytes that no honest server would."""
    drafter.server._router.send_multipart([request.peer, *frames], zmq.NOBLOCK)


def connect(client: LinkClient, *drafters: FakeDrafter) -> None:
    """Admit, connect, and wait until every draft is available."""
    for drafter in drafters:
        drafter.server.admit([client.public_key])
    client.set_peers([drafter.peer for drafter in drafters])
    eventually(lambda: client.available() == {drafter.draft for drafter in drafters})


class Stepper:
    """Runs steps with rising numbers."""

    def __init__(self, client: LinkClient) -> None:
        self.client = client
        self.step = 0

    def __call__(
        self, draft: str, contexts: dict[int, list[int]], length: int = 4, wait_s: float = PATIENCE_S
    ) -> dict[int, list[int]]:
        return self.many({draft: contexts}, length, wait_s)

    def many(
        self, asks: dict[str, dict[int, list[int]]], length: int = 4, wait_s: float = PATIENCE_S
    ) -> dict[int, list[int]]:
        self.step += 1
        for draft, contexts in asks.items():
            for session, context in contexts.items():
                self.client.ask(draft, session, context, length)
        self.client.flush(self.step)
        return self.client.collect(self.step, time.monotonic() + wait_s)

    def idle(self) -> None:
        """A step that asks for nothing: sends closes and probes."""
        self.step += 1
        self.client.flush(self.step)
        self.client.collect(self.step, time.monotonic())


@contextmanager
def dealer(server: LinkServer, keys: KeyPair) -> Iterator[zmq.Socket[bytes]]:
    """A bare encrypted socket to a server, to send it anything."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    prepare(socket, keys, LinkSettings())
    socket.setsockopt(zmq.CURVE_SERVERKEY, server.public_key.encode())
    socket.connect(server.address)
    try:
        yield socket
    finally:
        context.destroy(linger=0)
