"""8-bit linear layers: close to the float ones, and the same bits for a row in any company."""

from __future__ import annotations

import pytest
import torch

from deployments.drafter.quantise import FloatLinear, Int8Linear, dequantise_weight, quantise_weight


@pytest.mark.parametrize(("size_in", "size_out"), [(576, 960), (1536, 576), (33, 70), (8, 3)])
def test_a_row_does_not_depend_on_its_batch(size_in: int, size_out: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(size_out, size_in) * 0.05
    linear = Int8Linear(*quantise_weight(weight), torch.randn(size_out))
    # Rows of very different size: one scale for the whole batch would show at once.
    rows = torch.randn(65, size_in) * torch.logspace(-3, 3, 65)[:, None]
    whole = linear(rows)
    for count in (1, 2, 3, 5, 8, 16, 33):
        for start in (0, 65 - count):
            assert torch.equal(linear(rows[start : start + count]), whole[start : start + count])


def test_it_stays_near_the_float_layer() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(200, 300) * 0.05, torch.randn(200)
    rows = torch.randn(32, 300)
    exact = FloatLinear(weight, bias)(rows)
    near = Int8Linear(*quantise_weight(weight), bias)(rows)
    assert ((near - exact).norm() / exact.norm()).item() < 0.02


def test_extremes() -> None:
    weight = torch.tensor([[0.0, 0.0], [1e-20, -1e-20], [1e20, 1.0], [-3.0, 3.0]])
    values, scales = quantise_weight(weight)
    assert values.dtype == torch.int8
    assert values.abs().max() == 127
    assert torch.isfinite(scales).all()
    assert torch.allclose(dequantise_weight(values, scales)[3], weight[3])
    result = Int8Linear(values, scales)(torch.zeros(2, 2))
    assert torch.equal(result, torch.zeros(2, 4))


def test_weights_of_one_size_do_not_saturate() -> None:
    # Every product has the largest size and the same sign: 16-bit sums of pairs would overflow.
    linear = Int8Linear(*quantise_weight(torch.ones(4, 512)))
    assert torch.allclose(linear(torch.ones(3, 512)), torch.full((3, 4), 512.0), rtol=1e-3)
