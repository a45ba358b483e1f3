"""Whether a drafter is worth waiting for: up, late or down, judged by its answers alone."""

from __future__ import annotations

from typing import Literal

from deployments.link.settings import LinkSettings

State = Literal["up", "late", "down"]
_MAX_DOUBLINGS = 16


class Health:
    """The record of one drafter. Pure: every method is given the time (monotonic seconds).

    One that missed a deadline is late: it is probed with growing pauses and nobody waits for it until it
    answers. After several misses in a row an answer is not enough: the pause before the next wait doubles
    too, so that one that is always a little slow costs a deadline per `probe_longest_ms`, not per step.
    """

    def __init__(self, settings: LinkSettings) -> None:
        self._first = settings.probe_first_ms / 1000
        self._longest = settings.probe_longest_ms / 1000
        self._state: State = "up"
        self._misses = 0
        self._answered = False
        self._resume_at = 0.0
        self._probes = 0
        self._probe_at = 0.0

    def state(self, now: float) -> State:
        """Up: ask and wait. Late: probe, do not wait. Down: as late, and nobody should be sent here."""
        if self._state == "late" and self._answered and now >= self._resume_at:
            self._state = "up"
        return self._state

    def probe_due(self, now: float) -> bool:
        """Whether the pause since the last probe is over (for one that is late or down)."""
        return now >= self._probe_at

    def probed(self, now: float) -> None:
        """Book a message to a late or down drafter."""
        self._probe_at = now + self._pause(self._probes)
        self._probes = min(self._probes + 1, _MAX_DOUBLINGS)

    def answered(self, now: float, *, in_time: bool) -> None:
        """Book an answer; `in_time` if a step waited for it and got it."""
        if in_time:
            self._misses //= 2
        if self._state == "down":
            self._state = "late"
        self._answered = True
        self._probes = 0
        self.state(now)

    def missed(self, now: float) -> None:
        """Book a deadline that passed in vain, or an answer that made no sense."""
        self._state = "late" if self._state != "down" else "down"
        self._misses = min(self._misses + 1, _MAX_DOUBLINGS)
        self._answered = False
        self._resume_at = now + (self._pause(self._misses - 2) if self._misses > 1 else 0.0)
        self._probes = 0
        self.probed(now)

    def lost(self, now: float) -> None:
        """Book that it is silent, unreachable or refuses: down until the next answer."""
        if self._state != "down":
            self._state = "down"
            self._answered = False
            self._probes = 0
            self.probed(now)

    def connected(self, now: float) -> None:
        """Book a new connection: only a drafter whose thread runs completes a handshake."""
        if self._state == "down":
            self.answered(now, in_time=False)

    def _pause(self, doublings: int) -> float:
        return min(self._longest, self._first * 2.0**doublings)
