"""How far a draft's odds are from the verifier's, at places where only the verifier's top k are known.

Forward KL makes the draft cover everything the verifier might say, reverse KL makes it commit to what the
verifier surely says, cross-entropy looks only at the one token that decides acceptance in greedy decoding
(compare DistillSpec, arXiv 2310.08461).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deployments.distillation.settings import Loss

#: Probability that is at least assumed outside the top k: log(0) would let one place decide the whole step.
LEAST_TAIL = 1e-4


@dataclass(frozen=True, slots=True)
class Targets:
    """What the verifier says at n places, in terms of the draft's cut head.

    Attributes:
        index: [n, k] positions of the verifier's top tokens in the head; 0 where they are not in it.
        probability: [n, k] their probability, likeliest first; 0 where they are not in the head.
        counts: [n] whether the place counts: its likeliest token is in the head, so it can be learned.
    """

    index: Tensor
    probability: Tensor
    counts: Tensor

    @classmethod
    def build(cls, top_ids: Tensor, top_logprobs: Tensor, places: Tensor) -> Targets:
        """Translate the verifier's top k.

        Args:
            top_ids: [n, k] token ids, likeliest first.
            top_logprobs: [n, k] their natural log-probabilities.
            places: [vocabulary] position of each token id in the head, -1 where it has none.
        """
        index = places[top_ids.long()]
        known = index >= 0
        return cls(index.clamp(min=0), top_logprobs.float().exp() * known, known[:, 0])

    def to(self, device: torch.device) -> Targets:
        """The same elsewhere."""
        return Targets(self.index.to(device), self.probability.to(device), self.counts.to(device))


def loss_sum(kind: Loss, logits: Tensor, targets: Targets, ce_share: float = 0.5) -> Tensor:
    """The loss summed over the places that count, in nats.

    Args:
        kind: which one.
        logits: [n, head] the draft's scores over its head.
        targets: what the verifier says there.
        ce_share: share of the cross-entropy in `mixed`.
    """
    scores = logits.float()
    if kind == "reverse-kl":
        each = reverse_kl(scores, targets)
    else:
        norm = scores.logsumexp(-1)  # the one costly part, needed by both
        share = {"ce": 1.0, "kl": 0.0, "mixed": ce_share}[kind]
        each = torch.zeros_like(norm)
        if share:
            each = each + share * cross_entropy(scores, norm, targets)
        if share < 1:
            each = each + (1 - share) * forward_kl(scores, norm, targets)
    return (each * targets.counts).sum()


def loss_and_gradient(
    kind: Loss,
    hidden: Tensor,
    scores_of: Callable[[Tensor], Tensor],
    targets: Targets,
    ce_share: float,
    rows: int,
) -> tuple[float, Tensor]:
    """The summed loss and its gradient by the final hidden states, some places at a time.

    The head does not learn, so nothing else is needed of it, and the scores of a whole step over a whole head
    never have to exist: they would be most of the memory, and on CPUs most of the time goes into moving them.

    Args:
        kind: which loss.
        hidden: [n, hidden] final hidden states.
        scores_of: the head: [m, hidden] -> [m, head].
        targets: what the verifier says at the n places.
        ce_share: share of the cross-entropy in `mixed`.
        rows: places at a time.

    Returns:
        The loss in nats, and [n, hidden] the gradient.
    """
    whole = 0.0
    gradients: list[Tensor] = []
    for start in range(0, len(hidden), rows):
        span = slice(start, start + rows)
        part = Targets(targets.index[span], targets.probability[span], targets.counts[span])
        own = hidden[span].detach().requires_grad_()
        loss = loss_sum(kind, scores_of(own), part, ce_share)
        gradients += torch.autograd.grad(loss, own)
        whole += float(loss.detach())
    return whole, torch.cat(gradients)


def cross_entropy(scores: Tensor, norm: Tensor, targets: Targets) -> Tensor:
    """-log q(likeliest token), [n]; `norm` [n] is the logsumexp of the scores."""
    return norm - scores.gather(1, targets.index[:, :1])[:, 0]


def forward_kl(scores: Tensor, norm: Tensor, targets: Targets) -> Tensor:
    """KL(p || q) [n], with p the verifier's known odds inside the head, scaled to sum to 1."""
    share = targets.probability / targets.probability.sum(-1, keepdim=True).clamp_min(1e-9)
    log_q = scores.gather(1, targets.index) - norm[:, None]
    return (torch.xlogy(share, share) - share * log_q).sum(-1)


def reverse_kl(scores: Tensor, targets: Targets) -> Tensor:
    """KL(q || p) [n], with what is left of p spread evenly over the tokens of the head outside the top k."""
    log_q = scores.log_softmax(-1)
    known = targets.probability > 0
    others = (scores.shape[1] - known.sum(-1, keepdim=True)).clamp_min(1)
    tail = (1 - targets.probability.sum(-1, keepdim=True)).clamp_min(LEAST_TAIL)
    log_p = (tail / others).log().expand_as(scores).contiguous()
    # Unknown entries all point at place 0, which may be known, too: adding differences keeps both right.
    change = torch.where(known, targets.probability.clamp_min(math.exp(-30)).log() - log_p[:, :1], 0.0)
    log_p = log_p.scatter_add(1, targets.index, change)
    return (log_q.exp() * (log_q - log_p)).sum(-1)
