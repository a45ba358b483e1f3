"""Texts written by the real engine, against transformers one token at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deployments.distillation.errors import DistillError
from deployments.distillation.settings import TextSettings
from deployments.distillation.texts import Request, Text
from deployments.distillation.vllm_writer import VllmWriter, end_ids
from tests.distillation.tiny import TransformersWriter
from tests.support.engine import prepare_environment
from tests.support.tiny import tiny_llama

pytestmark = pytest.mark.engine


def test_texts_are_the_verifiers_own(tmp_path: Path) -> None:
    prepare_environment()
    verifier = tiny_llama(tmp_path / "verifier")
    [end] = end_ids(verifier)
    settings = TextSettings(batch=4, max_tokens=16, top_k=5, dtype="float32")
    prompts = [(1, 10 + number, 50 - number, 2, 3)[: 3 + number % 3] for number in range(11)]
    wanted = [Request(prompt, 0.0, 0, 16, 5) for prompt in prompts]
    sampled = [Request((1, 11, 12, 2, 3), 0.8, seed, 16, 5) for seed in range(1, 5)]
    writer = VllmWriter(verifier, settings, longest=8)
    try:
        texts = [text for _, text in sorted(writer.write(wanted), key=lambda pair: pair[0])]
        others = dict(writer.write(sampled))
        with pytest.raises(DistillError, match="vLLM failed while it wrote texts"):
            list(writer.write([Request(tuple(range(5, 60)), 0.0, 0, 16, 5)]))
    finally:
        writer.close()
    reference = dict(TransformersWriter(verifier).write(wanted))
    for number, text in enumerate(texts):
        expected: Text = reference[number]
        assert text.answer.tolist() == expected.answer.tolist()
        assert text.prompt.tolist() == list(prompts[number])
        assert text.top_ids[:, 0].tolist() == text.answer.tolist()
        assert torch.equal(text.top_ids.sort(-1).values, expected.top_ids.sort(-1).values)
        assert torch.allclose(text.top_logprobs.float(), expected.top_logprobs.float(), atol=5e-3)
        ended = text.answer.tolist().count(end)
        assert len(text.answer) == 16 or (ended == 1 and text.answer[-1] == end)
    assert len({tuple(text.answer.tolist()) for text in others.values()}) > 1
    # Sampled or not, the odds kept are those before the temperature.
    first = others[0]
    again = dict(TransformersWriter(verifier).write([Request((1, 11, 12, 2, 3), 0.0, 0, 1, 5)]))[0]
    assert torch.allclose(first.top_logprobs[0].float(), again.top_logprobs[0].float(), atol=5e-3)
