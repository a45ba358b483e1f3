"""Whatever ends an evaluation, nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster.config import FleetConfig
from cluster.evaluation.workspace import workspace
from tests.cluster.configs import small

pytestmark = pytest.mark.process

SLEEP = [sys.executable, "-c", "import time; print('hello', flush=True); time.sleep(600)"]


def test_processes_folder_and_environment_are_gone_after_an_interrupt() -> None:
    config = FleetConfig.model_validate(small())
    before = dict(os.environ)
    interrupted = False
    try:
        with workspace(config) as place:
            folder, log = Path(place.environment["SPECFLEET_FOLDER"]), Path(place.log.name)
            child = subprocess.Popen(SLEEP, start_new_session=True)  # what a plain Ctrl-C would not reach
            assert folder.exists()
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    assert not psutil.pid_exists(child.pid)
    assert not folder.exists()
    assert not log.exists()
    assert dict(os.environ) == before


def test_after_an_error_the_words_of_its_processes_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    config = FleetConfig.model_validate(small())
    log = Path("never set")
    with contextlib.suppress(RuntimeError), workspace(config) as place:
        log = Path(place.log.name)
        subprocess.run([sys.executable, "-c", "print('its last words')"], timeout=60, check=True)
        print("for people", file=place.terminal)
        raise RuntimeError
    assert "its last words" in log.read_text()
    log.unlink()
    os.write(1, b"again\n")
    assert capfd.readouterr().out == "for people\nagain\n"
