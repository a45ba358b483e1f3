"""How far each request has come: told by the worker after every step, read by the replica.

The worker knows what was proposed and accepted, the replica writes the response; they are two processes.
One small message per step goes over a ZMQ PUSH/PULL pair with a bounded queue and CURVE keys made for
this pair alone. A full queue drops the message: every message repeats the running totals, so the next
one makes up for it, and generation never waits for bookkeeping.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from time import monotonic

import msgspec
import zmq
import zmq.asyncio

logger = logging.getLogger(__name__)

QUEUE_LIMIT = 256  # messages (steps) in flight at most
REMEMBERED_REQUESTS = 4096  # finished or not; the oldest are forgotten


class Use(msgspec.Struct, array_like=True, frozen=True):
    """From which of the request's tokens on a draft served it, and why. `name` "none": plain decoding."""

    name: str
    from_token: int
    reason: str


class Progress(msgspec.Struct, array_like=True):
    """Running totals of one sequence. `request` is the response's id, `sequence` vLLM's (n > 1: several)."""

    request: str
    sequence: str
    generated: int
    proposed: int
    accepted: int
    steps: int
    drafts: list[Use]


class StepReport(msgspec.Struct, array_like=True):
    """What one step changed: the totals of the sequences that got tokens, and the batch's size."""

    rows: list[Progress]
    running: int
    tokens: int


class ProgressSender:
    """The worker's end. Never blocks, never raises."""

    def __init__(self, address: str, server_key: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_LIMIT)
        self._socket.setsockopt(zmq.LINGER, 0)
        public, secret = zmq.curve_keypair()
        self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        self._socket.curve_serverkey = server_key.encode()
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self.dropped = 0

    def send(self, report: StepReport) -> None:
        """Hand the report over, or drop and count it where the replica does not keep up."""
        try:
            self._socket.send(self._encoder.encode(report), zmq.NOBLOCK)
        except zmq.ZMQError:
            self.dropped += 1

    def close(self) -> None:
        """Close the socket; what was not sent is dropped."""
        self._socket.close(0)
        self._context.term()


class ProgressBoard:
    """The replica's end: the latest totals of every recent request, and who waits for them."""

    def __init__(self, host: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_LIMIT)
        self._socket.setsockopt(zmq.LINGER, 0)
        public, secret = zmq.curve_keypair()
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        port = self._socket.bind_to_random_port(f"tcp://{host}")
        self.address = f"tcp://{host}:{port}"
        self.public_key = public.decode()
        self._decoder = msgspec.msgpack.Decoder(StepReport)
        self._requests: OrderedDict[str, dict[str, Progress]] = OrderedDict()
        self._news = asyncio.Condition()
        self._recent: deque[tuple[float, int]] = deque(maxlen=4096)
        self.generated_tokens = 0
        self.running = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                report = self._decoder.decode(frame)
            except msgspec.DecodeError:
                logger.warning("specfleet: dropped a progress message that cannot be read")
                continue
            await self.take(report)

    async def take(self, report: StepReport) -> None:
        """Book one report and wake whoever waits for a request in it."""
        self.generated_tokens += report.tokens
        self.running = report.running
        self._recent.append((monotonic(), report.tokens))
        for row in report.rows:
            self._requests.setdefault(row.request, {})[row.sequence] = row
            self._requests.move_to_end(row.request)
        while len(self._requests) > REMEMBERED_REQUESTS:
            self._requests.popitem(last=False)
        async with self._news:
            self._news.notify_all()

    def tokens_per_second(self, window_s: float = 10.0) -> float:
        """Generated tokens per second over the last `window_s` seconds."""
        since = monotonic() - window_s
        return sum(tokens for at, tokens in self._recent if at >= since) / window_s

    def of(self, request: str) -> list[Progress]:
        """The latest totals of each of the request's sequences; empty when none was reported."""
        return list(self._requests.get(request, {}).values())

    async def settled(self, request: str, generated: int, timeout_s: float) -> list[Progress]:
        """Wait until the totals cover `generated` tokens, `timeout_s` at most, and return what there is.

        The last step's report and the last tokens travel on different ways, so either may come first.
        """

        def complete() -> bool:
            return sum(row.generated for row in self.of(request)) >= generated

        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(complete), timeout_s)
            except TimeoutError:
                logger.debug("specfleet: totals of request %s came late", request)
        return self.of(request)

    def forget(self, request: str) -> None:
        """Drop a request whose response has been written."""
        self._requests.pop(request, None)

    def close(self) -> None:
        """Stop reading and close the socket."""
        if self._task is not None:
            self._task.cancel()
        self._socket.close(0)
        self._context.term()
