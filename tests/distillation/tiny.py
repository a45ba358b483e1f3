"""A tiny verifier with a tokenizer, a writer that runs it in transformers, and texts."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from deployments.distillation.settings import DistillSettings, TextSettings
from deployments.distillation.texts import Request, Text
from deployments.distillation.vllm_writer import end_ids

WORDS = 61
PADDED = 64
END = 2
CHAT = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_tokenizer(folder: Path, words: int = WORDS, chat: bool = True) -> None:
    """Words w5, w6, ... with one id each; 0 to 4 are unknown, <user>, <end>, <assistant>, <system>."""
    vocabulary = {"<unk>": 0, "<user>": 1, "<end>": END, "<assistant>": 3, "<system>": 4}
    vocabulary |= {f"w{number}": number for number in range(5, words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>")
    if chat:
        fast.chat_template = CHAT
    fast.save_pretrained(folder)


def write_verifier(folder: Path, *, seed: int = 0, chat: bool = True) -> Path:
    """A four-layer Llama with random weights, whose first layers say much of what it will say."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=PADDED,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=END,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
    write_tokenizer(folder, chat=chat)
    return folder


def write_prompts(path: Path, count: int = 24, seed: int = 0) -> Path:
    """Prompts of a few random words."""
    generator = torch.Generator().manual_seed(seed)
    lines = []
    for _ in range(count):
        words = torch.randint(5, WORDS, (4,), generator=generator).tolist()
        lines.append(json.dumps({"prompt": " ".join(f"w{word}" for word in words)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def small_settings(**training: object) -> DistillSettings:
    """Seconds of work on one core."""
    return DistillSettings.model_validate(
        {
            "hold_back": 0.25,
            "device": "cpu",
            "texts": {"tokens": 800, "max_tokens": 24, "top_k": 8},
            "student": {"layers": [0, 3], "head_ids": 48},
            "training": {
                "steps": 30,
                "step_tokens": 200,
                "micro_tokens": 512,
                "learning_rate": 5e-3,
                "precision": "float32",
                "threads": 1,
                **training,
            },
        }
    )


class TransformersWriter:
    """The verifier, run by transformers one text at a time: the reference for what vLLM writes."""

    def __init__(self, model: Path, settings: TextSettings | None = None, longest: int = 0) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._ends = end_ids(model)
        self.written = 0
        self.closed = False

    @torch.no_grad()
    def write(self, requests: Sequence[Request]) -> Generator[tuple[int, Text], None, None]:
        for place, request in enumerate(requests):
            yield place, self._one(request)
            self.written += 1

    def close(self) -> None:
        self.closed = True

    @torch.no_grad()
    def _one(self, request: Request) -> Text:
        chance = torch.Generator().manual_seed(request.seed)
        ids, odds = [], []
        answer: list[int] = []
        fresh, known = list(request.prompt), None
        while len(answer) < request.max_tokens and not set(answer) & set(self._ends):
            output = self._model(torch.tensor([fresh]), cache=known, use_cache=True)
            known = output.cache
            scores = output.logits[0, -1].log_softmax(-1)
            top = scores.topk(request.top_k)
            ids.append(top.indices.int())
            odds.append(top.values.half())
            if request.temperature:
                chances = (scores / request.temperature).softmax(-1)
                token = int(torch.multinomial(chances, 1, generator=chance))
            else:
                token = int(top.indices[0])
            answer.append(token)
            fresh = [token]
        return Text(
            torch.tensor(request.prompt, dtype=torch.int32),
            torch.tensor(answer, dtype=torch.int32),
            torch.stack(ids),
            torch.stack(odds),
        )


def text_of(
    prompt: Sequence[int], answer: Sequence[int], odds: Sequence[Sequence[tuple[int, float]]]
) -> Text:
    """A text from plain numbers; per place the likeliest tokens with their probability."""
    return Text(
        torch.tensor(list(prompt), dtype=torch.int32),
        torch.tensor(list(answer), dtype=torch.int32),
        torch.tensor([[token for token, _ in place] for place in odds], dtype=torch.int32),
        torch.tensor([[math.log(p) for _, p in place] for place in odds], dtype=torch.float16),
    )
