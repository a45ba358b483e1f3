"""Scoring: the walk by hand, and the whole against a plain simulation of speculative decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from deployments.distillation.batches import micro_batches, padded, training_steps
from deployments.distillation.score import WIDTH, score, walk
from deployments.distillation.settings import TextSettings
from deployments.distillation.student import VerifierParts
from deployments.distillation.writing import held_back_requests
from tests.distillation.tiny import WORDS, TransformersWriter, text_of, write_verifier


def test_the_walk_by_hand() -> None:
    # hit hit miss | miss | hit hit hit hit, own | hit
    hits = [True, True, False, False, True, True, True, True, False, True]
    assert walk(hits) == [2, 0, 4, 1]
    assert walk([]) == []
    assert walk([False] * 3) == [0, 0, 0]
    assert walk([True] * 10) == [4, 4]


@given(st.lists(st.booleans(), max_size=60))
def test_every_token_is_accepted_or_the_verifiers_own(hits: list[bool]) -> None:
    lengths = walk(hits)
    written = sum(lengths) + len(lengths)
    assert written in (len(hits), len(hits) + 1)  # a last proposal may be taken whole
    assert all(0 <= length <= WIDTH for length in lengths)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 120),
    st.integers(1, 120),
    st.integers(0, 3),
)
def test_every_text_is_in_one_group_of_a_pass_and_groups_fit(
    lengths: list[int], micro: int, step: int, seed: int
) -> None:
    for group in micro_batches(lengths, micro):
        assert len(group) == 1 or len(group) * max(lengths[number] for number in group) <= micro
    steps = training_steps(lengths, lengths, step_tokens=step, micro_tokens=micro, seed=seed)
    seen: list[int] = []
    while len(seen) < 2 * len(lengths):
        groups = next(steps)
        assert sum(lengths[number] for group in groups for number in group) >= step
        seen += [number for group in groups for number in group]
    assert sorted(seen[: len(lengths)]) == list(range(len(lengths)))


def test_places_are_those_before_the_tokens_of_the_answer() -> None:
    texts = [text_of([5, 6, 7], [8, 9], [[(8, 0.5)]] * 2), text_of([4], [3], [[(3, 0.5)]])]
    tokens, places, counts = padded(texts)
    assert tokens.tolist() == [[5, 6, 7, 8], [4, 0, 0, 0]]
    assert places.tolist() == [2, 3, 4]
    assert counts == [2, 1]


@pytest.mark.process
def test_the_score_is_what_speculative_decoding_would_give(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    verifier = write_verifier(tmp_path)
    settings = TextSettings(max_tokens=20, top_k=4)
    prompts = [[1, 10 + number, 20 + number, 2, 3] for number in range(6)]
    written = sorted(TransformersWriter(verifier).write(held_back_requests(prompts, settings)))
    texts = [text for _, text in written]
    student = VerifierParts(verifier).student([0, 3], head_ids=None, limit=WORDS).eval()
    found = score(student, texts, micro_tokens=64)

    # The draft as a model of its own, asked token by token with what it said before.
    draft = AutoModelForCausalLM.from_pretrained(verifier).eval()
    draft.model.layers = torch.nn.ModuleList([draft.model.layers[0], draft.model.layers[3]])
    for number, layer in enumerate(draft.model.layers):
        layer.self_attn.layer_idx = number
    accepted, proposals = [0] * WIDTH, 0
    for text in texts:
        context, left = text.prompt.tolist(), text.answer.tolist()
        while left:
            proposals += 1
            proposed: list[int] = []
            for _ in range(WIDTH):
                logits = draft(torch.tensor([context + proposed]), use_cache=False).logits[0, -1, :WORDS]
                proposed.append(int(logits.argmax()))
            taken = 0
            while taken < min(WIDTH, len(left)) and proposed[taken] == left[taken]:
                accepted[taken] += 1
                taken += 1
            context, left = context + left[: taken + 1], left[taken + 1 :]
    assert found.proposals == proposals
    assert found.by_position == pytest.approx([count / proposals for count in accepted])
    known = sum(int((text.answer < WORDS).sum()) for text in texts)
    assert found.coverage == pytest.approx(known / found.tokens)
