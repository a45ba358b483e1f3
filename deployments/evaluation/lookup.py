"""Proposals without a model: text that stands earlier in the request, or in answers written before.

These need no drafter; they are scored as candidates beside the drafts.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Protocol

#: Matches of so many tokens and fewer are looked for, longest first.
_LONGEST_NGRAM = 4
_SHORTEST_NGRAM = 2
_LONGEST_SUFFIX = 12
#: Contexts that a suffix store keeps; the oldest go first.
_MOST_CONTEXTS = 200_000
#: A continuation is proposed while it followed its context in at least this share of the cases.
_LEAST_SHARE = 0.34


class Source(Protocol):
    """Proposes tokens from texts alone."""

    def propose(self, context: Sequence[int], length: int) -> list[int]:
        """At most `length` tokens that may continue the context; a prefix of what a longer ask gives."""
        ...

    def learn(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """A request ended: what it wrote may help later ones."""
        ...


class NgramSource:
    """What followed the last earlier occurrence of the context's last tokens.

    (Prompt lookup decoding, A. Saxena, 2023; vLLM's `ngram` method.)
    """

    def propose(self, context: Sequence[int], length: int) -> list[int]:
        """See `Source.propose`."""
        text = list(context)
        for size in range(min(_LONGEST_NGRAM, len(text) - 1), _SHORTEST_NGRAM - 1, -1):
            tail = text[-size:]
            for end in range(len(text) - 1, size - 1, -1):
                if text[end - size : end] == tail:
                    return text[end : end + length]
        return []

    def learn(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Other requests are not looked at."""


class SuffixSource:
    """What most often followed the longest known suffix of the context, in this request and in earlier ones.

    (After SuffixDecoding, Oliaro et al., arXiv 2411.04975; counts of contexts of bounded length in place of
    a suffix tree.)
    """

    def __init__(self) -> None:
        self._followers: OrderedDict[tuple[int, ...], Counter[int]] = OrderedDict()
        self._text: list[int] = []
        self._own: dict[tuple[int, ...], Counter[int]] = {}

    def propose(self, context: Sequence[int], length: int) -> list[int]:
        """See `Source.propose`."""
        text = list(context)
        self._follow(text)
        proposal: list[int] = []
        for _ in range(length):
            token = self._likeliest(text)
            if token is None:
                break
            text.append(token)
            proposal.append(token)
        return proposal

    def learn(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Remember how this request went on."""
        _count(self._followers, [*prompt[-_LONGEST_SUFFIX:], *answer], _SHORTEST_NGRAM)
        while len(self._followers) > _MOST_CONTEXTS:
            self._followers.popitem(last=False)

    def _follow(self, text: list[int]) -> None:
        """Count what the context holds itself; only its new tokens where it continues the last one."""
        known = len(self._text)
        if text[:known] != self._text:
            self._own, known = {}, 0
        _count(self._own, text, max(known, _SHORTEST_NGRAM))
        self._text = list(text)

    def _likeliest(self, text: list[int]) -> int | None:
        for size in range(min(_LONGEST_SUFFIX, len(text)), _SHORTEST_NGRAM - 1, -1):
            tail = tuple(text[-size:])
            followers = self._own.get(tail, Counter()) + self._followers.get(tail, Counter())
            if followers:
                token, count = max(followers.items(), key=lambda item: (item[1], -item[0]))
                return token if count >= _LEAST_SHARE * followers.total() else None
        return None


def _count(followers: dict[tuple[int, ...], Counter[int]], text: Sequence[int], begin: int) -> None:
    """Count for every place of a text from `begin` on what followed the tokens before it."""
    for place in range(begin, len(text)):
        for size in range(_SHORTEST_NGRAM, min(_LONGEST_SUFFIX, place) + 1):
            followers.setdefault(tuple(text[place - size : place]), Counter())[text[place]] += 1
