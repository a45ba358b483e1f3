"""Which token ids a draft of a domain needs: a cut head is most of what makes a small draft cheap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from deployments.distillation.texts import Text

#: A token of a prompt says less about what answers will contain than a token of an answer.
PROMPT_WEIGHT = 0.3


def choose_head_ids(
    texts: Sequence[Text], size: int | None, vocabulary: int, always: Iterable[int] = ()
) -> list[int] | None:
    """The ids worth proposing, by how much of the verifier's probability they got in the domain's texts.

    Counting probabilities and not only the tokens written also finds ids that were likely but not chosen.

    Args:
        texts: what the verifier wrote.
        size: how many ids; None keeps them all.
        vocabulary: ids run from 0 to `vocabulary` - 1.
        always: ids that are in whatever the texts say, such as the end of an answer.

    Returns:
        At most `size` ids, ascending; fewer where the texts hold fewer. None for all of them.
    """
    if size is None or size >= vocabulary:
        return None
    weight = torch.zeros(vocabulary, dtype=torch.float64)
    for text in texts:
        _count(weight, text.answer, 1.0)
        _count(weight, text.prompt, PROMPT_WEIGHT)
        _count(weight, text.top_ids.flatten(), text.top_logprobs.double().exp().flatten())
    wanted = [token for token in always if 0 <= token < vocabulary]
    weight[wanted] = float("inf")
    order = torch.argsort(weight, descending=True, stable=True)[:size]
    return sorted(order[weight[order] > 0].tolist())


def _count(weight: Tensor, ids: Tensor, value: Tensor | float) -> None:
    values = torch.as_tensor(value, dtype=torch.float64).expand(len(ids))
    real = ids.long() < len(weight)  # what lies beyond is padding of the vocabulary
    weight.index_add_(0, ids.long()[real], values[real])
