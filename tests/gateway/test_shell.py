"""Sizes, deadlines and disconnects, on a bare ASGI application."""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from deployments.gateway.settings import GatewaySettings
from deployments.gateway.shell import Shell

SETTINGS = GatewaySettings(max_body_mib=10 / 2**20, body_timeout_s=0.05)


class Client:
    """The web server's side of one request: parts of the body, then silence until `leave`."""

    def __init__(self, *parts: bytes, headers: dict[str, str] | None = None, complete: bool = True) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for number, part in enumerate(parts, 1):
            more = not complete or number < len(parts)
            self.inbox.put_nowait({"type": "http.request", "body": part, "more_body": more})
        self.sent: list[dict[str, Any]] = []
        raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": raw}

    def leave(self) -> None:
        self.inbox.put_nowait({"type": "http.disconnect"})

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def call(self, app: Any) -> None:
        await Shell(app, SETTINGS)(self.scope, self.inbox.get, self.send)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def json(self) -> Any:
        return json.loads(b"".join(message.get("body", b"") for message in self.sent))


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await JSONResponse({"body": body.decode()})(scope, receive, send)


async def fail(scope: Scope, receive: Receive, send: Send) -> None:
    raise KeyError("secret")


@pytest.mark.asyncio
async def test_a_body_in_parts_arrives_whole() -> None:
    client = Client(b"12345", b"67890")
    await client.call(echo)
    assert client.json == {"body": "1234567890"}


@pytest.mark.parametrize(
    "client", [lambda: Client(b"12345", b"678901"), lambda: Client(headers={"content-length": "11"})]
)
@pytest.mark.asyncio
async def test_too_large_a_body_is_a_413(client: Any) -> None:
    client = client()
    await client.call(echo)
    assert client.status == 413
    assert "10 bytes" in client.json["error"]["message"]


@pytest.mark.asyncio
async def test_a_body_that_does_not_come_is_a_408() -> None:
    client = Client(b"123", complete=False)
    await client.call(echo)
    assert client.status == 408
    assert client.json["error"]["type"] == "invalid_request_error"


@pytest.mark.asyncio
async def test_a_client_that_leaves_early_gets_nothing() -> None:
    client = Client(b"123", complete=False)
    client.leave()
    await client.call(echo)
    assert client.sent == []


@pytest.mark.asyncio
async def test_a_client_that_leaves_ends_its_request() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    client = Client(b"{}")
    call = asyncio.ensure_future(client.call(endless))
    await asyncio.wait_for(began.wait(), 10)
    assert not ended.is_set()
    client.leave()
    await asyncio.wait_for(call, 10)
    assert ended.is_set()


@pytest.mark.asyncio
async def test_a_request_that_is_cancelled_ends_the_application() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    call = asyncio.ensure_future(Client(b"{}").call(endless))
    await asyncio.wait_for(began.wait(), 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


@pytest.mark.asyncio
async def test_what_nobody_caught_is_a_500_without_internals() -> None:
    client = Client(b"{}", headers={"x-request-id": "r-9"})
    await client.call(fail)
    assert client.status == 500
    assert "secret" not in json.dumps(client.json)
    assert "r-9" in client.json["error"]["message"]


@pytest.mark.asyncio
async def test_half_an_answer_is_broken_off() -> None:
    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("late")

    client = Client(b"{}")
    with pytest.raises(KeyError):
        await client.call(half)
    assert len(client.sent) == 1
