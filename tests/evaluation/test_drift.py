"""Yardstick runs between others."""

from __future__ import annotations

import pytest

from deployments.evaluation.drift import around, interleave


def test_a_run_is_compared_with_the_yardsticks_on_both_sides() -> None:
    assert around([2.0, None, None, 4.0, None, 6.0]) == [2.0, 3.0, 3.0, 4.0, 5.0, 6.0]


def test_at_the_ends_there_is_one_side_only() -> None:
    assert around([None, 3.0, None]) == [3.0, 3.0, 3.0]


def test_without_a_yardstick_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(ValueError, match="no yardstick"):
        around([None, None])
    assert around([]) == []


def test_yardsticks_stand_at_both_ends_and_in_between() -> None:
    assert interleave(["a", "b", "c"], "-", 2) == ["-", "a", "b", "-", "c", "-"]
    assert interleave(["a", "b"], "-", 2) == ["-", "a", "b", "-"]
    assert interleave([], "-", 2) == ["-"]
