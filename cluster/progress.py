"""Showing how a start goes: a live table on a terminal, one line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cluster.bringup import EXTRA_START_S, BringUpError
from cluster.config import FleetConfig
from cluster.serving import FleetProgress


class StartProgress:
    """Waits for a deployed fleet and shows which part is how far.

    Args:
        console: where to show it.
        clock: seconds, monotonic.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._begun = clock()
        self._since: dict[str, float] = {}
        self._ready_after: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Shows one step of the start with the seconds passed so far."""
        self._console.print(f"[dim]{self._elapsed():5.1f} s[/]  {text}", highlight=False)

    def watch(self, config: FleetConfig, looks: Iterator[FleetProgress]) -> None:
        """Returns once everything runs.

        Args:
            config: what is starting.
            looks: how far it is, again and again.

        Raises:
            BringUpError: a part failed for a clear reason, or the time is up.
        """
        limit = self._clock() + config.verifier.start_timeout_s + EXTRA_START_S
        if self._console.is_terminal:
            with Live(console=self._console, transient=True, refresh_per_second=4) as live:
                self._wait(looks, limit, lambda now: live.update(self._table(now)))
        else:
            self._wait(looks, limit, lambda now: None)

    def _wait(
        self, looks: Iterator[FleetProgress], limit: float, show: Callable[[FleetProgress], None]
    ) -> None:
        for now in looks:
            self._note(now)
            show(now)
            if now.ready:
                return
            if now.failure is not None:
                raise BringUpError(now.failure)
            if self._clock() > limit:
                waiting = ", ".join(each.name for each in now.deployments if not each.healthy) or now.status
                raise BringUpError(f"not ready in time; still waiting for: {waiting}")

    def _note(self, now: FleetProgress) -> None:
        for deployment in now.deployments:
            self._since.setdefault(deployment.name, self._clock())
            if deployment.healthy and deployment.name not in self._ready_after:
                self._ready_after[deployment.name] = self._elapsed()
                self.say(f"{deployment.name} is ready")

    def _table(self, now: FleetProgress) -> Table:
        table = Table.grid(padding=(0, 2))
        for deployment in now.deployments:
            done = deployment.healthy
            mark = Text("ready", "green") if done else Text("starting", "yellow")
            seconds = self._ready_after[deployment.name] if done else self._elapsed()
            table.add_row(deployment.name, mark, f"{seconds:.0f} s")
        if not now.deployments:
            table.add_row("the application", Text("being built", "yellow"), f"{self._elapsed():.0f} s")
        return table

    def _elapsed(self) -> float:
        return self._clock() - self._begun
