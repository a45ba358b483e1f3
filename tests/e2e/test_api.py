"""vLLM's OpenAI surface through the gateway, with drafts at work."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import CHATS, MODEL, Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def text(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def stream_text(fleet: Fleet, prompt: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """The text of a stream, and the `specfleet` object of its last chunk."""
    parts, told = [], {}
    for chunk in fleet.chat(prompt, stream=True, stream_options={"include_usage": True}, **more):
        if chunk.choices:
            parts.append(chunk.choices[0].delta.content or "")
            assert "specfleet" not in (chunk.model_extra or {})
        else:
            told = chunk.model_extra["specfleet"]
            assert chunk.usage.completion_tokens > 0
    return "".join(parts), told


@pytest.fixture(scope="module")
def plain(fleet: Fleet) -> dict[str, str]:
    """The verifier's own greedy answers, one at a time, without drafts."""
    return {domain: text(fleet.chat(prompt, draft="none")) for domain, prompt in CHATS.items()}


@pytest.mark.parametrize("domain", list(CHATS))
def test_greedy_answers_are_the_verifiers_own(fleet: Fleet, plain: dict[str, str], domain: str) -> None:
    answer = fleet.chat(CHATS[domain])
    assert text(answer) == plain[domain]
    streamed, told = stream_text(fleet, CHATS[domain])
    assert streamed == plain[domain]
    assert told["steps"] > 0


def test_in_one_batch_they_are_too(fleet: Fleet, plain: dict[str, str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(fleet.chat, [*CHATS.values(), *CHATS.values()]))
    assert [text(answer) for answer in answers] == [*plain.values(), *plain.values()]


@pytest.mark.parametrize("domain", list(CHATS))
def test_the_domain_is_recognised_and_served_by_its_draft(fleet: Fleet, domain: str) -> None:
    told = fleet.chat(CHATS[domain]).model_extra["specfleet"]
    assert told["domain"] == domain
    # The router may know better by now: a slow machine makes another draft, or none, worth more at times.
    assert {use["name"] for use in told["drafts"]} <= {domain, "general", "none"}
    until(lambda: proposed_in(fleet, draft=domain, domain=domain), 10)  # since the start, by any request
    assert told["request_id"]
    assert 0 <= told["domain_probability"] <= 1
    assert told["proposed"] >= told["accepted"] >= 0
    assert told["steps"] > 0
    assert told["mean_acceptance_length"] == pytest.approx(1 + told["accepted"] / told["steps"], abs=1e-3)


def proposed_in(fleet: Fleet, *, draft: str, domain: str) -> int:
    """Tokens that a draft has proposed to requests of a domain since the fleet's start."""
    return int(fleet.status()["acceptance"].get(draft, {}).get(domain, {}).get("proposed", 0))


def test_the_object_agrees_with_vllms_own_metrics(fleet: Fleet) -> None:
    answer = fleet.chat(CHATS["code"])
    told, own = answer.model_extra["specfleet"], json.dumps(answer.model_extra)
    assert "num_draft_tokens" in own or "draft" in own
    assert answer.usage.completion_tokens >= told["accepted"] + told["steps"]


def test_headers_choose_the_domain_and_the_draft(fleet: Fleet) -> None:
    told = fleet.chat(CHATS["code"], domain="finance").model_extra["specfleet"]
    assert (told["domain"], told["drafts"][0]["name"]) == ("finance", "finance")
    told = fleet.chat(CHATS["code"], draft="medical").model_extra["specfleet"]
    assert [use["name"] for use in told["drafts"]] == ["medical"]
    told = fleet.chat(CHATS["code"], draft="none").model_extra["specfleet"]
    assert (told["proposed"], told["steps"], told["mean_acceptance_length"]) == (0, 0, 1.0)
    assert {use["name"] for use in told["drafts"]} <= {"none"}


def test_several_answers_to_one_prompt(fleet: Fleet) -> None:
    answer = fleet.chat(CHATS["general"], n=3, temperature=0.9)
    assert len(answer.choices) == 3
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_stop_strings_cut_where_they_would_without_drafts(fleet: Fleet, plain: dict[str, str]) -> None:
    word = plain["medical"].split()[6]
    expected = text(fleet.chat(CHATS["medical"], draft="none", stop=[word]))
    answer = fleet.chat(CHATS["medical"], stop=[word])
    assert text(answer) == expected
    assert word not in expected
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6])
def test_max_tokens(fleet: Fleet, max_tokens: int) -> None:
    answer = fleet.chat(CHATS["code"], max_tokens=max_tokens)
    assert answer.usage.completion_tokens == max_tokens
    assert text(answer) == text(fleet.chat(CHATS["code"], max_tokens=max_tokens, draft="none"))


def test_logprobs_are_those_of_plain_decoding(fleet: Fleet) -> None:
    def odds(draft: str | None) -> list[tuple[str, float]]:
        answer = fleet.chat(CHATS["finance"], draft=draft, logprobs=True, top_logprobs=2, max_tokens=16)
        return [(entry.token, entry.logprob) for entry in answer.choices[0].logprobs.content]

    drafted, plain = odds(None), odds("none")
    assert [token for token, _ in drafted] == [token for token, _ in plain]
    assert [p for _, p in drafted] == pytest.approx([p for _, p in plain], abs=1e-3)


def test_penalties_and_seeds_are_accepted(fleet: Fleet) -> None:
    more = {"temperature": 0.7, "frequency_penalty": 0.5, "presence_penalty": 0.2, "seed": 11}
    assert text(fleet.chat(CHATS["general"], **more))
    # A seed reproduces a text without drafts (docs/sampling.md says why not with them).
    assert text(fleet.chat(CHATS["general"], draft="none", **more)) == text(
        fleet.chat(CHATS["general"], draft="none", **more)
    )


