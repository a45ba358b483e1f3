"""The outermost layer of the gateway's web application: sizes, deadlines, disconnects and the last catch."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.gateway.errors import ApiError, from_exception, logger
from deployments.gateway.screening import request_id
from deployments.gateway.settings import GatewaySettings

# How long a request that was cancelled gets to clean up after itself.
_CLEAN_UP_S = 5.0


class _Gone(Exception):
    """The client went before its request was complete."""


class Shell:
    """ASGI middleware around everything.

    Reads the whole body first, within a size and a deadline. Then runs the application and watches the
    connection at the same time: when the client goes, the request is cancelled, and with it the generation
    in the verifier. Serve does the same, but a client may tell it not to (`x-request-disconnect-disabled`)
    before any code of ours sees the request.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                body = await self._read(Headers(scope=scope), receive)
        except _Gone:
            return
        except TimeoutError:
            await ApiError(408, "The request's body took too long to arrive.").response()(
                scope, receive, send
            )
            return
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        try:
            await self._run_while_connected(scope, body, receive, tracked_send)
        except Exception as error:
            error_id = request_id(Request(scope))
            retry_after_s = self._settings.retry_after_s
            answer = from_exception(error, request_id=error_id, retry_after_s=retry_after_s)
            if started:
                # Nothing sensible can be added to half an answer; Serve breaks the connection.
                raise
            await answer.response()(scope, receive, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._settings.max_body_bytes
        too_large = ApiError(413, f"The body is larger than {limit} bytes.", code="request_too_large")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise too_large
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            body += message.get("body", b"")
            if len(body) > limit:
                raise too_large
            if not message.get("more_body", False):
                return bytes(body)

    async def _run_while_connected(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        gone = asyncio.Event()
        work = asyncio.ensure_future(self._app(scope, _replay(body, gone), send))
        watch = asyncio.ensure_future(_until_disconnect(receive))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.set()
            watch.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait((work,), timeout=_CLEAN_UP_S)
        if watch.done() and not watch.cancelled() and watch.exception():
            logger.warning("lost sight of the connection: %s", watch.exception())
        if not work.done():
            logger.error("request %s did not end when its client had gone", request_id(Request(scope)))
        elif not work.cancelled():
            work.result()


def _replay(body: bytes, gone: asyncio.Event) -> Callable[[], Awaitable[Message]]:
    """A `receive` that gives the body once and then nothing until the client has gone."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await gone.wait()
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
