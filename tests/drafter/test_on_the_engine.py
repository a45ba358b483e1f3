"""Every kind of draft that a drafter serves, on a real verifier over the real link: exact, and of use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from deployments.drafter.layers import resolve_draft
from deployments.drafter.settings import DraftSettings
from deployments.evaluation.drafters import DrafterProcesses, DraftToServe
from deployments.evaluation.rig import Rig
from deployments.verifier.offline import described
from tests.drafter.conftest import write_tokenizer
from tests.drafter.test_published_quantised import store_quantised
from tests.support.engine import FleetEngine
from tests.support.tiny import CONTEXT, VOCAB, tiny_llama

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = [[5, 9, 13, 21], [7, 7, 30, 2, 44, 18], [60, 3], [11, 12, 13, 14, 15, 16, 17]]
TOKENS = 64
#: Name -> how its linear layers are held. All but the first are the verifier itself, in other numbers.
DRAFTS = {"first-layer": "none", "float": "none", "int8": "int8", "published": "none"}


@dataclass
class Stage:
    verifier: FleetEngine
    plain: list[list[int]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("models")
    verifier = tiny_llama(root / "verifier", seed=5)
    write_tokenizer(verifier, VOCAB)
    published = shutil.copytree(verifier, root / "published")
    store_quantised(published, "int8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root))
        folders = {
            "first-layer": resolve_draft("layers:1", verifier),
            "float": verifier,
            "int8": verifier,
            "published": published,
        }
    drafts = [
        DraftToServe(name, folders[name], DraftSettings(model="-", quantise=how))
        for name, how in DRAFTS.items()
    ]
    with (
        (root / "log").open("w") as log,
        DrafterProcesses(drafts, verifier, log, os.environ) as processes,
    ):
        engine = FleetEngine(
            verifier, list(DRAFTS), generalist="float", skip_tokenizer_init=True, max_model_len=CONTEXT
        )
        try:
            peers = processes.wait()
            processes.admit(engine.public_key)
            Rig(engine).connect(peers)
            yield Stage(engine, write(engine, "none"))
        finally:
            engine.close()


def write(engine: FleetEngine, draft: str) -> list[list[int]]:
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.0,
        max_tokens=TOKENS,
        ignore_eos=True,
        detokenize=False,
        extra_args=described(draft=draft, length=3),
    )
    return [one.tokens for one in engine.run_batch(PROMPTS, [params] * len(PROMPTS))]


def accepted_rate(engine: FleetEngine, draft: str) -> float:
    figures = engine.snapshot()["acceptance"][draft].values()
    proposed = sum(one["proposed"] for one in figures)
    assert proposed > TOKENS
    return float(sum(one["accepted"] for one in figures) / proposed)


@pytest.mark.parametrize("draft", list(DRAFTS))
def test_greedy_output_is_that_of_plain_decoding(stage: Stage, draft: str) -> None:
    assert write(stage.verifier, draft) == stage.plain
    # The float draft is the verifier: all it proposes is right, so the others' rates are how often they
    # propose the same.
    rate = accepted_rate(stage.verifier, draft)
    if draft == "float":
        assert rate == 1.0
    elif draft == "first-layer":
        assert 0.02 < rate < 0.9
    else:
        assert 0.7 < rate <= 1.0
