"""Starting and stopping on a real Ray head: what is left, what is reached, what is said when it fails."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from cluster import bringup
from cluster.environment import MAX_FOLDER_LENGTH, fleet_environment, make_folder
from cluster.loader import load_config
from cluster.processes import fleet_processes, process_id
from cluster.state import FleetState, read_state, write_state
from tests.cluster.configs import make_models, small, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def config_file(folder: Path, port: int, **changes: Any) -> Path:
    config = small()
    config["api"] = {"port": port}
    for section, values in changes.items():
        config[section] |= values
    make_models(folder)
    return write(folder, config)


def up(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cluster.cli", "up", str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)
    return value


def nothing_is_left(state: FleetState) -> None:
    assert [process.cmdline() for process in fleet_processes(state.folder, state.processes)] == []
    assert not Path(state.folder).exists()
    assert read_state(state.port) is None


def test_folders_are_short_enough_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = make_folder(65535)
    try:
        assert len(str(folder)) <= MAX_FOLDER_LENGTH
    finally:
        folder.rmdir()


def test_the_environment_is_the_fleets_own(tmp_path: Path) -> None:
    config = load_config(config_file(tmp_path, 8000)).config
    made = fleet_environment(config, tmp_path, {"RAY_ADDRESS": "elsewhere:1", "PATH": "/bin"})
    assert "RAY_ADDRESS" not in made
    assert made["PATH"] == "/bin"
    assert made["HF_HUB_OFFLINE"] == "1", "all models are here, so nobody needs to ask the hub"
    hub = config.model_copy(update={"encoder": "nobody/has-this-model"})
    assert "HF_HUB_OFFLINE" not in fleet_environment(hub, tmp_path, {})


def test_a_digest_tells_configurations_apart(tmp_path: Path) -> None:
    first = load_config(config_file(tmp_path, 8000)).config
    again = load_config(tmp_path / "fleet.yaml").config
    other = first.model_copy(update={"generalist": "code"})
    assert bringup.config_sha256(first) == bringup.config_sha256(again)
    assert bringup.config_sha256(first) != bringup.config_sha256(other)


HEAD = (
    "import json, os, sys; from cluster.ray_head import HeadOptions, start_head; "
    "print(json.dumps(start_head(HeadOptions(sys.argv[1], cpus=2, gpus=0))), flush=True); os._exit(0)"
)


@pytest.fixture
def head(tmp_path: Path, port: int) -> Iterator[FleetState]:
    """A Ray head as `up` starts it, without a fleet on it."""
    config = load_config(config_file(tmp_path, port)).config
    folder = make_folder(port)
    state = FleetState(port, "127.0.0.1", "specfleet", "fleet.yaml", "abc", str(folder))
    write_state(state)
    try:
        command = [sys.executable, "-c", HEAD, str(folder)]
        environment = fleet_environment(config, folder, os.environ)
        made = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=90, check=True
        )
        head = json.loads(made.stdout.splitlines()[-1])
        pids = [process_id(psutil.Process(pid)) for pid in head["pids"]]
        state = state.but(address=head["address"], processes=pids)
        write_state(state)
        yield state
    finally:
        bringup.take_down(port)


def connect(state: FleetState) -> subprocess.Popen[str]:
    """A driver on that head that starts a worker and stays."""
    script = (
        "import sys, time; from cluster.serving import connected\n"
        f"with connected({state.address!r}):\n"
        "    import ray\n"
        "    @ray.remote(num_cpus=0)\n"
        "    class Worker:\n"
        "        def ready(self): return True\n"
        "    worker = Worker.remote(); ray.get(worker.ready.remote())\n"
        "    print('on', flush=True); time.sleep(120)\n"
    )
    environment = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.e2e
def test_a_head_is_reached_from_this_machine_only_and_ends_whole(head: FleetState) -> None:
    assert bringup.running(head.port) == head
    driver = connect(head)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "on\n"
        processes = fleet_processes(head.folder, head.processes)
        names = " ".join(process.name() for process in processes)
        assert "raylet" in names
        assert "Worker" in names
        listening = {
            connection.laddr.ip.removeprefix("::ffff:")
            for process in processes
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
        assert bringup.take_down(head.port) >= len(processes)
        nothing_is_left(head)
        assert bringup.take_down(head.port) == 0
    finally:
        driver.kill()
        driver.communicate()


@pytest.mark.e2e
def test_a_head_that_was_killed_leaves_workers_that_are_found(head: FleetState) -> None:
    driver = connect(head)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "on\n"
        for each in head.processes:
            os.kill(each.pid, signal.SIGKILL)
        until(lambda: bringup.running(head.port) is None)
        bringup.take_down(head.port)
        nothing_is_left(head)
    finally:
        driver.kill()
        driver.communicate()


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing(tmp_path: Path, port: int, number: signal.Signals) -> None:
    process = up(config_file(tmp_path, port))
    state = until(lambda: (state := read_state(port)) and state.address and state)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "nothing was left running" in output
    nothing_is_left(state)


@pytest.mark.e2e
def test_down_during_a_start_ends_both(tmp_path: Path, port: int) -> None:
    process = up(config_file(tmp_path, port))
    state = until(lambda: (state := read_state(port)) and state.address and state)
    bringup.take_down(port)
    process.communicate(timeout=60)
    assert process.returncode == 130
    nothing_is_left(state)


@pytest.mark.e2e
def test_a_killed_start_is_cleared_away_by_the_next(tmp_path: Path, port: int) -> None:
    path = config_file(tmp_path, port)
    process = up(path)
    state = until(lambda: (state := read_state(port)) and state.address and state)
    process.kill()
    process.communicate()
    assert fleet_processes(state.folder, state.processes), "its head should have stayed"
    said: list[str] = []
    assert bringup._reuse_or_clear(load_config(path), said.append) is None
    assert said == ["clearing away what an earlier fleet left behind"]
    nothing_is_left(state)


@pytest.mark.e2e
@pytest.mark.timeout(300)  # building imports all of vLLM
def test_an_application_that_cannot_be_built_says_why_and_leaves_nothing(tmp_path: Path, port: int) -> None:
    path = config_file(tmp_path, port, verifier={"engine": {"speculative_config": {"method": "ngram"}}})
    process = up(path)
    state = until(lambda: (state := read_state(port)) and state.address and state)
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 1
    assert "verifier.engine must not set speculative_config" in " ".join(output.split())
    nothing_is_left(state)
    logs = bringup.failure_logs(port)
    assert list(logs.glob("**/controller_*.log")), "the logs should outlive the failure"


def test_the_same_configuration_is_reused_another_one_is_refused(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config_file(tmp_path, port)
    loaded = load_config(path)
    myself = process_id(psutil.Process())
    state = FleetState(
        port,
        "127.0.0.1",
        "specfleet",
        str(path),
        bringup.config_sha256(loaded.config),
        str(tmp_path / "none"),
        processes=[myself],
        ready=True,
    )
    write_state(state)
    monkeypatch.setattr(bringup, "answers", lambda state: True)
    assert bringup._reuse_or_clear(loaded, print) == state
    other = dataclasses.replace(loaded, config=loaded.config.model_copy(update={"generalist": "code"}))
    with pytest.raises(bringup.BringUpError, match=f"specfleet down --port {port}"):
        bringup._reuse_or_clear(other, print)


def test_the_quickstart_can_be_moved_to_another_port(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    config["api"]["port"] = 8123
    assert load_config(write(tmp_path, config)).config.api.port == 8123
