"""Starting a local fleet and stopping it again: every process, every socket, nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from cluster.checks import this_machine
from cluster.config import FleetConfig
from cluster.environment import fleet_environment, make_folder
from cluster.loader import LoadedConfig
from cluster.processes import is_alive, listener, process_id, stop_processes
from cluster.ray_head import HeadOptions
from cluster.serving import FleetProgress
from cluster.starter import POLL_S, StarterOptions
from cluster.state import (
    FleetState,
    ProcessId,
    forget_state,
    read_state,
    starting,
    state_folder,
    write_state,
)

HEAD_TIMEOUT_S = 90.0
#: Beyond what the verifier may take: the other deployments, and Serve itself.
EXTRA_START_S = 120.0

Report = Callable[[str], None]
Watch = Callable[[FleetConfig, Iterator[FleetProgress]], None]


class BringUpError(RuntimeError):
    """A fleet that did not come up, or cannot; the text says why and what to do.

    Attributes:
        logs: where the logs of the failed start are kept, if there are any.
    """

    logs: Path | None = None


def config_sha256(config: FleetConfig) -> str:
    """A digest of what a configuration says."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()


def running(port: int) -> FleetState | None:
    """The fleet that is remembered for a port, if its head still runs."""
    state = read_state(port)
    if state is None or not state.processes or not all(is_alive(each) for each in state.processes):
        return None
    return state


def bring_up(loaded: LoadedConfig, watch: Watch, say: Report) -> FleetState:
    """Starts a fleet on this machine and waits until it is ready.

    Args:
        loaded: the configuration, checked.
        watch: waits for the deployed fleet with visible progress; raises when it fails.
        say: tells the user what is being done, one short line at a time.

    Returns:
        The state of the running fleet. When one with the same configuration runs already, that one.

    Raises:
        BringUpError: the port is taken, or something failed; whatever had been started is gone again.
        Busy: another command is starting a fleet on this port.
    """
    config = loaded.config
    with starting(config.api.port):
        found = _reuse_or_clear(loaded, say)
        if found is not None:
            return found
        taken = listener(config.api.host, config.api.port)
        if taken is not None:
            raise BringUpError(
                f"port {config.api.port} is in use by process {taken}: "
                "stop that, or choose another api.port in the configuration"
            )
        with _terminated_like_interrupted():
            return _start(loaded, watch, say)


def _reuse_or_clear(loaded: LoadedConfig, say: Report) -> FleetState | None:
    """A running fleet of the same configuration; leftovers of one that is gone are cleared away."""
    port = loaded.config.api.port
    state = read_state(port)
    if state is None:
        return None
    alive = running(port)
    if alive is not None and alive.ready and answers(alive):
        if alive.config_sha256 == config_sha256(loaded.config):
            return alive
        raise BringUpError(
            f"another fleet ({alive.name}, from {alive.config_path}) runs on port {port}: "
            f"`specfleet down --port {port}` stops it"
        )
    say("clearing away what an earlier fleet left behind")
    take_down(port)
    return None


def _start(loaded: LoadedConfig, watch: Watch, say: Report) -> FleetState:
    config = loaded.config
    folder = make_folder(config.api.port)
    state = FleetState(
        port=config.api.port,
        host=config.api.host,
        name=config.name,
        config_path=str(loaded.path.resolve()),
        config_sha256=config_sha256(config),
        folder=str(folder),
        starter=process_id(psutil.Process()),
    )
    write_state(state)
    try:
        say("starting Ray")
        starter = Starter(config, folder)
        head = starter.head()
        pids = [process_id(psutil.Process(pid)) for pid in head["pids"]]
        state = state.but(address=head["address"], processes=pids)
        write_state(state)
        say("starting Ray Serve")
        watch(config, starter.progress())
        state = state.but(ready=True, starter=None)
        write_state(state)
        return state
    except BaseException as error:
        logs = keep_logs(state)
        take_down(config.api.port)
        if isinstance(error, BringUpError):
            error.logs = logs
        raise