def test_json_schema(fleet: Fleet) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = fleet.chat(
        "Name a city and how many people live there, as JSON.",
        max_tokens=120,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )
    if answer.choices[0].finish_reason == "stop":
        assert set(json.loads(text(answer))) == {"city", "people"}
    else:
        assert text(answer).lstrip().startswith("{")


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "get_weather"}}, "required"])
def test_tool_calls(fleet: Fleet, choice: Any) -> None:
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 80}
    answer = fleet.chat("What is the weather in Paris?", draft="general", **asked).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city", "unit"}
    plain = fleet.chat("What is the weather in Paris?", draft="none", **asked).choices[0]
    assert call.function.arguments == plain.message.tool_calls[0].function.arguments


def test_the_model_may_leave_tools_alone(fleet: Fleet) -> None:
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "auto", "max_tokens": 24}
    drafted = fleet.chat(CHATS["code"], draft="code", **asked).choices[0].message
    assert drafted == fleet.chat(CHATS["code"], draft="none", **asked).choices[0].message


def test_completions_with_text_and_token_ids(fleet: Fleet) -> None:
    def complete(prompt: Any, draft: str) -> Any:
        return fleet.client.completions.create(
            model=MODEL,
            prompt=prompt,
            temperature=0,
            max_tokens=24,
            extra_headers={"x-specfleet-draft": draft},
        )

    prompt = "def fibonacci(n):\n"
    drafted, plain = complete(prompt, "code"), complete(prompt, "none")
    assert drafted.choices[0].text == plain.choices[0].text
    assert drafted.model_extra["specfleet"]["steps"] > 0
    answer = fleet.http.post("/tokenize", json={"model": MODEL, "prompt": prompt})
    assert answer.status_code == 200, answer.text
    ids = answer.json()["tokens"]
    assert complete(ids, "code").choices[0].text == plain.choices[0].text
    both = complete([prompt, "The capital of France is"], "general")
    assert len(both.choices) == 2


def test_a_long_conversation_is_cached_and_still_right(fleet: Fleet) -> None:
    messages: list[dict[str, str]] = []
    for turn in ["What is a stack?", "And a queue?", "Which one does a printer use?"]:
        messages.append({"role": "user", "content": turn})
        answers = [
            text(fleet.chat("", messages=messages, draft=draft, max_tokens=24)) for draft in ("none", None)
        ]
        assert answers[0] == answers[1]
        messages.append({"role": "assistant", "content": answers[0]})


def test_a_prompt_longer_than_the_drafts_context_is_answered(fleet: Fleet) -> None:
    prompt = "word " * 1500
    assert text(fleet.chat(prompt, max_tokens=8)) == text(fleet.chat(prompt, max_tokens=8, draft="none"))


BAD = [
    ({"model": "nobody"}, 404, "nobody"),
    ({"messages": "hello"}, 400, "messages"),
    ({"temperature": -1}, 400, "temperature"),
    ({"max_tokens": 10**6}, 400, ""),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, ""),
    ({"logit_bias": {"5": 3}}, 400, "logit_bias"),
    ({"min_p": 0.1}, 400, "min_p"),
]


@pytest.mark.parametrize(("change", "status", "named"), BAD)
def test_bad_requests_get_openai_errors(
    fleet: Fleet, change: dict[str, Any], status: int, named: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **change}
    answer = fleet.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert {"message", "type", "code"} <= set(error)
    assert named in error["message"]


def test_malformed_json_and_unknown_names(fleet: Fleet) -> None:
    headers = {"content-type": "application/json"}
    answer = fleet.http.post("/v1/chat/completions", content=b"{not json", headers=headers)
    assert (answer.status_code, "message" in answer.json()["error"]) == (400, True)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    for header in ("x-specfleet-domain", "x-specfleet-draft"):
        answer = fleet.http.post("/v1/chat/completions", json=body, headers={header: "astrology"})
        assert answer.status_code == 400
        assert "medical" in answer.json()["error"]["message"]
    assert fleet.http.get("/v1/nothing").status_code == 404


def test_a_token_id_past_the_vocabulary_is_refused_and_harms_nobody(fleet: Fleet) -> None:
    size = 49152
    for token in (size, size + 1, -1):
        answer = fleet.http.post("/v1/completions", json={"model": MODEL, "prompt": [token], "max_tokens": 2})
        assert answer.status_code == 400, answer.text
    last = fleet.http.post("/v1/completions", json={"model": MODEL, "prompt": [size - 1], "max_tokens": 2})
    assert last.status_code == 200
    assert text(fleet.chat("Hello", max_tokens=4))


def test_one_request_cannot_ask_for_thousands_of_answers(fleet: Fleet) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "n": 5000}
    assert fleet.http.post("/v1/chat/completions", json=body).status_code == 400


def test_models_and_health(fleet: Fleet) -> None:
    assert [model.id for model in fleet.client.models.list().data] == [MODEL]
    assert fleet.http.get("/health").json()["status"] == "ok"


def test_status_and_metrics_tell_the_same(fleet: Fleet) -> None:
    fleet.chat(CHATS["code"])
    until(lambda: proposed_in(fleet, draft="code", domain="code"), 20)
    status = fleet.status()
    assert {drafter["name"] for drafter in status["drafters"]} == {"general", "code", "medical", "finance"}
    assert len(status["verifiers"]) == 1
    metrics = fleet.http.get("/metrics").text
    assert "specfleet:spec_decode_num_draft_tokens_total{" in metrics
    assert 'draft="code"' in metrics
