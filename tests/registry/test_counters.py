"""Sums over counters of processes that come and go never fall."""

from hypothesis import given
from hypothesis import strategies as st

from deployments.registry.counters import Ledger

LEAF = ("proposed", "code", "code")


def test_a_counter_that_fell_began_again() -> None:
    ledger = Ledger()
    ledger.update("a", {LEAF: 10})
    ledger.update("a", {LEAF: 3})
    ledger.update("a", {LEAF: 5})
    assert ledger.totals() == {LEAF: 15}


def test_a_counter_that_vanished_is_kept() -> None:
    ledger = Ledger()
    ledger.update("a", {LEAF: 10})
    ledger.update("a", {})
    assert ledger.totals() == {LEAF: 10}
    ledger.update("a", {LEAF: 4})
    assert ledger.totals() == {LEAF: 14}


def test_the_longest_silent_source_is_merged_when_there_are_too_many() -> None:
    ledger = Ledger(max_sources=2)
    ledger.update("a", {LEAF: 1})
    ledger.update("b", {LEAF: 10})
    ledger.update("a", {LEAF: 2})
    ledger.update("c", {LEAF: 100})
    assert ledger.totals() == {LEAF: 112}
    # `a` is still known one by one, so that its next report adds only what is new.
    ledger.update("a", {LEAF: 3})
    assert ledger.totals() == {LEAF: 113}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.dictionaries(st.sampled_from([("x",), ("y",)]), st.integers(0, 50)),
        ),
        max_size=40,
    ),
    st.integers(1, 4),
)
def test_no_total_ever_falls(updates: list[tuple[str, dict[tuple[str, ...], float]]], room: int) -> None:
    ledger = Ledger(max_sources=room)
    before: dict[tuple[str, ...], float] = {}
    for source, counts in updates:
        ledger.update(source, counts)
        now = ledger.totals()
        assert all(now.get(leaf, 0) >= number for leaf, number in before.items())
        before = now
