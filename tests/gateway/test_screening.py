"""What passes from outside, and what a refusal says."""

import json
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.requests import Request

from deployments.gateway.errors import ApiError
from deployments.gateway.screening import (
    PRIVATE_FIELDS,
    engine_request_id,
    passed_headers,
    read_json,
    validate,
)


def request(body: bytes = b"{}", **headers: str) -> Request:
    sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive)


def passed(**headers: str) -> dict[str, str]:
    names = Headers({k.replace("_", "-"): v for k, v in headers.items()})
    return passed_headers(names, domains=["medical", "code"], drafts=["coder", "medic"])


def test_only_listed_headers_pass() -> None:
    outside = {
        "authorization": "Bearer secret",
        "cookie": "a=b",
        "X_Vllm_Priority": "-9",
        "X_data_parallel_rank": "1",
        "X_Session_ID": "s",
        "x_request_disconnect_disabled": "?1",
        "x_request_id": "mine",
    }
    ours = {"x_specfleet_domain": "code", "X_Specfleet_Draft": "none", "traceparent": "00-1-2-01"}
    assert passed(**outside, **ours) == {
        "x-specfleet-domain": "code",
        "x-specfleet-draft": "none",
        "traceparent": "00-1-2-01",
    }


@pytest.mark.parametrize(
    ("header", "value", "known"),
    [
        ("x_specfleet_domain", "poetry", "Known: code, medical."),
        ("x_specfleet_domain", "", "Known: code, medical."),
        ("x_specfleet_domain", "Code", "Known: code, medical."),
        ("x_specfleet_draft", "poet", "Known: coder, medic, none."),
    ],
)
def test_unknown_domain_or_draft_names_the_known_ones(header: str, value: str, known: str) -> None:
    with pytest.raises(ApiError) as caught:
        passed(**{header: value})
    assert caught.value.status == 400
    assert caught.value.param == header.replace("_", "-")
    assert known in caught.value.message


@pytest.mark.asyncio
async def test_private_fields_are_dropped_before_anyone_looks_at_them() -> None:
    body = {name: ["nonsense"] for name in PRIVATE_FIELDS}
    assert await read_json(request(json.dumps({**body, "model": "m", "n": 2}).encode())) == {
        "model": "m",
        "n": 2,
    }
    assert {"vllm_xargs", "priority", "cache_salt", "request_id", "kv_transfer_params"} <= PRIVATE_FIELDS


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "not valid JSON: Expecting property name enclosed in double quotes at line 1 column 2"),
        (b"", "not valid JSON"),
        (b"\xff{}", "not valid JSON"),
        (b"[1]", "has to be a JSON object"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\\uDC00"}', "surrogate"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_not_json_is_a_400(body: bytes, named: str) -> None:
    with pytest.raises(ApiError) as caught:
        await read_json(request(body))
    assert caught.value.status == 400
    assert named in caught.value.message


@pytest.mark.asyncio
async def test_a_whole_surrogate_pair_passes() -> None:
    assert await read_json(request(b'{"a": "\\ud83d\\ude00"}')) == {"a": "\U0001f600"}


@pytest.mark.asyncio
async def test_other_content_types_are_a_415() -> None:
    with pytest.raises(ApiError) as caught:
        await read_json(request(content_type="text/plain"))
    assert caught.value.status == 415
    assert await read_json(request(content_type="application/json; charset=utf-8")) == {}


class Part(BaseModel):
    kind: str
    text: str


class Talk(BaseModel):
    messages: list[Part | list[Part]]
    temperature: float = 1.0


@pytest.mark.parametrize(
    ("data", "param", "said"),
    [
        ({}, "messages", "Field required"),
        ({"messages": "hi"}, "messages", "valid list"),
        ({"messages": [], "temperature": "hot"}, "temperature", "valid number"),
        ({"messages": [{"kind": "a"}]}, "messages.0.text", "Field required"),
        ({"messages": [5]}, "messages.0", "; or: "),
    ],
)
def test_a_wrong_field_is_named_by_the_clients_own_keys(data: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate(Talk, data)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(f"{param}: ")
    assert said in caught.value.message


def test_engine_ids_are_unique_and_lead_back_to_the_clients() -> None:
    same = request(x_request_id="trace-7")
    ids = {engine_request_id(same) for _ in range(20)}
    assert len(ids) == 20
    assert all(name.startswith("trace-7-") for name in ids)
    for odd in ("a b", "x" * 500, "", "a/b"):
        assert len(engine_request_id(request(x_request_id=odd))) == 32


@pytest.mark.parametrize("header", ["x-specfleet-draft", "x-specfleet-domain"])
@pytest.mark.parametrize("value", ["none", "ngram", "code"])
def test_where_vllm_proposes_there_is_nothing_to_choose(header: str, value: str) -> None:
    with pytest.raises(ApiError, match=r"vLLM's own ngram proposes .* Leave the header out") as refused:
        passed_headers(Headers({header: value}), domains=[], drafts=[], method="ngram")
    assert (refused.value.status, refused.value.param) == (400, header)
    assert passed_headers(Headers({"traceparent": "00"}), domains=[], drafts=[], method="ngram")
