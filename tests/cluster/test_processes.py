"""Ending exactly a fleet's processes, with real ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from cluster.processes import MARKER, fleet_processes, is_alive, listener, process_id, stop_processes
from cluster.state import ProcessId

pytestmark = pytest.mark.process

SLEEP = "import time; time.sleep(120)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('on', flush=True); time.sleep(120)"
)
#: Starts a child that is cut loose and dies itself, as replicas of a killed Ray head are.
ORPHAN = (
    "import subprocess, sys; command = [sys.executable, '-c', 'import time; time.sleep(120)']; "
    "print(subprocess.Popen(command, start_new_session=True).pid, flush=True)"
)
#: Makes shared memory, opens another's, and waits.
SHARING = (
    "import sys, time; from multiprocessing.shared_memory import SharedMemory; "
    "mine = SharedMemory(create=True, size=4096); other = SharedMemory(sys.argv[1]); "
    "print(mine.name, flush=True); time.sleep(120)"
)

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", script, *arguments], text=True, **options)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def marked(folder: Path) -> dict[str, str]:
    return {**os.environ, MARKER: str(folder)}


def runs(pid: int) -> bool:
    # An ended child stays a zombie until its parent, here the test, asks for it.
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def pids(processes: list[psutil.Process]) -> set[int]:
    return {process.pid for process in processes}


def test_a_process_with_the_marker(tmp_path: Path, start: Start) -> None:
    process = start(SLEEP, env=marked(tmp_path))
    assert pids(fleet_processes(tmp_path)) == {process.pid}
    assert stop_processes(tmp_path) == 1
    assert not runs(process.pid)


def test_a_process_that_writes_into_the_folder(tmp_path: Path, start: Start) -> None:
    with (tmp_path / "worker.out").open("w") as output:
        process = start(SLEEP, stdout=output)
    assert pids(fleet_processes(tmp_path)) == {process.pid}
    assert stop_processes(tmp_path) == 1


def test_a_remembered_process_and_its_descendants(tmp_path: Path, start: Start) -> None:
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).wait()"
    process = start(parent)
    root = psutil.Process(process.pid)
    _until(lambda: len(root.children()) == 1)
    child = root.children()[0]
    known = [process_id(root)]
    assert pids(fleet_processes(tmp_path, known)) == {process.pid, child.pid}
    assert stop_processes(tmp_path, known) == 2
    assert not runs(child.pid)


def test_an_orphan_with_the_marker(tmp_path: Path, start: Start) -> None:
    process = start(ORPHAN, env=marked(tmp_path), stdout=subprocess.PIPE)
    assert process.stdout is not None
    orphan = psutil.Process(int(process.stdout.readline()))
    process.wait(10)
    assert pids(fleet_processes(tmp_path)) == {orphan.pid}
    assert stop_processes(tmp_path) == 1
    assert not runs(orphan.pid)


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path, start: Start) -> None:
    process = start(STUBBORN, env=marked(tmp_path), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert stop_processes(tmp_path, grace_s=0.3) == 1
    assert not runs(process.pid)


def test_others_are_left_alone(tmp_path: Path, start: Start) -> None:
    folder, other = tmp_path / "sf8000-a", tmp_path / "sf8000-ab"
    folder.mkdir()
    other.mkdir()
    (folder / "log").write_text("")
    reading = f"log = open({str(folder / 'log')!r}); {SLEEP}"
    bystanders = [
        start(SLEEP, env=marked(other)),  # another fleet, whose folder begins with the same letters
        start(SLEEP, cwd=folder),  # somebody's shell in the folder
        start(SLEEP, str(folder / "log")),  # somebody who names the folder
        start(reading),  # somebody who reads a log
    ]
    time.sleep(0.3)
    assert stop_processes(folder) == 0
    assert all(process.poll() is None for process in bystanders)


def test_the_one_who_asks_is_never_ended(tmp_path: Path) -> None:
    myself = process_id(psutil.Process())
    assert fleet_processes(tmp_path, [myself]) == []


def test_a_number_that_was_given_to_another_process(tmp_path: Path, start: Start) -> None:
    process = start(SLEEP)
    right = process_id(psutil.Process(process.pid))
    wrong = ProcessId(right.pid, right.created - 100.0)
    assert is_alive(right)
    assert not is_alive(wrong)
    assert stop_processes(tmp_path, [wrong]) == 0
    assert process.poll() is None


def test_shared_memory_goes_with_its_owner(tmp_path: Path, start: Start) -> None:
    keep = shared_memory.SharedMemory(create=True, size=4096)
    try:
        process = start(SHARING, keep.name, env=marked(tmp_path), stdout=subprocess.PIPE)
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert Path("/dev/shm", name).exists()
        # Its resource tracker, which would clean up, belongs to the fleet as well and is ended with it.
        for each in fleet_processes(tmp_path):
            each.suspend()
        stop_processes(tmp_path, grace_s=0.0)
        assert not Path("/dev/shm", name).exists()
        assert Path("/dev/shm", keep.name).exists(), "somebody else still uses it"
    finally:
        keep.close()
        keep.unlink()


def test_who_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert str(os.getpid()) in str(listener("127.0.0.1", port))
    assert listener("127.0.0.1", port) is None


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(OSError, match=r"cannot listen on 203\.0\.113\.1"):
        listener("203.0.113.1", 8000)


def _until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
