"""Real drafter processes, as `python -m deployments.drafter.main` runs them."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 180


class DrafterProcess:
    """One draft in its own process."""

    def __init__(
        self, name: str, draft: Path, verifier: Path, keys: Sequence[str], cores: Sequence[int] = (1,)
    ):
        self.name = name
        admit = [part for key in keys for part in ("--admit", key)]
        pin = ["--cpu-cores", *map(str, cores)] if cores else []
        command = [sys.executable, "-m", "deployments.drafter.main", "--draft", str(draft)]
        self.process = subprocess.Popen(
            [*command, "--verifier", str(verifier), *pin, *admit],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def wait(self) -> DrafterProcess:
        """Until it is ready.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.stop()
            raise RuntimeError(f"drafter {self.name} did not start")
        self.ready = json.loads(line)
        return self

    @property
    def peer(self) -> dict[str, str]:
        """This drafter as the registry would announce it."""
        return {
            "draft": self.name,
            "replica": f"{self.name}-{self.process.pid}",
            "address": self.ready["address"],
            "public_key": self.ready["public_key"],
        }

    def stop(self) -> None:
        """End it, by force if it does not listen."""
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=15)
