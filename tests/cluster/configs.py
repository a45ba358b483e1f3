"""Configurations for tests, small and right unless a test makes them wrong."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from tests.models.checkpoints import checkpoint, content, train_bpe

EXAMPLES = {
    "code": [f"Write function number {number} in Python" for number in range(20)],
    "general": [f"Tell me story number {number}" for number in range(20)],
}


def small() -> dict[str, Any]:
    """One verifier, two drafts, two domains, for a machine with one core or more."""
    return {
        "verifier": {"model": "./models/verifier", "name": "tiny", "num_cpus": 0.2},
        "drafts": {
            "code": {"model": "./models/code", "num_cpus": 0.1},
            "general": {"model": "./models/general", "num_cpus": 0.1},
        },
        "domains": {name: {"draft": name, "examples": list(texts)} for name, texts in EXAMPLES.items()},
        "generalist": "general",
    }


def write(folder: Path, config: dict[str, Any] | str, name: str = "fleet.yaml") -> Path:
    """Writes a configuration as a YAML file."""
    path = folder / name
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config, sort_keys=False))
    return path


def make_models(folder: Path) -> None:
    """Makes the model folders that `small` names, as far as they are checked before loading."""
    tokenizer = content(train_bpe())
    for name in ("verifier", "code", "general"):
        checkpoint(folder / "models" / name, copy.deepcopy(tokenizer))
