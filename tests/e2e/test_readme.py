"""Every command of the README does what it says, on the running fleet."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from cluster.checks import check_fleet
from cluster.cli import app
from cluster.config import FleetConfig
from cluster.problems import errors
from tests.e2e.conftest import PORT, ROOT, Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The shell commands, one each, without their comments; a trailing quote joins lines as in the shell."""
    found: list[str] = []
    for block in blocks("bash"):
        pending = ""
        for line in block.splitlines():
            pending += line + "\n"
            if pending.count("'") % 2 == 0 and not line.endswith("\\"):
                found.append(re.sub(r"\s+#.*", "", pending).strip())
                pending = ""
        assert not pending
    return [command for command in found if command]


def on_the_test_fleet(command: str) -> str:
    """The command as it reads, but for the fleet that the tests run."""
    command = command.replace("127.0.0.1:8000", f"127.0.0.1:{PORT}")
    if re.match(r"specfleet (status|demo|chat)", command):
        command += f" --port {PORT}"
    if command.startswith("specfleet demo"):
        command += " --per-domain 1 --max-tokens 16"
    return command


def test_the_readme_has_commands() -> None:
    assert {"make run", "make stop", "specfleet status", "specfleet chat"} <= set(commands())


@pytest.mark.parametrize("command", commands())
def test_a_command_works(fleet: Fleet, command: str) -> None:
    if command.startswith("make "):
        # They would start a second fleet, or these tests again. What they run is tested here.
        subprocess.run(["make", "--dry-run", command.split()[1]], cwd=ROOT, check=True, capture_output=True)
        return
    if command.startswith(("specfleet evaluate", "specfleet distill")):
        # They take minutes, and run whole in tests of their own. Here: is this what they understand?
        _, name, *arguments = command.split()
        get_command(app).commands[name].make_context(name, arguments)  # type: ignore[attr-defined]
        return
    ended = subprocess.run(
        ["bash", "-c", on_the_test_fleet(command)],
        cwd=ROOT,
        input="Say hello.\n",  # for the chat, which ends with its input
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(Path.home()), "TERM": "dumb"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if command.startswith("curl"):
        assert json.loads(ended.stdout)["specfleet"]["domain"] == "code"


@pytest.mark.parametrize("block", blocks("yaml"))
def test_an_example_configuration_is_valid(block: str) -> None:
    assert errors(check_fleet(FleetConfig.model_validate(yaml.safe_load(block)))) == []


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README


def test_the_files_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
