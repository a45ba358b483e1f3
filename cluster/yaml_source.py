"""YAML with its positions: every key knows its line, and a key written twice is an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cluster.problems import ConfigError, Problem

#: A configuration is a few pages; anything larger is a mistake such as a data file given by name.
MAX_BYTES = 4 * 2**20

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class YamlSource:
    """A parsed YAML file.

    Attributes:
        data: the document, plain Python values.
        lines: key path -> line number, counted from 1.
        problems: keys that were written twice.
    """

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: KeyPath) -> int | None:
        """The line of a key, or of its nearest parent when the key itself is not in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def read_yaml(path: Path) -> YamlSource:
    """Reads one YAML document.

    Raises:
        ConfigError: the file is missing, unreadable or too large, or no valid YAML (with its line).
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(
                str(path), [Problem("", f"larger than {MAX_BYTES >> 20} MiB: not a configuration")]
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), [Problem("", f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [Problem("", "is not UTF-8 text")]) from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(str(path), [_syntax_problem(error)]) from error
    source = YamlSource(data)
    if node is not None:
        for key_path, line, repeated in _walk(node, (), frozenset()):
            if repeated:
                todo = f"it stands in line {source.lines[key_path]} already; keep one of them"
                source.problems.append(Problem(dotted(key_path), "written twice", todo, line))
            else:
                source.lines[key_path] = line
    return source


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``drafts.code.model``, ``nodes[0].gpus``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def parse_path(where: str) -> KeyPath:
    """The key path behind what `dotted` wrote, names with dots in them apart."""
    parts: list[str | int] = []
    for part in where.split("."):
        name, *indices = part.split("[")
        parts.append(name)
        parts += [int(index.rstrip("]")) for index in indices]
    return tuple(parts)


def _syntax_problem(error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error)
    if mark is None:
        return Problem("", f"not valid YAML: {what}")
    context = getattr(error, "context", None)
    column = f"column {mark.column + 1}: "
    detail = f" {context}" if context else ""
    return Problem(
        "", f"{column}not valid YAML: {what}{detail}", "check indentation and quotes", mark.line + 1
    )


def _walk(node: yaml.Node, path: KeyPath, above: frozenset[int]) -> Iterator[tuple[KeyPath, int, bool]]:
    """Yields every key and list item with its line and whether its mapping had that key before."""
    if id(node) in above:  # an anchor that contains itself
        return
    above |= {id(node)}
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            yield (*path, name), key.start_mark.line + 1, name in seen
            if name not in seen:
                seen.add(name)
                yield from _walk(value, (*path, name), above)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line + 1, False
            yield from _walk(item, (*path, index), above)
