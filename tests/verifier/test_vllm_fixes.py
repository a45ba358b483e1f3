"""Each fault of vLLM that we mend: seen as it is, and mended."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deployments.verifier.few_rows import ROWS, filled_up, may_fill_up
from deployments.verifier.vllm_fixes import (
    BUSY_S,
    POLL_MS,
    calm_waiting_readers,
    expand_kernel,
    fix_expand_kernel,
    keep_compiled_headers,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]  # importing vLLM takes its time

CU_NUM_TOKENS = torch.tensor([2, 2, 5], dtype=torch.int32)


def expanded(values: list[float], dtype: torch.dtype, replace: tuple[int, int] = (0, 0)) -> torch.Tensor:
    output = torch.full((5,), -7, dtype=dtype)
    expand_kernel(output, torch.tensor(values, dtype=dtype), CU_NUM_TOKENS, *replace)
    return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_values_are_repeated_per_proposed_token(dtype: torch.dtype) -> None:
    assert expanded([3, 5, 9], dtype).tolist() == [3, 3, 9, 9, 9]


def test_fractions_and_the_greedy_marker_are_kept() -> None:
    assert expanded([0.5, 1.0, 0.25], torch.float32).tolist() == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert expanded([-1, 1, 0.25], torch.float32, (-1, 1)).tolist() == [1, 1, 0.25, 0.25, 0.25]


def test_vllm_itself_still_loses_them() -> None:
    """When this fails vLLM has mended it: drop our fix."""
    from vllm.platforms import current_platform
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    current_platform.import_kernels()

    output = torch.full((5,), -7.0)
    _expand_kernel_impl(output, torch.tensor([0.5, 1.0, 0.25]), CU_NUM_TOKENS, 0, 0)
    assert output.tolist() == [-7.0] * 5


def test_the_rejection_sampler_uses_the_mended_one() -> None:
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    fix_expand_kernel()
    rejection_sampler.expand_kernel = cpu_triton_utils.expand_kernel  # as CPUModelRunner does
    temperatures = rejection_sampler.expand_batch_to_tokens(
        torch.tensor([0.5, 0.7, 1.5]), CU_NUM_TOKENS, 5, replace_from=0, replace_to=1
    )
    assert temperatures.tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5, 1.5])


class Waiting:
    """A reader of vLLM's queue, some seconds after its last message; `polled` are its waits in ms."""

    def __init__(self, since_s: float) -> None:
        self.is_reader = True
        self.last_read = time.monotonic() - since_s
        self.busy_loop_s = 1.0
        self.poller = self
        self.read_cancel_socket = self.local_notify_socket = None
        self.polled: list[int | None] = []

    def poll(self, timeout: int | None) -> list[Any]:
        self.polled.append(timeout)
        return []


@pytest.mark.parametrize(
    ("since_s", "asked", "waits"),
    [
        (0.0, None, POLL_MS),
        (0.5, 60_000, POLL_MS),
        (0.5, 1, 1),
        (BUSY_S + 0.5, None, None),  # idle: as vLLM does
        (BUSY_S + 0.5, 60_000, 60_000),
    ],
)
def test_a_reader_waits_for_the_notification_and_never_spins(
    since_s: float, asked: int | None, waits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    calm_waiting_readers()
    monkeypatch.setattr(shm_broadcast, "sched_yield", lambda: pytest.fail("spins"))
    reader: Any = Waiting(since_s)
    shm_broadcast.SpinCondition.wait(reader, asked)
    assert reader.polled == [waits]


def test_compiled_headers_are_kept_with_other_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import codecache

    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
        monkeypatch.setattr(codecache, name, getattr(codecache, name))  # put back afterwards
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    keep_compiled_headers()
    torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
    assert list((tmp_path / "precompiled_headers").glob("*.gch"))


def test_rows_without_a_slot_are_not_written_to_the_cache() -> None:
    """What filling up rests on: vLLM marks the rows that nobody reads with slot -1."""
    from vllm import _custom_ops as ops

    cache = torch.zeros(4, 3, 64, 64)
    key_cache, value_cache = cache.chunk(2, dim=2)
    rows = torch.ones(ROWS, 3, 64)
    slots = torch.tensor([32] + [-1] * (ROWS - 1))
    ops.cpu_attn_reshape_and_cache(
        rows, rows, key_cache, value_cache, slots, "vec16", k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
    )
    assert cache.sum() == 2 * 3 * 64
    assert cache[1].sum() == cache.sum()


def test_filled_up_rows_are_zeros_below_the_real_ones() -> None:
    rows = torch.arange(6.0).view(2, 3)
    assert torch.equal(filled_up(rows)[:2], rows)
    assert filled_up(rows)[2:].count_nonzero() == 0
    assert filled_up(rows).shape == (ROWS, 3)


@pytest.mark.parametrize("fact", ["is_hybrid", "is_attention_free", "is_encoder_decoder", "is_moe"])
def test_models_that_count_rows_are_not_filled_up(fact: str) -> None:
    facts = {"is_hybrid": False, "is_attention_free": False, "is_encoder_decoder": False, "is_moe": False}
    assert may_fill_up(engine_of(**facts))
    assert not may_fill_up(engine_of(**{**facts, fact: True}))


def test_engines_with_adapters_or_in_parallel_are_not_filled_up() -> None:
    facts = {"is_hybrid": False, "is_attention_free": False, "is_encoder_decoder": False, "is_moe": False}
    assert not may_fill_up(engine_of(**facts, lora=object()))
    assert not may_fill_up(engine_of(**facts, data_parallel_size=2))


@pytest.mark.parametrize(("method", "filled"), [("custom_class", True), ("ngram", True), ("eagle", False)])
def test_proposers_that_read_hidden_states_are_not_given_more_of_them(method: str, filled: bool) -> None:
    facts = {"is_hybrid": False, "is_attention_free": False, "is_encoder_decoder": False, "is_moe": False}
    assert may_fill_up(engine_of(**facts, method=method)) is filled


def engine_of(
    lora: object | None = None, data_parallel_size: int = 1, method: str | None = None, **facts: bool
) -> Any:
    return SimpleNamespace(
        speculative_config=None if method is None else SimpleNamespace(method=method),
        model_config=SimpleNamespace(**facts),
        lora_config=lora,
        parallel_config=SimpleNamespace(data_parallel_size=data_parallel_size),
    )
