"""Assumptions: printed, edited, given back; flags; types of GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.planning.assumptions import Assumptions, as_yaml, load_assumptions
from cluster.planning.errors import PlanError
from cluster.planning.gpus import GpuChange, built_in, catalogue, find_gpu
from cluster.planning.inputs import Flags, assumptions_with
from cluster.planning.scenario import traffic
from cluster.problems import ConfigError


def flags(**more: Any) -> Flags:
    given: dict[str, Any] = {
        "drafts": (),
        "acceptance": (),
        "mean_lengths": (),
        "shares": (),
        "prices": (),
        "models": (),
        "values": {},
    }
    return Flags(**{**given, **more})


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_what_is_printed_can_be_given_back(tmp_path: Path) -> None:
    changed = Assumptions.model_validate(
        {
            "gpu": "H200",
            "load": {"concurrency": 7},
            "speculation": {"acceptance_of": {"code": 0.8}},
            "gpus": {"H200": {"price_per_hour": 9.5}},
            "models": {"a/b": "c.json"},
        }
    )
    for each in (Assumptions(), changed):
        assert load_assumptions(written(tmp_path, as_yaml(each))) == each


def test_every_printed_key_is_explained() -> None:
    lines = as_yaml(Assumptions()).splitlines()
    for number, line in enumerate(lines):
        if ":" in line and not line.lstrip().startswith("#") and not line.endswith(":"):
            assert lines[number - 1].lstrip().startswith("# ")


def test_a_file_names_all_its_errors_with_lines(tmp_path: Path) -> None:
    text = "load:\n  concurency: 3\nmemory:\n  gpu_memory_utilization: 7\ngpus: {H100: {price: 3}}\n"
    with pytest.raises(ConfigError) as caught:
        load_assumptions(written(tmp_path, text))
    said = [str(problem) for problem in caught.value.problems]
    assert [text.split(":")[0] for text in said] == ["line 2", "line 4", "line 5"]
    assert "load.concurency: unknown key" in said[0]
    assert "not 7" in said[1]


@pytest.mark.parametrize(
    ("text", "said"), [("", "is empty"), ("- 1\n", "holds a list"), ("a: [", "not valid YAML")]
)
def test_a_file_that_holds_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_assumptions(written(tmp_path, text))


def test_flags_overrule_the_file_and_are_known_as_given(tmp_path: Path) -> None:
    path = written(tmp_path, "load: {concurrency: 5, prompt_tokens: 10}\n")
    used, given = assumptions_with(
        flags(
            values={"load.concurrency": 9, "load.answer_tokens": None},
            prices=["h100=2.5"],
            acceptance=["0.7", "code=0.8"],
        ),
        path,
    )
    assert (used.load.concurrency, used.load.prompt_tokens, used.load.answer_tokens) == (9, 10, 500)
    assert used.gpus["H100"].price_per_hour == 2.5
    assert (used.speculation.acceptance, used.speculation.acceptance_of) == (0.7, {"code": 0.8})
    assert {"load.concurrency", "load.prompt_tokens"} <= given
    assert "load.answer_tokens" not in given


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"values": {"load.concurrency": -3}}, "--concurrency: -3 should be greater"),
        ({"acceptance": ["1.2"]}, "--acceptance: 1.2 should be less than 1"),
        ({"acceptance": ["nan"]}, "--acceptance: nan should be a finite number"),
        ({"acceptance": ["high"]}, "write \\[DRAFT=\\]RATE"),
        ({"mean_lengths": ["1.5"]}, "such as code=1.47@4"),
        ({"mean_lengths": ["9@4"]}, "between 1 and 5"),
        ({"shares": ["0.5"]}, "write DRAFT=SHARE"),
        ({"prices": ["H100=-1"]}, "--price \\(price_per_hour\\): -1.0"),
        ({"prices": ["H1OO=1"]}, "did you mean H100"),
        ({"models": ["a/b"]}, "write MODEL=CONFIG"),
        ({"values": {"memory.kv_precision": "int3"}}, "--kv-precision: 'int3'"),
    ],
)
def test_wrong_flags_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        assumptions_with(flags(**wrong), None)


def test_a_mean_length_says_the_acceptance() -> None:
    used, _ = assumptions_with(flags(mean_lengths=["1.96@2", "code=3.69@5"]), None)
    assert used.speculation.acceptance == pytest.approx(0.6, abs=0.01)
    assert used.speculation.acceptance_of["code"] == pytest.approx(0.8, abs=0.01)


def test_drafts_have_names() -> None:
    assert flags(drafts=["a/b"]).named_drafts() == {"draft": "a/b"}
    assert flags(drafts=["a/b", "x=c/d"]).named_drafts() == {"draft1": "a/b", "x": "c/d"}
    for wrong in (["x=a/b", "x=c/d"], ["X Y=a/b"], ["x="], ["verifier=a/b"]):
        with pytest.raises(PlanError, match="--draft"):
            flags(drafts=wrong).named_drafts()


def test_every_type_of_gpu_has_a_source_and_sound_figures() -> None:
    for gpu in built_in().values():
        assert len(gpu.source) > 10
        if not gpu.cpu:
            assert 10 < gpu.memory_gib < 400
            assert (gpu.fp8_tflops or gpu.bf16_tflops) >= gpu.bf16_tflops
            # Nothing computes less than 30 or more than 600 operations for each byte that it can read.
            assert 30 < gpu.bf16_tflops * 1e3 / gpu.bandwidth_gbs < 600


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("h100", "H100"),
        ("H100 80GB", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Tesla T4", "T4"),
        ("cpu-core", "CPU-CORE"),
    ],
)
def test_types_are_found_however_they_are_written(name: str, meant: str) -> None:
    assert find_gpu(name, built_in()).name == meant


def test_types_can_be_changed_and_added() -> None:
    types = catalogue({"h100": GpuChange(price_per_hour=1.0)})
    assert types["H100"].price_per_hour == 1.0
    assert types["H100"].bandwidth_gbs == built_in()["H100"].bandwidth_gbs
    new = GpuChange(memory_gib=100, bandwidth_gbs=4000, bf16_tflops=900, price_per_hour=3)
    assert catalogue({"X1": new})["X1"].flops("fp8") == 900e12
    with pytest.raises(PlanError, match=r"gpus.X1.*lacks bandwidth_gbs, bf16_tflops"):
        catalogue({"X1": GpuChange(memory_gib=1, price_per_hour=1)})


def test_traffic_adds_up_to_one() -> None:
    given = Assumptions.model_validate({"speculation": {"share_of": {"code": 0.5}}})
    shares = traffic(["code", "a", "b"], given, {"code": 9, "a": 3, "b": 1})
    assert shares == pytest.approx({"code": 0.5, "a": 0.375, "b": 0.125})
    assert traffic(["a", "b"], Assumptions()) == {"a": 0.5, "b": 0.5}
    with pytest.raises(PlanError, match="no draft here"):
        traffic(["a"], given)
    for wrong in ({"a": 0.7, "b": 0.7}, {"a": 0.3, "b": 0.3}):
        bad = Assumptions.model_validate({"speculation": {"share_of": wrong}})
        with pytest.raises(PlanError, match="add up to"):
            traffic(["a", "b"], bad)
