"""What is wrong with a configuration, said so that a person can mend it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding.

    Attributes:
        where: the dotted path of the key, or empty for the file as a whole.
        what: what is wrong.
        todo: what to do about it; may be empty when `what` says it all.
        line: the line in the file, counted from 1, if it is known.
        severity: an error stops a start, a warning does not.
    """

    where: str
    what: str
    todo: str = ""
    line: int | None = None
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        subject = f"{self.where}: " if self.where else ""
        advice = f" ({self.todo})" if self.todo else ""
        return f"{place}{subject}{self.what}{advice}"


class ConfigError(ValueError):
    """A configuration that cannot be used; holds every problem found, not only the first."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__(f"{source}: " + "; ".join(str(problem) for problem in self.problems))


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Those that stop a start."""
    return [problem for problem in problems if problem.severity == "error"]
