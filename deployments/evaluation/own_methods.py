"""What vLLM's own ways to propose give, each in an engine of its own: acceptance, the same text, speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deployments.evaluation.rig import BatchClock
from deployments.evaluation.scoring import VerifierText
from deployments.verifier.offline import OfflineEngine


@dataclass(frozen=True, slots=True)
class OwnAcceptance:
    """How the proposals for some texts fared, as vLLM counts them.

    Attributes:
        proposed: tokens proposed.
        accepted: of those, accepted.
        steps: steps of requests that carried a proposal.
        same: texts that are those of plain decoding, token for token.
        texts: all texts.
    """

    proposed: int
    accepted: int
    steps: int
    same: int
    texts: int

    @property
    def rate(self) -> float:
        """Accepted of proposed tokens."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def length(self) -> float:
        """Tokens per step that carried a proposal, the verifier's own counted."""
        return 1 + self.accepted / self.steps if self.steps else 1.0


def write_again(engine: OfflineEngine, texts: Sequence[VerifierText]) -> OwnAcceptance:
    """Let the engine answer greedily what plain decoding has answered, all prompts in one batch.

    Args:
        engine: one whose settings have a `proposer`.
        texts: prompts with the answers of plain greedy decoding.
    """
    outputs = engine.generate([text.prompt for text in texts], [_greedy(text.limit) for text in texts])
    proposed = accepted = steps = same = 0
    for text, output in zip(texts, outputs, strict=True):
        one: Any = output.outputs[0]
        same += list(one.token_ids) == text.answer
        if one.spec_decode_metrics is not None:
            counted = one.spec_decode_metrics.to_dict()
            proposed += counted["num_draft_tokens"]
            accepted += counted["num_accepted_draft_tokens"]
            steps += counted["num_spec_steps"]
    return OwnAcceptance(proposed, accepted, steps, same, len(texts))


def rate_of(
    engine: OfflineEngine, batches: Sequence[Sequence[VerifierText]], steps: int | None, **params: Any
) -> float:
    """Tokens per second of full batches, decoded greedily.

    Args:
        engine: any engine.
        batches: what is run together.
        steps: most steps of one batch; None runs to its first request's end.
        params: further arguments of `SamplingParams`.
    """
    written, seconds = 0, 0.0
    for batch in batches:
        clock = BatchClock(steps)
        sampling = [_greedy(text.limit, **params) for text in batch]
        engine.run_batch([text.prompt for text in batch], sampling, clock.enough)
        written += clock.written
        seconds += clock.seconds
    return written / seconds if seconds else 0.0


def _greedy(limit: int, **params: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=limit, detokenize=False, **params)
