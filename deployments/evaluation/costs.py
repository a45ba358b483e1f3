"""What steps and proposals cost on this machine, and the speed that follows. Uses the router's own models.

The verifier's step time T(R, P) depends on its rows R and the tokens P that it has to judge; a draft adds the
time W(R, k) that a step waits for proposals of k tokens. Decoding plainly writes R / T(R, 0) tokens a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from deployments.evaluation.walk import BatchReplay
from router.costs import StepCost, WaitCost
from router.settings import SpeculationSettings

#: Bisections that find a break-even rate; each halves the interval.
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class StepSample:
    """One observed step.

    Attributes:
        rows: requests that decoded.
        proposed: tokens judged for all of them.
        verify_s: seconds of the step without waiting for proposals.
        asked: longest proposal asked for after it, tokens; 0 for none.
        wait_s: seconds waited for that.
    """

    rows: int
    proposed: int
    verify_s: float
    asked: int
    wait_s: float

    def scaled(self, factor: float) -> StepSample:
        """The same step on a machine that needs `factor` times as long."""
        return replace(self, verify_s=self.verify_s * factor, wait_s=self.wait_s * factor)


class FleetCosts:
    """Step times and waits, learnt from observed steps.

    Args:
        priors: what the router believes before it has seen anything; the first observations replace it.
        longest: most tokens proposed for one request.
    """

    def __init__(self, priors: SpeculationSettings, longest: int) -> None:
        self._priors = priors
        self._longest = longest
        self._steps = StepCost(
            longest, priors.prior_step_ms / 1e3, priors.prior_row_ms / 1e3, priors.prior_token_ms / 1e3
        )
        self._waits: dict[tuple[str, int], WaitCost] = {}

    def observe(self, draft: str | None, samples: Iterable[StepSample]) -> None:
        """Take in steps of a batch whose requests all used one draft (None: plain decoding)."""
        kept = list(samples)
        for sample in kept:
            self._steps.observe(sample.rows, sample.proposed, sample.verify_s)
        if draft is not None:
            self.observe_waits(draft, kept)

    def observe_waits(self, draft: str, samples: Iterable[StepSample]) -> None:
        """Take in only how long those steps waited: for costs of another kind of step."""
        for sample in samples:
            if sample.asked:
                self._wait(draft, sample.rows).observe(sample.asked, sample.wait_s)

    def knows(self, draft: str, rows: int) -> bool:
        """Whether waits for this draft were observed at this batch size."""
        return (draft, rows) in self._waits

    def step_s(self, rows: int, proposed: float = 0.0) -> float:
        """Seconds of a verifier step that judges `proposed` tokens in all."""
        return self._steps.seconds(rows, proposed)

    def wait_s(self, draft: str | None, rows: int, length: int) -> float:
        """Seconds that a step waits for `length` tokens for each row; 0 for sources without a drafter."""
        if draft is None or length < 1:
            return 0.0
        return self._wait(draft, rows).curve()[length]

    def token_s(self, draft: str, rows: int) -> float:
        """Seconds that one more drafted token per row takes."""
        return self._wait(draft, rows).line()[1]

    def relative_token_cost(self, draft: str, rows: int) -> float:
        """Time of one drafted token relative to a plain verifier step (c of Leviathan et al.)."""
        return self.token_s(draft, rows) / self.step_s(rows)

    def step_ratio(self, draft: str | None, rows: int, length: int) -> float:
        """A step with proposals of `length` tokens for every row, in plain steps: what it has to bring."""
        return (self.step_s(rows, rows * length) + self.wait_s(draft, rows, length)) / self.step_s(rows)

    def break_even(self, draft: str | None, rows: int, length: int) -> float | None:
        """Acceptance rate, equal at all positions, at which drafting `length` tokens begins to pay.

        Returns:
            The rate per judged token, 0 to 1; None when not even a draft that is always right would pay.
        """
        ratio = self.step_ratio(draft, rows, length)
        if ratio > 1 + length:
            return None
        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if expected_length(middle, length) < ratio:
                low = middle
            else:
                high = middle
        return high

    def speedup(self, draft: str | None, length: int, replays: Sequence[BatchReplay]) -> float:
        """Tokens per second of these batches, relative to plain decoding of as many rows.

        Args:
            draft: whose waits to count; None for sources in the verifier's own process.
            length: tokens asked for in every step.
            replays: the batches, all with the same number of rows.
        """
        seconds = sum(
            self.step_s(replay.rows, proposed) + self.wait_s(draft, replay.rows, length)
            for replay in replays
            for proposed in replay.proposed
        )
        written = sum(replay.written for replay in replays)
        rows = replays[0].rows
        return (written / seconds) / (rows / self.step_s(rows))

    def _wait(self, draft: str, rows: int) -> WaitCost:
        wait = self._waits.get((draft, rows))
        if wait is None:
            wait = self._waits[draft, rows] = WaitCost(
                self._longest, self._priors.prior_wait_ms / 1e3, self._priors.prior_wait_token_ms / 1e3
            )
        return wait


def expected_length(rate: float, length: int) -> float:
    """Mean acceptance length for a rate that is the same at all positions: 1 + rate + ... + rate^length.

    (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192, eq. 1.)
    """
    return sum(rate**power for power in range(length + 1))
