"""Prompts that the verifier makes up: a few hundred given ones are soon known by heart.

A chat model that is shown only the beginning of a user's turn goes on as users do (Magpie, arXiv 2406.08464).
Begun with the first words of a given prompt, it stays in the domain.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from deployments.distillation.errors import DistillError
from deployments.distillation.prompts import Messages, to_ids
from deployments.distillation.texts import Request
from deployments.distillation.writing import Scribe

#: Stands for a user's words while the chat template is taken apart.
_MARK = "SPECFLEETMARK"
_LONGEST = 64
_SHORTEST_CHARACTERS = 12
#: How many are tried for one that is wanted: some never end, some are repetitions.
_TRIES = 3


def make_up_prompts(
    scribe: Scribe,
    tokenizer: Any,
    given: Sequence[Messages],
    avoid: Sequence[Messages],
    count: int,
    end_ids: Sequence[int],
    seed: int,
) -> list[Messages]:
    """Prompts of the domain that nobody gave.

    Args:
        scribe: has them written.
        tokenizer: the verifier's.
        given: the prompts to train on; new ones begin with the first words of one of them.
        avoid: prompts that must not come up, since they are measured on.
        count: how many at most; fewer where the verifier repeats itself.
        end_ids: ids that end a turn.
        seed: of the choice of beginnings.

    Raises:
        DistillError: the tokenizer has no chat template, or no given prompt is one turn of a user.
    """
    if not count:
        return []
    single = [messages[0]["content"] for messages in given if len(messages) == 1]
    if not tokenizer.chat_template or not single:
        raise DistillError(
            "texts.own_prompts needs a verifier with a chat template and prompts of one turn: set it to 0"
        )
    before = _before_user_turn(tokenizer)
    known = {_plain(message["content"]) for messages in [*given, *avoid] for message in messages}
    chance = random.Random(seed)
    made: list[Messages] = []
    for trial in range(_TRIES):
        missing = count - len(made)
        if not missing:
            break
        starts = [_first_words(chance.choice(single), chance) for _ in range(missing)]
        requests = [
            Request(
                tuple(tokenizer.encode(before + start, add_special_tokens=False)), 1.0, number, _LONGEST, 1
            )
            for number, start in enumerate(starts, start=trial * count)
        ]
        for start, text in zip(starts, scribe.all_of(requests, "prompts"), strict=True):
            answer = text.answer.tolist()
            content = start + tokenizer.decode(answer, skip_special_tokens=True)
            ended = bool(answer) and answer[-1] in end_ids
            if ended and len(content) >= _SHORTEST_CHARACTERS and _plain(content) not in known:
                known.add(_plain(content))
                made.append([{"role": "user", "content": content.strip()}])
    return made


def ids_of(tokenizer: Any, prompts: Sequence[Messages]) -> list[list[int]]:
    """Token ids of each prompt, up to where the answer begins."""
    return [to_ids(tokenizer, messages) for messages in prompts]


def _before_user_turn(tokenizer: Any) -> str:
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": _MARK}], add_generation_prompt=True, tokenize=False
    )
    return text.partition(_MARK)[0]


def _first_words(prompt: str, chance: random.Random) -> str:
    words = prompt.split()
    return " ".join(words[: min(chance.choice([1, 2, 3, 4]), max(1, len(words) - 1))])


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
