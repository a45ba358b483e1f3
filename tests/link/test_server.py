from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from deployments.link.keys import new_keypair
from deployments.link.messages import (
    MAGIC,
    PROTOCOL_VERSION,
    Item,
    Proposals,
    Propose,
    Refused,
    decode_reply,
    encode,
)
from deployments.link.server import LinkError, LinkServer, Request
from deployments.link.settings import LinkSettings
from tests.link.helpers import PATIENCE_S, dealer, eventually

REQUEST = Propose(verifier="v", epoch=1, step=2, items=[Item(3, 0, [4, 5], 1)], closed=[6])
REPLY = Proposals(drafter="d", epoch=1, step=2, items=[])
FAST = LinkSettings(handshake_ms=100)


@pytest.fixture
def server() -> Iterator[LinkServer]:
    server = LinkServer("127.0.0.1", settings=FAST)
    yield server
    server.close()


def receive(server: LinkServer, count: int = 1) -> list[Request]:
    requests: list[Request] = []

    def enough() -> bool:
        requests.extend(server.poll(0.01))
        return len(requests) >= count

    eventually(enough)
    return requests


def refusal(server: LinkServer, socket: zmq.Socket[bytes]) -> str:
    def come() -> bool:
        assert server.poll(0.01) == []
        return bool(socket.poll(0))

    eventually(come)
    reply = decode_reply(socket.recv())
    assert isinstance(reply, Refused)
    return reply.reason


def test_a_request_comes_with_who_sent_it_and_is_answered(server: LinkServer) -> None:
    keys = new_keypair()
    server.admit([keys.public])
    with dealer(server, keys) as socket:
        socket.send(encode(REQUEST))
        (request,) = receive(server)
        assert request.message == REQUEST
        assert request.key(3) == (keys.public, "v", 1, 3)
        assert server.reply(request.peer, REPLY)
        assert socket.poll(PATIENCE_S * 1000)
        assert decode_reply(socket.recv()) == REPLY


def test_everything_that_waits_comes_at_once_and_in_order(server: LinkServer) -> None:
    keys = new_keypair()
    server.admit([keys.public])
    with dealer(server, keys) as socket:
        for step in range(40):
            socket.send(encode(Propose(verifier="v", epoch=1, step=step, items=[])))
        assert [request.message.step for request in receive(server, 40)] == list(range(40))
        assert server.poll(0) == []


def test_nobody_is_served_before_being_admitted(server: LinkServer) -> None:
    keys = new_keypair()
    with dealer(server, keys) as socket:
        socket.send(encode(REQUEST))
        eventually(lambda: server.poll(0.02) or server.stats()["turned_away"] >= 2)
        assert server.stats()["received"] == 0
        server.admit([keys.public])  # and now the same socket gets in without anyone's help
        assert receive(server)[0].message == REQUEST


def test_strangers_and_plain_sockets_get_nothing_through(server: LinkServer) -> None:
    friend, stranger = new_keypair(), new_keypair()
    server.admit([friend.public])
    plain = zmq.Context()
    try:
        socket = plain.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(server.address)
        socket.send(encode(REQUEST))
        with dealer(server, stranger) as other, dealer(server, friend) as known:
            other.send(encode(REQUEST))
            eventually(lambda: server.poll(0.02) or server.stats()["turned_away"])
            known.send(encode(Propose(verifier="friend", epoch=1, step=1, items=[])))
            assert [request.message.verifier for request in receive(server)] == ["friend"]
            assert server.poll(0.3) == []
        assert server.stats()["received"] == 1
    finally:
        plain.destroy(linger=0)


def test_a_client_that_expects_another_drafter_does_not_connect(server: LinkServer) -> None:
    keys = new_keypair()
    server.admit([keys.public])
    context = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, new_keypair().public.encode())
        socket.connect(server.address)
        socket.send(encode(REQUEST))
        assert server.poll(0.5) == []
        assert server.stats()["received"] == 0
    finally:
        context.destroy(linger=0)


def test_an_admission_can_be_withdrawn(server: LinkServer) -> None:
    keys = new_keypair()
    server.admit([keys.public])
    with dealer(server, keys) as socket:
        socket.send(encode(REQUEST))
        receive(server)
        server.admit([new_keypair().public])
        socket.send(encode(REQUEST))
        assert "not admitted" in refusal(server, socket)
        assert server.stats()["not_admitted"] == 1


def test_malformed_keys_do_not_keep_others_out(server: LinkServer) -> None:
    keys = new_keypair()
    server.admit(["nonsense", keys.public, ""])
    with dealer(server, keys) as socket:
        socket.send(encode(REQUEST))
        assert receive(server)


