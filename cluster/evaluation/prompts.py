"""The prompts of each domain: the user's own files, or the examples in the configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.config import FleetConfig
from cluster.evaluation.candidates import EvaluationError


@dataclass(frozen=True, slots=True)
class DomainPrompts:
    """What is asked in one domain.

    Attributes:
        prompts: the texts, in the order in which they are used.
        origin: where they come from, for people.
        own: whether they are the user's own and not the configuration's examples.
    """

    prompts: list[str]
    origin: str
    own: bool


def read_prompts(config: FleetConfig, files: Sequence[str]) -> dict[str, DomainPrompts]:
    """The prompts of every domain.

    Args:
        config: the fleet.
        files: each `DOMAIN=FILE.jsonl`, one JSON object with a `prompt` on each line.

    Raises:
        EvaluationError: a file or one of its lines cannot be used; a domain has no prompts at all.
    """
    own: dict[str, DomainPrompts] = {}
    for text in files:
        domain, equals, file = text.partition("=")
        if not equals or not file:
            raise EvaluationError(f"--prompts {text}: write DOMAIN=FILE.jsonl, e.g. code=my_prompts.jsonl")
        if domain not in config.domains:
            raise EvaluationError(
                f"--prompts {text}: there is no domain {domain!r}; "
                f"the domains are {', '.join(config.domains)}"
            )
        own[domain] = DomainPrompts(_read(Path(file)), Path(file).name, True)
    found: dict[str, DomainPrompts] = {}
    for domain, settings in config.domains.items():
        if domain in own:
            found[domain] = own[domain]
        elif settings.examples:
            found[domain] = DomainPrompts(list(settings.examples), "examples in the configuration", False)
        else:
            raise EvaluationError(
                f"domain {domain!r} has no examples in the configuration: give --prompts {domain}=FILE.jsonl"
            )
    return found


def spread(prompts: Sequence[str], count: int) -> list[str]:
    """So many of the prompts, from all over the list; all of them where there are fewer."""
    if len(prompts) <= count:
        return list(prompts)
    return [prompts[place * len(prompts) // count] for place in range(count)]


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{path} cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise EvaluationError(f"{path}, line {number} is not JSON: {error}") from error
        prompt = entry.get("prompt") if isinstance(entry, Mapping) else None
        if not isinstance(prompt, str) or not prompt.strip():
            raise EvaluationError(f'{path}, line {number}: write {{"prompt": "..."}} on every line')
        prompts.append(prompt)
    if not prompts:
        raise EvaluationError(f'{path} is empty: write {{"prompt": "..."}} on every line')
    return prompts
