"""Small batches on CPUs, filled up to the number of rows that costs least.

A step of few requests multiplies few rows by every matrix of the model. oneDNN's kernels for AVX-512, which
vLLM uses, take *longer* for 1 to 4 rows than for 5: with the matrices of a Llama of 135M, 600M and 1B
parameters, in float32 and in bfloat16, 5 rows took 73 to 88 % of the time of 1 row, and 60 to 75 % of that
of 2 rows, which is what a verifier works on when one token is proposed. So batches of fewer rows are filled
up with rows that nobody reads, as vLLM itself fills batches up for CUDA graphs: padded rows have no slot in
the KV cache and take no part in attention.

It has a second use. A row's result depends on the kernel, and the kernel on the number of rows: filled
up, one request's row goes through the same kernel with and without proposals, so that fewer float ties fall
differently.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from vllm.config import VllmConfig

#: Rows that a smaller batch is filled up to: the cheapest count measured (see above).
ROWS: Final = 5
#: Ways to propose that see tokens only, vLLM's names.
WITHOUT_HIDDEN_STATES: Final = frozenset({"custom_class", "ngram", "suffix"})
_MARK: Final = "__specfleet_fills_up__"
_ALLOWED: Final = "__specfleet_may_fill_up__"


def fill_up_small_batches() -> None:
    """Let vLLM's CPU worker fill batches of fewer than `ROWS` rows up. Safe to call more than once."""
    if not torch.cpu._is_avx512_supported():
        return  # other kernels, not measured
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if getattr(CPUModelRunner, _MARK, False):
        return
    decide = CPUModelRunner._determine_batch_execution_and_padding
    apply_head = LogitsProcessor._apply_head

    @wraps(decide)
    def decide_and_fill_up(self: Any, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
        mode, batch, *rest = decide(self, num_tokens, *args, **kwargs)
        if not hasattr(self, _ALLOWED):  # asked of the configuration once, not in every step
            setattr(self, _ALLOWED, may_fill_up(self.vllm_config) and self.max_num_tokens >= ROWS)
        if batch.num_tokens < ROWS and getattr(self, _ALLOWED):
            batch = replace(batch, num_tokens=ROWS)
        return mode, batch, *rest

    @wraps(apply_head)
    def apply_head_filled_up(self: Any, lm_head: Any, hidden: torch.Tensor, bias: Any) -> Any:
        rows = hidden.shape[0]
        if not 0 < rows < ROWS:
            return apply_head(self, lm_head, hidden, bias)
        logits = apply_head(self, lm_head, filled_up(hidden), bias)
        return None if logits is None else logits[:rows]

    for target, name, value in (
        (CPUModelRunner, "_determine_batch_execution_and_padding", decide_and_fill_up),
        (LogitsProcessor, "_apply_head", apply_head_filled_up),
        (CPUModelRunner, _MARK, True),
    ):
        setattr(target, name, value)


def filled_up(rows: torch.Tensor) -> torch.Tensor:
    """`rows` ([n, width], n < `ROWS`) and zeros below them: [`ROWS`, width]."""
    return torch.nn.functional.pad(rows, (0, 0, 0, ROWS - rows.shape[0]))


def may_fill_up(config: VllmConfig) -> bool:
    """Whether nothing else in this engine counts on one row per token.

    Adapters map rows to adapters, states of recurrent layers are written row by row, experts would be sent
    the padding, and data-parallel engines agree on the number of rows among themselves. Proposers of vLLM's
    own that read the verifier's hidden states count them too.
    """
    model, proposer = config.model_config, config.speculative_config
    if proposer is not None and proposer.method not in WITHOUT_HIDDEN_STATES:
        return False
    return (
        config.lora_config is None
        and config.parallel_config.data_parallel_size == 1
        and not model.is_hybrid
        and not model.is_attention_free
        and not model.is_encoder_decoder
        and not model.is_moe
    )
