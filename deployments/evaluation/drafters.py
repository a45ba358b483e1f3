"""Drafter processes for the time of a measurement; they end with whoever started them, whatever ends that."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from deployments.drafter.settings import DraftSettings

#: Longest that loading a draft may take, in seconds.
READY_TIMEOUT_S: Final = 300.0
#: Longest that a drafter may take to end when it is told to, in seconds; then it is killed.
STOP_TIMEOUT_S: Final = 5.0


class DrafterFailed(RuntimeError):
    """A drafter did not start; the text names the draft and gives its own words."""


@dataclass(frozen=True, slots=True)
class DraftToServe:
    """A draft and where it lies.

    Attributes:
        name: the draft's name.
        folder: a Hugging Face checkpoint or a draft in our own format.
        settings: how it is served.
    """

    name: str
    folder: Path
    settings: DraftSettings


class DrafterProcesses:
    """One process per draft, started at once and waited for later. A context manager."""

    def __init__(
        self, drafts: Sequence[DraftToServe], verifier: Path, log: IO[Any], environment: Mapping[str, str]
    ) -> None:
        """Start the processes.

        Args:
            drafts: what to serve.
            verifier: the verifier's checkpoint folder.
            log: where their standard error goes.
            environment: of the processes.
        """
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._peers: list[dict[str, str]] = []
        self._log = log
        try:
            for draft in drafts:
                self._processes[draft.name] = subprocess.Popen(
                    _command(draft, verifier),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=dict(environment),
                )
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> DrafterProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def wait(self, timeout_s: float = READY_TIMEOUT_S) -> list[dict[str, str]]:
        """Wait until all serve; returns their peers (`draft`, `replica`, `address`, `public_key` each).

        Raises:
            DrafterFailed: one ended, or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        for name, process in list(self._processes.items())[len(self._peers) :]:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            line = process.stdout.readline() if ready else ""
            if not line:
                why = "did not start" if ready else f"was not ready after {timeout_s:.0f} s"
                raise DrafterFailed(f"the drafter of draft {name!r} {why}; its words are in {self._log.name}")
            told = json.loads(line)
            self._peers.append(
                {
                    "draft": name,
                    "replica": f"{name}-{told['pid']}",
                    "address": str(told["address"]),
                    "public_key": str(told["public_key"]),
                }
            )
        return list(self._peers)

    def admit(self, public_key: str) -> None:
        """Let a verifier in."""
        for process in self._processes.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # a dead one shows itself by what it does not propose
                process.stdin.write(json.dumps([public_key]) + "\n")
                process.stdin.flush()

    def stop(self) -> None:
        """End them all. May be called twice."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._processes = {}


def _command(draft: DraftToServe, verifier: Path) -> list[str]:
    settings = draft.settings
    command = [sys.executable, "-m", "deployments.drafter.main"]
    command += ["--draft", str(draft.folder), "--verifier", str(verifier)]
    command += ["--device", "cuda" if settings.on_gpu else "cpu", "--quantise", settings.quantise]
    command += ["--threads", str(settings.threads), "--max-sessions", str(settings.max_sessions)]
    if settings.max_context is not None:
        command += ["--max-context", str(settings.max_context)]
    if settings.kv_memory_mib is not None:
        command += ["--kv-memory-mib", str(settings.kv_memory_mib)]
    if settings.cpu_cores is not None:
        command += ["--cpu-cores", *map(str, settings.cpu_cores)]
    return command
