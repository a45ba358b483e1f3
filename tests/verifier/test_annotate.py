import json

from deployments.verifier.annotate import event_of, summarise, summarise_fixed, usage_chunk
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


def test_where_vllm_proposes_its_own_metrics_are_the_summary() -> None:
    metrics = {"num_spec_steps": 4, "num_accepted_draft_tokens": 6, "num_draft_tokens": 16}
    told = summarise_fixed("r", "ngram", metrics)
    assert told["drafts"] == [{"name": "ngram", "from_token": 0, "reason": "fixed"}]
    assert (told["proposed"], told["accepted"], told["steps"]) == (16, 6, 4)
    assert told["mean_acceptance_length"] == 2.5
    assert summarise("r", "code", 1.0, []).keys() == told.keys()


def test_what_vllm_does_not_count_is_null() -> None:
    told = summarise_fixed("r", "medusa", None)
    assert told["drafts"][0]["name"] == "medusa"
    assert all(told[name] is None for name in ("proposed", "accepted", "steps", "mean_acceptance_length"))
    untouched = {"num_spec_steps": 0, "num_accepted_draft_tokens": 0, "num_draft_tokens": 0}
    assert summarise_fixed("r", "ngram", untouched)["mean_acceptance_length"] == 1.0
