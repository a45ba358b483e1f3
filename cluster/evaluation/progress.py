"""How far an evaluation is and how long it will take: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

#: What share of the whole each part takes, by experience.
_SHARES: Final = {
    "starting the verifier and the drafters": 0.15,
    "the verifier writes answers": 0.10,
    "the candidates read them": 0.05,
    "learning what steps cost": 0.20,
    "measuring": 0.50,
}
#: Before so much is done, how long it takes is not known.
_LEAST_DONE: Final = 0.1
#: Seconds between two lines where there is no terminal.
_LINE_EVERY_S: Final = 20.0


class TerminalProgress:
    """Shows one bar over all parts.

    Args:
        terminal: where to show it.
        budget_s: seconds that it takes at most, if that is known.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        terminal: IO[str],
        *,
        budget_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = Console(file=terminal)
        self._clock = clock
        self._budget_s = budget_s
        self._began = clock()
        self._stage = ""
        self._before = 0.0
        self._told_at = -_LINE_EVERY_S
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.percentage:3.0f}% {task.fields[left]}"),
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._bar.add_task("", total=1.0, left="")
            self._bar.start()

    def stage(self, name: str) -> None:
        """Another part begins."""
        self._before += _SHARES.get(self._stage, 0.0)
        self._stage = name
        self._told_at = -_LINE_EVERY_S  # a new part is always told
        self._show(self._before, "")

    def step(self, done: float, what: str = "") -> None:
        """So much of the part is done, 0 to 1."""
        self._show(self._before + min(max(done, 0.0), 1.0) * _SHARES.get(self._stage, 0.0), what)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def left_s(self, done: float) -> float | None:
        """Seconds that are left when so much of the whole is done; None while nobody can say."""
        passed = self._clock() - self._began
        if done < _LEAST_DONE:
            return None
        left = passed * (1.0 - done) / done
        if self._budget_s is not None:
            left = min(left, max(0.0, self._budget_s - passed))
        return left

    def _show(self, done: float, what: str) -> None:
        left = self.left_s(done)
        text = "" if left is None else f"about {_time(left)} left"
        words = f"{self._stage}: {what}" if what else self._stage
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=words, left=text)
            return
        now = self._clock() - self._began
        if now - self._told_at >= _LINE_EVERY_S or not what:
            self._told_at = now
            self._console.print(f"{now:5.0f} s  {words}  {text}".rstrip(), highlight=False, soft_wrap=True)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
