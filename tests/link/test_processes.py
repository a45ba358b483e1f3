"""Drafters as real processes that are stopped, continued and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.link.client import LinkClient, Peer
from tests.link.helpers import PATIENCE_S, FakeDrafter, Stepper, continuation, eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


class Process:
    """One drafter process."""

    def __init__(self, client: LinkClient, draft: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.link.drafter_process", client.public_key],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout
        address, key = self.popen.stdout.readline().split()
        self.peer = Peer(draft, f"{draft}#{self.popen.pid}", address, key)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.popen.pid, number)

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def hung_or_dead(client: LinkClient) -> Iterator[Process]:
    process = Process(client, "code")
    yield process
    process.end()


@pytest.fixture
def fleet(client: LinkClient, hung_or_dead: Process) -> Iterator[Process]:
    """A healthy drafter of another draft beside the one that will be hurt; both connected."""
    other = FakeDrafter("medical")
    other.server.admit([client.public_key])
    client.set_peers([hung_or_dead.peer, other.peer])
    eventually(lambda: client.available() == {"code", "medical"})
    yield hung_or_dead
    other.stop()


ASKS = {"code": {1: [1, 2]}, "medical": {2: [3]}}
BOTH = {1: continuation([1, 2], 4), 2: continuation([3], 4)}
OTHER = {2: BOTH[2]}


def test_a_killed_drafter_costs_at_most_one_deadline(
    client: LinkClient, fleet: Process, step: Stepper
) -> None:
    assert step.many(ASKS) == BOTH
    fleet.signal(signal.SIGKILL)
    step.many(ASKS, wait_s=0.2)
    before = time.monotonic()
    for _ in range(30):
        assert step.many(ASKS, wait_s=PATIENCE_S) == OTHER
    assert time.monotonic() - before < PATIENCE_S
    assert client.stats()["code"]["missed"] <= 1
    eventually(lambda: client.available() == {"medical"})


def test_a_killed_drafter_is_replaced_under_another_address(
    client: LinkClient, fleet: Process, step: Stepper
) -> None:
    assert step.many(ASKS) == BOTH
    fleet.signal(signal.SIGKILL)
    successor = Process(client, "code")
    try:
        client.set_peers([successor.peer])
        eventually(lambda: client.available() == {"code"})
        assert step("code", {1: [1, 2, 3]}) == {1: continuation([1, 2, 3], 4)}
    finally:
        successor.end()


def test_a_stopped_drafter_costs_one_deadline_and_comes_back(
    client: LinkClient, fleet: Process, step: Stepper
) -> None:
    assert step.many(ASKS) == BOTH
    fleet.signal(signal.SIGSTOP)
    assert step.many(ASKS, wait_s=2) == OTHER
    before = time.monotonic()
    for _ in range(30):
        assert step.many(ASKS, wait_s=PATIENCE_S) == OTHER
    assert time.monotonic() - before < PATIENCE_S

    def gone() -> bool:
        assert step.many(ASKS, wait_s=PATIENCE_S) == OTHER
        return client.available() == {"medical"}

    eventually(gone)
    assert client.stats()["code"]["missed"] == 1
    fleet.signal(signal.SIGCONT)
    eventually(lambda: step.many(ASKS, wait_s=1.0) == BOTH)


def test_a_drafter_stopped_for_longer_than_the_heartbeat_comes_back(
    client: LinkClient, fleet: Process, step: Stepper
) -> None:
    """The connection itself is given up meanwhile, also while the verifier is idle."""
    assert step.many(ASKS) == BOTH
    fleet.signal(signal.SIGSTOP)
    eventually(lambda: client.available() == {"medical"})
    before = client.stats()["code"]["missed"]
    assert step.many(ASKS, wait_s=PATIENCE_S) == OTHER  # known to be gone: nothing was waited for
    assert client.stats()["code"]["missed"] == before
    fleet.signal(signal.SIGCONT)
    eventually(lambda: step.many(ASKS, wait_s=1.0) == BOTH)
