"""What the proposer knows of each request in the engine, by vLLM's own request id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from router.types import RequestProfile

# Keys in `SamplingParams.extra_args`: how the replica tells the worker about a request (vllm_xargs).
REQUEST_KEY: Final = "specfleet_request"
DOMAIN_KEY: Final = "specfleet_domain"
PROBABILITY_KEY: Final = "specfleet_domain_probability"
DRAFT_KEY: Final = "specfleet_draft"
LENGTH_KEY: Final = "specfleet_length"
TENANT_KEY: Final = "specfleet_tenant"


@dataclass(slots=True)
class TrackedRequest:
    """One sequence in the engine.

    Attributes:
        engine_id: vLLM's request id.
        session: our number for it on the link, never used twice by one worker.
        profile: what the router decides on.
        stops: token ids that end the answer: nothing is proposed past one.
        token_limit: prompt plus answer, in tokens, past which vLLM stops.
        draft: who was asked for the coming step.
        proposal: what was handed to vLLM for the coming step.
    """

    engine_id: str
    session: int
    profile: RequestProfile
    response_id: str
    stops: frozenset[int]
    prompt_tokens: int
    token_limit: int
    generated: int = 0
    draft: str | None = None
    proposal: list[int] = field(default_factory=list)


class RequestTable:
    """The requests the worker has seen scheduled and not yet seen finished. Bounded by vLLM's own table."""

    def __init__(self, max_model_len: int, default_domain: str) -> None:
        self._max_model_len = max_model_len
        self._default_domain = default_domain
        self._by_id: dict[str, TrackedRequest] = {}
        self._next_session = 1

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def get(self, engine_id: str) -> TrackedRequest | None:
        """The request, or None where it was never opened (or is finished)."""
        return self._by_id.get(engine_id)

    def open(self, engine_id: str, prompt_tokens: int, params: Any) -> TrackedRequest:
        """Start to track a request.

        Args:
            engine_id: vLLM's request id.
            prompt_tokens: length of the prompt in tokens.
            params: vLLM's `SamplingParams`, or None for requests that do not sample (never proposed for).
        """
        extra: dict[str, Any] = (getattr(params, "extra_args", None) or {}) if params is not None else {}
        pinned = extra.get(DRAFT_KEY)
        request = TrackedRequest(
            engine_id=engine_id,
            session=self._next_session,
            profile=RequestProfile(
                request_id=engine_id,
                domain=str(extra.get(DOMAIN_KEY, self._default_domain)),
                domain_probability=float(extra.get(PROBABILITY_KEY, 0.0)),
                pinned=None if pinned is None else str(pinned),
                tenant=str(extra.get(TENANT_KEY, "")),
                length=None if LENGTH_KEY not in extra else int(extra[LENGTH_KEY]),
            ),
            response_id=str(extra.get(REQUEST_KEY, engine_id)),
            stops=_stop_ids(params),
            prompt_tokens=prompt_tokens,
            token_limit=self._token_limit(prompt_tokens, params),
        )
        self._next_session += 1
        self._by_id[engine_id] = request
        return request

    def close(self, engine_id: str) -> TrackedRequest | None:
        """Stop tracking; the request, or None where it was not tracked."""
        return self._by_id.pop(engine_id, None)

    def _token_limit(self, prompt_tokens: int, params: Any) -> int:
        max_tokens = getattr(params, "max_tokens", None) if params is not None else 0
        if max_tokens is None:
            return self._max_model_len
        return min(self._max_model_len, prompt_tokens + max_tokens)


def _stop_ids(params: Any) -> frozenset[int]:
    if params is None:
        return frozenset()
    ids = set(params.stop_token_ids or ())
    if not params.ignore_eos and params.eos_token_id is not None:
        ids.add(params.eos_token_id)
    return frozenset(ids)


def cut_at_stop(tokens: list[int], stops: frozenset[int]) -> list[int]:
    """The tokens up to and including the first that ends the answer: what follows can never be used."""
    for index, token in enumerate(tokens):
        if token in stops:
            return tokens[: index + 1]
    return tokens
