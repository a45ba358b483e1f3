"""The configuration that follows from an evaluation, as YAML that `specfleet check` accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster.config import FleetConfig
from cluster.evaluation.advice import Choice
from cluster.evaluation.candidates import Candidate
from deployments.models import ModelSourceError, locate_model


def changes(config: FleetConfig, choice: Choice, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The keys that follow from a choice; example prompts are left out, they stay as they are."""
    wanted = {choice.generalist, *choice.drafts.values()}
    given = config.model_dump(mode="json", exclude_unset=True)
    drafts = {
        candidate.name: given["drafts"].get(candidate.name) or _settings(candidate)
        for candidate in candidates
        if candidate.name in wanted
    }
    return {
        "drafts": drafts,
        "domains": {domain: {"draft": draft} for domain, draft in choice.drafts.items()},
        "generalist": choice.generalist,
        "speculation": {"max_draft_tokens": choice.max_draft_tokens},
    }


def whole(config: FleetConfig, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with those keys changed and everything else as it was."""
    data = config.model_dump(mode="json", exclude_unset=True)
    base = Path(config.base_folder) if config.base_folder else None
    data.pop("base_folder", None)  # the folder of whatever file this is written to
    data["verifier"]["model"] = _lasting(data["verifier"]["model"], base)
    data["drafts"] = {
        name: {**settings, "model": _lasting(settings["model"], base)}
        for name, settings in changed["drafts"].items()
    }
    for domain, settings in changed["domains"].items():
        data["domains"][domain] = {**settings, "examples": data["domains"][domain].get("examples", [])}
    data["generalist"] = changed["generalist"]
    data["speculation"] = {**data.get("speculation", {}), **changed["speculation"]}
    return data


def as_yaml(data: Mapping[str, Any]) -> str:
    """YAML in the order of the data, for people."""
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=100)


def _settings(candidate: Candidate) -> dict[str, Any]:
    assert candidate.settings is not None
    return candidate.settings.model_dump(mode="json", exclude_unset=True)


def _lasting(source: str, base: Path | None) -> str:
    """A source that means the same from whatever folder the file lies in."""
    try:
        if locate_model(source).kind != "hub":
            return source
    except ModelSourceError:
        pass
    try:
        location = locate_model(source, base=base)
    except ModelSourceError:
        return source
    return str(location.path) if location.kind == "folder" else source
