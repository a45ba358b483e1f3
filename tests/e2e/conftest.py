"""A whole fleet on this machine, started and stopped by the product's own commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
PORT = 8127
START_TIMEOUT_S = 420
MODEL = "SmolLM2-135M-Instruct"

CHATS = {
    "code": "Write a Python function that reverses the words of a sentence.",
    "medical": "What are the symptoms of an iron deficiency?",
    "finance": "How do I get a new card if I have lost mine?",
    "general": "Write a short birthday greeting for my grandmother.",
}


def specfleet(*arguments: str, timeout: float = START_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("specfleet")), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        check=False,
    )


class Fleet:
    """The running fleet and the ways to look at it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=120)
        self.client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120, max_retries=0)

    def status(self) -> dict[str, Any]:
        """What `specfleet status --json` shows."""
        answer = self.http.get("/specfleet/status")
        answer.raise_for_status()
        return dict(answer.json())

    def drafter_pid(self, draft: str) -> int | None:
        """Process of a draft's ready replica."""
        for drafter in self.status()["drafters"]:
            if drafter["name"] == draft:
                for replica in drafter["replicas"]:
                    if replica["state"] == "ready":
                        return int(replica["pid"])
        return None

    def sessions(self) -> int:
        """Draft sessions that are open in the whole fleet."""
        return sum(int(drafter["sessions"]) for drafter in self.status()["drafters"])

    def chat(self, prompt: str, *, draft: str | None = None, domain: str | None = None, **more: Any) -> Any:
        """One chat completion, greedy unless told otherwise."""
        headers = {"x-specfleet-draft": draft, "x-specfleet-domain": domain}
        arguments: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": 48,
            "extra_headers": {name: value for name, value in headers.items() if value},
            **more,
        }
        return self.client.chat.completions.create(**arguments)


def until(what: Callable[[], Any], timeout_s: float = 60, every_s: float = 0.5) -> Any:
    """Wait for something to become true; its value.

    Raises:
        AssertionError: it did not in time.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := what()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout_s} s: {what}")
        time.sleep(every_s)
    return value


def left_behind(marker: str) -> list[str]:
    """Command lines of processes that belong to a fleet whose temporary folder is `marker`."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        command = " ".join(process.info["cmdline"] or [])
        environment = " ".join(f"{k}={v}" for k, v in (process.info["environ"] or {}).items())
        if marker in command or marker in environment:
            found.append(f"{process.pid} {command[:200]}")
    return found


def fleet_config(folder: Path, **changes: Any) -> Path:
    """The quickstart on another port, with changes on top."""
    config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    config["api"]["port"] = PORT
    for draft in config["drafts"].values():
        if not draft["model"].startswith("package:"):
            draft["model"] = str(ROOT / draft["model"])
    for section, values in changes.items():
        config.setdefault(section, {}).update(values)
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="package")  # ends before engines of other tests start: together they starve
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if not (ROOT / "configs" / "drafts" / "general" / "model.safetensors").exists():
        pytest.skip("the shipped draft weights are not there")
    folder = tmp_path_factory.mktemp("fleet")
    config = fleet_config(
        folder,
        # Compiled graphs take a minute to make; what is tested here is the same without them.
        # The model was not trained to call tools; where the request forces a call it must come out right.
        verifier={"enforce_eager": True, "tool_call_parser": "hermes"},
        # Tests share the machine with whatever else runs: a late proposal is not what they look for.
        link={"step_deadline_ms": 400},
    )
    started = specfleet("up", str(config))
    assert started.returncode == 0, started.stdout[-4000:] + started.stderr[-4000:]
    running = Fleet(f"http://127.0.0.1:{PORT}")
    names = ["general", "code", "medical", "finance"]
    until(lambda: all(running.drafter_pid(name) for name in names), 120)
    # Proposals flow once verifier and drafters have heard of each other.
    until(lambda: running.chat("Hello", draft="general").model_extra["specfleet"]["proposed"], 60)
    yield running
    if os.environ.get("SPECFLEET_E2E_KEEP"):  # for working on a test: the next run finds the fleet up
        return
    state = json.loads((_state_folder() / f"{PORT}.json").read_text())
    stopped = specfleet("down", "--port", str(PORT))
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    until(lambda: not left_behind(state["folder"]), 20)
    assert not Path(state["folder"]).exists()


def _state_folder() -> Path:
    root = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(root).expanduser() / "specfleet"


def end(pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that the fleet under test started."""
    os.kill(pid, how)
