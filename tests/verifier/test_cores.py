"""Processes that wait leave the cores of those that compute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from deployments.verifier.cores import leave_cores

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
]

#: Stands for an engine: one thread bound to core 0 as a worker's, one not; both wait.
ENGINE = """
import os, threading, time
def bound():
    os.sched_setaffinity(0, {0})
    print(threading.get_native_id(), flush=True)
    time.sleep(120)
threading.Thread(target=bound, daemon=True).start()
time.sleep(120)
"""
#: Stands for a replica that started it.
REPLICA = (
    f"import subprocess, sys; engine = subprocess.Popen([sys.executable, '-c', {ENGINE!r}]); engine.wait()"
)


@pytest.fixture
def replica() -> Iterator[tuple[psutil.Process, int]]:
    """A replica with its engine, and the thread that computes."""
    process = subprocess.Popen([sys.executable, "-c", REPLICA], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    computing = int(process.stdout.readline())
    root = psutil.Process(process.pid)
    children = root.children()
    yield root, computing
    for member in [*children, root]:
        member.kill()
    process.wait()
    process.stdout.close()


def test_all_but_the_computing_thread_are_moved(replica: tuple[psutil.Process, int]) -> None:
    root, computing = replica
    (engine,) = root.children()
    assert leave_cores(root, {0}) >= 2
    assert os.sched_getaffinity(computing) == {0}
    for thread in [*root.threads(), *engine.threads()]:
        if thread.id != computing:
            assert 0 not in os.sched_getaffinity(thread.id)
    assert leave_cores(root, {0}) == 0


def test_nothing_moves_where_there_are_no_other_cores(replica: tuple[psutil.Process, int]) -> None:
    root, _ = replica
    before = os.sched_getaffinity(root.pid)
    assert leave_cores(root, before) == 0
    assert leave_cores(root, set()) == 0
    assert os.sched_getaffinity(root.pid) == before
