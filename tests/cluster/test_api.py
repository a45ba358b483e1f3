"""The command line's client against servers that do not do what they should."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from cluster.api import ApiProblem, FleetApi


class Scripted(BaseHTTPRequestHandler):
    """Answers every request with what the test has put here, and keeps what it was asked."""

    answer: ClassVar[tuple[int, str]] = (200, "{}")
    asked: ClassVar[list[tuple[str, dict[str, str], str]]] = []

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        Scripted.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        status, text = Scripted.answer
        self.send_response(status)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[FleetApi]:
    Scripted.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Scripted) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield FleetApi(f"http://127.0.0.1:{server.server_port}", model="tiny")
        server.shutdown()
        thread.join()


MESSAGES = [{"role": "user", "content": "hello"}]


def test_a_pinned_draft_goes_into_the_header(api: FleetApi) -> None:
    api.answer(MESSAGES, max_tokens=5, draft="none")
    path, headers, body = Scripted.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["x-specfleet-draft"] == "none"
    sent = json.loads(body)
    assert (sent["model"], sent["max_tokens"], sent["temperature"]) == ("tiny", 5, 0)


def test_an_openai_error_is_told_in_its_own_words(api: FleetApi) -> None:
    Scripted.answer = (400, '{"error": {"message": "the prompt is too long", "type": "x"}}')
    with pytest.raises(ApiProblem, match="the prompt is too long"):
        api.answer(MESSAGES, max_tokens=5)
    with pytest.raises(ApiProblem, match="the prompt is too long"):
        list(api.stream(MESSAGES))


def test_something_else_on_the_port(api: FleetApi) -> None:
    Scripted.answer = (200, "<html>")
    with pytest.raises(ApiProblem, match="without JSON: is a fleet's API there"):
        api.status()


def test_a_stream_that_breaks_off_with_an_error(api: FleetApi) -> None:
    chunks = ['{"choices": [{"delta": {"content": "a"}}]}', '{"error": {"message": "the engine died"}}']
    Scripted.answer = (200, "".join(f"data: {chunk}\n\n" for chunk in chunks))
    stream = api.stream(MESSAGES)
    assert next(stream)["choices"][0]["delta"]["content"] == "a"
    with pytest.raises(ApiProblem, match="the engine died"):
        next(stream)


def test_a_stream_ends_with_done(api: FleetApi) -> None:
    Scripted.answer = (200, ': comment\n\ndata: {"usage": {}}\n\ndata: [DONE]\n\n')
    assert list(api.stream(MESSAGES, domain="code")) == [{"usage": {}}]
    assert Scripted.asked[0][1]["x-specfleet-domain"] == "code"
    assert json.loads(Scripted.asked[0][2])["stream_options"] == {"include_usage": True}


def test_nobody_there() -> None:
    with pytest.raises(ApiProblem, match="start one with `specfleet up FILE`"):
        FleetApi("http://127.0.0.1:1").status()
