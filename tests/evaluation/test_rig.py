"""What scoring foretells, the engine does: real verifier, real drafters, real link. Tiny model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from deployments.drafter.build import build_engine
from deployments.drafter.layers import write_first_layers
from deployments.drafter.settings import DraftSettings
from deployments.evaluation.drafters import DrafterProcesses, DraftToServe
from deployments.evaluation.rig import Rig
from deployments.evaluation.scoring import VerifierText, score_draft
from deployments.evaluation.walk import ScoredText, replay_batch, walk
from deployments.verifier.offline import described
from tests.drafter.conftest import write_tokenizer
from tests.support.engine import WIDTH, FleetEngine
from tests.support.tiny import CONTEXT, VOCAB, tiny_llama

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = [[5, 9, 13, 21], [7, 7, 30, 2, 44, 18], [60, 3], [11, 12, 13, 14, 15, 16, 17]]
TOKENS = 48


@dataclass
class Stage:
    """A rig with two drafts: the verifier itself, and its first layer."""

    verifier: FleetEngine
    rig: Rig
    texts: list[VerifierText]
    scored: dict[str, list[ScoredText]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tiny_llama(tmp_path_factory.mktemp("verifier"), seed=5)
    write_tokenizer(folder, VOCAB)
    layer = tmp_path_factory.mktemp("layer")
    write_first_layers(folder, 1, layer)
    settings = DraftSettings(model="-", quantise="none")
    drafts = [DraftToServe("whole", folder, settings), DraftToServe("layer", layer, settings)]
    log = (tmp_path_factory.mktemp("log") / "drafters").open("w")
    with DrafterProcesses(drafts, folder, log, os.environ) as processes:
        verifier = FleetEngine(
            folder, ["whole", "layer"], generalist="whole", skip_tokenizer_init=True, max_model_len=CONTEXT
        )
        try:
            peers = processes.wait()
            processes.admit(verifier.public_key)
            rig = Rig(verifier)
            rig.connect(peers)
            texts = rig.write(PROMPTS, TOKENS, 0.0, stop_at_end=False)
            scored = {
                draft.name: score_draft(
                    build_engine(settings, draft=draft.folder, verifier=folder), texts, WIDTH
                )
                for draft in drafts
            }
            yield Stage(verifier, rig, texts, scored)
        finally:
            verifier.close()
    log.close()


@pytest.mark.parametrize("length", [1, 2, 4])
@pytest.mark.parametrize("draft", ["whole", "layer"])
def test_every_step_of_the_engine_is_the_one_foretold(stage: Stage, draft: str, length: int) -> None:
    from vllm import SamplingParams

    seen = {"asked": 0, "proposed": 0, "accepted": 0}
    for text, scored in zip(stage.texts, stage.scored[draft], strict=True):
        params = SamplingParams(
            temperature=0.0,
            max_tokens=TOKENS,
            ignore_eos=True,
            detokenize=False,
            extra_args=described(draft=draft, length=length),
        )
        stage.verifier.run_batch([[1, 2]], [params])  # its steps end where the next batch begins
        stage.verifier.take_steps()
        [written] = stage.verifier.run_batch([text.prompt], [params])
        assert written.tokens == text.answer
        stage.verifier.run_batch([[1, 2]], [params])
        steps = stage.verifier.take_steps()
        first = next(place for place, step in enumerate(steps) if step.rows and not step.decoding)
        place, before = 1, steps[first]
        for step in steps[first + 1 :]:
            if place >= TOKENS:
                break
            foretold = scored.at(place, before.asked)
            assert (step.proposed, step.written) == (foretold.proposed, foretold.written), (place, steps)
            assert before.asked in (0, min(length, TOKENS - place - 1))
            place += step.written
            seen["asked"] += before.asked
            seen["proposed"] += step.proposed
            seen["accepted"] += step.written - 1
            before = step
        assert place == TOKENS
    # It says something only where much was proposed, and some of it was right.
    assert seen["proposed"] == seen["asked"] > TOKENS
    rate = seen["accepted"] / seen["proposed"]
    assert rate == 1.0 if draft == "whole" else 0.02 < rate < 0.9


@pytest.mark.parametrize("draft", ["whole", "layer"])
def test_a_batch_goes_as_its_replay(stage: Stage, draft: str) -> None:
    tried = []
    for _ in range(5):  # a drafter may still read a prompt when its first proposal is due
        timing = stage.rig.time_batch(PROMPTS, TOKENS, 0.0, draft, 3, stop_at_end=False)
        assert timing.seconds > 0
        assert {sample.rows for sample in timing.samples} == {len(PROMPTS)}
        replay = replay_batch(stage.scored[draft], 3, timing.begun)
        tried.append(((timing.steps, timing.written), (replay.steps, replay.written)))
        if tried[-1][0] == tried[-1][1]:
            return
    raise AssertionError(f"seen and foretold: {tried}")


def test_plain_decoding_writes_one_token_per_row_and_step(stage: Stage) -> None:
    timing = stage.rig.time_batch(PROMPTS, TOKENS, 0.0, None, 0, stop_at_end=False)
    # The first request may be a step ahead: the engine begins as soon as it has one.
    assert timing.steps == TOKENS - max(timing.begun)
    assert max(timing.begun) <= len(PROMPTS)
    assert timing.written == timing.steps * len(PROMPTS)
    assert {sample.proposed for sample in timing.samples} == {0}


def test_a_batch_ends_after_the_steps_that_were_asked_for(stage: Stage) -> None:
    timing = stage.rig.time_batch(PROMPTS, TOKENS, 0.0, "layer", 2, steps=6, stop_at_end=False)
    assert timing.steps == 6
    assert len(timing.samples) <= 6
    again = stage.rig.time_batch(PROMPTS, TOKENS, 0.0, None, 0, steps=6, stop_at_end=False)
    assert again.written == 6 * len(PROMPTS)  # nothing of the batch before is left


def test_sampled_texts_come_with_the_verifiers_odds(stage: Stage) -> None:
    """Of many sampled answers, the share accepted by chance is the share that the odds foretell."""
    prompts = [PROMPTS[number % 4] for number in range(64)]
    texts = stage.rig.write(prompts, 24, 0.8, stop_at_end=False)
    assert len({tuple(text.answer) for text in texts}) > 32
    for text in texts:
        assert all(0.5 < sum(chances.values()) <= 1.001 for chances in text.choices)
        assert all(token in chances for token, chances in zip(text.answer, text.choices, strict=True))
    scored = [
        ScoredText(
            [1] * 24,
            [int(max(odds, key=lambda token: odds[token]) == token) for token, odds in pairs],
            [[max(odds.values())] for _, odds in pairs],
            24,
        )
        for text in texts
        for pairs in [list(zip(text.answer, text.choices, strict=True))]
    ]
    foretold = walk(scored, 1)
    by_chance = sum(text.at(place, 1).accepted for text in scored for place in range(1, 23))
    places = 64 * 22
    odds = sum(text.odds[place][0] for text in scored for place in range(1, 23))
    assert 0.05 < foretold.rate < 0.95
    assert abs(by_chance - odds) < 4.5 * (places * 0.25) ** 0.5
    again = stage.rig.write(prompts[:4], 24, 0.8, stop_at_end=False)
    assert [text.answer for text in again] == [text.answer for text in texts[:4]]
