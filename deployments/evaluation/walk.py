"""From one scored text to what drafting would have done on it. Pure arithmetic.

As long as the verifier accepts, a draft's context is the text itself. So whoever knows, for every place of a
text, how many tokens of a proposal made there are the text's own, can replay the whole answer: a step at a
place accepts that many, adds the verifier's next token, and the next step starts behind it. At temperature 0
that replay is what the engine does, token for token. With sampling, the verifier accepts a proposed token
with its own probability of it (Leviathan et al., arXiv 2211.17192; proposals are greedy and carry no
probabilities of their own), which is just the chance that the text it wrote has that token there: a replay
on sampled texts is a fair sample of what would happen, and the probabilities themselves take the chance of
the last token of each step out of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScoredText:
    """One answer, and what one source of proposals would have said at every place of it.

    Attributes:
        proposed: [tokens] how many tokens the source proposes at a place, asked for the longest proposal.
        matched: [tokens] how many of those, from the left, are the text's own.
        odds: [tokens][position] chance that the verifier accepts a proposed token, given that it accepted
            those before it; at least for the `matched` ones and the one after them.
        limit: tokens that the answer might have had at most; nothing is proposed past it.
    """

    proposed: Sequence[int]
    matched: Sequence[int]
    odds: Sequence[Sequence[float]]
    limit: int

    def __post_init__(self) -> None:
        if not len(self.proposed) == len(self.matched) == len(self.odds):
            raise ValueError("proposed, matched and odds must have one entry per token of the text")
        if any(good > made for good, made in zip(self.matched, self.proposed, strict=True)):
            raise ValueError("more tokens of a proposal are matched than were proposed")

    def __len__(self) -> int:
        """Tokens of the answer."""
        return len(self.proposed)

    def at(self, place: int, length: int) -> Outcome:
        """What a step at a place does when `length` tokens are asked for.

        Args:
            place: index of the token that comes next, at least 1: the first token comes with the prompt.
            length: tokens asked for; fewer are proposed at the end, or where the source has fewer.
        """
        proposed = max(0, min(length, self.limit - place - 1, self.proposed[place]))
        accepted = min(self.matched[place], proposed)
        judged = self.odds[place][: min(accepted + 1, proposed)]
        return Outcome(proposed, accepted, sum(judged), min(accepted + 1, len(self) - place))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step of one request.

    Attributes:
        proposed: tokens proposed.
        accepted: tokens accepted.
        expected: tokens accepted on average, by the verifier's odds; equal to `accepted` at temperature 0.
        written: tokens that the answer grew by.
    """

    proposed: int
    accepted: int
    expected: float
    written: int


@dataclass(slots=True)
class Acceptance:
    """What the steps of some answers add up to.

    Attributes:
        steps: steps that carried a proposal.
        plain_steps: steps that carried none.
        proposed: tokens proposed.
        accepted: tokens accepted on average.
        squares: sum over the steps of the squared number of accepted tokens, for the spread.
        judged: [position] how often that position was judged: everything before it was accepted.
        passed: [position] how often it was accepted then, on average.
    """

    steps: int = 0
    plain_steps: int = 0
    proposed: int = 0
    accepted: float = 0.0
    squares: float = 0.0
    judged: list[int] = field(default_factory=list)
    passed: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome, odds: Sequence[float]) -> None:
        """Count one step; `odds` by position as in `ScoredText`."""
        if not outcome.proposed:
            self.plain_steps += 1
            return
        self.steps += 1
        self.proposed += outcome.proposed
        self.accepted += outcome.expected
        self.squares += outcome.expected**2
        for position in range(min(outcome.accepted + 1, outcome.proposed)):
            if position == len(self.judged):
                self.judged.append(0)
                self.passed.append(0.0)
            self.judged[position] += 1
            self.passed[position] += odds[position]

    @property
    def rate(self) -> float:
        """Accepted of proposed tokens; 0.0 when nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def length(self) -> float:
        """Mean acceptance length: tokens per step that carried a proposal, the verifier's own counted."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def by_position(self) -> list[float]:
        """Per position, the share accepted of those judged."""
        return [won / tried for won, tried in zip(self.passed, self.judged, strict=True)]

    @property
    def spread(self) -> float:
        """Standard error of `length`, as if steps were independent of each other."""
        if self.steps < 2:
            return 0.0
        mean = self.accepted / self.steps
        return math.sqrt(max(0.0, self.squares / self.steps - mean**2) / (self.steps - 1))


def walk(texts: Sequence[ScoredText], length: int) -> Acceptance:
    """Replay each text from its second token to its end, asking for `length` tokens in every step."""
    total = Acceptance()
    for text in texts:
        place = 1
        while place < len(text):
            outcome = text.at(place, length)
            total.add(outcome, text.odds[place])
            place += outcome.written
    return total


@dataclass(frozen=True, slots=True)
class BatchReplay:
    """Several texts written side by side, one step of all at a time, until the first of them ends.

    Attributes:
        rows: texts.
        proposed: per step, tokens proposed for all of them.
        written: tokens written by all of them, on average.
        variance: of `written`, as if steps were independent.
    """

    rows: int
    proposed: tuple[int, ...]
    written: float
    variance: float

    @property
    def steps(self) -> int:
        """Steps until the first text ended."""
        return len(self.proposed)


def replay_batch(
    texts: Sequence[ScoredText],
    length: int,
    begun: Sequence[int] | None = None,
    most: int | None = None,
) -> BatchReplay:
    """Replay texts as one batch.

    Args:
        texts: the rows.
        length: tokens asked for in every step; 0 is plain decoding.
        begun: tokens that each row has already; None is one, the one that comes with the prompt.
        most: steps after which to stop; None goes on until the first text ends.

    Raises:
        ValueError: there is no text, or one has fewer than two tokens: nothing is left to decode.
    """
    if not texts or min(len(text) for text in texts) < 2:
        raise ValueError("a batch needs texts of at least two tokens")
    places = [1] * len(texts) if begun is None else list(begun)
    proposed: list[int] = []
    written, squares, mean = 0.0, 0.0, 0.0
    while all(place < len(text) for place, text in zip(places, texts, strict=True)):
        if len(proposed) == most:
            break
        step = 0
        for row, text in enumerate(texts):
            outcome = text.at(places[row], length)
            places[row] += outcome.written
            step += outcome.proposed
            written += 1.0 + outcome.expected
            squares += outcome.expected**2
            mean += outcome.expected
        proposed.append(step)
    count = len(proposed) * len(texts)
    variance = max(0.0, squares - mean**2 / count)
    return BatchReplay(len(texts), tuple(proposed), written, variance)


def group(count: int, rows: int) -> list[list[int]]:
    """Which texts are measured together: groups of `rows` indices out of `count`, each used at least once.

    The last group is filled up from the front, and texts repeat where there are fewer than rows.
    """
    if count < 1 or rows < 1:
        return []
    groups = -(-count // rows)
    return [[(begin * rows + row) % count for row in range(rows)] for begin in range(groups)]
