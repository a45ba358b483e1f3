"""The configuration is the `args` of a Serve application: Ray's own commands deploy it, without ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.processes import MARKER, stop_processes
from cluster.serving import IMPORT_PATH
from tests.e2e.conftest import CHATS, MODEL, fleet_config, until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

PORT, HEAD_PORT, DASHBOARD_PORT = 8137, 6397, 8267
DASHBOARD = f"http://127.0.0.1:{DASHBOARD_PORT}"


def command(name: str, *arguments: str, environment: dict[str, str]) -> str:
    """Run one of Ray's commands."""
    ended = subprocess.run(
        [str(Path(sys.executable).with_name(name)), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture
def ray_head() -> Iterator[dict[str, str]]:
    """A Ray head as an operator starts it; the environment for its commands."""
    folder = Path(tempfile.mkdtemp(prefix="sfh-", dir="/tmp"))
    # Ray 2.60 protects a head by a token unless told otherwise, and its `serve` command does not pick it up.
    environment = {**os.environ, MARKER: str(folder), "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(folder)}
    command(
        *("ray", "start", "--head", "--port", str(HEAD_PORT), "--num-cpus", "8", "--disable-usage-stats"),
        *("--dashboard-port", str(DASHBOARD_PORT), "--temp-dir", str(folder)),
        environment=environment,
    )
    yield environment
    stop_processes(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_serve_deploy_takes_the_configuration_unchanged(ray_head: dict[str, str], tmp_path: Path) -> None:
    config = yaml.safe_load(fleet_config(tmp_path, verifier={"enforce_eager": True}).read_text())
    serve_config: dict[str, Any] = {
        "http_options": {"host": "127.0.0.1", "port": PORT},
        "applications": [{"name": "fleet", "route_prefix": "/", "import_path": IMPORT_PATH, "args": config}],
    }
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(serve_config))
    command("serve", "deploy", str(file), "--address", DASHBOARD, environment=ray_head)

    def status() -> str:
        shown = yaml.safe_load(command("serve", "status", "--address", DASHBOARD, environment=ray_head))
        return str(shown["applications"]["fleet"]["status"])

    until(lambda: status() not in ("NOT_STARTED", "DEPLOYING"), 420, every_s=5)
    assert status() == "RUNNING"
    body = {"model": MODEL, "messages": [{"role": "user", "content": CHATS["code"]}], "max_tokens": 32}

    def proposed() -> int:
        answer = httpx.post(f"http://127.0.0.1:{PORT}/v1/chat/completions", json=body, timeout=120)
        return int(answer.raise_for_status().json()["specfleet"]["proposed"])

    until(proposed, 60)
