"""Finding and ending the processes of one fleet, and of no other.

A process belongs to a fleet when it is one of those that were remembered, descends from one, carries the
fleet's marker in its environment, or writes its output into the fleet's temporary folder, as Ray's workers
and the engine's processes do. So they are found after any kind of crash, also when processes overwrite their
own environment to change their title, and no other Ray cluster on the machine is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from cluster.state import ProcessId
from deployments.verifier.shared_memory import mapped_by, remove_left_behind, remove_unused

#: Tells each process of a fleet which fleet it belongs to: the fleet's temporary folder.
MARKER = "SPECFLEET_FOLDER"


def process_id(process: psutil.Process) -> ProcessId:
    """The lasting identity of a process."""
    return ProcessId(process.pid, process.create_time())


def is_alive(identity: ProcessId) -> bool:
    """Whether exactly this process still runs."""
    return _process(identity) is not None


def fleet_processes(folder: str | Path, known: Iterable[ProcessId] = ()) -> list[psutil.Process]:
    """All processes of a fleet that are running now.

    Args:
        folder: the fleet's temporary folder.
        known: processes remembered as the fleet's.
    """
    roots = [process for identity in known if (process := _process(identity)) is not None]
    roots += [process for process in psutil.process_iter() if _belongs(process.pid, str(folder))]
    found: dict[int, psutil.Process] = {}
    for process in roots:
        found[process.pid] = process
        with contextlib.suppress(psutil.Error):
            found |= {child.pid: child for child in process.children(recursive=True)}
    # The command that looks (and its parents: make, a shell in that folder) is never part of what it ends.
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [process for pid, process in found.items() if pid not in own and _runs(process)]


def stop_processes(folder: str | Path, known: Iterable[ProcessId] = (), grace_s: float = 2.0) -> int:
    """Ends every process of a fleet: asked first, killed after a grace.

    Args:
        folder: the fleet's temporary folder.
        known: processes remembered as the fleet's.
        grace_s: seconds between asking and killing.

    Returns:
        How many processes were ended.

    Raises:
        RuntimeError: some process could not be ended; the text names it.
    """
    known = list(known)
    seen: set[int] = set()
    stop_asking_at = time.monotonic() + grace_s
    give_up_at = stop_asking_at + 20.0
    asked: set[int] = set()
    shared: set[Path] = set()
    while True:
        # Looked up again each time: a process that is just starting must not slip through.
        processes = fleet_processes(folder, known)
        if not processes:
            remove_unused(shared, seen)
            remove_left_behind()
            return len(seen)
        now = time.monotonic()
        if now > give_up_at:
            names = ", ".join(f"{process.pid} ({_name(process)})" for process in processes)
            raise RuntimeError(f"these processes of the fleet do not end: {names}")
        for process in processes:
            seen.add(process.pid)
            shared |= mapped_by(process.pid)
            with contextlib.suppress(psutil.Error):
                if now > stop_asking_at:
                    process.kill()
                elif process.pid not in asked:
                    asked.add(process.pid)
                    process.terminate()
        psutil.wait_procs(processes, timeout=0.3)


def listener(host: str, port: int) -> str | None:
    """Says who listens on a port already, or None when it is free.

    Returns:
        The process as "PID (NAME)", or "another process" when that cannot be seen.
    """
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do, so that connections which are just closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno not in (98, 48):  # in use on Linux, on macOS
                raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
            return _owner(port)
    return None


def _owner(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{connection.pid} ({_name(psutil.Process(connection.pid))})"
    except psutil.Error:
        pass
    return "another process"


def _process(identity: ProcessId) -> psutil.Process | None:
    try:
        process = psutil.Process(identity.pid)
        same = abs(process.create_time() - identity.created) < 0.05
        return process if same and _runs(process) else None
    except psutil.Error:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "gone"


def _belongs(pid: int, folder: str) -> bool:
    """Whether a process was started with the fleet's marker, or writes its output into the fleet's folder.

    Not counted on purpose: a folder on the command line, as working folder or in other open files. That
    could be somebody who reads the logs.
    """
    proc = Path("/proc") / str(pid)
    try:
        if f"{MARKER}={folder}".encode() in (proc / "environ").read_bytes().split(b"\0"):
            return True
    except OSError:
        return False  # gone, or somebody else's
    inside = folder.rstrip("/") + "/"
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(proc / "fd" / str(descriptor)).startswith(inside):
                return True
    return False