@pytest.mark.parametrize("version", [0, 2, 65_535])
def test_another_version_is_refused_by_name(server: LinkServer, version: int) -> None:
    keys = new_keypair()
    server.admit([keys.public])
    with dealer(server, keys) as socket:
        socket.send_multipart([MAGIC + version.to_bytes(2, "big") + b"whatever", b"more"])
        reason = refusal(server, socket)
        assert f"version {version}," in reason
        assert f"version {PROTOCOL_VERSION}" in reason
        assert server.stats()["other_version"] == 1


@pytest.mark.parametrize(
    "frames",
    [[b""], [b"SF\0\1"], [encode(REPLY)], [encode(REQUEST), b""], [encode(REQUEST)[:-1]], [b"\0" * 9_999]],
)
def test_a_malformed_message_is_refused_and_the_next_one_served(
    server: LinkServer, frames: list[bytes]
) -> None:
    keys = new_keypair()
    server.admit([keys.public])
    with dealer(server, keys) as socket:
        socket.send_multipart(frames)
        assert "malformed" in refusal(server, socket) or frames[0][:2] != MAGIC
        assert server.stats()["bad"] == 1
        socket.send(encode(REQUEST))
        assert receive(server)[0].message == REQUEST


@pytest.fixture(scope="module")
def busy() -> Iterator[tuple[LinkServer, zmq.Socket[bytes]]]:
    server, keys = LinkServer("127.0.0.1"), new_keypair()
    server.admit([keys.public])
    with dealer(server, keys) as socket:
        socket.send(encode(REQUEST))
        receive(server)
        yield server, socket
    server.close()


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3))
def test_no_bytes_stop_the_server(busy: tuple[LinkServer, zmq.Socket[bytes]], frames: list[bytes]) -> None:
    server, socket = busy
    socket.send_multipart(frames)
    assert refusal(server, socket)
    socket.send(encode(REQUEST))
    assert receive(server)[0].message == REQUEST


def test_a_message_beyond_the_bound_is_not_even_received() -> None:
    server = LinkServer("127.0.0.1", settings=LinkSettings(max_message_mib=1))
    keys = new_keypair()
    server.admit([keys.public])
    try:
        with dealer(server, keys) as socket:
            socket.send(encode(REQUEST))
            receive(server)
            socket.send(bytes(2 * 2**20))
            assert server.poll(0.3) == []
            assert server.stats()["received"] == 1
            socket.send(encode(REQUEST))  # it reconnects
            assert receive(server)
    finally:
        server.close()


def test_a_reply_to_nobody_is_dropped(server: LinkServer) -> None:
    assert not server.reply(b"nobody", REPLY)
    assert server.stats()["dropped"] == 1


def test_a_reply_never_waits_for_a_peer_that_does_not_read() -> None:
    server, keys = LinkServer("127.0.0.1", settings=LinkSettings(queue_messages=2)), new_keypair()
    server.admit([keys.public])
    try:
        with dealer(server, keys) as socket:
            socket.send(encode(REQUEST))
            (request,) = receive(server)
            big = Proposals(drafter="d" * 256, epoch=1, step=2, items=[])
            eventually(lambda: not all(server.reply(request.peer, big) for _ in range(5_000)))
            assert server.stats()["dropped"] >= 1
    finally:
        server.close()


def test_two_drafters_in_one_process_admit_for_themselves() -> None:
    keys, servers = new_keypair(), [LinkServer("127.0.0.1"), LinkServer("127.0.0.1")]
    try:
        servers[0].admit([keys.public])
        with dealer(servers[0], keys) as in_, dealer(servers[1], keys) as out:
            in_.send(encode(REQUEST))
            out.send(encode(REQUEST))
            receive(servers[0])
            eventually(lambda: servers[1].poll(0.02) or servers[1].stats()["turned_away"])
            assert servers[1].stats()["received"] == 0
    finally:
        for server in servers:
            server.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "203.0.113.1", "no such host", ""])
def test_an_address_that_cannot_be_served_is_an_error_with_advice(host: str) -> None:
    with pytest.raises(LinkError, match=r"IP address of this node|give advertise_host"):
        LinkServer(host)


def test_all_interfaces_can_be_served_under_an_advertised_address() -> None:
    keys, server = new_keypair(), LinkServer("0.0.0.0", advertise_host="127.0.0.1")
    server.admit([keys.public])
    try:
        assert server.address.startswith("tcp://127.0.0.1:")
        with dealer(server, keys) as socket:
            socket.send(encode(REQUEST))
            assert receive(server)
    finally:
        server.close()
