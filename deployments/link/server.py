"""The drafter's end of the link: receives requests of admitted verifiers, sends replies."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from uuid import uuid4

import zmq
from zmq.utils import z85

from deployments.link.keys import is_public_key, new_keypair
from deployments.link.messages import (
    BadMessage,
    OtherVersion,
    Proposals,
    Propose,
    Refused,
    decode_request,
    encode,
)
from deployments.link.settings import LinkSettings
from deployments.link.sockets import prepare

logger = logging.getLogger(__name__)

# Requests handed out by one poll: a flood is worked off in rounds, so that the caller stays in charge.
_MAX_BATCH = 256
_ANY_HOST = ("0.0.0.0", "::", "*")
_COUNTERS = (
    "received",
    "bad",
    "other_version",
    "not_admitted",
    "replies",
    "dropped",
    "connected",
    "turned_away",
)
_ZAP_ADDRESS = "inproc://zeromq.zap.01"


class LinkError(RuntimeError):
    """The link could not be set up; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Request:
    """One valid request: `peer` is where the reply goes, `public_key` who proved to have sent it."""

    peer: bytes
    message: Propose
    public_key: str

    def key(self, session: int) -> tuple[str, str, int, int]:
        """Name of a session that no other verifier, and no earlier life of this one, can share."""
        return (self.public_key, self.message.verifier, self.message.epoch, session)


