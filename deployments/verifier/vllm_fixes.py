"""Faults of vLLM 0.29 on CPUs that break sampling, kill the engine or waste a core, mended where they are.

vLLM calls `apply` in every one of its processes through the entry point group `vllm.general_plugins`.
Each fix names the fault, replaces as little as possible, and does nothing where vLLM runs its own
Triton kernels (GPUs). `tests/verifier/test_vllm_fixes.py` shows each fault without its fix.
"""

from __future__ import annotations

import logging
import math
import os
import time
from functools import wraps
from typing import Any

import torch

from deployments.verifier.few_rows import fill_up_small_batches

logger = logging.getLogger(__name__)

_MARK = "__specfleet_fixed__"
POLL_MS = 5  # longest that a lost notification may hold up a step
BUSY_S = 1.0  # how long after a message vLLM's reader expects the next one soon


def apply() -> None:
    """Mend vLLM in this process. Safe to call more than once, and where vLLM has no CPU backend."""
    try:
        from vllm.platforms import current_platform

        on_cpu = current_platform.is_cpu()
    except Exception:  # a plugin must never keep vLLM from starting
        logger.exception("specfleet: could not tell vLLM's platform, its CPU faults stay as they are")
        return
    if not on_cpu:
        return
    fix_expand_kernel()
    fix_discarded_seeded_rows()
    fix_loading_of_compiled_code()
    calm_waiting_readers()
    fill_up_small_batches()


def expand_kernel(
    output: torch.Tensor,
    input_val: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: int,
    replace_to: int,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Repeat each request's value once per proposed token, in the value's own dtype.

    Args:
        output: [num_tokens], written in place.
        input_val: [batch_size], same dtype as `output`.
        cu_num_tokens: [batch_size], running total of tokens per request.
        replace_from: value to replace (vLLM: the greedy marker of the temperature).
        replace_to: what to replace it with.
        MAX_NUM_TOKENS: bound of vLLM's GPU kernel, not needed here.
    """
    lengths = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(input_val == replace_from, input_val.new_tensor(replace_to), input_val)
    output.copy_(torch.repeat_interleave(values, lengths.to(torch.int64), output_size=output.shape[0]))


def fix_expand_kernel() -> None:
    """Keep the dtype when per-request sampling values are expanded to tokens.

    vLLM's `_expand_kernel_impl` (vllm/utils/cpu_triton_utils.py) converts its *output* to int64 first, so
    float32 temperatures and top_p and int32 top_k are written to a temporary, and the rejection sampler
    reads uninitialised memory: every request at temperature > 0 with proposals samples from garbage
    (vllm issues 55005, 42638).
    """
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils.expand_kernel.func = expand_kernel


def calm_waiting_readers() -> None:
    """Let a process that waits for another one nap instead of spin.

    A reader of vLLM's shared-memory queue (`SpinCondition.wait`, vllm/distributed/device_communicators/
    shm_broadcast.py) yields in a loop for a second after each message. Where cores are few it takes them
    from those that have work: the engine core from the drafts while its worker computes, and the worker of
    an idle engine, woken once a second for its figures, from everything else on its core, which a process
    that was starting there hardly moved (1 s of CPU in 25 s).

    Here it waits for the writer's notification from the start. vLLM's notifications get lost: the PUB
    socket has room for one and learns late that it was delivered, so of two messages within a millisecond
    the second may wake nobody. So for a second after a message no wait is longer than `POLL_MS`.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    if getattr(SpinCondition, _MARK, False):
        return
    wait = SpinCondition.wait

    @wraps(wait)
    def wait_for_notification(self: Any, timeout_ms: int | None = None) -> None:
        if time.monotonic() - self.last_read < BUSY_S:
            timeout_ms = POLL_MS if timeout_ms is None else min(POLL_MS, timeout_ms)
        self.busy_loop_s = -math.inf  # never yield in a loop
        wait(self, timeout_ms)

    for name, value in (("wait", wait_for_notification), (_MARK, True)):
        setattr(SpinCondition, name, value)


def fix_loading_of_compiled_code() -> None:
    """Let the second start use what the first one compiled.

    vLLM stores its compiled graph and loads it at the next start (`_try_load_aot_compiled_fn`,
    vllm/compilation/decorators.py), but expects a method `finalize_loading` that only its piecewise backend's
    functions have. CPUs compile with plain inductor, so every load fails and every start compiles again.
    """
    load = torch.compiler.load_compiled_function
    if getattr(load, _MARK, False):
        return

    @wraps(load)
    def load_and_complete(*args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        compiled = getattr(getattr(loaded, "_artifacts", None), "compiled_fn", None)
        if compiled is not None and not hasattr(compiled, "finalize_loading"):
            compiled.finalize_loading = lambda vllm_config: None  # there is nothing left to load
        return loaded

    setattr(load_and_complete, _MARK, True)
    torch.compiler.load_compiled_function = load_and_complete
    keep_compiled_headers()


def keep_compiled_headers() -> None:
    """Keep PyTorch's compiled C++ header where its other compiled code is kept.

    It lies under the temporary folder (`_HEADER_DIR`, torch/_inductor/codecache.py) even where
    TORCHINDUCTOR_CACHE_DIR names another one. A fleet's temporary folder is new every time, so every start
    compiled the header again, 9 s on a small machine, to load code that was compiled already.
    """
    from torch._inductor import codecache

    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder:
        codecache._HEADER_DIR = os.path.join(folder, "precompiled_headers")
        codecache._HEADER_LOCK_DIR = os.path.join(codecache._HEADER_DIR, "locks")


def fix_discarded_seeded_rows() -> None:
    """Rewind the generator of a seeded request whose sampled token is thrown away.

    `GPUModelRunner._bookkeeping_sync` (vllm/v1/worker/gpu_model_runner.py) rewinds by
    `set_offset(get_offset() - 4)`, which only CUDA generators have: on a CPU, a request with a seed kills
    the engine as soon as its prompt is prefilled in chunks or it is resumed after a preemption. Here the
    state is saved before sampling and put back after, which is what the offset does on a GPU.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if getattr(CPUModelRunner, _MARK, False):
        return
    sample = CPUModelRunner._sample
    bookkeep = CPUModelRunner._bookkeeping_sync

    def discarded(runner: Any) -> dict[int, torch.Generator]:
        batch = runner.input_batch
        if not batch.generators:
            return {}
        mask = runner.discard_request_mask.np[: batch.num_reqs]
        return {row: generator for row, generator in batch.generators.items() if mask[row]}

    @wraps(sample)
    def sample_and_rewind(self: Any, *args: Any, **kwargs: Any) -> Any:
        saved = [(generator, generator.get_state()) for generator in discarded(self).values()]
        try:
            return sample(self, *args, **kwargs)
        finally:
            for generator, state in saved:
                generator.set_state(state)

    @wraps(bookkeep)
    def bookkeep_without_offsets(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Already rewound: hide these generators from the code that would ask them for an offset.
        hidden = discarded(self)
        for row in hidden:
            del self.input_batch.generators[row]
        try:
            return bookkeep(self, *args, **kwargs)
        finally:
            self.input_batch.generators.update(hidden)

    for name, value in (
        ("_sample", sample_and_rewind),
        ("_bookkeeping_sync", bookkeep_without_offsets),
        (_MARK, True),
    ):
        setattr(CPUModelRunner, name, value)
