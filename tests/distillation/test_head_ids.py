"""Which ids the head keeps."""

from __future__ import annotations

import torch

from deployments.distillation.head_ids import choose_head_ids
from tests.distillation.tiny import text_of

TEXTS = [
    text_of([40, 41], [7, 7, 8], [[(7, 0.9), (9, 0.05)], [(7, 0.9), (9, 0.05)], [(8, 0.6), (10, 0.3)]]),
    text_of([40], [8], [[(8, 0.5), (10, 0.4)]]),
]


def test_the_likeliest_ids_stay_in_ascending_order() -> None:
    assert choose_head_ids(TEXTS, 2, 64) == [7, 8]
    # 10 was never written, but had 0.7 of probability; 40 was only in prompts, twice 0.3.
    assert choose_head_ids(TEXTS, 3, 64) == [7, 8, 10]
    assert choose_head_ids(TEXTS, 4, 64) == [7, 8, 10, 40]


def test_ids_that_must_be_there_are_and_unknown_ones_do_not_fill_up() -> None:
    assert choose_head_ids(TEXTS, 3, 64, always=[2, 500]) == [2, 7, 8]
    assert choose_head_ids(TEXTS, 50, 64) == [7, 8, 9, 10, 40, 41]


def test_all_ids_and_padding() -> None:
    assert choose_head_ids(TEXTS, None, 64) is None
    assert choose_head_ids(TEXTS, 64, 64) is None
    # Ids from the vocabulary's size on are padding, whatever the odds say.
    assert choose_head_ids(TEXTS, 5, 9) == [7, 8]


def test_the_choice_does_not_depend_on_the_order_of_texts() -> None:
    chance = torch.Generator().manual_seed(3)
    many = [
        text_of([5], [int(token)], [[(int(token), 0.5), (int(token) + 1, 0.25)]])
        for token in torch.randint(0, 40, (60,), generator=chance)
    ]
    assert choose_head_ids(many, 12, 64) == choose_head_ids(many[::-1], 12, 64)
