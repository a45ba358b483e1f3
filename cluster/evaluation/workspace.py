"""Where an evaluation runs: a folder of its own, its processes' words in a file, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cluster.config import FleetConfig
from cluster.environment import fleet_environment, make_folder
from cluster.evaluation.candidates import EvaluationError
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
    talk a lot. After a failure the log is kept, under `Workspace.log.name`; else it is removed.
    """
    folder = make_folder(0)
    environment = fleet_environment(config, folder, os.environ) | {"VLLM_LOGGING_LEVEL": "WARNING"}
    descriptor, name = tempfile.mkstemp(prefix="specfleet-evaluate-", suffix=".log")
    os.close(descriptor)
    ended = signal.signal(signal.SIGTERM, _interrupt)
    keep = False
    try:
        with (
            Path(name).open("w", buffering=1) as log,
            _redirected(log) as terminal,
            _changed(environment),
            _nothing_left(folder),
        ):
            yield Workspace(log, environment, terminal)
    except Exception as error:
        # What a user wrote wrongly says all itself; what failed needs the words of the processes.
        keep = not isinstance(error, EvaluationError) or error.__cause__ is not None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not keep:
            Path(name).unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, ended)


@contextlib.contextmanager
def _nothing_left(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it
        try:
            stop_processes(folder)
        finally:
            signal.signal(signal.SIGINT, impatient)


@contextlib.contextmanager
def _redirected(log: IO[str]) -> Iterator[IO[str]]:
    """Standard output and error into the log; yields what was standard output."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    try:
        with os.fdopen(os.dup(1), "w", buffering=1) as terminal:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            yield terminal
    finally:
        for number, kept in enumerate(saved, start=1):
            os.dup2(kept, number)
            os.close(kept)


@contextlib.contextmanager
def _changed(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
