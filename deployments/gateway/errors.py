"""Every error as OpenAI's clients know it: `{"error": {"message", "type", "param", "code"}}` and a status."""

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    UnserializableException,
    WorkerCrashedError,
)
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

# A child of Serve's own logger, so that it lands in the replica's log with the request id.
logger = logging.getLogger("ray.serve.specfleet.gateway")

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

# The other end of a call is gone or full: the same request may succeed a moment later, maybe elsewhere.
_GONE = (
    BackPressureError,
    DeploymentUnavailableError,
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    ReplicaUnavailableError,
    TaskCancelledError,
    WorkerCrashedError,
)


class ApiError(Exception):
    """An error that the client gets to see as it is.

    Args:
        status: HTTP status.
        message: what is wrong and what to do about it; never internals.
        param: the field or header at fault, if there is one.
        code: a short word that programs can compare, such as `model_not_found`.
        headers: further response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The response's JSON."""
        kind = _TYPES.get(self.status, INVALID_REQUEST if self.status < 500 else SERVER_ERROR)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.body(), self.status, headers=self.headers)

    def event(self) -> str:
        """The error as the last but one event of a stream that has already begun; `[DONE]` follows."""
        return f"data: {json.dumps(self.body())}\n\ndata: [DONE]\n\n"


def unavailable(message: str, retry_after_s: int) -> ApiError:
    """A 503 that asks the client to come again."""
    return ApiError(503, message, code="unavailable", headers={"retry-after": str(retry_after_s)})


def from_engine(message: str, status: int, param: str | None, retry_after_s: int) -> ApiError:
    """The engine's own error object: its status and message stay, its class names become OpenAI's words."""
    if status == 503:
        return unavailable(message, retry_after_s)
    if status == 500:
        logger.error("the engine failed: %s", message)
        return internal(None)
    code = {404: "model_not_found"}.get(status)
    if param in ("input_tokens", "input_text"):
        code = "context_length_exceeded"
    return ApiError(status, message, param=param, code=code)


def internal(request_id: str | None) -> ApiError:
    """A 500 that says nothing of the inside; the log has the details under the request's id."""
    hint = f" The operator finds it in the log under request {request_id}." if request_id else ""
    return ApiError(500, f"Internal error.{hint}", code="internal_error")


def from_exception(error: BaseException, *, request_id: str | None, retry_after_s: int) -> ApiError:
    """Turn anything that went wrong into what the client may know of it; the rest is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    # Ray wraps what a replica raised into a class that is both; the cause is the plain original.
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, BackPressureError):
        return unavailable(
            "The model is busy: too many requests are waiting. Try again shortly.", retry_after_s
        )
    if isinstance(cause, _GONE) or _is_vllm(cause, "v1.engine.exceptions", "EngineDeadError"):
        logger.warning("request %s: a replica is gone: %s", request_id, error)
        return unavailable("The model is not available right now. Try again shortly.", retry_after_s)
    if isinstance(error, asyncio.TimeoutError) and not isinstance(error, RayError):
        return ApiError(504, "The answer took longer than the server allows.", code="timeout")
    refused = _engine_refusal(cause, retry_after_s)
    if refused is not None:
        return refused
    logger.error("request %s failed", request_id, exc_info=error)
    return internal(request_id)


def _is_vllm(error: BaseException, module: str, name: str) -> bool:
    """Whether `error` is of that class, without importing vLLM: if it is, its module is already loaded."""
    kind = getattr(sys.modules.get(f"vllm.{module}"), name, None)
    return kind is not None and isinstance(error, kind)


def _engine_refusal(cause: Any, retry_after_s: int) -> ApiError | None:
    """vLLM's exceptions for bad requests and full queues, where they come as exceptions."""
    if isinstance(cause, UnserializableException):
        # vLLM's errors of a full queue cannot be unpickled; all that arrives is the text of the traceback.
        kind, _, message = str(cause).strip().rpartition("\n")[2].partition(": ")
        if kind in ("vllm.exceptions.QueueOverflowError", "vllm.exceptions.MaxQueuedTokensError"):
            return unavailable(message, retry_after_s)
    if _is_vllm(cause, "exceptions", "GracefulHTTPError"):
        return from_engine(cause.message, int(cause.http_status), None, retry_after_s)
    if _is_vllm(cause, "exceptions", "VLLMClientError"):
        message = str(cause.args[0]) if cause.args else str(cause)
        status = 404 if _is_vllm(cause, "exceptions", "VLLMNotFoundError") else 400
        return from_engine(message, status, getattr(cause, "parameter", None), retry_after_s)
    return None
