"""The arithmetic of the demonstration, its table, and one line about an answer."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from cluster.chat import summary
from cluster.config import FleetConfig
from cluster.demo import PROMPTS, Outcome, Tally, table
from cluster.loader import load_config
from cluster.status import render
from tests.cluster.test_shipped import ROOT


def answer(tokens: int, **told: Any) -> dict[str, Any]:
    specfleet = {
        "domain": "code",
        "drafts": [{"name": "code", "from_token": 0, "reason": "domain"}],
        "proposed": 40,
        "accepted": 20,
        "steps": 10,
        **told,
    }
    return {"usage": {"completion_tokens": tokens}, "specfleet": specfleet}


def test_figures_of_several_answers_are_sums_not_means_of_means() -> None:
    tally = Tally()
    tally.add(True, 1.0, answer(30))
    tally.add(True, 3.0, answer(10, proposed=60, accepted=5, steps=40))
    tally.add(False, 5.0, answer(40, proposed=0, accepted=0, steps=0, drafts=[]))
    assert tally.rate(True) == 10.0
    assert tally.rate(False) == 8.0
    assert tally.gain == 1.25
    assert tally.acceptance_rate == 0.25
    assert tally.acceptance_length == 1.5
    assert list(tally.drafts) == ["code"]


def test_an_answer_without_proposals() -> None:
    tally = Tally()
    tally.add(True, 1.0, answer(10, proposed=0, accepted=0, steps=0, drafts=[{"name": "none"}]))
    assert (tally.acceptance_rate, tally.acceptance_length, tally.gain) == (0.0, 1.0, 0.0)
    assert list(tally.drafts) == []


def shown(what: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text, text
    return str(text)


def test_the_table_fits_into_a_terminal() -> None:
    tally = Tally()
    tally.add(True, 1.0, answer(1000, domain="medical", drafts=[{"name": "medical"}, {"name": "general"}]))
    tally.add(False, 2.0, answer(1000))
    text = shown(table(Outcome({"medical": tally})))
    assert "2.00x" in text
    assert "50%" in text
    assert "1000.0" in text


def test_the_status_fits_into_a_terminal_and_bears_missing_parts() -> None:
    figures = {"proposed": 100, "accepted": 25, "steps": 50}
    link = {"sent": 1000.0, "answered": 990.0, "late": 10.0, "round_trips": 900.0, "round_trip_seconds": 1.8}
    status = {
        "verifiers": [
            {
                "model": "SmolLM2-135M-Instruct",
                "replica": "abcdefgh",
                "state": "ready",
                "running": 3,
                "waiting": 0,
                "cache": {"usage": 0.31, "queries": 8, "hits": 6},
            }
        ],
        "drafters": [{"name": "medical", "state": "away", "replicas": [{}], "sessions": 2}],
        "acceptance": {"medical": {"general": figures}},
        "totals": {"link": {"medical": link}, "switches": {"better": 2}},
        "registry_up": False,
        "age_s": 12.3,
    }
    text = shown(render(status))
    for expected in ("31%", "75%", "25%", "1.50", "99.0%", "2.0 ms", "away", "better 2", "12 s old"):
        assert expected in text
    shown(render({}))


def test_one_line_about_an_answer() -> None:
    line = summary({**answer(20, mean_acceptance_length=2.5)}, seconds=2.0)
    assert line == "20 tokens, 10.0 tokens/s; domain code, draft code, mean acceptance length 2.50"
    assert summary({"usage": {"completion_tokens": 3}}, 1.0) == "3 tokens, 3.0 tokens/s"


def test_no_prompt_is_one_that_domains_are_recognised_by() -> None:
    config: FleetConfig = load_config(ROOT / "configs" / "quickstart.yaml").config
    examples = {example for domain in config.domains.values() for example in domain.examples}
    prompts = [prompt for each in PROMPTS.values() for prompt in each]
    assert not examples.intersection(prompts)
    assert set(PROMPTS) == set(config.domains)


def test_the_status_names_a_way_of_vllms_own() -> None:
    proposer = {"method": "medusa", "model": "./head", "num_speculative_tokens": 3}
    text = shown(
        render(
            {
                "verifiers": [{"model": "smol", "state": "ready", "proposer": proposer}],
                "drafters": [],
                "acceptance": {"medusa": {"general": {"proposed": 8, "accepted": 4, "steps": 4}}},
            }
        )
    )
    assert "vLLM's own medusa (./head) proposes 3 tokens a step" in text
    assert "Drafters" not in text
    assert "50%" in text
