"""The gateway's web interface on a real Serve cluster; only the model behind it is a stand-in."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

APP = "gateway-test"
MAX_ONGOING = 4
MAX_QUEUED = 2
DEADLINE_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    import ray
    from ray import serve
    from ray.llm._internal.serve.core.configs.openai_api_models import ModelCard
    from ray.serve.llm.openai_api_models import ChatCompletionRequest  # noqa: F401  (loads vLLM here, once)

    from deployments.gateway.gateway import build_gateway
    from deployments.gateway.settings import GatewaySettings
    from deployments.registry.replica import build_registry
    from tests.gateway.standin import StandIn

    port = free_port()
    environment = {"env_vars": {"OMP_NUM_THREADS": "1"}}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        runtime_env=environment,
        log_to_driver=False,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        standin = serve.deployment(
            max_ongoing_requests=MAX_ONGOING,
            max_queued_requests=MAX_QUEUED,
            ray_actor_options={"num_cpus": 0.1},
            health_check_period_s=1,
        )(StandIn)
        card = ModelCard(id="org/stand-in", object="model", owned_by="us", permission=[], metadata={})
        app = build_gateway(
            {"org/stand-in": standin.bind()},
            {"org/stand-in": card},
            build_registry(["code", "general"], ["code"]),
            GatewaySettings(max_body_mib=0.1, request_timeout_s=10 * DEADLINE_S),
            domains=["code", "general"],
            drafts=["code", "general"],
        )
        serve.run(app, name=APP, route_prefix="/")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="secret-key", max_retries=0, timeout=DEADLINE_S)


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "org/stand-in", "messages": [{"role": "user", "content": text}], **more}


def call(deployment: str, method: str, *args: Any) -> Any:
    from ray import serve

    handle = serve.get_deployment_handle(deployment, APP)
    return getattr(handle, method).remote(*args).result(timeout_s=30)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "secret" not in response.text
    assert len(response.headers.get_list("x-request-id")) == 1
    return error


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**said("hello"))
    assert answer.choices[0].message.content == "hello"


def test_streaming(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**said("hello", stream=True))
    assert [event.choices[0].delta.content for event in stream] == ["one", "two"]


def test_a_stream_is_passed_on_as_it_is(http: httpx.Client) -> None:
    from tests.gateway.standin import DONE, chunk

    response = http.post("/v1/chat/completions", json=said("hello", stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text == chunk("one") + chunk("two") + DONE


def test_completions_and_tokens(client: openai.OpenAI, http: httpx.Client) -> None:
    assert client.completions.create(model="org/stand-in", prompt="abc").choices[0].text == "abc"
    assert http.post("/tokenize", json={"prompt": "a b"}).json()["tokens"] == [4, 5]
    assert http.post("/tokenize", json={"messages": said("a")["messages"]}).json()["count"] == 2
    assert http.post("/detokenize", json={"tokens": [4, 5]}).json() == {"prompt": "[4, 5]"}


def test_models(client: openai.OpenAI, http: httpx.Client) -> None:
    assert [model.id for model in client.models.list()] == ["org/stand-in"]
    assert http.get("/v1/models/org/stand-in").json()["id"] == "org/stand-in"
    assert http.get("/v1/models/org--stand-in").json()["id"] == "org/stand-in"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


def test_only_what_may_pass_passes(http: httpx.Client) -> None:
    private = {
        "vllm_xargs": {"specfleet_draft": "code"},
        "priority": -5,
        "cache_salt": "salt",
        "request_id": "mine",
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"a": 1},
    }
    headers = {
        "authorization": "Bearer secret-key",
        "x-vllm-priority": "-5",
        "x-data-parallel-rank": "3",
        "x-session-id": "s",
        "serve_multiplexed_model_id": "other",
        "x-request-id": "trace-1",
        "x-specfleet-domain": "code",
        "x-specfleet-draft": "none",
    }
    response = http.post("/v1/chat/completions", json=said("hello", **private), headers=headers)
    seen = response.json()["specfleet"]
    assert seen["headers"] == {"x-specfleet-domain": "code", "x-specfleet-draft": "none"}
    assert (seen["priority"], seen["xargs"], seen["salt"], seen["multiplexed"]) == (0, None, None, "")
    assert seen["fields"] == ["messages", "model", "request_id"]
    assert seen["request_id"].startswith("trace-1-")
    assert response.headers.get_list("x-request-id") == ["trace-1"]
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("header", ["x-specfleet-domain", "x-specfleet-draft"])
def test_unknown_domain_or_draft(http: httpx.Client, header: str) -> None:
    error = error_of(http.post("/v1/chat/completions", json=said("hello"), headers={header: "poetry"}), 400)
    assert error["param"] == header
    assert "code, general" in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_unknown_model(http: httpx.Client, path: str) -> None:
    body = {**said("hello"), "prompt": "hello", "model": "org/stand-in:lora"}
    error = error_of(http.post(path, json=body), 404)
    assert (error["code"], error["param"], error["type"]) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [5]}, "messages.0"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        (said("x", temperature="hot"), "temperature"),
        (said("x", model=5), "model"),
        (said("x", stop=5), "stop"),
        (said("x", stream_options={"include_usage": True}), "stream_options"),
        (said("x", top_logprobs=3), "top_logprobs"),
    ],
)
def test_wrong_fields_are_named(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    error = error_of(http.post("/v1/chat/completions", json=body), 400)
    assert error["param"] == param
    assert error["message"]


def test_malformed_requests(http: httpx.Client) -> None:
    json_type = {"content-type": "application/json"}
    path = "/v1/chat/completions"
    assert "not valid JSON" in error_of(http.post(path, content=b"{", headers=json_type), 400)["message"]
    assert "JSON object" in error_of(http.post(path, content=b"[]", headers=json_type), 400)["message"]
    error_of(http.post(path, content=b"{}"), 415)
    error_of(http.post(path, json=said("x" * 200_000)), 413)
    error_of(http.post(path, content=iter([b"x" * 60_000] * 3), headers=json_type), 413)
    assert "/v1/nothing" in error_of(http.post("/v1/nothing", json={}), 404)["message"]
    assert error_of(http.get(path), 405)["message"] == f"{path} does not take GET."
    assert http.get(path).headers["allow"] == "POST"
    error_of(
        http.options(path, headers={"origin": "http://evil", "access-control-request-method": "POST"}), 405
    )
    for closed in ("/docs", "/openapi.json"):
        error_of(http.get(closed), 404)


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_the_engine_keep_status_and_message(http: httpx.Client, stream: bool) -> None:
    path = "/v1/chat/completions"
    error = error_of(http.post(path, json=said("refuse", stream=stream)), 400)
    assert (error["message"], error["code"]) == ("too long", "context_length_exceeded")
    error = error_of(http.post(path, json=said("raise validation", stream=stream)), 400)
    assert (error["message"], error["param"]) == ("wrong n", "n")
    response = http.post(path, json=said("raise busy", stream=stream))
    assert "busy" in error_of(response, 503)["message"]
    assert response.headers["retry-after"] == "1"
    request_id = {"x-request-id": "trace-9"}
    error = error_of(http.post(path, json=said("raise", stream=stream), headers=request_id), 500)
    assert "trace-9" in error["message"]
    for early in ("refuse in a list", "refuse in the first event"):
        assert error_of(http.post(path, json=said(early, stream=True)), 400)["message"] == "no"


def test_an_error_in_a_stream_is_an_event(client: openai.OpenAI, http: httpx.Client) -> None:
    for word, before in (("two then raise", 2), ("one then error event", 1)):
        events = http.post("/v1/chat/completions", json=said(word, stream=True)).text.strip().split("\n\n")
        assert len(events) == before + 2
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "internal_error"
        assert events[-1] == "data: [DONE]"
        assert "secret" not in "".join(events)
    with pytest.raises(openai.APIError, match="Internal error"):
        list(client.chat.completions.create(**said("two then raise", stream=True)))


@pytest.mark.parametrize(("how", "stream"), [("endless", True), ("silent", True), ("silent", False)])
@pytest.mark.parametrize("headers", [{}, {"x-request-disconnect-disabled": "?1"}])
def test_a_client_that_leaves_ends_the_generation(
    url: str, how: str, stream: bool, headers: dict[str, str]
) -> None:
    begun, ended = call("StandIn", "tally")
    assert begun == ended

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
            request = asyncio.ensure_future(read(client))
            await asyncio.to_thread(wait_until, lambda: call("StandIn", "tally")[0] == begun + 1)
            request.cancel()
            await asyncio.wait([request], timeout=DEADLINE_S)

    async def read(client: httpx.AsyncClient) -> None:
        body = said(how, stream=stream)
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            async for _ in response.aiter_bytes():
                pass

    asyncio.run(leave())
    wait_until(lambda: call("StandIn", "tally") == (begun + 1, begun + 1))


def test_a_full_model_is_a_503_at_once(url: str) -> None:
    async def crowd() -> list[int]:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
            busy = [
                client.stream("POST", "/v1/chat/completions", json=said("endless", stream=True))
                for _ in range(MAX_ONGOING)
            ]
            # Kept, since an iterator that nobody holds closes its connection.
            running = [(await stream.__aenter__()).aiter_bytes() for stream in busy]
            for answer in running:
                await anext(answer)
            ask = [
                asyncio.ensure_future(client.post("/v1/chat/completions", json=said("hello")))
                for _ in range(MAX_QUEUED + 3)
            ]
            refused = [await next_done for next_done in list(asyncio.as_completed(ask))[:3]]
            for response in refused:
                assert error_of(response, 503)["code"] == "unavailable"
                assert response.headers["retry-after"] == "1"
            for stream in busy:
                await stream.__aexit__(None, None, None)
            return sorted(response.status_code for response in await asyncio.gather(*ask))

    assert asyncio.run(crowd()) == [200] * MAX_QUEUED + [503] * 3


def beat() -> None:
    """What a verifier and a drafter tell the registry every second."""
    figures = {"code": {"code": {"proposed": 40, "accepted": 30, "steps": 10, "by_position": [30]}}}
    report = {"replica": "v", "model": "org/stand-in", "pid": 1, "snapshot": {"acceptance": figures}}
    drafter = {
        "draft": "code",
        "replica": "d",
        "address": "tcp://h:1",
        "public_key": "k",
        "pid": 2,
        "sessions": 3,
    }
    call("Registry", "report", report)
    call("Registry", "announce", drafter)


def figures(http: httpx.Client) -> dict[str, float]:
    """The series of /metrics that the tests look at, by name."""
    response = http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_health_status_and_metrics(http: httpx.Client) -> None:
    assert error_of(http.get("/health"), 503)["message"] == "No verifier is ready."
    beat()
    wait_until(lambda: http.get("/health").status_code == 200)
    assert http.get("/health").json() == {
        "status": "degraded",
        "verifiers": 1,
        "drafts_away": ["general"],
        "registry": "up",
    }
    status = http.get("/specfleet/status").json()
    assert status["acceptance"]["code"]["code"]["acceptance_rate"] == 0.75
    assert [(d["name"], d["state"], d["sessions"]) for d in status["drafters"]] == [
        ("code", "ready", 3),
        ("general", "away", 0),
    ]
    assert figures(http)["specfleet:spec_decode_num_accepted_tokens_total"] == 30


@pytest.fixture
def beating(url: str) -> Iterator[None]:
    """A verifier and a drafter that keep reporting, whatever becomes of the registry."""
    stop = threading.Event()

    def keep_beating() -> None:
        while not stop.wait(0.2):
            with contextlib.suppress(Exception):
                beat()

    thread = threading.Thread(target=keep_beating, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_the_registry_may_die(http: httpx.Client, beating: None) -> None:
    accepted = "specfleet:spec_decode_num_accepted_tokens_total"
    wait_until(lambda: figures(http).get(accepted) == 30)
    before = http.get("/specfleet/status").json()["registry"]
    os.kill(before["pid"], signal.SIGKILL)

    def up() -> bool:
        now = figures(http)
        assert now[accepted] == 30
        assert http.get("/health").status_code == 200
        return bool(now["specfleet:registry_up"])

    def taken_over() -> bool:
        # Until the new one has heard everyone, the old one's figures are shown; then its own are the same.
        return (
            up() and http.get("/specfleet/status").json()["registry"]["incarnation"] != before["incarnation"]
        )

    wait_until(lambda: not up())
    wait_until(up)
    wait_until(taken_over)


def test_a_refused_report_raises_at_its_sender(url: str) -> None:
    from deployments.registry.reports import BadReport

    with pytest.raises(BadReport, match="'legal' is not configured"):
        call(
            "Registry",
            "announce",
            {"draft": "legal", "replica": "d", "address": "a", "public_key": "k", "pid": 1},
        )


def test_a_replica_that_dies_is_a_503_and_comes_back(http: httpx.Client) -> None:
    path = "/v1/chat/completions"
    events = http.post(path, json=said("one then die", stream=True)).text.strip().split("\n\n")
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "unavailable"
    assert http.post(path, json=said("hello")).status_code in (200, 503)
    wait_until(lambda: http.post(path, json=said("hello")).status_code == 200)
    response = http.post(path, json=said("die"))
    assert "not available" in error_of(response, 503)["message"]
    assert response.headers["retry-after"] == "1"
