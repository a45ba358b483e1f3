"""Proposals that are looked up."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.evaluation.lookup import NgramSource, SuffixSource

TEXT = st.lists(st.integers(0, 4), max_size=40)


def test_an_ngram_continues_its_last_occurrence() -> None:
    source = NgramSource()
    assert source.propose([1, 2, 3, 4, 9, 1, 2], 3) == [3, 4, 9]
    assert source.propose([1, 2, 7, 5, 1, 2, 8, 5, 1, 2], 2) == [8, 5]  # the later one counts
    assert source.propose([1, 2, 3], 4) == []
    assert source.propose([], 4) == []


def test_a_longer_match_goes_before_a_later_one() -> None:
    assert NgramSource().propose([5, 1, 2, 8, 0, 1, 2, 9, 5, 1, 2], 1) == [8]


def test_a_suffix_source_learns_from_earlier_answers_and_an_ngram_does_not() -> None:
    for source, expected in ((SuffixSource(), [30, 40]), (NgramSource(), [])):
        assert source.propose([10, 20], 2) == []
        source.learn([7], [10, 20, 30, 40])
        assert source.propose([10, 20], 2) == expected


def test_a_suffix_source_takes_what_followed_most_often() -> None:
    source = SuffixSource()
    for follower in (5, 6, 6):
        source.learn([0], [1, 2, follower])
    assert source.propose([1, 2], 1) == [6]


def test_it_is_silent_where_nothing_followed_often() -> None:
    source = SuffixSource()
    for follower in (5, 6, 7, 8):
        source.learn([0], [1, 2, follower])
    assert source.propose([1, 2], 1) == []


@settings(deadline=None)
@given(TEXT, st.integers(1, 5))
def test_shorter_asks_are_prefixes_of_longer_ones(text: list[int], length: int) -> None:
    for source in (NgramSource(), SuffixSource()):
        assert source.propose(text, length) == source.propose(text, 6)[:length]


@settings(deadline=None)
@given(TEXT, TEXT, st.integers(0, 40))
def test_what_came_before_does_not_change_a_suffix_proposal(
    text: list[int], other: list[int], cut: int
) -> None:
    """The counts it keeps from ask to ask are those that a fresh source would make."""
    used = SuffixSource()
    for end in range(len(text) + 1):
        used.propose(text[:end], 3)
    used.propose(other, 3)
    context = text[: min(cut, len(text))]
    assert used.propose(context, 3) == SuffixSource().propose(context, 3)
