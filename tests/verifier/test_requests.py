from types import SimpleNamespace
from typing import Any

import pytest

from deployments.verifier.requests import (
    DOMAIN_KEY,
    DRAFT_KEY,
    PROBABILITY_KEY,
    REQUEST_KEY,
    RequestTable,
    cut_at_stop,
)


def params(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "extra_args": None,
        "stop_token_ids": [],
        "ignore_eos": False,
        "eos_token_id": 2,
        "max_tokens": 16,
    }
    return SimpleNamespace(**{**values, **changes})


def test_a_request_carries_what_the_replica_said_of_it() -> None:
    table = RequestTable(max_model_len=100, default_domain="general")
    said = {REQUEST_KEY: "r1", DOMAIN_KEY: "code", PROBABILITY_KEY: 0.9, DRAFT_KEY: "none"}
    request = table.open("r1-abc", 10, params(extra_args=said))
    assert request.response_id == "r1"
    assert (request.profile.domain, request.profile.domain_probability) == ("code", 0.9)
    assert request.profile.pinned == "none"
    assert request.token_limit == 26
    assert request.stops == {2}


def test_a_request_nobody_described_goes_to_the_default_domain() -> None:
    table = RequestTable(max_model_len=100, default_domain="general")
    request = table.open("x", 10, params())
    assert request.profile.domain == "general"
    assert request.profile.pinned is None
    assert request.response_id == "x"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "limit"), [(10, 16, 26), (90, 16, 100), (10, None, 100), (100, 0, 100)]
)
def test_the_limit_is_the_nearer_of_max_tokens_and_the_context(
    prompt: int, max_tokens: int | None, limit: int
) -> None:
    table = RequestTable(max_model_len=100, default_domain="general")
    assert table.open("x", prompt, params(max_tokens=max_tokens)).token_limit == limit


def test_requests_that_ignore_the_end_of_text_do_not_stop_there() -> None:
    table = RequestTable(max_model_len=100, default_domain="general")
    assert table.open("x", 1, params(ignore_eos=True, stop_token_ids=[7])).stops == {7}


def test_sessions_are_never_used_twice() -> None:
    table = RequestTable(max_model_len=100, default_domain="general")
    first = table.open("x", 1, params()).session
    assert table.close("x") is not None
    assert table.open("x", 1, params()).session != first
    assert table.close("gone") is None
    assert len(table) == 1


def test_nothing_is_proposed_past_a_stop() -> None:
    assert cut_at_stop([5, 2, 6], frozenset({2})) == [5, 2]
    assert cut_at_stop([5, 6], frozenset({2})) == [5, 6]
    assert cut_at_stop([], frozenset({2})) == []
