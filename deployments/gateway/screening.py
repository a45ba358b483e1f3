"""What passes from outside to the verifier: bodies, headers, ids.

Fields of vLLM that steer the engine from the inside (its scheduler, its caches, its extensions) are dropped
from request bodies without a word, as unknown fields are. Headers pass by an allow-list.
"""

import json
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from deployments.gateway.errors import ApiError

DOMAIN_HEADER = "x-specfleet-domain"
DRAFT_HEADER = "x-specfleet-draft"
# Not a draft: decode plainly.
NO_DRAFT = "none"

# Of these fields only the fleet itself may decide.
PRIVATE_FIELDS = frozenset(
    {
        "cache_salt",
        "ec_transfer_params",
        "kv_transfer_params",
        "priority",
        "request_id",
        "session_id",
        "vllm_xargs",
    }
)
# All else stays outside: authorization, cookies, `X-Vllm-Priority`, `X-data-parallel-rank`, `X-Session-ID`...
PASSED_HEADERS = frozenset({DOMAIN_HEADER, DRAFT_HEADER, "traceparent", "tracestate"})

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
Body = TypeVar("Body", bound=BaseModel)


def request_id(request: Request) -> str:
    """The id that the client sent or Serve made up, as it is in the log and on the response."""
    return request.headers.get("x-request-id", "")


def engine_request_id(request: Request) -> str:
    """An id that no other request has: clients may send the same `x-request-id` twice at once."""
    given = request_id(request)
    unique = uuid.uuid4().hex
    return f"{given}-{unique[:12]}" if _REQUEST_ID.fullmatch(given) else unique


def passed_headers(
    headers: Mapping[str, str],
    *,
    domains: Collection[str],
    drafts: Collection[str],
    method: str | None = None,
) -> dict[str, str]:
    """The headers that go on to the verifier.

    Args:
        headers: all headers of the request; names in lower case, or a mapping that ignores case.
        domains: the domain names that `x-specfleet-domain` may hold.
        drafts: the draft names that `x-specfleet-draft` may hold, besides `none`.
        method: vLLM's own way to propose, where the verifier has one instead of drafts.

    Raises:
        ApiError: 400, a domain or draft that does not exist; the message names the known ones. Or one of
            these headers where there are no drafts to choose from.
    """
    passed = {name: headers[name] for name in sorted(PASSED_HEADERS) if name in headers}
    if method is not None:
        _check_nothing_to_choose(passed, method)
    _check_known(passed, DOMAIN_HEADER, "domain", sorted(domains))
    _check_known(passed, DRAFT_HEADER, "draft", [*sorted(drafts), NO_DRAFT])
    return passed


async def read_json(request: Request) -> dict[str, Any]:
    """The request's body as a JSON object, without the private fields.

    Raises:
        ApiError: 415, not sent as JSON; 400, not JSON or not an object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "Send the body as JSON, with the header content-type: application/json.")
    raw = await request.body()
    try:
        data = json.loads(raw, parse_constant=_no_constant)
        if b"\\ud" in raw or b"\\uD" in raw:
            # Half a surrogate pair is valid in JSON but not a character; no tokenizer takes it.
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "The body has half of a surrogate pair (\\ud800 to \\udfff).") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ApiError(400, f"The body is not valid JSON: {error.msg} at {where}.") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"The body is not valid JSON: {reason}.") from None
    if not isinstance(data, dict):
        raise ApiError(400, "The body has to be a JSON object.")
    return {name: value for name, value in data.items() if name not in PRIVATE_FIELDS}


def validate(kind: type[Body], data: dict[str, Any]) -> Body:
    """Check a request's fields.

    Raises:
        ApiError: 400; `param` and the message name the field.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        param, message = explain(error, data)
        raise ApiError(400, f"{param}: {message}" if param else message, param=param) from None


def explain(error: ValidationError, data: Any) -> tuple[str | None, str]:
    """The field at fault as a path such as `messages.0.content`, and what is wrong with it.

    pydantic reports every alternative of a union; the names of the alternatives mean nothing to a client, so
    only keys and indexes of its own data are kept, and what is said of one field is put together.
    """
    complaints: dict[str, list[str]] = {}
    fallback: dict[str, list[str]] = {}
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        path = ".".join(_own_path(item["loc"], data, missing=item["type"] == "missing"))
        # "Should be 'developer'" only says that another kind of message was tried first.
        group = fallback if item["type"] == "literal_error" else complaints
        said = group.setdefault(path, [])
        if item["msg"] not in said:
            said.append(item["msg"])
    path, said = next(iter((complaints or fallback).items()))
    return path or None, "; or: ".join(said)


def _own_path(location: tuple[int | str, ...], data: Any, *, missing: bool) -> Iterator[str]:
    here = data
    for depth, part in enumerate(location):
        in_dict = isinstance(here, dict) and part in here
        in_list = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if in_dict or in_list:
            here = here[part]
        elif not (missing and depth == len(location) - 1):
            continue
        yield str(part)


def _check_known(headers: Mapping[str, str], header: str, what: str, known: list[str]) -> None:
    if header in headers and headers[header] not in known:
        message = f"{header}: there is no {what} {headers[header]!r}. Known: {', '.join(known)}."
        raise ApiError(400, message, param=header, code=f"unknown_{what}")


def _check_nothing_to_choose(headers: Mapping[str, str], method: str) -> None:
    """vLLM has no switch per request for its own ways to propose, not even to go without."""
    for header in (DRAFT_HEADER, DOMAIN_HEADER):
        if header in headers:
            message = (
                f"{header}: in this fleet vLLM's own {method} proposes for every request, in every step, and "
                "cannot be switched off or exchanged for one of them. Leave the header out."
            )
            raise ApiError(400, message, param=header, code="fixed_method")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
