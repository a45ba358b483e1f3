"""How much an evaluation does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

#: Lengths up to which every one is predicted, whatever is measured: between two of them the best may lie.
_EVERY_LENGTH_TO: Final = 8


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of an evaluation.

    Attributes:
        prompts: per domain, answered greedily.
        samples: per domain, answered at each temperature above 0.
        max_tokens: longest answer, in tokens.
        calibration_steps: steps per batch size and length by which costs are learnt.
        lengths: proposal lengths that are measured, ascending.
        batches: batch sizes, ascending.
        temperatures: sampling temperatures; 0 is greedy.
        timed_prompts: most prompts per domain that are run against the clock, greedily; half of them where
            there is one at a time.
        timed_samples: likewise at temperatures above 0, where chance asks for more.
        timed_steps: most steps of one run against the clock: short runs in turn see the same machine.
        rivals: whether the candidate predicted to be best is measured too, where it is not the domain's.
        budget_s: seconds after which nothing more is measured; None measures everything.
        eager: whether the verifier runs without compiled code, which starts a minute sooner.
    """

    prompts: int
    samples: int
    max_tokens: int
    calibration_steps: int
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    temperatures: tuple[float, ...]
    timed_prompts: int
    timed_samples: int
    timed_steps: int
    rivals: bool
    budget_s: float | None
    eager: bool

    @property
    def longest(self) -> int:
        """Most tokens proposed in one step."""
        return max(self.lengths)

    @property
    def calibration_tokens(self) -> int:
        """Most tokens that a request may write while costs are learnt: enough that none ends before."""
        return (self.calibration_steps + 2) * (self.longest + 1) + 1

    @property
    def predicted_lengths(self) -> tuple[int, ...]:
        """Proposal lengths that are predicted."""
        every = range(1, min(self.longest, _EVERY_LENGTH_TO) + 1)
        return tuple(sorted({*every, *self.lengths}))

    def fitted(self, *, max_draft_tokens: int, max_num_seqs: int) -> Effort:
        """Within what the configuration allows: its own longest proposal and largest batch."""
        lengths = tuple(sorted({min(length, max_draft_tokens) for length in self.lengths}))
        return replace(self, lengths=lengths, batches=within(self.batches, max_num_seqs))


def within(batches: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Batch sizes that the verifier takes, largest included."""
    return tuple(sorted({min(rows, most) for rows in batches}))


QUICK: Final = Effort(
    prompts=4,
    samples=4,
    max_tokens=48,
    calibration_steps=10,
    lengths=(2, 4),
    batches=(1, 4),
    temperatures=(0.0, 0.8),
    timed_prompts=6,
    timed_samples=4,
    timed_steps=24,
    rivals=False,
    budget_s=300.0,
    eager=True,
)

FULL: Final = Effort(
    prompts=16,
    samples=32,
    max_tokens=128,
    calibration_steps=15,
    lengths=(1, 2, 4),
    batches=(1, 4, 16),
    temperatures=(0.0, 0.8),
    timed_prompts=16,
    timed_samples=32,
    timed_steps=32,
    rivals=True,
    budget_s=None,
    eager=False,
)
