"""Shared memory of engines that ended too suddenly to remove it.

vLLM's processes pass messages through files in /dev/shm: up to 250 MB for one engine, which nobody removes
when they are killed. A replica notes the files of its engine beside them (so the notes live exactly as long
as what they name); the next replica that starts on the node, and `specfleet down`, remove what the dead
have left.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")


def mapped_by(pid: int) -> set[Path]:
    """Files in shared memory that a process has mapped; none when it is gone or somebody else's."""
    found = set()
    with contextlib.suppress(OSError):
        for line in (Path("/proc") / str(pid) / "maps").read_text(errors="replace").splitlines():
            _, separator, name = line.partition(f" {SHARED_MEMORY}/")
            if separator and not name.endswith("(deleted)"):
                found.add(SHARED_MEMORY / name)
    return found


def remove_unused(files: Iterable[Path], owners: Iterable[int]) -> list[Path]:
    """Remove shared memory whose owners have ended; what other processes have mapped stays.

    Args:
        files: files in shared memory that the owners had mapped.
        owners: process numbers that have ended, or are ending.

    Returns:
        What was removed.
    """
    owners = set(owners)
    files = set(files)
    for owner in owners:  # Intel's OpenMP puts its process's number into the name and maps it only briefly
        files |= set(SHARED_MEMORY.glob(f"__KMP_REGISTERED_LIB_{owner}_*"))
    files = {file for file in files if file.parent == SHARED_MEMORY and file.exists()}
    if not files:
        return []
    used = set().union(*(mapped_by(pid) for pid in set(psutil.pids()) - owners))
    removed = []
    for file in files - used:
        with contextlib.suppress(OSError):  # gone by now, or somebody else's
            file.unlink()
            removed.append(file)
    return removed


def note_engine(replica: psutil.Process) -> None:
    """Write down what the engine below a replica has mapped. Never raises: it only saves memory.

    Args:
        replica: the process whose descendants are the engine's.
    """
    try:
        engine = replica.children(recursive=True)
        note = {
            "processes": [[process.pid, process.create_time()] for process in engine],
            "files": sorted(str(file) for process in engine for file in mapped_by(process.pid)),
        }
        path = _notes() / f"{replica.pid}-{replica.create_time():.2f}.json"
        written = path.with_suffix(".part")
        written.write_text(json.dumps(note))
        os.replace(written, path)
    except (OSError, psutil.Error) as error:
        logger.warning("specfleet: cannot note the engine's shared memory: %r", error)


def remove_left_behind() -> list[Path]:
    """Remove what engines of this user have left on this node. Never raises.

    Returns:
        The files that were removed.
    """
    removed: list[Path] = []
    if not SHARED_MEMORY.is_dir():  # another system than Linux
        return removed
    try:
        folder = _notes()
        for path in folder.glob("*.json"):
            note = json.loads(path.read_text())
            owners = [(int(pid), float(created)) for pid, created in note["processes"]]
            if not any(_alive(pid, created) for pid, created in owners):
                removed += remove_unused(map(Path, note["files"]), [pid for pid, _ in owners])
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others' notes are in it
            folder.rmdir()
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("specfleet: cannot clear what earlier engines left in shared memory: %r", error)
    return removed


def _notes() -> Path:
    folder = SHARED_MEMORY / f"specfleet-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def _alive(pid: int, created: float) -> bool:
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < 0.05
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
