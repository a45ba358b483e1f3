"""The service over the real link: coalescing, lives of verifiers, garbage, and the return to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import zmq

from deployments.drafter.checkpoint import load_draft
from deployments.drafter.engine import DraftEngine, EngineLimits
from deployments.drafter.service import DrafterService
from deployments.drafter.turn import gather
from deployments.link.client import LinkClient, Peer
from deployments.link.keys import KeyPair, new_keypair
from deployments.link.messages import (
    Item,
    Proposal,
    Proposals,
    Propose,
    Refused,
    decode_reply,
    encode,
)
from deployments.link.server import Request
from deployments.link.settings import LinkSettings
from deployments.link.sockets import prepare
from tests.drafter.conftest import PADDED, Reference

PATIENCE_S = 30.0
T = TypeVar("T")


def eventually(probe: Callable[[], T]) -> T:
    end = time.monotonic() + PATIENCE_S
    while not (value := probe()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
    return value


class Wire:
    """A verifier's socket that sends exactly what the test says."""

    def __init__(self, service: DrafterService, keys: KeyPair) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        prepare(self._socket, keys, LinkSettings())
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, service.public_key.encode())
        self._socket.connect(service.address)

    def send(self, data: bytes) -> None:
        self._socket.send(data)

    def propose(
        self, *items: Item, step: int = 1, epoch: int = 7, closed: Sequence[int] = (), name: str = "v"
    ) -> None:
        self.send(
            encode(Propose(verifier=name, epoch=epoch, step=step, items=list(items), closed=list(closed)))
        )

    def receive(self) -> Proposals | Refused:
        assert self._socket.poll(int(PATIENCE_S * 1000)), "no reply"
        return decode_reply(self._socket.recv())

    def proposals(self) -> Proposals:
        reply = self.receive()
        assert isinstance(reply, Proposals), reply
        return reply

    def silent(self) -> bool:
        return not self._socket.poll(300)

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def engine(tiny_llama: Path, verifier: Path) -> DraftEngine:
    forward = load_draft(tiny_llama, verifier, quantise=False).forward
    return DraftEngine(forward, EngineLimits(max_context=90, prefill_chunk=16, max_sessions=16))


@pytest.fixture
def truth(tiny_llama: Path, reference: Callable[..., Reference]) -> Reference:
    return reference(tiny_llama)


@pytest.fixture
def keys() -> KeyPair:
    return new_keypair()


@pytest.fixture
def service(engine: DraftEngine, keys: KeyPair) -> Iterator[DrafterService]:
    service = DrafterService(engine, idle_session_s=1.5)
    service.admit([keys.public])
    service.start()
    service.wait_ready()
    yield service
    service.stop()


@pytest.fixture
def wire(service: DrafterService, keys: KeyPair) -> Iterator[Wire]:
    wire = Wire(service, keys)
    yield wire
    wire.close()


def test_a_whole_generation_through_the_client(service: DrafterService, truth: Reference) -> None:
    client = LinkClient("v", vocab_size=PADDED, settings=LinkSettings(step_deadline_ms=10_000))
    try:
        service.admit([client.public_key])
        client.set_peers([Peer("d", "d#1", service.address, service.public_key)])
        eventually(client.available)
        texts = {session: [session, 3, 5] for session in range(5)}
        for step in range(12):
            for session, text in texts.items():
                client.ask("d", session, text, 4)
            client.flush(step)
            proposals = client.collect(step, time.monotonic() + PATIENCE_S)
            for session, text in texts.items():
                assert proposals[session] == truth.greedy(text, 4)
                text += [*proposals[session][: (step + session) % 5], step]
        assert service.stats()["sessions"] == 5
        assert service.stats()["tokens_reused"] > 50
        for session in texts:
            client.close_session(session)
        client.flush(12)
        eventually(lambda: service.stats()["sessions"] == 0)
        assert client.stats()["d"]["resyncs"] == 0
    finally:
        client.close()


def test_a_superseded_step_is_answered_only_once(wire: Wire, service: DrafterService) -> None:
    # One long prompt keeps the thread busy, so that the rest waits and is taken together.
    wire.propose(Item(1, 0, [2] * 80, 1))
    wire.proposals()
    for step in range(2, 30):
        wire.propose(Item(2, 0, [5] * step, 2), step=step)
    replies = {reply.step: reply for reply in (wire.proposals() for _ in range(2, 30))}
    assert set(replies) == set(range(2, 30))  # every message is answered, if only to show that we live
    assert [item.position for item in replies[29].items] == [29]
    answered = sum(len(reply.items) for reply in replies.values())
    assert answered == 28 - service.stats()["superseded"]


def test_requests_are_merged_newest_first() -> None:
    def request(step: int, items: list[Item], closed: list[int] | None = None, name: str = "v") -> Request:
        message = Propose(verifier=name, epoch=1, step=step, items=items, closed=closed or [])
        return Request(b"peer", message, "key")

    requests = [
        request(5, [Item(1, 4, [9], 2), Item(2, 0, [1], 1), Item(3, 0, [1], 1)]),
        request(4, [Item(1, 3, [8], 2)]),  # overtaken on the way
        request(6, [Item(2, 1, [7], 4)], closed=[3]),
        request(1, [Item(2, 0, [6], 1)], name="other"),
    ]
    turn = gather(requests)
    v, other = ("key", "v", 1), ("key", "other", 1)
    assert turn.owner == {(*v, 1): 0, (*v, 2): 2, (*other, 2): 3}
    assert [(ask.session, ask.base) for ask in turn.asks] == [((*v, 2), 1), ((*v, 1), 4), ((*other, 2), 0)]
    assert turn.closed == [(*v, 3)]


