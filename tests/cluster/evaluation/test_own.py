"""vLLM's own ways to propose in an evaluation: what may be asked for, and how it is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from cluster.config import FleetConfig
from cluster.evaluation.candidates import EvaluationError
from cluster.evaluation.html import page
from cluster.evaluation.own import find_methods
from cluster.evaluation.result import OwnMethod
from cluster.evaluation.terminal import render
from tests.cluster.configs import make_models, small
from tests.cluster.evaluation.made_up import evaluation

GAINS = {("code", "code", 1): (2, 1.2), ("code", "code", 4): (1, 1.1)}


@pytest.fixture
def config(tmp_path: Path) -> FleetConfig:
    make_models(tmp_path)
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps({"hidden_size": 32, "medusa_num_heads": 3}))
    return FleetConfig.model_validate({**small(), "base_folder": str(tmp_path)})


def test_methods_are_read(config: FleetConfig) -> None:
    verifier = Path(config.base_folder or "") / "models" / "verifier"
    lookup, heads = find_methods(config, verifier, ["lookup=ngram", "heads=medusa:./head,k=3"], 4)
    assert lookup.settings.speculative_config() == {"method": "ngram", "num_speculative_tokens": 4}
    assert (heads.name, heads.source) == ("heads", "./head")
    assert heads.settings.num_speculative_tokens == 3
    assert heads.settings.model == str(verifier.parent.parent / "head")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ngram", "write NAME=METHOD"),
        ("x=", "write NAME=METHOD"),
        ("X Y=ngram", "write NAME=METHOD"),
        ("code=ngram", "there is a candidate 'code' already"),
        ("x=n-gram", "did you mean 'ngram'?"),
        ("x=ngram:./head", "takes no model"),
        ("x=medusa", "needs a model"),
        ("x=medusa:./nothing", "no model folder './nothing'"),
        ("x=medusa:./head", "set num_speculative_tokens to 3 or less"),
        ("x=ngram,k=17", "less than or equal to 16"),
        ("x=dflash:./head,k=2", "offered on GPUs only"),
    ],
)
def test_wrong_methods(config: FleetConfig, text: str, said: str) -> None:
    verifier = Path(config.base_folder or "") / "models" / "verifier"
    with pytest.raises(EvaluationError, match=re.escape(said)):
        find_methods(config, verifier, [text], 4)


def test_they_are_shown_in_terminal_and_page() -> None:
    found = [
        OwnMethod(
            domain="code",
            name="heads",
            method="medusa",
            model="./head",
            length=3,
            batch=batch,
            acceptance_rate=0.25,
            mean_acceptance_length=1.75,
            same=4,
            texts=4,
            plain_rate=16.0,
            rate=20.0,
            speedup=1.25,
        )
        for batch in (1, 4)
    ]
    result = evaluation(GAINS).model_copy(update={"own_methods": found})
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(result))
    text = console.export_text()
    for part in ("vLLM's own ways to propose", "heads", "25%", "1.75", "20.0", "1.25x"):
        assert part in text
    assert "4 of 4 greedy texts are those of plain decoding" in text.replace("\n", " ")
    assert "1.25x" in page(result)
    assert "vLLM's own ways to propose" in page(result)
    assert "own ways" not in page(evaluation(GAINS))
