"""How far each source of proposals would have been right, at every place of texts that the verifier wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deployments.drafter.engine import DraftEngine
from deployments.evaluation.lookup import Source
from deployments.evaluation.walk import ScoredText


@dataclass(frozen=True, slots=True)
class VerifierText:
    """What the verifier wrote to one prompt, by itself.

    Attributes:
        prompt: token ids of the prompt.
        answer: token ids of the answer.
        limit: tokens that the answer might have had at most.
        choices: per token of the answer, the verifier's odds of the likeliest tokens there and of the one it
            wrote, after temperature; empty at temperature 0, where only the written one is accepted.
    """

    prompt: list[int]
    answer: list[int]
    limit: int
    choices: list[dict[int, float]]

    @property
    def ended(self) -> bool:
        """Whether the answer ended by itself: nothing is proposed past the token that ends it."""
        return len(self.answer) < self.limit

    def odds(self, place: int, token: int) -> float:
        """Chance that the verifier accepts a token at a place; none for unlikely ones."""
        if not self.choices:
            return float(token == self.answer[place])
        return self.choices[place].get(token, 0.0)


def as_odds(choices: Sequence[dict[int, float]]) -> list[dict[int, float]]:
    """Odds from log probabilities."""
    return [{token: math.exp(value) for token, value in one.items()} for one in choices]


def score_draft(engine: DraftEngine, texts: Sequence[VerifierText], longest: int) -> list[ScoredText]:
    """One pass of a draft over each text, on the engine that serves it.

    Args:
        engine: the draft's engine, with a free slot.
        texts: what to score.
        longest: tokens of the longest proposal.

    Raises:
        ValueError: a text cannot be read by the draft.
    """
    scored = []
    for text in texts:
        start = len(text.prompt)
        guesses = engine.follow([*text.prompt, *text.answer], start)
        count = len(text.answer)
        odds = [text.odds(place, guesses[place]) if place < len(guesses) else 0.0 for place in range(count)]
        right = [place < len(guesses) and guesses[place] == text.answer[place] for place in range(count)]
        # The draft's window ends a proposal, however long it was asked to be.
        room = [max(0, min(longest, engine.window - start - place)) for place in range(count)]
        scored.append(_chained(right, odds, room, text, longest))
    return scored


def score_source(make: Callable[[], Source], texts: Sequence[VerifierText], longest: int) -> list[ScoredText]:
    """Score a source that looks proposals up. It meets the texts in their order, as requests would come.

    Args:
        make: a new source that has seen nothing.
        texts: what to score.
        longest: tokens of the longest proposal.
    """
    source = make()
    scored = []
    for text in texts:
        proposed, matched, odds = [], [], []
        for place in range(len(text.answer)):
            proposal = source.propose([*text.prompt, *text.answer[:place]], longest)
            coming = text.answer[place : place + len(proposal)]
            good = 0
            while good < len(coming) and proposal[good] == coming[good]:
                good += 1
            judged = proposal[: min(good + 1, len(coming))]
            chances = [text.odds(place + offset, token) for offset, token in enumerate(judged)]
            proposed.append(good if text.ended and place + good == len(text.answer) else len(proposal))
            matched.append(good)
            odds.append([*chances, *[0.0] * (len(proposal) - len(chances))])
        source.learn(text.prompt, text.answer)
        scored.append(ScoredText(proposed, matched, odds, text.limit))
    return scored


def _chained(
    right: Sequence[bool], odds: Sequence[float], room: Sequence[int], text: VerifierText, longest: int
) -> ScoredText:
    """From one guess per place to proposals: as long as all before was right, the next guess counts."""
    count = len(right)
    run, runs = 0, [0] * count
    for place in reversed(range(count)):
        run = run + 1 if right[place] else 0
        runs[place] = run
    matched = [min(runs[place], room[place]) for place in range(count)]
    if text.ended:  # the proposer cuts proposals at the token that ends the answer
        room = [
            min(space, count - place) if runs[place] == count - place else space
            for place, space in enumerate(room)
        ]
    chances = [
        [odds[place + offset] if place + offset < count else 0.0 for offset in range(longest)]
        for place in range(count)
    ]
    return ScoredText(room, matched, chances, text.limit)
