"""The verifier's last steps with their times, for measuring; bounded, and cheap enough to stay on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

#: Steps that are remembered until somebody takes them.
KEPT: Final = 4096


@dataclass(slots=True)
class StepRecord:
    """One step.

    Attributes:
        rows: requests that wrote tokens.
        decoding: whether every row decoded; prompts make a step longer than its rows say.
        proposed: tokens that the verifier had to judge.
        written: tokens that came out.
        asked: longest proposal asked for after this step, in tokens; 0 when nobody was asked.
        waited_s: seconds that the engine then waited for proposals.
        total_s: seconds from its begin to the next step's; 0.0 until that one begins.
    """

    rows: int = 0
    decoding: bool = False
    proposed: int = 0
    written: int = 0
    asked: int = 0
    waited_s: float = 0.0
    total_s: float = 0.0

    def plain(self) -> list[float]:
        """The fields in their order, as plain numbers for the way out of the worker."""
        return [
            float(self.rows),
            float(self.decoding),
            float(self.proposed),
            float(self.written),
            float(self.asked),
            self.waited_s,
            self.total_s,
        ]

    @classmethod
    def read(cls, numbers: list[float]) -> StepRecord:
        """What `plain` wrote."""
        rows, decoding, proposed, written, asked, waited_s, total_s = numbers
        return cls(int(rows), bool(decoding), int(proposed), int(written), int(asked), waited_s, total_s)


class StepLog:
    """Filled by the proposer, one record a step; the oldest go when nobody takes them."""

    def __init__(self) -> None:
        self._steps: deque[StepRecord] = deque(maxlen=KEPT)
        self._began_at = 0.0
        self.now = StepRecord()

    def begin(self, at: float) -> None:
        """A step begins at a monotonic time in seconds; the one before it is complete."""
        self.now.total_s = at - self._began_at
        self._began_at = at
        self.now = StepRecord()
        self._steps.append(self.now)

    def take(self) -> list[list[float]]:
        """Every complete step since the last call, the oldest first, as `StepRecord.plain`."""
        taken = [step.plain() for step in self._steps if step.total_s > 0.0]
        running = [step for step in self._steps if step.total_s == 0.0]
        self._steps.clear()
        self._steps.extend(running)
        return taken
