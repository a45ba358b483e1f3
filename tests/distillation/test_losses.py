"""Losses against values worked out by hand or by another way of computing them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.distillation.losses import (
    Targets,
    loss_and_gradient,
    loss_sum,
)

HEAD = [3, 5, 8, 9]
PLACES = torch.full((12,), -1)
PLACES[torch.tensor(HEAD)] = torch.arange(4)


def targets(*places: list[tuple[int, float]]) -> Targets:
    ids = torch.tensor([[token for token, _ in place] for place in places])
    odds = torch.tensor([[math.log(p) for _, p in place] for place in places])
    return Targets.build(ids, odds, PLACES)


def test_ids_outside_the_head_are_left_out_and_a_place_whose_best_is_outside_does_not_count() -> None:
    found = targets([(5, 0.5), (4, 0.3), (9, 0.1)], [(4, 0.6), (5, 0.2), (8, 0.1)])
    assert found.index.tolist() == [[1, 0, 3], [0, 1, 2]]
    assert found.probability[0].tolist() == pytest.approx([0.5, 0.0, 0.1])
    assert found.counts.tolist() == [True, False]


def test_known_values() -> None:
    # q is even over four tokens: every -log q is log 4.
    flat = torch.zeros(1, 4)
    known = targets([(5, 0.5), (8, 0.25), (4, 0.25)])
    assert loss_sum("ce", flat, known).item() == pytest.approx(math.log(4))
    # p inside the head, scaled: 2/3 and 1/3.
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert loss_sum("kl", flat, known).item() == pytest.approx(math.log(4) - entropy)
    # The quarter left of p goes evenly to the two tokens of the head that are not in the top 3.
    p = {3: 0.125, 5: 0.5, 8: 0.25, 9: 0.125}
    assert loss_sum("reverse-kl", flat, known).item() == pytest.approx(
        sum(0.25 * (math.log(0.25) - math.log(each)) for each in p.values()), abs=1e-5
    )


def test_a_place_that_does_not_count_adds_nothing_and_gives_no_gradient() -> None:
    both = targets([(5, 0.9), (3, 0.1)], [(4, 0.9), (3, 0.1)])
    for kind in ("kl", "reverse-kl", "ce", "mixed"):
        logits = torch.randn(2, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        loss_sum(kind, logits, both).backward()  # type: ignore[arg-type]
        assert logits.grad is not None
        assert logits.grad[0].abs().sum() > 0
        assert logits.grad[1].abs().sum() == 0


def test_some_places_at_a_time_give_the_same_loss_and_gradient() -> None:
    chance = torch.Generator().manual_seed(2)
    hidden, head = torch.randn(11, 6, generator=chance), torch.randn(4, 6, generator=chance)
    many = targets(*[[(HEAD[number % 4], 0.5), (4 if number % 3 else 9, 0.3)] for number in range(11)])
    for kind in ("kl", "reverse-kl", "ce", "mixed"):
        whole = hidden.clone().requires_grad_()
        loss = loss_sum(kind, whole @ head.T, many, 0.3)  # type: ignore[arg-type]
        loss.backward()
        summed, gradient = loss_and_gradient(kind, hidden, lambda h: h @ head.T, many, 0.3, rows=4)  # type: ignore[arg-type]
        assert summed == pytest.approx(loss.item(), rel=1e-5)
        assert whole.grad is not None
        assert torch.allclose(gradient, whole.grad, atol=1e-6)


def test_mixed_is_the_weighted_sum() -> None:
    logits, known = torch.randn(1, 4), targets([(5, 0.6), (8, 0.3)])
    parts = 0.3 * loss_sum("ce", logits, known) + 0.7 * loss_sum("kl", logits, known)
    assert loss_sum("mixed", logits, known, 0.3).item() == pytest.approx(parts.item(), rel=1e-5)


@given(st.lists(st.floats(-6, 6), min_size=4, max_size=4), st.permutations(HEAD), st.floats(0.02, 0.98))
@settings(max_examples=60, deadline=None)
def test_divergences_are_never_negative_and_zero_only_where_the_odds_are_equal(
    scores: list[float], order: list[int], first: float
) -> None:
    # All four tokens of the head are known, so p is whole.
    p = [first, *((1 - first) * share for share in (0.5, 0.3, 0.2))]
    known = targets(list(zip(order, p, strict=True)))
    logits = torch.tensor([scores])
    assert loss_sum("kl", logits, known).item() > -1e-5
    assert loss_sum("reverse-kl", logits, known).item() > -1e-3  # what is left of p is taken as at least 1e-4
    exact = torch.zeros(1, 4)
    exact[0, known.index[0]] = torch.tensor(p).log()
    assert loss_sum("kl", exact, known).item() == pytest.approx(0, abs=1e-4)
    assert loss_sum("reverse-kl", exact, known).item() == pytest.approx(0, abs=1e-3)


def test_training_on_the_kl_finds_the_odds() -> None:
    known = targets([(5, 0.6), (8, 0.3), (3, 0.1)])
    for kind in ("kl", "reverse-kl"):
        logits = torch.zeros(1, 4, requires_grad=True)
        optimizer = torch.optim.Adam([logits], lr=0.2)
        for _ in range(200):
            optimizer.zero_grad()
            loss_sum(kind, logits, known).backward()  # type: ignore[arg-type]
            optimizer.step()
        odds = logits.detach().softmax(-1)[0].tolist()
        assert odds[:3] == pytest.approx([0.1, 0.6, 0.3], abs=0.02)
