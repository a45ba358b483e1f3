"""Where an evaluation runs: a folder of its own, its processes' words in a file, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cluster.config import FleetConfig
from cluster.environment import fleet_environment, make_folder
from cluster.processes import stop_processes


@dataclass(frozen=True)
class Workspace:
    """Attributes of one run.

    Attributes:
        log: takes what the engine and the drafters write.
        environment: for the processes.
        terminal: the standard output that the user sees.
    """

    log: IO[Any]
    environment: dict[str, str]
    terminal: IO[str]


@contextlib.contextmanager
def workspace(config: FleetConfig) -> Iterator[Workspace]:
    """Everything that is started within ends with the block, whatever ends it: also Ctrl-C and SIGTERM.

    Standard output and error of this process and of those that it starts go to the log meanwhile: engines
    talk a lot. After an error the log is kept, and named by `Workspace.log.name`; else it is removed.
    """
    folder = make_folder(0)
    environment = fleet_environment(config, folder, os.environ) | {"VLLM_LOGGING_LEVEL": "WARNING"}
    before = dict(os.environ)
    descriptor, name = tempfile.mkstemp(prefix="specfleet-evaluate-", suffix=".log")
    log = os.fdopen(descriptor, "w", buffering=1)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    terminal = os.fdopen(os.dup(1), "w", buffering=1)
    ended = signal.signal(signal.SIGTERM, _interrupt)
    failed = True
    try:
        os.environ.update(environment)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        yield Workspace(log, environment, terminal)
        failed = False
    except KeyboardInterrupt:
        failed = False  # nobody needs the words of what was stopped on purpose
        raise
    finally:
        impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it
        try:
            stop_processes(folder)
        finally:
            for number, kept in enumerate(saved, start=1):
                os.dup2(kept, number)
                os.close(kept)
            terminal.close()
            log.close()
            shutil.rmtree(folder, ignore_errors=True)
            if not failed:
                Path(name).unlink(missing_ok=True)
            os.environ.clear()
            os.environ.update(before)
            signal.signal(signal.SIGTERM, ended)
            signal.signal(signal.SIGINT, impatient)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
