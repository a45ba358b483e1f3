"""The verifier's cores for the verifier's workers alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Set

import psutil


def leave_cores(process: psutil.Process, cores: Set[int]) -> int:
    """Move whatever of a process and its children is not bound to `cores` away from them.

    vLLM binds the threads that compute and nothing else. The engine core, which waits for them, and the
    replica, which sends out tokens, are then put on the same core by the kernel whenever a draft is busy on
    the other, and stay there.

    Args:
        process: the root of the processes; its children are those that run now, and what these start later
            inherits.
        cores: of the workers. Where there are no others, nothing is moved.

    Returns:
        Threads moved.
    """
    moved = 0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it ended
            for thread in member.threads():
                with contextlib.suppress(OSError):  # it ended, or is not ours to move
                    allowed = os.sched_getaffinity(thread.id)
                    others = allowed - cores
                    if others and others != allowed:
                        os.sched_setaffinity(thread.id, others)
                        moved += 1
    return moved
