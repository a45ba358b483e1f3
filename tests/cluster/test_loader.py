"""From a YAML file to a configuration: every mistake gets its line, its key and advice."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cluster.config import FleetConfig
from cluster.loader import LoadedConfig, load_config
from cluster.problems import ConfigError, Problem
from cluster.yaml_source import MAX_BYTES, dotted, parse_path, read_yaml
from tests.cluster.configs import small, write


def problems_of(path: Path) -> list[Problem]:
    with pytest.raises(ConfigError) as told:
        load_config(path)
    return list(told.value.problems)


def only_problem(path: Path) -> str:
    problems = problems_of(path)
    assert len(problems) == 1, problems
    return str(problems[0])


def test_a_right_file_loads(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, small()))
    assert loaded.config.verifier.name == "tiny"
    assert list(loaded.config.drafts) == ["code", "general"]
    assert loaded.config.base_folder == str(tmp_path)


def test_a_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    first = load_config(write(tmp_path, small())).config
    again = load_config(write(tmp_path, yaml.safe_dump(first.model_dump(mode="json")), "again.yaml")).config
    assert again == first


def test_an_unknown_key_gets_its_line_and_a_suggestion(tmp_path: Path) -> None:
    config = small()
    config["drafts"]["code"]["num_gpu"] = 1
    path = write(tmp_path, config)
    line = path.read_text().splitlines().index("    num_gpu: 1") + 1
    assert only_problem(path) == f"line {line}: drafts.code.num_gpu: unknown key (did you mean 'num_gpus'?)"


def test_an_unknown_key_that_resembles_none_lists_the_known_ones(tmp_path: Path) -> None:
    problem = only_problem(write(tmp_path, {**small(), "xyzzy": 1}))
    assert "xyzzy: unknown key (known keys here: api, base_folder, domains, drafts," in problem


def test_an_unknown_key_inside_a_list(tmp_path: Path) -> None:
    config = {**small(), "nodes": [{"cpus": 4}, {"cpus": 4, "gpu": 1}]}
    assert "nodes[1].gpu: unknown key (did you mean 'gpus'?)" in only_problem(write(tmp_path, config))


def test_all_mistakes_are_told_at_once_in_the_files_order(tmp_path: Path) -> None:
    config = small()
    config["verifier"]["max_num_seqs"] = "many"
    config["drafts"]["code"]["modle"] = "x"
    del config["generalist"]
    problems = problems_of(write(tmp_path, config))
    assert [problem.where for problem in problems] == [
        "generalist",
        "verifier.max_num_seqs",
        "drafts.code.modle",
    ]
    assert "required and missing" in problems[0].what
    assert "not 'many'" in problems[1].what


def test_an_unknown_method_of_vllm_is_told_with_its_line(tmp_path: Path) -> None:
    config = {"verifier": {**small()["verifier"], "proposer": {"method": "n-gram"}}}
    problem = only_problem(write(tmp_path, config))
    assert "verifier.proposer.method: there is no method 'n-gram'; did you mean 'ngram'?" in problem
    assert ", not 'n-gram'" not in problem
    config["verifier"]["proposer"] = {"method": "ngram"}
    assert load_config(write(tmp_path, config)).config.drafts == {}


def test_a_missing_key_says_what_it_is_for(tmp_path: Path) -> None:
    config = small()
    del config["verifier"]["model"]
    problem = only_problem(write(tmp_path, config))
    assert "verifier.model: required and missing (Where the weights are" in problem


@pytest.mark.parametrize("name", ["Bad Name", "a/b", "", "x" * 64])
def test_names_have_to_fit_into_headers_and_labels(tmp_path: Path, name: str) -> None:
    config = small()
    config["drafts"][name] = config["drafts"]["code"]
    assert "should match pattern" in str(problems_of(write(tmp_path, config))[0])


def test_bad_yaml_gets_line_and_column(tmp_path: Path) -> None:
    problem = only_problem(write(tmp_path, "verifier:\n  model: [a, b\ndrafts: {}\n"))
    assert problem.startswith("line 3: column 7: not valid YAML")


def test_a_tab_for_indentation(tmp_path: Path) -> None:
    assert only_problem(write(tmp_path, "verifier:\n\tmodel: x\n")).startswith(
        "line 2: column 1: not valid YAML"
    )


def test_a_key_written_twice(tmp_path: Path) -> None:
    text = yaml.safe_dump(small(), sort_keys=False) + "generalist: code\n"
    problem = only_problem(write(tmp_path, text))
    assert "generalist: written twice" in problem
    assert "stands in line" in problem


def test_an_empty_file(tmp_path: Path) -> None:
    assert only_problem(write(tmp_path, "# nothing\n")).startswith("is empty")


def test_a_list_instead_of_settings(tmp_path: Path) -> None:
    assert "holds a list" in only_problem(write(tmp_path, "- a\n- b\n"))


def test_a_missing_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in only_problem(tmp_path / "nothing.yaml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "not UTF-8" in only_problem(path)


def test_a_file_that_is_far_too_large(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "not a configuration" in only_problem(path)


def test_an_anchor_that_contains_itself_is_an_error_not_a_hang(tmp_path: Path) -> None:
    assert problems_of(write(tmp_path, "drafts: &a\n  code: *a\n"))


def serve_file(tmp_path: Path, import_path: str = "cluster.app:build", applications: int = 1) -> Path:
    application = {"name": "specfleet", "import_path": import_path, "args": small()}
    return write(tmp_path, {"proxy_location": "HeadOnly", "applications": [application] * applications})


def test_a_serve_configuration_is_read_through_its_arguments(tmp_path: Path) -> None:
    direct = load_config(write(tmp_path, small()))
    loaded = load_config(serve_file(tmp_path))
    assert loaded.config.model_dump() == {**direct.config.model_dump(), "base_folder": str(tmp_path)}


def test_lines_in_a_serve_configuration_are_the_files_own(tmp_path: Path) -> None:
    path = serve_file(tmp_path)
    path.write_text(path.read_text().replace("generalist: general", "generalst: general"))
    lines = path.read_text().splitlines()
    problems = {problem.where: problem for problem in problems_of(path)}
    assert problems["generalst"].line == lines.index("    generalst: general") + 1
    assert problems["generalst"].todo == "did you mean 'generalist'?"


def test_a_serve_configuration_of_something_else(tmp_path: Path) -> None:
    assert "a fleet's is cluster.app:build" in only_problem(serve_file(tmp_path, "other:app"))


def test_a_serve_configuration_with_two_applications(tmp_path: Path) -> None:
    assert "exactly one application" in only_problem(serve_file(tmp_path, applications=2))


def test_lines_are_found_by_written_paths(tmp_path: Path) -> None:
    loaded: LoadedConfig = load_config(write(tmp_path, small()))
    lines = loaded.path.read_text().splitlines()
    assert loaded.line_at("drafts.general") == lines.index("  general:") + 1
    assert loaded.line_at("drafts.general.num_gpus") == loaded.line_at("drafts.general")
    assert loaded.line_at("") is None


@pytest.mark.parametrize("path", [("drafts", "code", "model"), ("nodes", 0, "gpus"), ("a",), ("a", 1, 2)])
def test_paths_are_written_and_read(path: tuple[str | int, ...]) -> None:
    assert parse_path(dotted(path)) == path


def test_every_setting_has_a_description() -> None:
    def walk(schema: object, where: str) -> None:
        if isinstance(schema, dict):
            for name, inner in schema.get("properties", {}).items():
                assert inner.get("description"), f"{where}.{name} has no description"
            for name, inner in schema.items():
                walk(inner, f"{where}.{name}")

    walk(FleetConfig.model_json_schema(), "")


def test_positions_of_list_items(tmp_path: Path) -> None:
    source = read_yaml(write(tmp_path, "a:\n  - x\n  -\n    b: 1\n"))
    assert source.line_of(("a", 0)) == 2
    assert source.line_of(("a", 1, "b")) == 4
