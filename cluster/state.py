"""What is remembered of a running fleet between two commands: one small file per API port."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number.

    Attributes:
        pid: its number.
        created: when it started, in seconds since 1970, as psutil tells it.
    """

    pid: int
    created: float


@dataclass(frozen=True)
class FleetState:
    """A fleet that was started on this machine; written before its first process exists.

    Attributes:
        port: port of the API.
        host: address of the API.
        name: name of the fleet.
        config_path: the file it was started from.
        config_sha256: digest of what that file said.
        folder: its temporary folder: sockets, logs, everything that goes away with it.
        starter: the command that is starting it; None once it is ready.
        address: address of its Ray head; empty until that is up.
        processes: the processes known to belong to it; the rest is found through `folder`.
        ready: whether it has answered once.
    """

    port: int
    host: str
    name: str
    config_path: str
    config_sha256: str
    folder: str
    starter: ProcessId | None = None
    address: str = ""
    processes: list[ProcessId] = field(default_factory=list)
    ready: bool = False

    @property
    def url(self) -> str:
        """Base URL of the API for clients on this machine."""
        return f"http://{reachable(self.host)}:{self.port}"

    def but(self, **changes: object) -> FleetState:
        """The same state with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # dataclasses.replace checks the names


def reachable(host: str) -> str:
    """The address under which clients here reach a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def state_folder() -> Path:
    """Where the files are kept: ``$XDG_STATE_HOME`` or ``~/.local/state``, then ``specfleet``."""
    root = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(root).expanduser() / "specfleet"


def state_path(port: int) -> Path:
    """The file of the fleet whose API is on this port."""
    return state_folder() / f"{port}.json"


def read_state(port: int) -> FleetState | None:
    """What is remembered for a port; None when nothing is, or nothing that can be read."""
    try:
        data = json.loads(state_path(port).read_text(encoding="utf-8"))
        starter = data.pop("starter", None)
        processes = [ProcessId(**each) for each in data.pop("processes", [])]
        return FleetState(**data, starter=ProcessId(**starter) if starter else None, processes=processes)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_state(state: FleetState) -> None:
    """Remembers a fleet, replacing what was known for its port in one go."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{state.port}.", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(state), file, indent=1)
        os.replace(name, state_path(state.port))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def forget_state(port: int) -> None:
    """Removes what is remembered for a port."""
    state_path(port).unlink(missing_ok=True)


def known_ports() -> list[int]:
    """Ports for which a fleet is remembered."""
    return sorted(int(path.stem) for path in state_folder().glob("*.json") if path.stem.isdigit())


class Busy(RuntimeError):
    """Another command is starting a fleet on the same port."""


@contextlib.contextmanager
def starting(port: int) -> Iterator[None]:
    """Holds the right to start a fleet on a port.

    Raises:
        Busy: another process holds it.
    """
    state_folder().mkdir(parents=True, exist_ok=True)
    lock = FileLock(state_folder() / f".{port}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise Busy(f"another `specfleet up` is starting a fleet on port {port}; wait for it") from error
    try:
        yield
    finally:
        lock.release()
