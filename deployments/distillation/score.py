"""What a draft would achieve, from one pass over what the verifier wrote.

With greedy decoding, a proposal's tokens are accepted up to the first that differs from the text. Until then
the draft's context is the text itself. So whether the draft is right at a place, given the text before it,
says everything, and no proposal has to be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deployments.distillation.batches import micro_batches, padded
from deployments.distillation.student import Student
from deployments.distillation.texts import Text

#: Longest proposal that is scored.
WIDTH = 4
#: Places whose scores over the whole head are held at once.
_ROWS = 512


@dataclass(frozen=True, slots=True)
class Score:
    """How a draft did on greedy texts.

    Attributes:
        by_position: share of the proposals of `WIDTH` tokens whose first, second, ... token was accepted.
        mean_length: mean acceptance length: tokens per step of the verifier, its own one included.
        matches: share of all tokens that the draft would have said itself, given the text before.
        coverage: share of all tokens that are in its head at all.
        tokens: how many tokens were looked at.
        proposals: how many proposals they stand for.
    """

    by_position: tuple[float, ...]
    mean_length: float
    matches: float
    coverage: float
    tokens: int
    proposals: int

    @property
    def first_two(self) -> float:
        """Acceptance averaged over the first two positions."""
        return sum(self.by_position[:2]) / 2

    def __str__(self) -> str:
        shares = ", ".join(f"{100 * share:.1f} %" for share in self.by_position)
        return f"accepted by position {shares}; mean acceptance length {self.mean_length:.2f} at k = {WIDTH}"


def score(student: Student, texts: Sequence[Text], micro_tokens: int = 8192) -> Score:
    """Score a draft on the verifier's greedy texts.

    Args:
        student: the draft, on any device; its arithmetic is float32 here.
        texts: with answers of at least one token.
        micro_tokens: tokens computed at once.
    """
    hits = [hit.tolist() for hit in matches(student, texts, micro_tokens)]
    ids: Tensor = student.ids.cpu()  # type: ignore[assignment]
    answers = torch.cat([text.answer for text in texts])
    proposals, accepted = 0, [0] * WIDTH
    for hit in hits:
        for length in walk(hit):
            proposals += 1
            for position in range(length):
                accepted[position] += 1
    return Score(
        by_position=tuple(count / proposals for count in accepted),
        mean_length=1 + sum(accepted) / proposals,
        matches=sum(map(sum, hits)) / len(answers),
        coverage=float(torch.isin(answers, ids).float().mean()),
        tokens=len(answers),
        proposals=proposals,
    )


def walk(hits: Sequence[bool]) -> list[int]:
    """How many tokens of each proposal are accepted when the verifier goes through a text.

    Args:
        hits: whether the draft is right at each place of the answer.

    Returns:
        One entry per step of the verifier that had a proposal. A step that ends the text counts as what it
        could accept there.
    """
    lengths, place = [], 0
    while place < len(hits):
        length = 0
        while length < WIDTH and place + length < len(hits) and hits[place + length]:
            length += 1
        lengths.append(length)
        place += length + 1  # the verifier's own token comes with every step
    return lengths


@torch.no_grad()
def matches(student: Student, texts: Sequence[Text], micro_tokens: int = 8192) -> list[Tensor]:
    """Per text, [n] whether the draft says the answer's token, given everything before it."""
    device = next(student.parameters()).device
    ids: Tensor = student.ids.cpu()  # type: ignore[assignment]
    found: dict[int, Tensor] = {}
    for batch in micro_batches([len(text.prompt) + len(text.answer) for text in texts], micro_tokens):
        tokens, places, counts = padded([texts[number] for number in batch])
        hidden = student(tokens.to(device), places.to(device))
        best = torch.cat([student.scores(part).argmax(-1) for part in hidden.split(_ROWS)]).cpu()
        for number, own in zip(batch, ids[best].split(counts), strict=True):
            found[number] = own == texts[number].answer
    return [found[number] for number in range(len(texts))]
