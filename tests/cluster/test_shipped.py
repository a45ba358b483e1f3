"""The files that ship with the project fit together."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cluster.checks import check_fleet, check_machine
from cluster.loader import load_config
from cluster.problems import errors

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
LOCK = ROOT / "configs" / "environment" / "cpu.lock.txt"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_configuration_is_right(path: Path) -> None:
    loaded = load_config(path)
    assert errors(check_fleet(loaded.config)) == []
    # Two of them name GPUs and models that only the hub has; that may warn, but nothing may be wrong.
    wrong = errors(check_machine(loaded.config))
    assert wrong == [], [str(problem) for problem in wrong]


def test_the_quickstart_is_there() -> None:
    assert ROOT / "configs" / "quickstart.yaml" in CONFIGS


def test_the_lock_has_what_the_project_asks_for() -> None:
    locked = {}
    for line in LOCK.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            locked[name.lower().replace("_", "-")] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["cpu"], *extras["dev"]]:
        requirement = Requirement(text)
        version = locked.get(requirement.name.lower())
        assert version is not None, f"{requirement.name} is not in the lock"
        assert requirement.specifier.contains(version.split("+")[0]), f"{text} against {version}"


@pytest.mark.parametrize("left_out", ["torchvision", "torchaudio", "torchcodec", "llama-cpp-python", "vllm"])
def test_the_lock_leaves_out_what_breaks(left_out: str) -> None:
    names = {line.partition("==")[0] for line in LOCK.read_text().splitlines()}
    assert left_out not in names
