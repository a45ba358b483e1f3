"""What `specfleet check` finds beyond single keys."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy
import pytest

from cluster.checks import check_fleet, check_machine, this_machine
from cluster.config import FleetConfig
from cluster.problems import Problem
from tests.cluster.configs import make_models, small
from tests.models.checkpoints import checkpoint, content, train_bpe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet")
    make_models(path)
    return path


def fleet(config: dict[str, Any]) -> list[Problem]:
    return check_fleet(FleetConfig.model_validate(config))


def machine(config: dict[str, Any], folder: Path) -> list[Problem]:
    return check_machine(FleetConfig.model_validate({**config, "base_folder": str(folder)}))


def the_only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def test_a_right_fleet_has_no_problems(folder: Path) -> None:
    assert fleet(small()) == []
    assert machine(small(), folder) == []


def says(problems: list[Problem], where: str, said: str | None) -> None:
    """Nothing is wrong where nothing is said; else one problem, there, with these words."""
    if said is None:
        assert problems == []
    else:
        problem = the_only(problems)
        assert problem.where == where
        assert said in problem.what


def test_a_draft_that_no_domain_uses() -> None:
    config = small()
    config["drafts"]["poetry"] = {"model": "./models/code"}
    problem = the_only(fleet(config))
    assert (problem.where, problem.what) == ("drafts.poetry", "no domain uses this draft")


def test_the_generalist_needs_no_domain() -> None:
    config = small()
    config["domains"]["poems"] = config["domains"].pop("general")
    assert fleet(config) == []


def test_a_domain_whose_draft_does_not_exist() -> None:
    config = small()
    config["domains"]["code"]["draft"] = "cod"
    problems = fleet(config)
    assert [problem.where for problem in problems] == ["domains.code.draft", "drafts.code"]
    assert str(problems[0]).endswith("there is no draft 'cod' (the drafts are: code, general)")


def test_a_generalist_that_does_not_exist() -> None:
    problem = the_only(fleet({**small(), "generalist": "nobody"}))
    assert problem.where == "generalist"
    assert "there is no draft 'nobody'" in problem.what


def test_the_name_that_means_plain_decoding_is_not_for_drafts() -> None:
    config = small()
    config["drafts"]["none"] = {"model": "./models/code"}
    config["domains"]["code"]["draft"] = "none"
    assert "a draft cannot have this name" in [problem.what for problem in fleet(config)]


@pytest.mark.parametrize(("count", "severity"), [(0, "error"), (3, "error"), (4, "warning"), (15, "warning")])
def test_too_few_examples(count: int, severity: str) -> None:
    config = small()
    config["domains"]["code"]["examples"] = config["domains"]["code"]["examples"][:count]
    problem = the_only(fleet(config))
    assert (problem.where, problem.severity) == ("domains.code.examples", severity)


def test_domains_without_any_examples_are_named_by_requests() -> None:
    config = small()
    for domain in config["domains"].values():
        domain["examples"] = []
    assert fleet(config) == []


@pytest.mark.parametrize("examples", [True, False])
def test_one_domain_alone_cannot_be_told_apart(examples: bool) -> None:
    config = small()
    del config["domains"]["code"], config["drafts"]["code"]
    if examples:
        problem = the_only(fleet(config))
        assert (problem.where, problem.severity) == ("domains.general.examples", "error")
        assert "no other domain" in problem.what
    else:
        config["domains"]["general"]["examples"] = []
        assert fleet(config) == []


def test_the_same_example_many_times_counts_once() -> None:
    config = small()
    config["domains"]["code"]["examples"] = ["Sort a list", " Sort a list"] * 20
    assert the_only(fleet(config)).what.startswith("1 different example prompts")


def test_an_example_of_two_domains() -> None:
    config = small()
    config["domains"]["general"]["examples"].append(config["domains"]["code"]["examples"][0])
    problem = the_only(fleet(config))
    assert (problem.where, problem.severity) == ("domains.general.examples", "warning")
    assert "shares an example with domain 'code'" in problem.what


def test_a_model_folder_that_is_missing(folder: Path) -> None:
    config = small()
    config["drafts"]["code"]["model"] = "./models/nothing"
    problem = the_only(machine(config, folder))
    assert problem.where == "drafts.code.model"
    assert problem.severity == "error"
    assert str(folder / "models" / "nothing") in problem.what


def test_a_model_that_only_the_hub_has(folder: Path) -> None:
    config = small()
    config["verifier"]["model"] = "nobody/has-this-model"
    problem = the_only(machine(config, folder))
    assert (problem.where, problem.severity) == ("verifier.model", "warning")
    assert "fetches it from the Hugging Face hub" in problem.what


def test_a_draft_with_another_tokenizer(folder: Path, tmp_path: Path) -> None:
    make_models(tmp_path)
    tokenizer = tmp_path / "models" / "code" / "tokenizer.json"
    data = json.loads(tokenizer.read_text())
    data["added_tokens"][0]["content"] = "<s>"
    tokenizer.write_text(json.dumps(data))
    problem = the_only(machine(small(), tmp_path))
    assert (problem.where, problem.severity) == ("drafts.code.model", "error")
    assert "another tokenizer" in problem.what


def test_a_draft_with_a_shorter_context(tmp_path: Path) -> None:
    make_models(tmp_path)
    config_file = tmp_path / "models" / "code" / "config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "max_position_embeddings": 64}))
    problem = the_only(machine(small(), tmp_path))
    assert (problem.where, problem.severity) == ("drafts.code.model", "warning")


NODE = {"cpus": 8, "gpus": 4}


def with_gpus(**verifier: Any) -> dict[str, Any]:
    config = small()
    config["nodes"] = [NODE]
    config["verifier"] |= {"device": "cuda", "num_gpus": 1, **verifier}
    return config


def test_more_gpus_than_a_node_has(folder: Path) -> None:
    problem = the_only(machine(with_gpus(tensor_parallel_size=8), folder))
    assert problem.where == "verifier.num_gpus"
    assert problem.what == "a replica asks for 8 GPUs and the largest node has 4"


def test_on_cuda_each_worker_takes_a_gpu_even_unsaid(folder: Path) -> None:
    assert machine(with_gpus(num_gpus=0, tensor_parallel_size=4), folder) == []
    assert "asks for 5 GPUs" in the_only(machine(with_gpus(num_gpus=0, tensor_parallel_size=5), folder)).what


def test_more_gpus_than_all_nodes_have_together(folder: Path) -> None:
    config = with_gpus(tensor_parallel_size=4)
    config["drafts"]["code"]["num_gpus"] = 0.5
    problem = the_only(machine(config, folder))
    assert problem.where == "drafts.code"
    assert "the fleet asks for 4.5 GPUs" in problem.what
    config["nodes"] = [NODE, {"cpus": 2, "gpus": 1}]
    assert machine(config, folder) == []


def test_fractions_share_a_gpu_but_do_not_span_two(folder: Path) -> None:
    config = with_gpus(tensor_parallel_size=3)
    config["drafts"]["code"] |= {"num_gpus": 0.5, "replicas": 2}
    assert machine(config, folder) == []
    config["drafts"]["code"] |= {"num_gpus": 0.4, "replicas": 2}
    config["drafts"]["general"] |= {"num_gpus": 0.4}
    assert "no room left" in the_only(machine(config, folder)).what


def test_whole_gpus_need_empty_ones(folder: Path) -> None:
    # Each node has room for one replica of two; the two GPUs left over are on different nodes.
    config = with_gpus(tensor_parallel_size=2, replicas=3)
    config["nodes"] = [{"cpus": 8, "gpus": 3, "count": 2}]
    assert "no room left for a replica of the verifier" in the_only(machine(config, folder)).what


def test_more_cpus_than_a_node_has(folder: Path) -> None:
    config = {**small(), "nodes": [{"cpus": 2}]}
    config["drafts"]["code"]["num_cpus"] = 3
    problem = the_only(machine(config, folder))
    assert problem.what == "a replica asks for 3 CPUs and the largest node has 2"


def test_gpus_on_a_machine_without_any(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = with_gpus()
    del config["nodes"]
    problem = the_only(machine(config, folder))
    assert problem.what == "a replica asks for 1 GPUs and this machine has 0"
    assert "`nodes`" in problem.todo


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,1,GPU-abc", 3)])
def test_visible_gpus(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert this_machine().gpus == count


def test_a_core_that_this_machine_does_not_have(folder: Path) -> None:
    config = small()
    config["verifier"]["cpu_cores"] = [4095]
    problem = the_only(machine(config, folder))
    assert (problem.where, problem.severity) == ("verifier.cpu_cores", "error")
    config["nodes"] = [{"cpus": 4096}]  # other machines' cores are their own business
    assert machine(config, folder) == []


def test_verifier_and_draft_on_one_core(folder: Path) -> None:
    core = min(os.sched_getaffinity(0))
    config = small()
    config["verifier"]["cpu_cores"] = [core]
    config["drafts"]["code"]["cpu_cores"] = [core]
    config["drafts"]["general"]["cpu_cores"] = [core]
    problems = machine(config, folder)
    assert [problem.where for problem in problems] == ["drafts.code.cpu_cores", "drafts.general.cpu_cores"]
    assert {problem.severity for problem in problems} == {"warning"}


def test_drafts_may_share_a_core(folder: Path) -> None:
    core = min(os.sched_getaffinity(0))
    config = small()
    config["drafts"]["code"]["cpu_cores"] = config["drafts"]["general"]["cpu_cores"] = [core]
    assert machine(config, folder) == []


def test_a_core_named_twice(folder: Path) -> None:
    core = min(os.sched_getaffinity(0))
    config = small()
    config["drafts"]["code"]["cpu_cores"] = [core, core]
    assert the_only(machine(config, folder)).what == "names a core twice"


def cuttable(folder: Path, names: list[str]) -> Path:
    """A verifier with four layers as far as check reads it: no numbers, only what they are called."""
    from safetensors.numpy import save_file

    make_models(folder)
    file = folder / "models" / "verifier" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 4}))
    save_file({name: numpy.zeros(1) for name in names}, folder / "models" / "verifier" / "model.safetensors")
    return folder


LAYERS = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(4)]


@pytest.mark.parametrize(
    ("model", "names", "said"),
    [
        ("layers:3", [*LAYERS, "model.norm.weight"], None),
        ("layers:0", [*LAYERS, "model.norm.weight"], "the verifier has 4 layers; take 1 to 3"),
        ("layers:4", [*LAYERS, "model.norm.weight"], "the verifier has 4 layers; take 1 to 3"),
        ("layers:two", [*LAYERS, "model.norm.weight"], "write layers:N"),
        ("layers:2", ["transformer.h.0.attn.weight"], "does not name its layers model.layers.N"),
    ],
)
def test_the_verifiers_own_layers_as_a_draft(
    tmp_path: Path, model: str, names: list[str], said: str | None
) -> None:
    config = small()
    config["drafts"]["code"]["model"] = model
    problems = machine(config, cuttable(tmp_path, names))
    says(problems, "drafts.code.model", said)


def test_only_a_draft_can_be_made_of_layers(tmp_path: Path) -> None:
    config = small()
    config["verifier"]["model"] = "layers:2"
    problem = the_only(machine(config, cuttable(tmp_path, LAYERS)))
    assert problem.where == "verifier.model"
    assert "only a draft can be that" in problem.what


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quantise": "int8"}, None),
        ({"num_gpus": 0.5}, None),
        ({"num_gpus": 0.5, "quantise": "int8"}, "has no effect on GPUs"),
        ({"dtype": "bfloat16", "quantise": "int8"}, "has no effect on bfloat16"),
        ({"dtype": "bfloat16", "quantise": "none"}, None),
    ],
)
def test_eight_bits_that_would_not_be(settings: dict[str, Any], said: str | None) -> None:
    config = small()
    config["drafts"]["code"] |= settings
    problems = fleet(config)
    if said is None:
        assert problems == []
    else:
        problem = the_only(problems)
        assert (problem.where, problem.severity) == ("drafts.code.quantise", "warning")
        assert said in problem.what


def test_a_published_quantised_draft_that_cannot_be_read(tmp_path: Path) -> None:
    make_models(tmp_path)
    file = tmp_path / "models" / "code" / "config.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "quantization_config": {"quant_method": "gptq"}})
    )
    problem = the_only(machine(small(), tmp_path))
    assert problem.where == "drafts.code.model"
    assert "stored quantised (gptq)" in problem.what


def fixed(**proposer: Any) -> dict[str, Any]:
    """A fleet whose verifier proposes in a way of vLLM's own."""
    return {"verifier": {**small()["verifier"], "proposer": proposer}}


