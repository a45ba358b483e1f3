"""From a file of prompts to token ids, as the fleet would send them to the verifier."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.distillation.errors import DistillError

Messages = list[dict[str, str]]

#: Fewer cannot be split into prompts to train on and prompts to measure on.
FEWEST = 4
#: More held-back prompts make the figures no better, only the wait longer.
MOST_HELD_BACK = 128


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts as conversations, split once and for all by their content.

    Attributes:
        train: to write training texts for.
        held_back: only to measure on.
    """

    train: list[Messages]
    held_back: list[Messages]


def read_prompts(file: Path, hold_back: float) -> Prompts:
    """Read prompts: one JSON object a line, with `prompt` (text) or `messages` (as in OpenAI's API).

    Repeated prompts count once. Which ones are held back depends only on their content, so that a longer file
    later does not train on what was measured on before.

    Args:
        file: the JSONL file.
        hold_back: share to hold back, 0 < hold_back < 1; at least one, at most `MOST_HELD_BACK`.

    Raises:
        DistillError: the file cannot be used; the text names the line.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DistillError(f"{file} cannot be read: {reason}") from error
    unique: dict[str, Messages] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            messages = _parse(line, f"{file}, line {number}")
            unique[_digest(messages)] = messages
    if len(unique) < FEWEST:
        raise DistillError(
            f"{file} holds {len(unique)} different prompts; at least {FEWEST} are needed, and a few hundred "
            'for a useful draft: one JSON object a line, {"prompt": "..."}'
        )
    order = sorted(unique)
    count = min(max(1, round(hold_back * len(order))), MOST_HELD_BACK, len(order) - 1)
    held = set(order[:count])
    return Prompts(
        [messages for key, messages in unique.items() if key not in held],
        [unique[key] for key in order[:count]],
    )


def to_ids(tokenizer: Any, messages: Messages) -> list[int]:
    """A conversation's token ids, up to where the verifier's answer begins.

    Args:
        tokenizer: the verifier's, of transformers. Without a chat template contents are taken as they are.
        messages: the conversation.
    """
    if not tokenizer.chat_template:
        return list(tokenizer.encode("\n".join(message["content"] for message in messages)))
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


def fitting(prompts: Sequence[list[int]], longest: int) -> list[list[int]]:
    """Those of at most `longest` tokens.

    Raises:
        DistillError: none is left.
    """
    kept = [ids for ids in prompts if 0 < len(ids) <= longest]
    if not kept:
        raise DistillError(
            f"no prompt has at most {longest} tokens, which the verifier's context leaves beside an answer: "
            "shorten the prompts, or lower texts.max_tokens"
        )
    return kept


def _parse(line: str, where: str) -> Messages:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise DistillError(f"{where} is no JSON: {error}") from error
    if isinstance(data, dict) and isinstance(data.get("prompt"), str):
        if not data["prompt"].strip():
            raise DistillError(f"{where}: the prompt is empty; write one, or take the line out")
        return [{"role": "user", "content": data["prompt"]}]
    messages = data.get("messages") if isinstance(data, dict) else None
    if not isinstance(messages, list) or not messages:
        raise DistillError(f'{where} has neither "prompt" (text) nor "messages" (a list)')
    for message in messages:
        if not (
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        ):
            raise DistillError(f'{where}: every message needs "role" and "content", both text')
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _digest(messages: Messages) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
