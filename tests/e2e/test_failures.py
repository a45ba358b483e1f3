"""Drafters die, hang and come back; clients leave. Nobody else may notice."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest

from tests.e2e.conftest import CHATS, MODEL, Fleet, end, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

LONGEST_STALL_S = 2.0


class Stream(threading.Thread):
    """Reads one answer in the background and notes its text and the longest wait between two chunks."""

    def __init__(self, fleet: Fleet, prompt: str, **more: Any) -> None:
        super().__init__(daemon=True)
        self.fleet, self.prompt, self.more = fleet, prompt, more
        self.text = ""
        self.told: dict[str, Any] = {}
        self.longest = 0.0
        self.error: Exception | None = None
        self.begun = threading.Event()

    def run(self) -> None:
        try:
            options = {"stream": True, "stream_options": {"include_usage": True}, **self.more}
            last = None
            for chunk in self.fleet.chat(self.prompt, **options):
                now = time.monotonic()
                if last is not None:
                    self.longest = max(self.longest, now - last)
                last = now
                if chunk.choices:
                    self.text += chunk.choices[0].delta.content or ""
                    if len(self.text) > 40:
                        self.begun.set()
                else:
                    self.told = chunk.model_extra["specfleet"]
        except Exception as error:
            self.error = error
        finally:
            self.begun.set()


def served_by(fleet: Fleet, draft: str) -> bool:
    """Whether this draft proposes again."""
    return bool(fleet.chat(CHATS["code"], draft=draft, max_tokens=12).model_extra["specfleet"]["proposed"])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_drafter_goes_in_mid_stream_and_comes_back(fleet: Fleet, how: signal.Signals) -> None:
    length = {"max_tokens": 160, "draft": "code"}
    prompt = CHATS["code"]
    expected = fleet.chat(prompt, max_tokens=160, draft="none").choices[0].message.content
    until(lambda: served_by(fleet, "code"), 60)
    streams = [Stream(fleet, prompt, **length), Stream(fleet, CHATS["medical"], max_tokens=160)]
    for stream in streams:
        stream.start()
    assert streams[0].begun.wait(120)
    pid = fleet.drafter_pid("code")
    assert pid is not None
    end(pid, how)
    for stream in streams:
        stream.join(240)
        assert stream.error is None
        assert not stream.is_alive()
    assert streams[0].text == expected
    assert streams[0].longest < LONGEST_STALL_S
    assert streams[1].longest < LONGEST_STALL_S
    # Ray notices by itself (death at once, a hang by the health check), and a new process takes over.
    until(lambda: fleet.drafter_pid("code") not in (None, pid), 180)
    until(lambda: served_by(fleet, "code"), 60)
    answer = fleet.chat(prompt, max_tokens=160, draft="code")
    assert answer.choices[0].message.content == expected


def test_sessions_of_finished_and_abandoned_requests_are_freed(fleet: Fleet) -> None:
    for prompt in CHATS.values():
        fleet.chat(prompt, max_tokens=8)
    with fleet.http.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": CHATS["general"]}],
            "max_tokens": 1500,
            "stream": True,
            "ignore_eos": True,
        },
    ) as answer:
        for number, _ in enumerate(answer.iter_lines()):
            if number > 10:
                break
    # The client is gone: the verifier stops the request, its session is closed.
    until(lambda: all(v["running"] == 0 for v in fleet.status()["verifiers"]), 30)
    until(lambda: fleet.sessions() == 0, 30)
