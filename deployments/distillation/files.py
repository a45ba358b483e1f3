"""Writing files so that they exist whole or not at all, and saying early when the disk is too small."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from deployments.distillation.errors import NoSpace

#: A file of this name is one that a killed process was writing.
PARTIAL_PREFIX = ".partial-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace a file in one step: readers see the old content or the new, never a part.

    Args:
        path: the file; its folder exists.
        write: writes the content into the binary file that it is given.

    Raises:
        NoSpace: it does not fit on the disk; what was there before is untouched.
    """
    with no_space_named(path.parent):
        descriptor, name = tempfile.mkstemp(prefix=PARTIAL_PREFIX, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())  # before the rename: the name must not stand for an empty file
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left half-written. Only for a folder that no other process writes to."""
    for leftover in folder.glob(PARTIAL_PREFIX + "*"):
        leftover.unlink(missing_ok=True)


@contextmanager
def no_space_named(folder: Path) -> Iterator[None]:
    """Turn every "disk full" of the body into `NoSpace`; other errors pass.

    torch raises an error of its own while it handles the system's, and safetensors, which writes in Rust, one
    that only has the system's number in its text.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = _full(error)
        if reason is None:
            raise
        raise _no_space(folder, reason) from error


def require_space(folder: Path, needed: int, what: str) -> None:
    """Check before hours of work that its results will fit.

    Args:
        folder: where they go; it or a parent of it exists.
        needed: bytes.
        what: for the message, e.g. "texts and checkpoints".

    Raises:
        NoSpace: less than `needed` is free.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise NoSpace(
            f"{folder}: {what} need about {_size(needed)} and {_size(free)} are free: "
            "free some space, or choose another disk with --work or --out"
        )


def _no_space(folder: Path, reason: str) -> NoSpace:
    return NoSpace(
        f"{folder}: no room to write ({reason}). Nothing half-written is left; free some space and run the "
        "same command again: it goes on from what is already there"
    )


def _full(error: BaseException | None) -> str | None:
    """What the system said when the disk was full, if that is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return os.strerror(error.errno)
        if isinstance(error, SafetensorError):
            return next((os.strerror(each) for each in _FULL if f"os error {each}" in str(error)), None)
        error = error.__cause__ or error.__context__
    return None


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
