"""What a client may know of whatever went wrong."""

import logging

import pytest
from ray.exceptions import ActorUnavailableError, RayTaskError
from ray.serve.exceptions import BackPressureError, RequestCancelledError
from starlette.exceptions import HTTPException

from deployments.gateway.errors import ApiError, from_engine, from_exception


def seen(error: BaseException) -> ApiError:
    return from_exception(error, request_id="r-1", retry_after_s=7)


def remote(cause: Exception) -> BaseException:
    """What the caller of a replica gets when that replica raised `cause`."""
    return RayTaskError("chat", "Traceback: secret path", cause).as_instanceof_cause()


def test_the_shape_is_openais() -> None:
    error = ApiError(400, "wrong", param="n", code="why")
    assert error.body() == {
        "error": {"message": "wrong", "type": "invalid_request_error", "param": "n", "code": "why"}
    }
    assert ApiError(503, "full").body()["error"]["type"] == "server_error"
    assert error.event().startswith('data: {"error": {"message": "wrong"')
    assert error.event().endswith("\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize(
    "error",
    [
        ActorUnavailableError("secret path", None),
        BackPressureError(5, 5),
        remote(BackPressureError(5, 5)),
        RequestCancelledError("x"),
    ],
)
def test_gone_or_full_is_a_503_to_try_again(error: BaseException) -> None:
    answer = seen(error)
    assert answer.status == 503
    assert answer.headers == {"retry-after": "7"}
    assert "secret" not in answer.message


@pytest.mark.parametrize(
    "error", [KeyError("secret"), remote(KeyError("secret")), remote(TimeoutError("secret"))]
)
def test_what_is_inside_stays_inside(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = seen(error)
    assert answer.status == 500
    assert "secret" not in answer.message
    assert "r-1" in answer.message
    assert "r-1" in caplog.text
    assert "secret" in caplog.text


def test_a_deadline_is_a_504() -> None:
    assert seen(TimeoutError()).status == 504


def test_web_errors_keep_status_and_headers() -> None:
    answer = seen(HTTPException(405, headers={"allow": "POST"}))
    assert (answer.status, answer.headers) == (405, {"allow": "POST"})


def test_engine_errors_keep_status_message_and_param() -> None:
    answer = from_engine("`n` must be at least 1", 400, "n", 7)
    assert (answer.status, answer.message, answer.param) == (400, "`n` must be at least 1", "n")
    assert from_engine("too long", 400, "input_tokens", 7).code == "context_length_exceeded"
    assert from_engine("busy", 503, None, 7).headers == {"retry-after": "7"}
    assert "secret" not in from_engine("secret", 500, None, 7).message
