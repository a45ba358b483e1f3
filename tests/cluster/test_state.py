"""What is remembered between commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.state import (
    Busy,
    FleetState,
    ProcessId,
    forget_state,
    known_ports,
    reachable,
    read_state,
    starting,
    state_path,
    write_state,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


STATE = FleetState(
    port=8000,
    host="127.0.0.1",
    name="specfleet",
    config_path="/configs/a.yaml",
    config_sha256="abc",
    folder="/tmp/sf8000-x",
    starter=ProcessId(7, 1.5),
)


def test_it_reads_back() -> None:
    assert read_state(8000) is None
    write_state(STATE)
    assert read_state(8000) == STATE
    ready = STATE.but(starter=None, ready=True, processes=[ProcessId(1, 2.0)], address="127.0.0.1:1")
    write_state(ready)
    assert read_state(8000) == ready
    assert known_ports() == [8000]
    forget_state(8000)
    forget_state(8000)
    assert read_state(8000) is None
    assert known_ports() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 8000}', '{"unknown": 1}', '{"starter": 3}'])
def test_a_damaged_file_is_as_good_as_none(text: str) -> None:
    write_state(STATE)
    state_path(8000).write_text(text)
    assert read_state(8000) is None


def test_nothing_half_written_is_left(state_home: Path) -> None:
    write_state(STATE)
    assert [path.name for path in (state_home / "specfleet").iterdir()] == ["8000.json"]


HOLD = (
    "from cluster.state import starting\nwith starting(8000):\n    print('held', flush=True)\n    input()\n"
)


def test_one_start_at_a_time_for_each_port() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Busy, match="port 8000"), starting(8000):
            pass
        with starting(8001):
            pass
        holder.kill()
        holder.wait(10)
        with starting(8000):  # who held it died without giving it back
            pass


@pytest.mark.parametrize(
    ("host", "client"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("fe80::1", "[fe80::1]")],
)
def test_where_clients_reach_it(host: str, client: str) -> None:
    assert reachable(host) == client
    assert STATE.but(host=host).url == f"http://{client}:8000"
