"""A real Serve deployment in the verifier's place, with canned answers: the gateway's tests need no model.

What it does is said by the last word that the client sends; see `StandIn._answers`.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionResponse,
    CompletionResponse,
    DetokenizeResponse,
    ErrorInfo,
    ErrorResponse,
    TokenizeResponse,
)
from vllm.exceptions import QueueOverflowError, VLLMValidationError

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
DONE = "data: [DONE]\n\n"


def error_event(message: str, code: int) -> str:
    """An error inside a stream, as vLLM writes it."""
    return f'data: {{"error": {{"message": "{message}", "type": "T", "param": null, "code": {code}}}}}\n\n'


def chunk(text: str) -> str:
    return (
        'data: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "stand-in", '
        f'"choices": [{{"index": 0, "delta": {{"content": "{text}"}}}}]}}\n\n'
    )


class StandIn:
    """Answers as Ray's LLMServer does: one object, or lists of events when streaming."""

    def __init__(self) -> None:
        self._begun = 0
        self._ended = 0

    async def tally(self) -> tuple[int, int]:
        """How many endless answers were begun and how many of them ended."""
        return self._begun, self._ended

    async def chat(self, request: Any, info: Any) -> AsyncGenerator[Any, None]:
        async for answer in self._answers(request, info, request.messages[-1]["content"]):
            yield answer

    async def completions(self, request: Any, info: Any) -> AsyncGenerator[Any, None]:
        choice = {"index": 0, "text": request.prompt, "finish_reason": "stop"}
        yield CompletionResponse(id="c", model=request.model or "", choices=[choice], usage=USAGE)

    async def tokenize(self, request: Any, info: Any) -> AsyncGenerator[Any, None]:
        yield TokenizeResponse(count=2, max_model_len=9, tokens=[4, 5])

    async def detokenize(self, request: Any, info: Any) -> AsyncGenerator[Any, None]:
        yield DetokenizeResponse(prompt=str(request.tokens))

    async def _answers(self, request: Any, info: Any, said: str) -> AsyncGenerator[Any, None]:
        match said:
            case "refuse":
                yield ErrorResponse(
                    error=ErrorInfo(
                        message="too long", type="BadRequestError", code=400, param="input_tokens"
                    )
                )
            case "refuse in a list":
                yield [ErrorResponse(error=ErrorInfo(message="no", type="BadRequestError", code=400))]
            case "refuse in the first event":
                yield [error_event("no", 400)]
            case "raise validation":
                raise VLLMValidationError("wrong n", parameter="n", value=-1)
            case "raise busy":
                raise QueueOverflowError
            case "raise":
                raise KeyError("secret")
            case "two then raise":
                yield [chunk("one"), chunk("two")]
                raise KeyError("secret")
            case "one then error event":
                yield [chunk("one")]
                yield [error_event("secret", 500)]
                yield [DONE]
            case "one then die":
                yield [chunk("one")]
                await asyncio.sleep(1)  # until it has left this process
                os._exit(1)
            case "die":
                os._exit(1)
            case "endless" | "silent":
                self._begun += 1
                try:
                    while True:
                        if said == "endless":
                            yield [chunk("more")]
                        await asyncio.sleep(0.05)
                finally:
                    self._ended += 1
            case _ if request.stream:
                yield [chunk("one")]
                yield [chunk("two"), DONE]
            case _:
                yield self._plain(request, info, said)

    def _plain(self, request: Any, info: Any, said: str) -> ChatCompletionResponse:
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        seen = {
            "headers": info.headers,
            "fields": sorted(request.model_fields_set | set(request.model_extra or {})),
            "priority": request.priority,
            "xargs": request.vllm_xargs,
            "salt": request.cache_salt,
            "request_id": request.request_id,
            "multiplexed": serve.get_multiplexed_model_id(),
        }
        return ChatCompletionResponse(id="c", model="stand-in", choices=[choice], usage=USAGE, specfleet=seen)
