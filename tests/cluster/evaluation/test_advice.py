"""From figures to words: each rule with an example that a person would agree with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.evaluation.advice import Choice, choose
from cluster.evaluation.result import WORTH
from tests.cluster.evaluation.made_up import Gains, candidate, speeds


def advise(gains: Gains, configured: dict[str, str], generalist: str = "general", **warm: Gains) -> Choice:
    names = dict.fromkeys(name for _, name, _ in gains)
    found = speeds(gains)
    if "warm" in warm:
        found += speeds(warm["warm"], 0.8)
    infos = [candidate(name, served=name not in ("ngram", "suffix")) for name in names]
    return choose(found, infos, configured, generalist)


def test_a_draft_that_pays_everywhere() -> None:
    gains = {("code", "code", 1): (4, 1.30), ("code", "code", 4): (4, 1.18)}
    choice = advise(gains, {"code": "code"}, "code")
    assert choice.domains[0].words == "Use code for code, k = 4: 1.30x at batch 1 and 1.18x at batch 4."
    assert choice.summary == "Worth it: code for code (up to 1.30x)."
    assert (choice.drafts, choice.max_draft_tokens) == ({"code": "code"}, 4)


def test_lengths_that_differ_by_batch_size_are_told_one_by_one() -> None:
    gains = {("code", "code", 1): (4, 1.30), ("code", "code", 4): (2, 1.10)}
    [advice] = advise(gains, {"code": "code"}, "code").domains
    assert advice.words == "Use code for code: k = 4 at batch 1 (1.30x), k = 2 at batch 4 (1.10x)."
    assert [one.length for one in advice.batches] == [4, 2]


def test_not_worth_it_from_a_batch_size_on() -> None:
    gains = {("code", "code", 1): (4, 1.30), ("code", "code", 8): (2, 1.01), ("code", "code", 16): (1, 0.9)}
    [advice] = advise(gains, {"code": "code"}, "code").domains
    assert "not worth it from batch 8 on" in advice.words
    assert [one.length for one in advice.batches] == [4, 0, 0]


def test_not_worth_it_below_a_batch_size() -> None:
    gains = {("medical", "medical", 1): (1, 1.01), ("medical", "medical", 8): (2, 1.2)}
    [advice] = advise(gains, {"medical": "medical"}, "medical").domains
    assert "It is not worth it below batch 8" in advice.words


def test_not_worth_it_at_all() -> None:
    gains = {("medical", "medical", 1): (1, 1.02), ("medical", "general", 1): (1, 0.97)}
    choice = advise(gains, {"medical": "medical"})
    assert choice.domains[0].candidate is None
    assert choice.domains[0].words == (
        "No draft is worth it for medical: the best, medical with k = 1, gives 1.02x at batch 1."
    )
    assert choice.summary == "None of the drafts is worth running for these domains on this machine."
    assert choice.max_draft_tokens == 1
    assert choice.drafts == {"medical": choice.generalist}


def test_another_draft_takes_over_only_when_it_is_clearly_better() -> None:
    clearly = {("code", "code", 1): (2, 1.10), ("code", "general", 1): (2, 1.20)}
    assert advise(clearly, {"code": "code"}).drafts == {"code": "general"}
    hardly = {("code", "code", 1): (2, 1.10), ("code", "general", 1): (2, 1.11)}
    assert advise(hardly, {"code": "code"}).drafts == {"code": "code"}


def test_the_generalist_is_who_does_best_over_all_domains() -> None:
    gains = {
        ("code", "code", 1): (2, 1.5),
        ("code", "both", 1): (2, 1.3),
        ("medical", "code", 1): (2, 1.0),
        ("medical", "both", 1): (2, 1.3),
    }
    choice = advise(gains, {"code": "code", "medical": "both"}, "code")
    assert choice.generalist == "both"
    assert choice.drafts == {"code": "code", "medical": "both"}


def test_what_needs_no_drafter_is_told_and_never_configured() -> None:
    gains = {("code", "code", 1): (2, 1.2), ("code", "ngram", 1): (4, 1.4)}
    choice = advise(gains, {"code": "code"}, "code")
    assert "No drafter is needed here: ngram alone would give 1.40x at batch 1" in choice.domains[0].words
    assert choice.drafts == {"code": "code"}
    weaker = {("code", "code", 1): (2, 1.2), ("code", "ngram", 1): (4, 1.1)}
    assert "ngram" not in advise(weaker, {"code": "code"}, "code").domains[0].words


def test_higher_temperatures_are_told() -> None:
    gains = {("code", "code", 1): (2, 1.3), ("code", "code", 4): (2, 1.2)}
    words = advise(
        gains,
        {"code": "code"},
        "code",
        warm={("code", "code", 1): (2, 1.12), ("code", "code", 4): (2, 1.06)},
    )
    assert "At temperature 0.8: 1.06x to 1.12x." in words.domains[0].words
    nothing = advise(
        gains, {"code": "code"}, "code", warm={("code", "code", 1): (2, 1.0), ("code", "code", 4): (2, 0.9)}
    )
    assert "At temperature 0.8 it gives nothing." in nothing.domains[0].words


def test_without_anything_that_can_be_served_there_is_no_advice() -> None:
    with pytest.raises(ValueError, match="can serve"):
        advise({("code", "ngram", 1): (2, 1.2)}, {"code": "code"})


GAIN = st.floats(0.5, 3.0)


@settings(deadline=None)
@given(st.lists(GAIN, min_size=12, max_size=12))
def test_what_is_advised_is_worth_it_and_never_worse_than_what_was_configured(values: list[float]) -> None:
    gains = {
        (domain, name, batch): (2, values[number])
        for number, (domain, name, batch) in enumerate(
            (domain, name, batch) for domain in ("a", "b") for name in ("x", "y", "z") for batch in (1, 4)
        )
    }
    choice = advise(gains, {"a": "x", "b": "y"}, "x")
    for advice, present in zip(choice.domains, ("x", "y"), strict=True):
        for batch in advice.batches:
            assert (batch.length > 0) == (batch.speedup >= WORTH)
        if advice.candidate is None:
            best = max(value for (domain, _, _), (_, value) in gains.items() if domain == advice.domain)
            # Others may be worth it at one batch size and lose over all; but not clearly everywhere.
            assert best < WORTH or len(advice.batches) > 1
        else:
            mine = [max(1.0, gains[advice.domain, advice.candidate, batch][1]) for batch in (1, 4)]
            before = [max(1.0, gains[advice.domain, present, batch][1]) for batch in (1, 4)]
            assert mine[0] * mine[1] >= before[0] * before[1] * 0.999
    assert choice.generalist in ("x", "y", "z")
