"""From flags and an assumptions file to assumptions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.planning.assumptions import Assumptions, load_assumptions
from cluster.planning.errors import PlanError
from cluster.planning.gpus import built_in, find_gpu
from cluster.planning.speculation import acceptance_from

#: The same as a draft's name in a configuration.
_NAME = re.compile(r"^[a-z0-9][a-z0-9_.-]{0,62}$")
#: An acceptance of 1 is not to be had; assumptions end below it.
_HIGHEST = 0.999
#: How the flags are called that set an assumption.
_FLAGS = {
    "load.concurrency": "--concurrency",
    "load.prompt_tokens": "--prompt-tokens",
    "load.answer_tokens": "--answer-tokens",
    "load.cached_share": "--cached-share",
    "memory.kv_precision": "--kv-precision",
    "speculation.acceptance": "--acceptance",
    "speculation.acceptance_of": "--acceptance",
    "speculation.share_of": "--share",
    "speculation.max_draft_tokens": "--max-draft-tokens",
    "gpus": "--price",
    "models": "--model-config",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """What flags say about assumptions and drafts, as they were written.

    Attributes:
        drafts: ``[NAME=]MODEL``.
        acceptance: ``[DRAFT=]RATE``.
        mean_lengths: ``[DRAFT=]LENGTH@K``, another way to say acceptance.
        shares: ``DRAFT=SHARE``.
        prices: ``TYPE=USD``.
        models: ``MODEL=CONFIG``.
        values: dotted name of an assumption -> its value; None leaves it alone.
    """

    drafts: Sequence[str]
    acceptance: Sequence[str]
    mean_lengths: Sequence[str]
    shares: Sequence[str]
    prices: Sequence[str]
    models: Sequence[str]
    values: Mapping[str, Any]

    def named_drafts(self) -> dict[str, str]:
        """Name -> model; a single draft without a name is called "draft".

        Raises:
            PlanError: a name twice, none, or one that a configuration could not use.
        """
        found: dict[str, str] = {}
        for number, text in enumerate(self.drafts, start=1):
            name, equals, model = text.partition("=")
            if not equals:
                name, model = "draft" if len(self.drafts) == 1 else f"draft{number}", text
            if not model or not _NAME.match(name) or name == "verifier":
                raise PlanError(f"--draft {text!r}", "write NAME=MODEL, the name in small letters and digits")
            if name in found:
                raise PlanError(f"--draft names {name!r} twice")
            found[name] = model
        return found


def assumptions_with(flags: Flags, file: Path | None) -> tuple[Assumptions, frozenset[str]]:
    """The assumptions of the file, or the defaults, with what flags say.

    Returns:
        The assumptions, and the dotted names of those that file or flags set on purpose.

    Raises:
        ConfigError: the file.
        PlanError: the flags.
    """
    start = load_assumptions(file) if file is not None else Assumptions()
    data = start.model_dump(exclude_unset=True)
    given = {f"{group}.{key}" for group, values in data.items() if isinstance(values, dict) for key in values}
    changes: dict[str, Any] = {key: value for key, value in flags.values.items() if value is not None}
    for text in flags.acceptance:
        name, value = _pair(text, "--acceptance", "[DRAFT=]RATE", bare=True)
        if name:
            changes.setdefault("speculation.acceptance_of", dict(start.speculation.acceptance_of))[name] = (
                value
            )
        else:
            changes["speculation.acceptance"] = value
    for text in flags.mean_lengths:
        length, at, k = text.rpartition("@")
        name, mean = _pair(length, "--mean-length", "[DRAFT=]LENGTH@K, such as code=1.47@4", bare=True)
        if not at or not k.isdecimal() or int(k) < 1:
            raise PlanError(f"--mean-length {text!r}", "write [DRAFT=]LENGTH@K, such as code=1.47@4")
        rate = min(acceptance_from(mean, int(k)), _HIGHEST)
        if name:
            changes.setdefault("speculation.acceptance_of", dict(start.speculation.acceptance_of))[name] = (
                rate
            )
        else:
            changes["speculation.acceptance"] = rate
    for text in flags.shares:
        name, value = _pair(text, "--share", "DRAFT=SHARE")
        changes.setdefault("speculation.share_of", dict(start.speculation.share_of))[name] = value
    for text in flags.prices:
        name, value = _pair(text, "--price", "TYPE=USD")
        known = {**built_in(), **{each: next(iter(built_in().values())) for each in start.gpus}}
        key = name if name in start.gpus else _type_name(name, known)
        gpus = data.setdefault("gpus", {})
        gpus[key] = {**gpus.get(key, {}), "price_per_hour": value}
    for text in flags.models:
        model, equals, config = text.partition("=")
        if not equals or not model or not config:
            raise PlanError(f"--model-config {text!r}", "write MODEL=CONFIG")
        data.setdefault("models", {})[model] = config
    for dotted, value in changes.items():
        group, key = dotted.split(".")
        data.setdefault(group, {})[key] = value
    try:
        return Assumptions.model_validate(data), frozenset(given | set(changes))
    except ValidationError as error:
        raise _explain(error) from error


def _type_name(name: str, known: Mapping[str, Any]) -> str:
    return find_gpu(name, known).name


def _pair(text: str, flag: str, form: str, *, bare: bool = False) -> tuple[str, float]:
    name, equals, number = text.rpartition("=")
    try:
        if not bare and not (equals and name):
            raise ValueError
        return name, float(number)
    except ValueError:
        raise PlanError(f"{flag} {text!r}", f"write {form}") from None


def _explain(error: ValidationError) -> PlanError:
    details = error.errors(include_url=False)[0]
    path = tuple(str(part) for part in details["loc"])
    flag = _FLAGS.get(".".join(path[:2])) or _FLAGS.get(path[0], ".".join(path))
    named = f" ({path[-1]})" if len(path) > 2 else ""
    message = details["msg"].lower().removeprefix("input ")
    return PlanError(f"{flag}{named}: {details.get('input')!r} {message}")
