"""At temperature > 0 the text must be distributed as the verifier's own: thousands of samples, exact odds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support.engine import FleetEngine, ask_for_long_proposals, described
from tests.support.scripted import ScriptedDrafter
from tests.support.tiny import tiny_llama
from tests.verifier.test_edges import wait_until_up

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PROMPT = [5, 9, 13, 21, 34]
TEMPERATURE, TOP_K, TOP_P = 0.8, 6, 0.9
TOKENS = 4
SAMPLES = 12_000
PLANTED_SAMPLES = 4_000
# A right engine fails once in ten thousand tests made; a wrong one has no chance (see the planted faults).
ALPHA = 1e-4


class Odds:
    """Exact next-token odds of the tiny verifier, filtered as vLLM does: temperature, top_k, then top_p."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.after = lru_cache(maxsize=4096)(self._after)

    def _after(self, context: tuple[int, ...]) -> dict[int, float]:
        with torch.inference_mode():
            logits = self._model(torch.tensor([list(context)])).logits[0, -1].double() / TEMPERATURE
        odds = torch.softmax(logits, -1)
        kept = torch.topk(odds, TOP_K)
        values = kept.values / kept.values.sum()
        before = torch.cumsum(values, 0) - values
        values = torch.where(before < TOP_P, values, torch.zeros_like(values))
        values = values / values.sum()
        pairs = zip(kept.indices.tolist(), values.tolist(), strict=True)
        return {token: value for token, value in pairs if value > 0}

    def likeliest(self, context: tuple[int, ...]) -> int:
        odds = self.after(context)
        return max(odds, key=lambda token: odds[token])

    def joint(self) -> dict[tuple[int, ...], float]:
        """Odds of every text of TOKENS tokens."""
        texts: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(TOKENS):
            texts = {
                (*text, token): value * odds
                for text, value in texts.items()
                for token, odds in self.after((*PROMPT, *text)).items()
            }
        return texts


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FleetEngine, Odds, ScriptedDrafter]]:
    folder = tiny_llama(tmp_path_factory.mktemp("verifier"), seed=3)
    odds = Odds(folder)

    def script(context: list[int], length: int) -> list[int]:
        text: list[int] = []
        for _ in range(length):
            text.append(odds.likeliest((*context, *text)))
        return text

    engine = FleetEngine(folder, ["general"], skip_tokenizer_init=True, max_num_seqs=256, max_model_len=64)
    drafter = ScriptedDrafter(script)
    drafter.admit([engine.public_key])
    engine.connect([drafter.peer])
    wait_until_up(engine, drafter)
    engine.llm.collective_rpc(ask_for_long_proposals)
    yield engine, odds, drafter
    drafter.stop()
    engine.close()


def sample(engine: FleetEngine, count: int, draft: str) -> list[tuple[int, ...]]:
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=TEMPERATURE,
        top_k=TOP_K,
        top_p=TOP_P,
        max_tokens=TOKENS + 1,  # one more, so that proposals reach the last token that is looked at
        ignore_eos=True,
        detokenize=False,
        extra_args=described(draft=draft),
    )
    outputs = engine.generate([PROMPT] * count, params)
    return [tuple(output.outputs[0].token_ids[:TOKENS]) for output in outputs]


def worst_p_value(texts: list[tuple[int, ...]], odds: Odds) -> float:
    """Smallest p value of chi-square tests on each token and each pair of neighbours; 0 where odds are 0."""
    joint = odds.joint()
    windows = [(i,) for i in range(TOKENS)] + [(i, i + 1) for i in range(TOKENS - 1)]
    worst = 1.0
    for window in windows:
        expected: Counter[tuple[int, ...]] = Counter()
        for text, value in joint.items():
            expected[tuple(text[i] for i in window)] += value * len(texts)  # type: ignore[assignment]
        seen = Counter(tuple(text[i] for i in window) for text in texts)
        if set(seen) - set(expected):
            return 0.0  # a token that top_k or top_p rules out
        common = [key for key, value in expected.items() if value >= 5]
        got = [float(seen[key]) for key in common] + [
            float(sum(v for k, v in seen.items() if k not in set(common)))
        ]
        want = [expected[key] for key in common] + [
            sum(v for k, v in expected.items() if k not in set(common))
        ]
        if want[-1] < 5:
            got, want = [*got[:-2], got[-2] + got[-1]], [*want[:-2], want[-2] + want[-1]]
        result = stats.chisquare(got, np.array(want) * sum(got) / sum(want))
        worst = min(worst, float(result.pvalue))
    return worst


def by_position(engine: FleetEngine) -> list[int]:
    return list(engine.snapshot()["acceptance"]["general"]["general"]["by_position"])


def test_samples_follow_the_verifiers_odds(fleet: tuple[FleetEngine, Odds, ScriptedDrafter]) -> None:
    engine, odds, _ = fleet
    before = engine.snapshot()["acceptance"]["general"]["general"]
    p = worst_p_value(sample(engine, SAMPLES, "general"), odds)
    after = engine.snapshot()["acceptance"]["general"]["general"]
    proposed, accepted = after["proposed"] - before["proposed"], after["accepted"] - before["accepted"]
    # The test says something only if many proposals were accepted and many rejected, also at later positions.
    assert proposed > SAMPLES / 2
    assert 0.1 < accepted / proposed < 0.95
    assert by_position(engine)[1] > 200
    assert p > ALPHA


def test_plain_samples_follow_them_too(fleet: tuple[FleetEngine, Odds, ScriptedDrafter]) -> None:
    """The yardstick itself: without proposals the same samples must pass the same test."""
    engine, odds, _ = fleet
    assert worst_p_value(sample(engine, PLANTED_SAMPLES, "none"), odds) > ALPHA


@pytest.mark.parametrize("fault", ["odds_of_the_next_token", "temperature_lost"])
def test_a_planted_fault_is_caught(fleet: tuple[FleetEngine, Odds, ScriptedDrafter], fault: str) -> None:
    engine, odds, _ = fleet
    engine.llm.collective_rpc(
        {"odds_of_the_next_token": shift_odds, "temperature_lost": lose_temperature}[fault]
    )
    try:
        p = worst_p_value(sample(engine, PLANTED_SAMPLES, "general"), odds)
    finally:
        engine.llm.collective_rpc(mend)
    assert p < ALPHA


def shift_odds(worker: Any) -> None:
    """Off by one: each proposed token is judged by the odds of the one after it."""
    from vllm.utils import cpu_triton_utils

    kernel = cpu_triton_utils.rejection_random_sample_kernel
    right = kernel.func
    worker.planted = (kernel, right)

    def shifted(
        output: Any, cu: Any, drafts: Any, draft_probs: Any, target_probs: Any, *rest: Any, **named: Any
    ) -> Any:
        return right(output, cu, drafts, draft_probs, target_probs.roll(-1, 0), *rest, **named)

    kernel.func = shifted


def lose_temperature(worker: Any) -> None:
    """What vLLM's unmended kernel may do to float values: they never arrive."""
    from vllm.utils import cpu_triton_utils

    kernel = cpu_triton_utils.expand_kernel
    worker.planted = (kernel, kernel.func)
    kernel.func = lambda output, *rest, **named: output.fill_(1)


def mend(worker: Any) -> None:
    kernel, right = worker.planted
    kernel.func = right
