"""Showing how a distillation goes: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.status import Status

#: Seconds between two lines of the same part, where lines cannot be overwritten.
_EVERY_S = 15.0


class DistillProgress:
    """Shows what is being done, how far it is and how long it will take.

    Args:
        console: where to show it.
        clock: seconds, monotonic.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._begun = clock()
        self._part = ""
        self._part_begun = 0.0
        self._part_start = 0.0
        self._printed = -_EVERY_S
        self._status: Status | None = None

    def report(self, part: str, done: float, total: float, remark: str) -> None:
        """Take note of progress; see `deployments.distillation.progress.Report`."""
        now = self._clock()
        new = part != self._part
        if new:
            # What was done before this run took no time now: the rate counts from the first report.
            self._part, self._part_begun, self._part_start = part, now, done
        line = self._line(part, done, total, remark, now)
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status(line)
                self._status.start()
            self._status.update(line)
            if new or done >= total:
                self._console.print(line, highlight=False)
        elif new or done >= total or now - self._printed >= _EVERY_S:
            self._printed = now
            self._console.print(line, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the changing line away. May be called twice."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _line(self, part: str, done: float, total: float, remark: str, now: float) -> str:
        far = f" {done:,.0f} of {total:,.0f}" if total > 1 else ""
        left = ""
        gained = done - self._part_start
        if gained > 0 and done < total:
            seconds = (now - self._part_begun) / gained * (total - done)
            left = f", {duration(seconds)} left"
        said = f": {escape(remark)}" if remark else ""
        return f"[dim]{duration(now - self._begun):>8}[/]  {part}{far}{left}{said}"


def duration(seconds: float) -> str:
    """Seconds for people: 42 s, 3 min, 2 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
