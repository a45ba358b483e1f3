"""Prompts that vLLM would let through to an engine that cannot survive them."""

from __future__ import annotations

from typing import Any


def wrong_token_id(prompt: Any, vocab_size: int) -> str | None:
    """What is wrong with the token ids of a completion's prompt, or None.

    vLLM 0.29 lets the id `vocab_size` itself pass (its bound is one too high): the embedding is read past its
    end, and the engine dies with everybody's requests.

    Args:
        prompt: text, token ids, or a list of either.
        vocab_size: ids run from 0 to `vocab_size` - 1.
    """
    if not isinstance(prompt, list):
        return None
    for part in prompt:
        ids = part if isinstance(part, list) else [part]
        for token in ids:
            if isinstance(token, int) and not 0 <= token < vocab_size:
                return f"prompt: token id {token} does not exist; ids run from 0 to {vocab_size - 1}"
    return None
