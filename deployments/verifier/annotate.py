"""The `specfleet` object of a response: which drafts served it, and how well."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deployments.verifier.progress import Progress

#: Where nobody asks what a request is about, it is about this.
FIXED_DOMAIN: Final = "general"


def summarise(
    request_id: str, domain: str, domain_probability: float, rows: Sequence[Progress]
) -> dict[str, Any]:
    """Put together what a response says about its own making.

    Args:
        request_id: the response's id in logs and usage records.
        domain: the domain recognised or given.
        domain_probability: how sure the classifier was, 1.0 where the domain was given.
        rows: totals per sequence (several for n > 1).

    Returns:
        A JSON-ready object; `steps` counts verifier steps that carried a proposal, and
        `mean_acceptance_length` is 1 + accepted / steps (1.0 without any such step).
    """
    steps = sum(row.steps for row in rows)
    accepted = sum(row.accepted for row in rows)
    return {
        "request_id": request_id,
        "domain": domain,
        "domain_probability": round(domain_probability, 4),
        "drafts": [
            {"name": use.name, "from_token": use.from_token, "reason": use.reason}
            for row in rows
            for use in row.drafts
        ],
        "proposed": sum(row.proposed for row in rows),
        "accepted": accepted,
        "steps": steps,
        "mean_acceptance_length": round(1 + accepted / steps, 4) if steps else 1.0,
    }


def summarise_fixed(request_id: str, method: str, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Put together what a response says where one of vLLM's own ways proposes for every request.

    Args:
        request_id: the response's id in logs and usage records.
        method: vLLM's name of it.
        metrics: what vLLM counted for the request (`SpeculativeDecodingMetrics`); it counts none for several
            answers to one prompt.

    Returns:
        A JSON-ready object like that of `summarise`; figures that vLLM does not give are null.
    """
    counted = metrics or {}
    steps, accepted = counted.get("num_spec_steps"), counted.get("num_accepted_draft_tokens")
    length = None
    if steps is not None and accepted is not None:
        length = round(1 + accepted / steps, 4) if steps else 1.0
    return {
        "request_id": request_id,
        "domain": FIXED_DOMAIN,
        "domain_probability": 0.0,
        "drafts": [{"name": method, "from_token": 0, "reason": "fixed"}],
        "proposed": counted.get("num_draft_tokens"),
        "accepted": accepted,
        "steps": steps,
        "mean_acceptance_length": length,
    }


def usage_chunk(event: str) -> dict[str, Any] | None:
    """The JSON of a stream's usage chunk (the one with empty `choices`); None for every other event."""
    if '"choices":[]' not in event or not event.startswith("data: "):
        return None
    try:
        chunk = json.loads(event[len("data: ") :])
    except json.JSONDecodeError:
        return None
    return chunk if isinstance(chunk, dict) and chunk.get("usage") else None


def event_of(chunk: dict[str, Any]) -> str:
    """A server-sent event with this JSON, written as vLLM writes its own."""
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
