"""A verifier engine and its drafters on this machine, run in batches of a fixed size and proposal length."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deployments.evaluation.costs import StepSample
from deployments.evaluation.scoring import VerifierText, as_odds
from deployments.verifier.offline import OfflineVerifier, Written, described
from deployments.verifier.step_log import StepRecord
from router.types import PLAIN

#: Likeliest tokens whose odds are kept where the verifier samples; vLLM's own bound on what it gives is 20.
KEPT_CHOICES: Final = 20
#: Longest wait until all drafters are connected, in seconds.
CONNECT_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """A batch while all of its rows decoded.

    Attributes:
        rows: requests.
        seconds: from the moment when all of them had their first token to the end of the first of them.
        written: tokens written in that time.
        steps: steps in that time.
        samples: those steps, as far as the worker noted them.
        begun: tokens that each row had at that moment: requests reach the engine one after another.
    """

    rows: int
    seconds: float
    written: int
    steps: int
    samples: tuple[StepSample, ...]
    begun: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.written / self.seconds if self.seconds else 0.0

    @property
    def length(self) -> float:
        """Tokens per row and step."""
        return self.written / (self.steps * self.rows) if self.steps else 0.0


class Rig:
    """Runs prompts on one engine; proposals are forced to a draft and a length, or forbidden."""

    def __init__(self, verifier: OfflineVerifier) -> None:
        self._verifier = verifier

    def connect(self, peers: Sequence[Mapping[str, str]]) -> None:
        """Connect to the drafters and wait until each of them answers.

        Raises:
            RuntimeError: one does not answer in time; the text names it.
        """
        self._verifier.connect(peers)
        missing = {peer["draft"] for peer in peers}
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while missing:
            for draft in sorted(missing):  # a connection is used, and found alive, only by requests
                self._verifier.run_batch([[0, 1, 2]], [self._params(4, 0.0, draft, 1)])
            link = self._verifier.snapshot()["link"]
            missing = {draft for draft in missing if not link.get(draft, {}).get("round_trips")}
            if missing and time.monotonic() > deadline:
                raise RuntimeError(f"no answer from the drafter of {', '.join(sorted(missing))}")

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        temperature: float,
        *,
        stop_at_end: bool = True,
    ) -> list[VerifierText]:
        """The verifier's own answers, written without proposals, all prompts in one batch.

        Args:
            prompts: token ids.
            max_tokens: longest answer, in tokens.
            temperature: 0 is greedy; above it every prompt has a seed, so that texts can be written again.
            stop_at_end: whether the token that ends an answer ends it.
        """
        params = []
        for number in range(len(prompts)):
            one = self._params(max_tokens, temperature, PLAIN, None, stop_at_end)
            if temperature > 0:
                one.seed, one.logprobs = 1000 + number, KEPT_CHOICES
            params.append(one)
        written = self._verifier.run_batch(prompts, params)
        return [
            VerifierText(list(prompt), answer.tokens, max_tokens, as_odds(answer.choices))
            for prompt, answer in zip(prompts, written, strict=True)
        ]

    def time_batch(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        temperature: float,
        draft: str | None,
        length: int,
        *,
        steps: int | None = None,
        stop_at_end: bool = True,
    ) -> BatchTiming:
        """Run one batch against the clock until its first request ends.

        Args:
            prompts: token ids, one per row.
            max_tokens: longest answer, in tokens.
            temperature: 0 is greedy.
            draft: who proposes in every step; None for plain decoding.
            length: tokens proposed in every step.
            steps: end after so many steps of the full batch; None runs to the first request's end.
            stop_at_end: whether the token that ends an answer ends it.
        """
        params = [
            self._params(max_tokens, temperature, draft or PLAIN, length if draft else None, stop_at_end)
            for _ in prompts
        ]
        self._verifier.take_steps()
        clock = BatchClock(steps)
        self._verifier.run_batch(prompts, params, clock.enough)
        samples = _samples(self._verifier.take_steps(), len(prompts))
        return BatchTiming(
            rows=len(prompts),
            seconds=clock.seconds,
            written=clock.written,
            steps=clock.steps,
            samples=tuple(samples[: clock.steps]),
            begun=clock.begun,
        )

    def _params(
        self,
        max_tokens: int,
        temperature: float,
        draft: str,
        length: int | None,
        stop_at_end: bool = True,
    ) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            ignore_eos=not stop_at_end,
            detokenize=False,
            extra_args=described(draft=draft, length=length),
        )


class BatchClock:
    """Looks at a batch after each step: when it became full, when its first request ended.

    Args:
        steps: most steps of the full batch; None runs to the first request's end.
    """

    def __init__(self, steps: int | None) -> None:
        self._most = steps
        self._begun_at: float | None = None
        self.begun: tuple[int, ...] = ()
        self.steps = 0
        self.seconds = 0.0
        self.written = 0

    def enough(self, rows: Sequence[Written], ended: bool) -> bool:
        """Whether the batch has run for long enough."""
        if not all(row.tokens for row in rows):
            return ended
        tokens = sum(len(row.tokens) for row in rows)
        now = max(row.arrivals[-1] for row in rows)
        if self._begun_at is None:
            self._begun_at, self.begun = now, tuple(len(row.tokens) for row in rows)
            return ended
        self.steps += 1
        self.seconds = now - self._begun_at
        self.written = tokens - sum(self.begun)
        return ended or self.steps == self._most


def _samples(records: Sequence[StepRecord], rows: int) -> list[StepSample]:
    """Steps in which the whole batch decoded; what the log still held of the batch before is left out."""
    begins = next((place for place, record in enumerate(records) if not record.decoding), len(records))
    full = [record for record in records[begins:] if record.decoding and record.rows == rows]
    return [
        StepSample(
            rows=record.rows,
            proposed=record.proposed,
            verify_s=record.total_s - record.waited_s,
            asked=record.asked,
            wait_s=record.waited_s,
        )
        for record in full[:-1]  # the last one's time goes on until another batch begins
    ]
