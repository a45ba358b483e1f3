"""The verifier's answers on their way to the client: what is an error, and how a stream carries one."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from ray.llm._internal.serve.core.configs.openai_api_models import ErrorResponse
from ray.llm._internal.serve.core.ingress.utils import _openai_json_wrapper
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from deployments.gateway.errors import ApiError, from_engine, from_exception
from deployments.gateway.screening import request_id

# How vLLM writes an error into a stream.
_ERROR_EVENT = 'data: {"error"'


def refusal(answer: Any, retry_after_s: int) -> ApiError | None:
    """The error in an answer of the engine, if it is one; as an object or as an event of a stream."""
    if isinstance(answer, ErrorResponse):
        error = answer.error
        return from_engine(error.message, error.code, error.param, retry_after_s)
    if isinstance(answer, str) and answer.startswith(_ERROR_EVENT):
        event = json.loads(answer.removeprefix("data: ").partition("\n")[0])["error"]
        return from_engine(event["message"], int(event["code"]), event.get("param"), retry_after_s)
    return None


class EventStream(StreamingResponse):
    """Server-sent events as Ray Serve LLM's ingress writes them, but an error becomes an event too.

    Args:
        first: the first answer, already taken.
        rest: the others; closed when the response ends, in whatever way.
        request: the client's request.
        retry_after_s: for errors, seconds.
    """

    def __init__(
        self, first: Any, rest: AsyncGenerator[Any, None], request: Request, retry_after_s: int
    ) -> None:
        self._rest = rest
        self._request_id = request_id(request)
        self._retry_after_s = retry_after_s
        super().__init__(self._events(first), media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._rest.aclose()

    async def _events(self, first: Any) -> AsyncIterator[str]:
        try:
            async for packet in _openai_json_wrapper(self._checked(first)):
                yield packet
        except Exception as error:
            answer = from_exception(error, request_id=self._request_id, retry_after_s=self._retry_after_s)
            yield answer.event()

    async def _checked(self, first: Any) -> AsyncGenerator[Any, None]:
        yield first
        async for answers in self._rest:
            for answer in answers if isinstance(answers, list) else [answers]:
                if (error := refusal(answer, self._retry_after_s)) is not None:
                    raise error
            yield answers
