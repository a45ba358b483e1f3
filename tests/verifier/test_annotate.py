import json

from deployments.verifier.annotate import event_of, summarise, usage_chunk
from deployments.verifier.progress import Progress, Use


def test_a_summary_adds_up_the_sequences_of_a_request() -> None:
    rows = [
        Progress("r", "r-0", 10, 8, 4, 4, [Use("code", 0, "domain"), Use("none", 6, "nothing_pays")]),
        Progress("r", "r-1", 10, 8, 0, 4, [Use("general", 0, "unsure")]),
    ]
    assert summarise("r", "code", 0.87654, rows) == {
        "request_id": "r",
        "domain": "code",
        "domain_probability": 0.8765,
        "drafts": [
            {"name": "code", "from_token": 0, "reason": "domain"},
            {"name": "none", "from_token": 6, "reason": "nothing_pays"},
            {"name": "general", "from_token": 0, "reason": "unsure"},
        ],
        "proposed": 16,
        "accepted": 4,
        "steps": 8,
        "mean_acceptance_length": 1.5,
    }


def test_a_request_without_proposals_has_acceptance_length_one() -> None:
    assert summarise("r", "code", 1.0, [])["mean_acceptance_length"] == 1.0


def test_only_the_usage_chunk_of_a_stream_is_touched() -> None:
    usage = {"id": "x", "choices": [], "usage": {"completion_tokens": 3}}
    assert usage_chunk(event_of(usage)) == usage
    text = {"id": "x", "choices": [{"delta": {"content": '"choices":[]'}}]}
    assert usage_chunk(event_of(text)) is None
    assert usage_chunk("data: [DONE]\n\n") is None
    assert usage_chunk('data: {"choices":[] broken\n\n') is None


def test_events_are_written_as_vllm_writes_them() -> None:
    event = event_of({"a": "é"})
    assert event == 'data: {"a":"é"}\n\n'
    assert json.loads(event.removeprefix("data: ")) == {"a": "é"}
