"""The guides in docs/guides say what the product does: their configurations, commands, keys and links."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from cluster.checks import check_fleet, check_machine
from cluster.cli import app
from cluster.config import FleetConfig
from cluster.loader import load_config
from cluster.planning.sources import known_models
from cluster.problems import Problem, errors
from deployments.distillation.settings import DistillSettings
from deployments.drafter.settings import DEFAULT_KV_MEMORY_MIB

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
CONFIGS = sorted((ROOT / "configs" / "guides").glob("*.yaml"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

#: Shapes that known models have in common with one that the list does not hold.
SAME_SHAPE = {"Qwen/Qwen2.5-Coder-0.5B-Instruct": "Qwen/Qwen2.5-0.5B-Instruct"}

each_guide = pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


def blocks(guide: Path, *languages: str) -> list[str]:
    """The contents of the fenced blocks in these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def prose(guide: Path) -> str:
    """The text outside fenced blocks."""
    return re.sub(r"^```.*?^```$", "", guide.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(guide: Path) -> list[list[str]]:
    """The `specfleet` command lines of the shell blocks, each as its words."""
    lines = "\n".join(blocks(guide, "bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [each for each in words if each[:1] == ["specfleet"]]


def named_config(guide: Path) -> Path:
    """The configuration that a guide is about: the one it names first."""
    named = re.findall(r"configs/guides/[\w.-]+\.yaml", guide.read_text())
    assert named, f"{guide.name} names no configuration in configs/guides"
    return ROOT / named[0]


def merged(base: Any, change: Any) -> Any:
    """A configuration with some of its keys written anew."""
    if not isinstance(base, Mapping) or not isinstance(change, Mapping):
        return change
    return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}


def told(problems: list[Problem]) -> list[str]:
    return [str(problem) for problem in problems]


@cache
def command_line() -> dict[str, Any]:
    """The commands by name, as typer's own copy of click has them."""
    found: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    return found


def test_there_are_guides() -> None:
    coming = ["from-hugging-face", "from-tensorrt-llm"]
    assert [path.stem for path in GUIDES] == [
        "agents",
        "chat-latency",
        "code",
        "edge",
        *coming,
        "llama3",
        "qwen3",
    ]
    assert [path.stem for path in CONFIGS] == [path.stem for path in GUIDES]


# -- configurations -----------------------------------------------------------------------------------------


@each_config
def test_check_passes_a_guides_configuration(path: Path) -> None:
    config = load_config(path).config
    found = [*check_fleet(config), *check_machine(config)]
    assert told(errors(found)) == []
    # Models that only the hub has are said so; nothing else about these files deserves a warning.
    assert [problem for problem in told(found) if "fetches it from the Hugging Face hub" not in problem] == []


@each_guide
def test_a_guide_names_configurations_that_exist(guide: Path) -> None:
    assert named_config(guide).stem == guide.stem
    for name in re.findall(r"\bconfigs/[\w./-]+\.yaml", guide.read_text()):
        assert (ROOT / name).is_file(), f"{guide.name} names {name}"


@each_config
def test_a_configuration_names_its_guide(path: Path) -> None:
    named = re.findall(r"docs/guides/[\w-]+\.md", path.read_text())
    assert named == [f"docs/guides/{path.stem}.md"]
    assert (ROOT / named[0]).is_file()


@each_config
def test_a_draft_has_room_for_all_of_its_sessions(path: Path) -> None:
    """A session takes a whole context of KV, however short it is; what does not fit gets no proposals."""
    config = load_config(path).config
    for name, draft in config.drafts.items():
        assert draft.max_sessions >= config.verifier.max_num_seqs, name
        context = min(draft.max_context or 1 << 30, config.verifier.max_model_len or 1 << 30)
        shape = _shape(draft.model)
        assert context <= shape["max_position_embeddings"], name
        head = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
        bytes_each = 2 if draft.device == "cuda" else 4
        token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head * bytes_each  # K and V
        wanted = draft.max_sessions * context * token / 2**20
        assert wanted <= (draft.kv_memory_mib or DEFAULT_KV_MEMORY_MIB), name


def _shape(model: str) -> Mapping[str, Any]:
    """What a draft's configuration says: a listed model's, or that of a draft in this repository."""
    entry = known_models().get(SAME_SHAPE.get(model, model))
    found = (
        entry["config"] if entry else json.loads((ROOT / model / "draft.json").read_text())["architecture"]
    )
    assert isinstance(found, Mapping)
    return found


# -- what guides show ---------------------------------------------------------------------------------------


@each_guide
def test_keys_that_a_guide_shows_exist(guide: Path) -> None:
    base = yaml.safe_load(named_config(guide).read_text())
    for block in blocks(guide, "yaml"):
        shown = yaml.safe_load(block)
        assert isinstance(shown, Mapping), block
        if shown.keys() <= DistillSettings.model_fields.keys():
            DistillSettings.model_validate(shown)
            continue
        # What is shown belongs to the guide's configuration: with it, that is still right.
        config = FleetConfig.model_validate(merged(base, shown))
        assert told(errors(check_fleet(config))) == [], block


@each_guide
def test_keys_that_a_guide_speaks_of_exist(guide: Path) -> None:
    known = set(_key_paths(FleetConfig.model_json_schema()))
    sections = "|".join(FleetConfig.model_fields)
    for path in re.findall(rf"`((?:{sections})\.[\w.]+)`", prose(guide)):
        assert path in known or path.startswith("verifier.engine."), f"{guide.name} speaks of {path}"


def _key_paths(schema: Mapping[str, Any]) -> Iterator[str]:
    """Every key as people write it, names of drafts and domains as NAME: ``drafts.NAME.model``."""

    def walk(node: Mapping[str, Any], path: str) -> Iterator[str]:
        for option in node.get("anyOf", ()):
            yield from walk(option, path)
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        for key, value in node.get("properties", {}).items():
            yield f"{path}{key}"
            yield from walk(value, f"{path}{key}.")
        inner = node.get("additionalProperties") or next(
            iter(node.get("patternProperties", {}).values()), None
        )
        if isinstance(inner, Mapping):
            yield from walk(inner, f"{path}NAME.")

    return walk(schema, "")


@each_guide
def test_commands_of_a_guide_are_understood(guide: Path) -> None:
    given = commands(guide)
    assert {"check", "evaluate"} <= {words[1] for words in given}
    for _, name, *arguments in given:
        assert name in command_line(), f"{guide.name}: there is no command specfleet {name}"
        command_line()[name].make_context(name, list(arguments))  # raises what the command line would say
        for file in (argument for argument in arguments if argument.startswith("configs/")):
            assert (ROOT / file).is_file(), f"{guide.name} uses {file}"


@each_guide
def test_commands_that_a_guide_speaks_of_exist(guide: Path) -> None:
    for line in re.findall(r"`specfleet ([^`]+)`", prose(guide)):
        name, *rest = line.split()
        assert name in command_line(), f"{guide.name} speaks of specfleet {name}"
        known = {option for each in command_line()[name].params for option in each.opts}
        unknown = {word for word in rest if word.startswith("--")} - known
        assert not unknown, f"{guide.name}: specfleet {name} has no {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "gpus.md"], ids=lambda path: path.name)
def test_the_guides_can_be_found(page: Path) -> None:
    linked = {
        (page.parent / target).resolve() for target in re.findall(r"\]\(([^)\s]+\.md)\)", page.read_text())
    }
    assert set(GUIDES) <= linked


# -- estimates that guides quote ----------------------------------------------------------------------------


@pytest.mark.process  # each plan takes a second
@each_guide
def test_quoted_plans_are_what_plan_prints(guide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(ROOT)
    printed = set()
    for words in commands(guide):
        if words[1] == "plan":
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, result.output
            printed |= {" ".join(line.split()) for line in result.output.splitlines()}
    for block in blocks(guide, "text"):
        for line in block.splitlines():
            assert not line.strip() or " ".join(line.split()) in printed, f"{guide.name} quotes {line!r}"
