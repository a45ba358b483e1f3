"""Which texts are computed together, and when: the same for the same seed, wherever a run is taken up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from deployments.distillation.texts import Text

#: Texts of like length are looked for among so many neighbours of a shuffled order.
_WINDOW = 128


def micro_batches(lengths: Sequence[int], tokens: int, order: Sequence[int] | None = None) -> list[list[int]]:
    """Group texts of like length.

    Args:
        lengths: tokens of each text.
        tokens: most tokens of a group, filling included; a longer text is a group of its own.
        order: the texts to group; all by default.

    Returns:
        Numbers of texts, each in exactly one group.
    """
    chosen = range(len(lengths)) if order is None else order
    groups: list[list[int]] = []
    for number in sorted(chosen, key=lambda number: lengths[number]):
        # Sorted: the newcomer is the longest, and everything before it is filled up to its length.
        if groups and (len(groups[-1]) + 1) * lengths[number] <= tokens:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def training_steps(
    lengths: Sequence[int], answers: Sequence[int], *, step_tokens: int, micro_tokens: int, seed: int
) -> Iterator[list[list[int]]]:
    """Endless optimiser steps, each a list of groups; every pass holds every text once.

    Args:
        lengths: tokens of each text, prompt included.
        answers: answer tokens of each text.
        step_tokens: answer tokens at which a step is full.
        micro_tokens: most tokens of a group.
        seed: of the order.
    """
    generator = torch.Generator().manual_seed(seed)
    step: list[list[int]] = []
    held = 0
    while True:
        order = torch.randperm(len(lengths), generator=generator).tolist()
        groups = []
        for start in range(0, len(order), _WINDOW):
            groups += micro_batches(lengths, micro_tokens, order[start : start + _WINDOW])
        for number in torch.randperm(len(groups), generator=generator).tolist():
            step.append(groups[number])
            held += sum(answers[text] for text in groups[number])
            if held >= step_tokens:
                yield step
                step, held = [], 0


def padded(texts: Sequence[Text]) -> tuple[Tensor, Tensor, list[int]]:
    """Put texts side by side.

    Returns:
        Token ids [rows, length], filled up with 0 on the right; the places [n], counted through the
        rows, whose next token is one of an answer; and how many of them each text has.
    """
    rows = [torch.cat([text.prompt, text.answer])[:-1].long() for text in texts]
    length = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    places = []
    for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
        tokens[number, : len(row)] = row
        places.append(number * length + torch.arange(len(text.prompt) - 1, len(row)))
    return tokens, torch.cat(places), [len(text.answer) for text in texts]