def test_a_fleet_without_drafts(folder: Path) -> None:
    config = fixed(method="ngram")
    assert fleet(config) == []
    assert machine(config, folder) == []
    assert FleetConfig.model_validate(config).model_sources() == ["./models/verifier"]


def test_drafts_beside_a_way_of_vllms_own() -> None:
    problem = the_only(fleet({**small(), **fixed(method="ngram")}))
    assert problem.where == "verifier.proposer"
    assert "drafts and domains and generalist would never be used" in problem.what
    assert "or take verifier.proposer out" in problem.todo


def test_a_fleet_without_anybody_who_proposes() -> None:
    problems = fleet({"verifier": small()["verifier"]})
    assert [problem.where for problem in problems] == ["drafts", "domains", "generalist"]
    assert {problem.what for problem in problems} == {"required and missing"}


def head(folder: Path, **config: Any) -> str:
    make_models(folder)
    path = folder / "head"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_size": 32, "medusa_num_heads": 4}, None),
        ({"hidden_size": 32, "medusa_num_heads": 3}, "set num_speculative_tokens to 3 or less"),
        ({"hidden_size": 64, "num_heads": 4}, "reads hidden states of size 64"),
    ],
)
def test_a_head_that_was_made_for_another_verifier(
    tmp_path: Path, config: dict[str, Any], said: str | None
) -> None:
    model = head(tmp_path, **config)
    problems = machine(fixed(method="medusa", model=model, num_speculative_tokens=4), tmp_path)
    says(problems, "verifier.proposer.model", said)


def test_a_draft_in_the_engine_needs_the_verifiers_tokens_unless_vllm_translates(tmp_path: Path) -> None:
    make_models(tmp_path)
    checkpoint(tmp_path / "other", content(train_bpe(280)), vocab_size=320)
    wanted = {"method": "draft_model", "model": "./other"}
    problem = the_only(machine(fixed(**wanted), tmp_path))
    assert "another tokenizer" in problem.what
    assert machine(fixed(**wanted, options={"use_heterogeneous_vocab": True}), tmp_path) == []


def test_a_method_whose_package_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.model_checks.find_spec", lambda name: None)
    problem = the_only(machine(fixed(method="suffix"), folder))
    assert (problem.where, problem.todo) == (
        "verifier.proposer.method",
        "pip install arctic-inference==0.1.1",
    )
    elsewhere = {**fixed(method="suffix"), "nodes": [{"cpus": 4}]}
    assert the_only(machine(elsewhere, folder)).severity == "warning"
