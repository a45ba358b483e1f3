"""Comparing runs on a machine that is not always equally fast. Pure arithmetic.

Processors that share caches, memory and sometimes arithmetic units with others slow down and speed up for
seconds at a time. Two runs are comparable when each is measured against the same yardstick run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Run = TypeVar("Run")


def around(yardsticks: Sequence[float | None]) -> list[float]:
    """The yardstick's value at the time of every run.

    Args:
        yardsticks: per run in the order of time, what it showed if it was a yardstick run, else None.

    Returns:
        Per run the mean of the nearest yardstick before and the nearest after, itself included.

    Raises:
        ValueError: there is no yardstick run at all.
    """
    before = _last_known(yardsticks)
    after = list(reversed(_last_known(list(reversed(yardsticks)))))
    found = []
    for one, other in zip(before, after, strict=True):
        known = [value for value in (one, other) if value is not None]
        if not known:
            raise ValueError("there is no yardstick run to compare with")
        found.append(sum(known) / len(known))
    return found


class Yardsticks:
    """What yardstick runs of the same kind showed over a whole evaluation."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, bool], list[float]] = {}

    def add(self, rows: int, sampled: bool, seconds: Sequence[float | None]) -> None:
        """Take in the step times of some runs; None for those that were no yardsticks."""
        known = [value for value in seconds if value is not None]
        self._seconds.setdefault((rows, sampled), []).extend(known)

    @property
    def spread(self) -> float:
        """How many times longer the slowest took than the fastest, where that differs most; at least 1."""
        return max((max(one) / min(one) for one in self._seconds.values() if one), default=1.0)


def _last_known(values: Sequence[float | None]) -> list[float | None]:
    last: float | None = None
    found = []
    for value in values:
        last = value if value is not None else last
        found.append(last)
    return found


def interleave(runs: Sequence[Run], yardstick: Run, every: int) -> list[Run]:
    """The runs with a yardstick run before, after, and after each `every` of them."""
    found = [yardstick]
    for number, run in enumerate(runs, start=1):
        found.append(run)
        if number % every == 0 or number == len(runs):
            found.append(yardstick)
    return found
