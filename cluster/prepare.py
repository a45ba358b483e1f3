"""Getting models ready before anything starts, so that a start is not a download in disguise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cluster.config import FleetConfig
from deployments.models import ModelSourceError, ready_folder


class PrepareError(RuntimeError):
    """A model that could not be prepared or fetched; the text says why."""


def unprepared(config: FleetConfig) -> list[str]:
    """Sources of models that have to be converted or fetched before the first start."""
    base = Path(config.base_folder) if config.base_folder else None
    missing = []
    for source in config.model_sources():
        try:
            if ready_folder(source, base=base) is None:
                missing.append(source)
        except ModelSourceError:
            continue  # the checks have a better place to say it
    return missing


def prepare(config: FleetConfig, say: Callable[[str], None]) -> None:
    """Prepares all models that need it, one after another.

    In a process of its own: it takes seconds and a gigabyte of memory that the caller should not keep.

    Raises:
        PrepareError: a model could not be prepared.
    """
    for source in unprepared(config):
        say(f"preparing {source} (once)")
        command = [sys.executable, "-m", "deployments.models", source]
        if config.base_folder:
            command.append(config.base_folder)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise PrepareError(f"{source} could not be prepared: {reason[0]}")