class Starter:
    """The process that starts a fleet (`cluster.starter`), seen from the command that waits for it.

    Args:
        config: what to start.
        folder: the fleet's temporary folder.
    """

    def __init__(self, config: FleetConfig, folder: Path) -> None:
        machine = this_machine()
        head = HeadOptions(str(folder), cpus=int(machine.cpus), gpus=int(machine.gpus))
        options = StarterOptions(head, config.model_dump(mode="json", exclude_unset=True))
        self._log = folder / "starter.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cluster.starter"],
                env=fleet_environment(config, folder, os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(options.to_json())
        self._process.stdin.close()
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=1000)
        threading.Thread(target=self._read, name="starter-events", daemon=True).start()

    def head(self) -> dict[str, Any]:
        """Waits for the Ray head.

        Raises:
            BringUpError: it did not start.
        """
        try:
            event, data = self._events.get(timeout=HEAD_TIMEOUT_S)
        except queue.Empty:
            raise BringUpError(f"Ray did not start within {HEAD_TIMEOUT_S:.0f} s") from None
        if event != "head":
            raise self._failed(event, data)
        return dict(data)

    def progress(self) -> Iterator[FleetProgress]:
        """How far the fleet is, about once a second, whether or not there is news; ends when it is ready.

        Raises:
            BringUpError: the starter failed.
        """
        now = FleetProgress("NOT_STARTED", "")
        while not now.ready:
            try:
                event, data = self._events.get(timeout=2 * POLL_S)
            except queue.Empty:
                yield now  # whoever watches has a clock to look at
                continue
            if event != "progress":
                raise self._failed(event, data)
            now = FleetProgress.from_json(data)
            yield now

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._process.stdout:
                if line.startswith("["):  # Ray prints there, too
                    event, data = json.loads(line)
                    self._events.put((event, data))
        self._events.put(("end", self._process.wait()))

    def _failed(self, event: str, data: Any) -> BringUpError:
        if event == "error":
            return BringUpError(str(data))
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])
        return BringUpError(f"the process that starts Ray ended ({data}):\n{tail}")


def take_down(port: int) -> int:
    """Stops the fleet on a port and removes everything it left behind. Does nothing when there is none.

    Returns:
        How many processes were ended.

    Raises:
        RuntimeError: some process could not be ended; the text names it.
    """
    state = read_state(port)
    if state is None:
        return 0
    starter = state.starter
    if starter is not None and starter.pid != os.getpid() and is_alive(starter):
        # It would go on starting what we stop. It cleans up after itself, too; both may. Not SIGINT: a start
        # that a script put into the background ignores that.
        with contextlib.suppress(ProcessLookupError):
            os.kill(starter.pid, signal.SIGTERM)
        _wait_for_end(starter, seconds=20.0)
    ended = stop_processes(state.folder, state.processes)
    shutil.rmtree(state.folder, ignore_errors=True)
    forget_state(port)
    return ended


def _wait_for_end(starter: ProcessId, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while is_alive(starter) and time.monotonic() < deadline:
        time.sleep(0.1)
    if is_alive(starter):  # such as one that still waits for a Ray head that is gone
        with contextlib.suppress(ProcessLookupError):
            os.kill(starter.pid, signal.SIGKILL)


def keep_logs(state: FleetState) -> Path | None:
    """Copies the logs of a fleet that failed to where they outlive it; only the last failure's are kept."""
    logs = Path(state.folder) / "session_latest" / "logs"
    target = failure_logs(state.port)
    shutil.rmtree(target, ignore_errors=True)
    try:
        shutil.copytree(logs, target, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    except (OSError, shutil.Error):
        return None
    return target


def failure_logs(port: int) -> Path:
    """Where the logs of the last failed start on a port are."""
    return state_folder() / f"{port}-failed-logs"


def answers(state: FleetState, timeout_s: float = 3.0) -> bool:
    """Whether a fleet's API says that it is healthy."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{state.url}/health", timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Lets SIGTERM end a start the way Ctrl-C does, so that it cleans up."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