class LinkServer:
    """One drafter's socket. All methods but `admit` and `stats` belong to one thread.

    Handshakes are answered inside `poll`, so a drafter that hangs accepts nobody.
    """

    def __init__(
        self, bind_host: str, *, advertise_host: str | None = None, settings: LinkSettings | None = None
    ) -> None:
        """Bind a random port of `bind_host` (an IP address of this machine).

        Args:
            bind_host: where to listen; with 0.0.0.0 or :: also give `advertise_host`.
            advertise_host: the host that verifiers shall connect to, if it differs.
            settings: deadlines and bounds.

        Raises:
            LinkError: the address cannot be bound or advertised.
        """
        self._settings = settings or LinkSettings()
        self._keys = new_keypair()
        self._incarnation = uuid4().hex
        self._admitted: frozenset[str] = frozenset()
        self._counts = dict.fromkeys(_COUNTERS, 0)
        if advertise_host is None:
            if bind_host in _ANY_HOST:
                raise LinkError(
                    f"{bind_host} cannot be advertised: give advertise_host, an address of this node"
                )
            advertise_host = bind_host
        # A context of its own: ZAP is one per context, and two drafters of one process must not share it.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.setsockopt(zmq.LINGER, 0)
            self._zap.bind(_ZAP_ADDRESS)
            self._router = self._context.socket(zmq.ROUTER)
            port = self._bind(bind_host)
        except (zmq.ZMQError, ValueError) as error:
            self._context.destroy(linger=0)
            raise LinkError(
                f"cannot listen on {bind_host}: {error}; use an IP address of this node"
            ) from error
        self._address = f"tcp://{_bracketed(advertise_host)}:{port}"
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._zap, zmq.POLLIN)

    @property
    def address(self) -> str:
        """Where verifiers connect, such as tcp://10.0.0.7:41234."""
        return self._address

    @property
    def public_key(self) -> str:
        """What verifiers must know to be sure that they talk to this drafter."""
        return self._keys.public

    @property
    def incarnation(self) -> str:
        """Name of this life of the drafter, for `Proposals.drafter`."""
        return self._incarnation

    def admit(self, public_keys: Collection[str]) -> None:
        """Serve exactly these verifiers from now on. May be called from any thread.

        Others are turned away at the handshake and may try again; a connected verifier that is no longer
        in the set gets `Refused`. Text that is no key is left out and logged.
        """
        wrong = [key for key in public_keys if not is_public_key(key)]
        if wrong:
            logger.warning(
                "%d of %d verifier keys are malformed and not admitted", len(wrong), len(public_keys)
            )
        self._admitted = frozenset(public_keys).difference(wrong)

    def poll(self, timeout_s: float) -> list[Request]:
        """Wait for requests and return all that are there, in order per verifier.

        Malformed messages, other versions and unknown verifiers are answered with `Refused` and counted.

        Args:
            timeout_s: longest wait in seconds; 0 only looks.

        Returns:
            The requests, or an empty list after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            ready = {socket for socket, _ in self._poller.poll(math.ceil(remaining * 1000))}
            if self._zap in ready:
                self._answer_handshakes()
            requests = self._receive() if self._router in ready else []
            if requests or time.monotonic() >= deadline:
                return requests

    def reply(self, peer: bytes, message: Proposals) -> bool:
        """Send a reply without waiting.

        Returns:
            False if it was dropped (peer gone, its queue full). Harmless: the proposer asks again.
        """
        return self._send(peer, message)

    def stats(self) -> dict[str, int]:
        """Counters since start: messages by fate, and handshakes `connected` and `turned_away`."""
        return dict(self._counts)

    def close(self) -> None:
        """Close the socket and end its thread. May be called twice."""
        self._context.destroy(linger=0)

    def _bind(self, host: str) -> int:
        prepare(self._router, self._keys, self._settings)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unreachable peer is an error, not a silent drop
        self._router.setsockopt(zmq.CURVE_SERVER, 1)
        self._router.setsockopt(zmq.ZAP_DOMAIN, b"specfleet")
        self._router.setsockopt(zmq.IPV6, int(":" in host))
        self._router.bind(f"tcp://{_bracketed(host)}:*")
        endpoint = self._router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return int(endpoint.rstrip(b"\0").rpartition(b":")[2])

    def _receive(self) -> list[Request]:
        requests: list[Request] = []
        for _ in range(_MAX_BATCH):
            try:
                peer, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.ZMQError:
                break
            self._counts["received"] += 1
            request = self._read(peer.bytes, frames)
            if request is not None:
                requests.append(request)
        return requests

    def _read(self, peer: bytes, frames: list[zmq.Frame]) -> Request | None:
        key = str(frames[0].get("User-Id")) if frames else ""
        if key not in self._admitted:
            self._refuse(peer, "not_admitted", "this verifier is not admitted any more")
            return None
        try:
            # Versions differ in their first frame at the latest, so it is read before the count of frames.
            message = decode_request(frames[0].buffer)
            if len(frames) != 1:
                raise BadMessage(f"malformed link message: {len(frames)} frames instead of one")
        except OtherVersion as error:
            self._refuse(peer, "other_version", str(error))
            return None
        except BadMessage as error:
            self._refuse(peer, "bad", str(error))
            return None
        return Request(peer, message, key)

    def _refuse(self, peer: bytes, count: str, reason: str) -> None:
        self._counts[count] += 1
        if self._counts[count] == 1:
            logger.warning("refused a message: %s", reason)
        self._send(peer, Refused(reason[:1_024]))

    def _send(self, peer: bytes, message: Proposals | Refused) -> bool:
        try:
            self._router.send_multipart([peer, encode(message)], zmq.NOBLOCK)
        except (zmq.ZMQError, BadMessage) as error:
            if isinstance(error, BadMessage):
                logger.error("dropped a reply: %s", error)
            self._counts["dropped"] += 1
            return False
        self._counts["replies"] += 1
        return True

    def _answer_handshakes(self) -> None:
        """Admit or turn away who wants to connect (ZAP, RFC 27).

        A stranger gets 300, a temporary failure: its libzmq then tries again, whereas 400 would stop it
        for ever, and a new verifier may well connect before this drafter has heard of its key.
        The refused connection stays open, unusable, until `handshake_ms` have passed.
        """
        for _ in range(_MAX_BATCH):
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return
            user = b""
            if len(frames) == 7 and frames[5] == b"CURVE" and len(frames[6]) == 32:
                user = z85.encode(frames[6])
            known = user.decode("ascii") in self._admitted
            self._counts["connected" if known else "turned_away"] += 1
            status, text = (b"200", b"OK") if known else (b"300", b"key not admitted")
            request_id = frames[1] if len(frames) > 1 else b""
            self._zap.send_multipart([b"1.0", request_id, status, text, user if known else b"", b""])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
