"""The `specfleet` object of a response: which drafts served it, and how well."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deployments.verifier.progress import Progress


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
