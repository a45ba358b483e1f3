"""A drafter as an ordinary process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.drafter.conftest import PADDED

pytestmark = pytest.mark.process

PATIENCE_S = 60.0


@contextmanager
def drafter(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "deployments.drafter.main", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    answer: dict[str, object] = json.loads(line)
    return answer


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "stdin"])
def test_it_says_where_it_is_and_ends_when_told(tiny_llama: Path, verifier: Path, way: str) -> None:
    with drafter("--draft", str(tiny_llama), "--verifier", str(verifier)) as process:
        answer = ready(process)
        assert answer["pid"] == process.pid
        assert str(answer["address"]).startswith("tcp://127.0.0.1:")
        if way == "stdin":
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        else:
            process.send_signal(getattr(signal, way))
        assert process.wait(PATIENCE_S) == 0


def test_a_draft_that_cannot_be_loaded_is_an_error_for_people(tmp_path: Path, verifier: Path) -> None:
    with drafter("--draft", str(tmp_path), "--verifier", str(verifier)) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
        assert "error:" in errors
        assert "neither a draft" in errors
        assert "Traceback" not in errors


def test_it_starts_without_the_heavy_libraries() -> None:
    """Llama-family drafts need neither transformers nor Ray nor vLLM: they take seconds to import."""
    code = (
        "import sys, deployments.drafter.build, deployments.drafter.main, deployments.drafter.announce;"
        "print([m for m in ('transformers', 'ray', 'vllm', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.strip() == "[]"
    assert PADDED
