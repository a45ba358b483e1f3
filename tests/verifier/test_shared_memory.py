"""What a killed engine leaves in shared memory goes at the next start, and nothing else does."""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deployments.verifier.shared_memory import note_engine, remove_left_behind

pytestmark = pytest.mark.process

#: Stands for an engine: makes shared memory, opens another's, and waits. Its resource tracker would clean up.
ENGINE = (
    "import sys, time; from multiprocessing.shared_memory import SharedMemory; "
    "mine = SharedMemory(create=True, size=4096); other = SharedMemory(sys.argv[1]); "
    "print(mine.name, flush=True); time.sleep(120)"
)
#: Stands for a replica: starts the engine and notes it.
REPLICA = (
    "import subprocess, sys, time, psutil; "
    "from deployments.verifier.shared_memory import note_engine; "
    f"engine = subprocess.Popen([sys.executable, '-c', {ENGINE!r}, sys.argv[1]], stdout=subprocess.PIPE); "
    "name = engine.stdout.readline(); note_engine(psutil.Process()); "
    "print(name.decode().strip(), flush=True); time.sleep(120)"
)


@pytest.fixture
def neighbour() -> Iterator[str]:
    """Shared memory that this process uses and the engine has opened."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="psm_") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            yield Path(file.name).name


@pytest.fixture
def replica(neighbour: str) -> Iterator[tuple[psutil.Process, Path]]:
    process = subprocess.Popen([sys.executable, "-c", REPLICA, neighbour], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    file = Path("/dev/shm", process.stdout.readline().strip())
    assert file.is_file()
    yield psutil.Process(process.pid), file
    with contextlib.suppress(psutil.NoSuchProcess):
        kill_with_descendants(psutil.Process(process.pid))
    process.wait()
    process.stdout.close()
    remove_left_behind()


def kill_with_descendants(replica: psutil.Process) -> None:
    """Nobody gets to clean up, resource trackers included."""
    everyone = [*replica.children(recursive=True), replica]
    for process in everyone:
        process.suspend()
    for process in everyone:
        process.kill()
    psutil.wait_procs(everyone, timeout=10)


def test_what_a_killed_engine_left_is_removed(replica: tuple[psutil.Process, Path], neighbour: str) -> None:
    process, file = replica
    engine = process.children(recursive=True)
    for one in engine:
        one.suspend()
    for one in engine:
        one.kill()
    psutil.wait_procs(engine, timeout=10)
    assert file.exists()
    assert remove_left_behind() == [file]
    assert Path("/dev/shm", neighbour).exists(), "this process still uses it"
    assert remove_left_behind() == []


def test_a_living_engine_keeps_its_own(replica: tuple[psutil.Process, Path]) -> None:
    _, file = replica
    assert remove_left_behind() == []
    assert file.exists()


def test_no_note_is_left(replica: tuple[psutil.Process, Path]) -> None:
    process, _ = replica
    kill_with_descendants(process)
    remove_left_behind()
    assert not list(Path("/dev/shm").glob(f"specfleet-*/{process.pid}-*"))


def test_a_process_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    gone = psutil.Process(process.pid)
    process.kill()
    process.wait()
    note_engine(gone)
