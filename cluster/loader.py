"""From a file to a `FleetConfig`, with every error in it named at once."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cluster.config import OF_DRAFTS, FleetConfig
from cluster.problems import ConfigError, Problem
from cluster.yaml_source import KeyPath, YamlSource, dotted, parse_path, read_yaml

#: The application builder of a fleet, as a Serve configuration file names it.
IMPORT_PATH = "cluster.app:build"


@dataclass(frozen=True)
class LoadedConfig:
    """A valid configuration and where each of its keys came from.

    Attributes:
        path: the file.
        config: what it says.
        source: the YAML behind it.
        prefix: where in the file the fleet's own keys begin; not empty for a Serve configuration file.
    """

    path: Path
    config: FleetConfig
    source: YamlSource
    prefix: KeyPath = ()

    def line_of(self, *path: str | int) -> int | None:
        """The line of one of the fleet's keys."""
        return self.source.line_of((*self.prefix, *path))

    def line_at(self, where: str) -> int | None:
        """The line of one of the fleet's keys, given as people write it."""
        return self.source.line_of((*self.prefix, *parse_path(where))) if where else None


def load_config(path: Path | str) -> LoadedConfig:
    """Reads a fleet's YAML file, or a Serve configuration file that deploys one fleet.

    Raises:
        ConfigError: with all problems found: unreadable, bad YAML, unknown keys, wrong or missing values.
    """
    path = Path(path)
    source = read_yaml(path)
    data, prefix = _fleet_part(path, source)
    problems = list(source.problems)
    config: FleetConfig | None = None
    try:
        config = FleetConfig.model_validate(data)
    except ValidationError as error:
        problems += [_explain(details, source, prefix) for details in error.errors(include_url=False)]
    problems += _missing(data)
    if problems or config is None:
        raise ConfigError(str(path), sorted(problems, key=lambda problem: problem.line or 0))
    if config.base_folder is None:
        config = config.model_copy(update={"base_folder": str(path.resolve().parent)})
    return LoadedConfig(path, config, source, prefix)


def _missing(data: Mapping[str, Any]) -> list[Problem]:
    """What a fleet with drafts has to say; one whose verifier has a way of vLLM's own does without."""
    verifier = data.get("verifier")
    if isinstance(verifier, Mapping) and verifier.get("proposer") is not None:
        return []
    missing = [key for key in OF_DRAFTS if key not in data]
    return [Problem(key, "required and missing", _description((key,))) for key in missing]


def _fleet_part(path: Path, source: YamlSource) -> tuple[Mapping[str, Any], KeyPath]:
    """The mapping that describes the fleet, and where it lies in the file."""
    data = source.data
    if data is None:
        raise ConfigError(str(path), [Problem("", "is empty", "start from configs/quickstart.yaml")])
    if not isinstance(data, Mapping):
        raise ConfigError(
            str(path), [Problem("", f"holds a {type(data).__name__}, not a mapping of settings")]
        )
    if "applications" not in data:
        return data, ()
    applications = data["applications"]
    if not isinstance(applications, list) or len(applications) != 1:
        raise ConfigError(
            str(path), [Problem("applications", "has to hold exactly one application: the fleet")]
        )
    application = applications[0]
    import_path = application.get("import_path") if isinstance(application, Mapping) else None
    if import_path != IMPORT_PATH:
        raise ConfigError(
            str(path),
            [Problem("applications[0].import_path", f"is {import_path!r}", f"a fleet's is {IMPORT_PATH}")],
        )
    return application.get("args") or {}, ("applications", 0, "args")


def _explain(details: ErrorDetails, source: YamlSource, prefix: KeyPath) -> Problem:
    path: KeyPath = tuple(details["loc"])
    line = source.line_of((*prefix, *path))
    where = dotted(path)
    match details["type"]:
        case "extra_forbidden":
            return Problem(where, "unknown key", _suggest(path), line)
        case "missing":
            description = _description(path)
            return Problem(where, "required and missing", description, line)
        case _:
            given = details.get("input")
            shown = f", not {given!r}" if isinstance(given, str | int | float | bool) else ""
            message = details["msg"].removeprefix("Value error, ")
            if repr(given) in message:
                shown = ""  # said already
            return Problem(where, message[:1].lower() + message[1:] + shown, _description(path), line)


def _suggest(path: KeyPath) -> str:
    known = sorted(_fields_at(path[:-1]))
    close = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known keys here: " + ", ".join(known)


def _description(path: KeyPath) -> str:
    field = _fields_at(path[:-1]).get(str(path[-1])) if path else None
    return (field.description or "").rstrip(".") if field is not None else ""


def _fields_at(path: KeyPath) -> dict[str, Any]:
    """The fields of the settings object that a key path leads to; empty where there is none."""
    current: Any = FleetConfig
    for part in path:
        current = _step(current, part)
    current = _unwrap(current)
    return dict(current.model_fields) if _is_model(current) else {}


def _step(annotation: Any, part: str | int) -> Any:
    annotation = _unwrap(annotation)
    if _is_model(annotation):
        field = annotation.model_fields.get(str(part))
        return field.annotation if field is not None else None
    arguments = get_args(annotation)
    return arguments[-1] if arguments and get_origin(annotation) in (dict, list) else None


def _unwrap(annotation: Any) -> Any:
    """Takes ``X | None`` and ``Annotated[X, ...]`` down to X."""
    while True:
        origin = get_origin(annotation)
        if origin is typing.Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (types.UnionType, typing.Union):
            annotation = next((each for each in get_args(annotation) if each is not types.NoneType), None)
        else:
            return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
