"""The model card of a distilled draft: what it is made of and what was measured, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deployments.distillation.score import WIDTH, Score
from deployments.distillation.settings import DistillSettings
from deployments.distillation.student import Student


@dataclass(frozen=True, slots=True)
class Story:
    """How a draft came about.

    Attributes:
        name: the draft's.
        verifier: the verifier's, for people.
        licence: of the draft.
        settings: all choices.
        prompts: given prompts trained on.
        own_prompts: prompts that the verifier made up.
        held_back: prompts only measured on.
        text_tokens: answer tokens trained on.
        steps: optimiser steps.
        seen_tokens: answer tokens seen, repetitions counted.
        seconds: of training.
        scores: what was measured on the held-back prompts: "this draft", "before training", others.
    """

    name: str
    verifier: str
    licence: str
    settings: DistillSettings
    prompts: int
    own_prompts: int
    held_back: int
    text_tokens: int
    steps: int
    seen_tokens: int
    seconds: float
    scores: Mapping[str, Score]


def measured(story: Story) -> dict[str, object]:
    """What `draft.json` says of the measurement."""
    return {
        "how": f"{story.held_back} held-back prompts, greedy answers of the verifier, teacher-forced, "
        f"k = {WIDTH}, weights rounded to 8 bits",
        "held_back": {
            name: {
                "accepted_by_position": [round(share, 4) for share in score.by_position],
                "first_two_positions": round(score.first_two, 4),
                "mean_acceptance_length": round(score.mean_length, 4),
                "matches": round(score.matches, 4),
                "head_coverage": round(score.coverage, 4),
                "tokens": score.tokens,
            }
            for name, score in story.scores.items()
        },
    }


def card(story: Story, student: Student) -> str:
    """The card's text, in Markdown."""
    config = student.config
    size = (
        f"{config['model_type']}, {config['num_hidden_layers']} layers, hidden size {config['hidden_size']}"
    )
    layers = ", ".join(map(str, student.layers)) or "(not recorded)"
    start = story.settings.student.start_from
    began = (
        f"draft {Path(start).name}, itself from the verifier's layers {layers}"
        if start
        else f"the verifier's layers {layers}"
    )
    head = "all ids" if student.head_ids is None else f"cut to {len(student.head_ids):,} token ids"
    training = story.settings.training
    loss = f"{training.loss} ({training.ce_share:g} ce)" if training.loss == "mixed" else training.loss
    made_up = f", and {story.own_prompts:,} that the verifier made up itself" if story.own_prompts else ""
    return f"""# {story.name}: a draft for {story.verifier}

A draft model: it proposes tokens that {story.verifier} then accepts or rejects. On its own it is of
no use.

| | |
| --- | --- |
| Verifier | {story.verifier} |
| Architecture | {size} |
| Started from | {began} |
| Embedding, head | the verifier's own, read from its checkpoint; head {head} |
| Stored as | int8 per output channel, norms in float32 |
| Licence | {story.licence} |

## Data
{story.text_tokens:,} tokens of answers that the verifier itself wrote to {story.prompts:,} given \
prompts{made_up}: greedy first, then sampled at temperature {story.settings.texts.temperature:g}.

## Training
{story.steps:,} steps over {story.seen_tokens:,} answer tokens (repetitions counted) in \
{story.seconds / 60:.1f} minutes of computing; loss: {loss}; optimiser: {training.optimizer}, highest \
learning rate {training.learning_rate:g}.

## Measured
{_table(story)}

On {story.held_back} held-back prompts that training never saw: greedy answers of the verifier, at most \
{story.settings.texts.max_tokens} tokens each; proposals of {WIDTH} tokens, weights rounded to 8 bits.

## Limits
- Only for a verifier with exactly this tokenizer (`tokenizer_sha256` in `draft.json` is checked at start).
- Tokens outside the cut head are never proposed; where the text needs them the verifier writes them itself.
- Acceptance falls on text unlike the data above, and with sampling at a high temperature.
- It changes speed only: what users read is the verifier's output.
"""


def _table(story: Story) -> str:
    places = " | ".join(f"pos. {number}" for number in range(1, WIDTH + 1))
    lines = [
        f"| draft | {places} | mean of pos. 1 and 2 | mean acceptance length | tokens in its head |",
        "| --- |" + " ---: |" * (WIDTH + 3),
    ]
    for name, score in story.scores.items():
        shares = " | ".join(f"{100 * share:.1f} %" for share in score.by_position)
        lines.append(
            f"| {name} | {shares} | {100 * score.first_two:.1f} % | {score.mean_length:.2f} "
            f"| {100 * score.coverage:.1f} % |"
        )
    return "\n".join(lines)