def test_a_new_life_of_a_verifier_ends_the_old_one(wire: Wire, service: DrafterService) -> None:
    wire.propose(Item(1, 0, [1, 2], 2), Item(2, 0, [1], 0), epoch=7)
    wire.propose(Item(1, 0, [1, 2], 2), epoch=7, name="other")
    wire.proposals(), wire.proposals()
    assert service.stats()["sessions"] == 3
    wire.propose(Item(1, 0, [4], 2), epoch=8)
    assert wire.proposals().sessions == 2
    wire.propose(Item(1, 1, [4], 2), epoch=7)  # a straggler of the old life
    assert wire.silent()
    wire.propose(Item(1, 1, [5], 2), epoch=8, step=2)
    assert wire.proposals().items[0].state == "ok"


def test_verifiers_do_not_see_each_other(
    wire: Wire, service: DrafterService, keys: KeyPair, truth: Reference
) -> None:
    intruder_keys = new_keypair()
    service.admit([keys.public, intruder_keys.public])
    wire.propose(Item(1, 0, [1, 2, 3], 2))
    wire.proposals()
    intruder = Wire(service, intruder_keys)
    try:
        # The same verifier name, epoch and session, but another key.
        intruder.propose(Item(1, 3, [4], 2), closed=[])
        assert intruder.proposals().items[0].state == "resync"
        intruder.propose(closed=[1], epoch=99)
        intruder.proposals()
    finally:
        intruder.close()
    wire.propose(Item(1, 3, [4], 2), step=2)
    assert wire.proposals().items == [Proposal(1, 4, truth.greedy([1, 2, 3, 4], 2), "ok")]


def test_closed_and_silent_sessions_are_freed(wire: Wire, service: DrafterService) -> None:
    wire.propose(Item(1, 0, [1], 1), Item(2, 0, [2], 1), Item(3, 0, [3], 1))
    assert wire.proposals().sessions == 3
    wire.propose(closed=[1, 99], step=2)
    reply = wire.proposals()
    assert (reply.sessions, reply.items) == (2, [])
    eventually(lambda: service.stats()["sessions"] == 0)  # idle_session_s
    assert service.stats()["verifiers"] == 0
    wire.propose(Item(2, 1, [5], 1), step=3)
    assert wire.proposals().items[0].state == "resync"


def test_garbage_is_survived(wire: Wire, service: DrafterService, truth: Reference) -> None:
    valid = encode(Propose(verifier="v", epoch=7, step=1, items=[Item(1, 0, [1], 1)]))
    for data in (b"", b"\0" * 3, b"SF\0\1", valid[:-2], valid + b"x", b"SF\0\2" + valid[4:], b"\xff" * 4000):
        wire.send(data)
        assert isinstance(wire.receive(), Refused)
    wire.propose(Item(1, 0, [1], 64), Item(2, 2**62, [], 1), Item(3, 0, [2**31 - 1], 4), Item(4, 0, [], 4))
    states = {item.session: item.state for item in wire.proposals().items}
    assert states == {1: "ok", 2: "too_long", 3: "resync", 4: "resync"}
    wire.propose(Item(1, 1, [2], 4), step=2)
    assert wire.proposals().items == [Proposal(1, 2, truth.greedy([1, 2], 4), "ok")]
    service.check_health()


def test_an_error_in_a_turn_costs_only_its_sessions(
    wire: Wire, service: DrafterService, engine: DraftEngine, truth: Reference
) -> None:
    wire.propose(Item(1, 0, [1, 2], 1), Item(2, 0, [3], 1))
    wire.proposals()
    step = engine._forward.step

    def failing(*arguments: object) -> list[int]:
        engine._forward.step = step  # type: ignore[method-assign]
        raise RuntimeError("planted")

    engine._forward.step = failing  # type: ignore[method-assign]
    wire.propose(Item(1, 2, [3], 1), step=2)
    assert [item.state for item in wire.proposals().items] == ["resync"]
    wire.propose(Item(1, 3, [4], 1), Item(2, 1, [5], 1), step=3)
    states = {item.session: item.state for item in wire.proposals().items}
    assert states == {1: "resync", 2: "ok"}
    assert service.stats()["failures"] == 1
    service.check_health()


def test_long_prompts_are_computed_between_turns(wire: Wire, truth: Reference) -> None:
    text = [token % 60 for token in range(70)]
    wire.propose(Item(1, 0, text, 3))
    reply = wire.proposals()
    step = 1
    while not reply.items[0].tokens:
        assert reply.items[0].state == "ok"
        step += 1
        wire.propose(Item(1, 70, [], 3), step=step)
        reply = wire.proposals()
    assert reply.items[0].tokens == truth.greedy(text, 3)


def test_a_thread_that_ended_is_noticed(service: DrafterService, engine: DraftEngine) -> None:
    service.check_health()
    engine.__class__ = type("Broken", (DraftEngine,), {"behind": property(lambda self: 1 / 0)})
    eventually(lambda: not service.ready)
    with pytest.raises(RuntimeError, match=r"thread ended: ZeroDivisionError"):
        service.check_health()


def test_stopping_closes_the_socket_and_may_be_repeated(engine: DraftEngine) -> None:
    never_started = DrafterService(engine)
    never_started.stop()
    never_started.stop()
    service = DrafterService(engine)
    service.start()
    service.stop()
    service.stop()
    assert not service.ready
