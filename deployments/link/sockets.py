"""Socket options that both ends share: encryption, bounds, and noticing a dead host."""

from __future__ import annotations

import zmq

from deployments.link.keys import KeyPair
from deployments.link.settings import LinkSettings

# How long the kernel keeps unacknowledged data before it gives a TCP connection up, in milliseconds.
_TCP_GIVE_UP_MS = 5_000


def prepare(socket: zmq.Socket[bytes], keys: KeyPair, settings: LinkSettings) -> None:
    """Set the common options of a socket before it binds or connects."""
    socket.setsockopt(zmq.LINGER, 0)  # closing never waits for a peer
    socket.setsockopt(zmq.SNDHWM, settings.queue_messages)
    socket.setsockopt(zmq.RCVHWM, settings.queue_messages)
    socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, settings.handshake_ms)
    socket.setsockopt(zmq.HEARTBEAT_IVL, settings.heartbeat_ms)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, settings.heartbeat_timeout_ms)
    socket.setsockopt(zmq.HEARTBEAT_TTL, settings.heartbeat_timeout_ms)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 2)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    socket.setsockopt(zmq.TCP_MAXRT, _TCP_GIVE_UP_MS)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode("ascii"))
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode("ascii"))
