"""Scoring texts: what is compared with what, at the edges too. Small models, the product's own engine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from deployments.drafter.build import build_engine
from deployments.drafter.settings import DraftSettings
from deployments.evaluation.lookup import NgramSource, SuffixSource
from deployments.evaluation.scoring import VerifierText, as_odds, score_draft, score_source
from deployments.evaluation.walk import walk
from tests.drafter.conftest import LLAMA, write_checkpoint

SETTINGS = DraftSettings(model="-", quantise="none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "llama", "llama", seed=4, **LLAMA)


def greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    """What the model writes itself, asked step by step through the serving engine."""
    from deployments.drafter.engine import Ask

    engine = build_engine(SETTINGS, draft=folder, verifier=folder)
    text: list[int] = []
    while len(text) < count:
        [answer] = engine.propose([Ask("s", 0, [*prompt, *text], 4)])
        text += answer.tokens
    return text[:count]


def test_a_draft_is_right_everywhere_on_its_own_text(folder: Path) -> None:
    prompt = [3, 5, 8]
    text = VerifierText(prompt, greedy(folder, prompt, 20), 20, [])
    [scored] = score_draft(build_engine(SETTINGS, draft=folder, verifier=folder), [text], 4)
    assert list(scored.matched) == [min(4, 20 - place) for place in range(20)]
    assert walk([scored], 4).rate == 1.0


def test_one_wrong_token_ends_exactly_the_proposals_that_reach_it(folder: Path) -> None:
    prompt = [3, 5, 8]
    answer = greedy(folder, prompt, 12)
    changed = [*answer[:6], (answer[6] + 1) % 60]
    [scored] = score_draft(
        build_engine(SETTINGS, draft=folder, verifier=folder), [VerifierText(prompt, changed, 12, [])], 4
    )
    assert list(scored.matched) == [4, 4, 4, 3, 2, 1, 0]
    assert scored.odds[3] == [1.0, 1.0, 1.0, 0.0]


def test_nothing_is_proposed_past_the_token_that_ends_an_answer(folder: Path) -> None:
    prompt = [3, 5, 8]
    answer = greedy(folder, prompt, 8)
    engine = build_engine(SETTINGS, draft=folder, verifier=folder)
    [cut, ended] = score_draft(
        engine, [VerifierText(prompt, answer, 8, []), VerifierText(prompt, answer, 64, [])], 4
    )
    assert list(cut.proposed) == [4] * 8  # the limit takes care of the end
    assert list(ended.proposed) == [4, 4, 4, 4, 4, 3, 2, 1]
    assert walk([cut], 4).rate == walk([ended], 4).rate == 1.0
    repeated = VerifierText([1, 2, 3, 9, 1, 2], [3, 9], 64, [])
    [looked_up] = score_source(NgramSource, [repeated], 4)
    assert (looked_up.proposed[0], looked_up.matched[0]) == (2, 2)


def test_nothing_is_proposed_past_the_drafts_window(folder: Path) -> None:
    window = LLAMA["max_position_embeddings"]
    prompt = [(7 * place) % 60 for place in range(window - 3)]
    [scored] = score_draft(
        build_engine(SETTINGS, draft=folder, verifier=folder), [VerifierText(prompt, [1] * 6, 6, [])], 4
    )
    assert list(scored.proposed) == [3, 2, 1, 0, 0, 0]


def test_sampled_texts_are_judged_by_the_verifiers_odds(folder: Path) -> None:
    prompt = [3, 5, 8]
    answer = greedy(folder, prompt, 4)
    choices = [{token: 0.7, (token + 1) % 60: 0.2} for token in answer]
    wrong = [answer[0], (answer[1] + 1) % 60, *answer[2:]]
    [scored] = score_draft(
        build_engine(SETTINGS, draft=folder, verifier=folder),
        [VerifierText(prompt, wrong, 4, choices)],
        2,
    )
    # Place 0: right and then wrong; the odds are those of the draft's own tokens, whatever was written.
    assert scored.matched[0] == 1
    assert list(scored.odds[0]) == [0.7, 0.7]


def test_odds_come_from_log_probabilities_and_unlikely_tokens_have_none() -> None:
    text = VerifierText([1], [2, 3], 2, as_odds([{2: math.log(0.6)}, {3: math.log(0.9), 4: math.log(0.1)}]))
    assert text.odds(0, 2) == pytest.approx(0.6)
    assert text.odds(0, 9) == 0.0
    assert text.odds(1, 4) == pytest.approx(0.1)
    assert VerifierText([1], [2], 1, []).odds(0, 2) == 1.0


def test_looked_up_proposals_are_judged_from_where_they_are_made() -> None:
    text = VerifierText([1, 2, 3, 4], [1, 2, 3, 4, 9], 5, [])
    [scored] = score_source(NgramSource, [text], 4)
    # After 1 2 3 4 1 2 the text went on 3 4 1 2: two of them come.
    assert (scored.proposed[2], scored.matched[2]) == (4, 2)
    assert list(scored.odds[2][:3]) == [1.0, 1.0, 0.0]
    assert scored.proposed[0] == 0


def test_later_texts_profit_from_earlier_ones_only() -> None:
    texts = [VerifierText([n], [10, 20, 30, 40, 50], 5, []) for n in range(3)]
    scored = score_source(SuffixSource, texts, 3)
    assert sum(scored[0].matched) == 0
    assert sum(scored[1].matched) > 0
    again = score_source(SuffixSource, texts[:1], 3)  # a new source has seen nothing
    assert sum(again[0].matched) == 0
