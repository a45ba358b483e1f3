"""What is closed is gone: no thread, no open file, counted in a process of its own.

In the process of the other tests these counts also change by what those left to the garbage collector and by
threads of theirs that are still ending.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil
import pytest

from deployments.link.client import LinkClient
from deployments.link.keys import new_keypair
from deployments.link.messages import Item, Propose, encode
from deployments.link.server import LinkServer
from tests.link.helpers import PATIENCE_S, VOCAB, FakeDrafter, Stepper, connect, dealer, eventually

ROUNDS = 5
Counts = tuple[int, int, int]


def serve(kept: list[object]) -> None:
    """A server comes, answers nobody, and is closed twice."""
    server, keys = LinkServer("127.0.0.1"), new_keypair()
    kept.append(server)
    server.admit([keys.public])
    with dealer(server, keys) as socket:
        socket.send(encode(Propose(verifier="v", epoch=1, step=2, items=[Item(3, 0, [4, 5], 1)], closed=[])))
        eventually(lambda: server.poll(0.02))
    server.close()
    server.close()


def ask(kept: list[object]) -> None:
    """A client comes, gets proposals of a drafter, and is closed twice."""
    drafter, client = FakeDrafter(), LinkClient("v", vocab_size=VOCAB)
    kept += [drafter, client]
    connect(client, drafter)
    Stepper(client)("code", {1: [1]})
    client.close()
    client.close()
    assert client.available() == set()
    assert not client.ask("code", 1, [1], 4)
    drafter.stop()


def counted(use: Callable[[list[object]], None]) -> tuple[Counts, Counts]:
    """Open files, threads, and threads of Python, after one use and after `ROUNDS` more."""
    process = psutil.Process()

    def count() -> Counts:
        return process.num_fds(), process.num_threads(), threading.active_count()

    kept: list[object] = []  # so that nothing is closed by being collected
    use(kept)
    before = count()
    for _ in range(ROUNDS):
        use(kept)
    # The other side of a connection closes a moment later. Not `eventually`: a failure is told in numbers.
    end = time.monotonic() + PATIENCE_S
    while more(before, after := count()) and time.monotonic() < end:
        time.sleep(0.002)
    return before, after


def more(before: Counts, after: Counts) -> bool:
    return any(now > then for now, then in zip(after, before, strict=True))


@pytest.mark.process
@pytest.mark.parametrize("use", [serve, ask])
def test_close_leaves_no_thread_and_no_open_file(use: Callable[[list[object]], None]) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        before, after = alone.submit(counted, use).result(timeout=3 * PATIENCE_S)
    print(f"open files, threads, threads of Python: {before} after one use, {after} after {ROUNDS} more")
    assert not more(before, after)
