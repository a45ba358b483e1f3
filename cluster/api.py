"""A small client of the fleet's HTTP API for the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

#: A first request may wait for a verifier that is busy with others.
TIMEOUT = httpx.Timeout(300.0, connect=5.0)


class ApiProblem(RuntimeError):
    """The fleet did not answer as it should; the text says what to do."""


class FleetApi:
    """The OpenAI-compatible API of a fleet, and its own status page.

    Args:
        url: base URL without ``/v1``.
        model: the model to ask; the first that the fleet lists when None.
    """

    def __init__(self, url: str, model: str | None = None) -> None:
        self.url = url
        self._model = model
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT, trust_env=False)

    @property
    def model(self) -> str:
        """The id of the model that is asked."""
        if self._model is None:
            self._model = str(self._get("/v1/models")["data"][0]["id"])
        return self._model

    def status(self) -> dict[str, Any]:
        """What ``/specfleet/status`` says."""
        return self._get("/specfleet/status")

    def answer(
        self, messages: list[dict[str, str]], *, max_tokens: int, draft: str | None = None
    ) -> dict[str, Any]:
        """One whole greedy chat completion.

        Raises:
            ApiProblem: no fleet there, or it refused.
        """
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        try:
            response = self._client.post(
                "/v1/chat/completions", json=body, headers=_headers(domain=None, draft=draft)
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return self._checked(response)

    def stream(
        self,
        messages: list[dict[str, str]],
        *,
        domain: str | None = None,
        draft: str | None = None,
        max_tokens: int = 1024,
    ) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed chat completion; the last one carries usage and the `specfleet` object.

        Raises:
            ApiProblem: no fleet there, or it refused.
        """
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = _headers(domain=domain, draft=draft)
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                if response.status_code != 200:
                    response.read()
                    self._checked(response)
                for line in response.iter_lines():
                    data = line.removeprefix("data: ")
                    if data == line or data == "[DONE]":
                        continue
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise ApiProblem(_error_text(chunk))
                    yield chunk
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _get(self, path: str) -> dict[str, Any]:
        try:
            return self._checked(self._client.get(path))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _checked(self, response: httpx.Response) -> dict[str, Any]:
        try:
            data = response.json()
        except ValueError as error:
            text = f"{self.url} answered {response.status_code} without JSON: is a fleet's API there?"
            raise ApiProblem(text) from error
        if response.status_code != 200:
            raise ApiProblem(_error_text(data))
        return dict(data)

    def _unreachable(self, error: httpx.HTTPError) -> ApiProblem:
        return ApiProblem(f"no fleet answers at {self.url} ({error}): start one with `specfleet up FILE`")


def _headers(*, domain: str | None, draft: str | None) -> dict[str, str]:
    headers = {}
    if domain is not None:
        headers["x-specfleet-domain"] = domain
    if draft is not None:
        headers["x-specfleet-draft"] = draft
    return headers


def _error_text(data: Any) -> str:
    error = data.get("error") if isinstance(data, dict) else None
    return str(error.get("message", error)) if isinstance(error, dict) else f"unexpected answer: {data}"
