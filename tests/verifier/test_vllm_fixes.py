"""Each fault of vLLM that we mend: seen as it is, and mended."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deployments.verifier.vllm_fixes import calm_waiting_readers, expand_kernel, fix_expand_kernel

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


def naps(waited_s: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a reader sleeps that has waited for so long; polls count as none."""
    from vllm.distributed.device_communicators import shm_broadcast

    slept: list[float] = []
    monkeypatch.setattr(shm_broadcast, "sched_yield", lambda: pytest.fail("spins"))
    monkeypatch.setattr(time, "sleep", slept.append)
    reader: Any = SimpleNamespace(
        is_reader=True,
        last_read=time.monotonic() - waited_s,
        busy_loop_s=1.0,
        poller=SimpleNamespace(poll=lambda timeout: []),
        read_cancel_socket=None,
        local_notify_socket=None,
    )
    shm_broadcast.SpinCondition.wait(reader, 1)
    monkeypatch.undo()
    return slept


def test_a_waiting_reader_naps_and_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    calm_waiting_readers()
    short, long, idle = (naps(waited, monkeypatch) for waited in (0.0, 0.5, 1.5))
    assert 0 < short[0] < long[0] <= 0.001
    assert idle == []  # waits for the notification as vLLM does
