"""`specfleet plan` as people meet it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cluster.cli import app
from tests.planning.shapes import CONFIGS

# Whole plans: each computes for a second, and all of them for a quarter of a minute.
pytestmark = pytest.mark.process

runner = CliRunner()
ROOT = Path(__file__).resolve().parents[2]
VERIFIER, DRAFT = "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
#: The example's fine-tuned drafts are nobody's: they are as large as what they were made from.
STAND_INS = [
    argument
    for name in ("code", "finance")
    for argument in ("--model-config", f"your-organisation/llama-3.2-1b-{name}-draft={DRAFT}")
]


def run(*arguments: str | Path) -> tuple[int, str]:
    result = runner.invoke(app, ["plan", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def planned(*arguments: str | Path) -> dict[str, Any]:
    result = runner.invoke(app, ["plan", *map(str, arguments), "--json", "-"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_a_plan_from_flags_shows_everything() -> None:
    code, output = run("--verifier", VERIFIER, "--draft", f"small={DRAFT}", "--min-speed", "60")
    assert code == 0
    for part in (
        "70.55 B",
        "131.4 GiB",
        "320.0 KiB",
        "Memory of each of the verifier's 4 GPUs (H100)",
        "What quantising the verifier buys",
        "What quantising the drafts buys",
        "One verifier on other GPUs",
        "Placement",
        "node 0 GPU 4 draft small",
        "Ways to spend GPUs, 32 requests in flight",
        "Tokens/s by load",
        "So that each of 32 requests gets 60 tokens/s",
        "Assumptions",
        "Acceptance: small 0.60 of 100% of the requests",
        "H100 3.50 an hour",
        "Cheapest per token",
        "The next GPU is better spent on drafts at",
    ):
        assert part in output, part


def test_json_holds_the_plan_and_its_assumptions(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    code, output = run("--verifier", VERIFIER, "--draft", DRAFT, "--concurrency", "8", "--json", path)
    assert code == 0
    assert "8 requests in flight" in output
    data = json.loads(path.read_text())
    assert data["models"]["verifier"]["parameters"] == 70_553_706_496
    assert data["models"]["draft"]["weights_gib"] == pytest.approx(2.3, abs=0.01)
    assert data["assumptions"]["load"]["concurrency"] == 8
    assert data["options"][0]["name"] == "verifier alone"
    assert data["options"][0]["tokens_per_s"] > 0
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


def test_prices_change_prices_and_nothing_else() -> None:
    one = planned("--verifier", VERIFIER, "--draft", DRAFT)
    two = planned("--verifier", VERIFIER, "--draft", DRAFT, "--price", "H100=7")
    for before, after in zip(one["options"], two["options"], strict=True):
        assert after["tokens_per_s"] == before["tokens_per_s"]
        assert after["price_per_million_tokens"] == pytest.approx(2 * before["price_per_million_tokens"])


def test_a_configuration_file_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["Qwen3-8B"]))
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text(json.dumps(CONFIGS["Llama-3.2-1B"]))
    found = planned("--verifier", path, "--draft", tmp_path / "draft", "--gpu", "l4")
    assert found["models"]["verifier"]["parameters"] == 8_190_735_360
    assert found["models"]["verifier"]["configuration_from"] == str(path)
    assert found["verifier"]["gpu"] == "L4"


def test_the_gpu_example_is_planned_as_it_is_configured() -> None:
    found = planned(ROOT / "configs" / "gpu-one-node.yaml", *STAND_INS)
    assert found["verifier"]["tensor_parallel_size"] == 4
    assert found["assumptions"]["memory"]["gpu_memory_utilization"] == 0.92
    assert found["placement"]["problems"] == []
    shared = [slot for slot in found["placement"]["gpus"] if len(slot["tenants"]) == 3]
    assert [tenant["num_gpus"] for tenant in shared[0]["tenants"]] == [0.34, 0.33, 0.33]
    names = [option["name"] for option in found["options"]]
    assert names[:2] == ["verifier alone", "as configured"]
    assert found["options"][1]["gpus"] == 5
    assert found["options"][0]["running"] <= 64  # its max_num_seqs


def test_the_quickstart_is_planned_on_cpus() -> None:
    found = planned(ROOT / "configs" / "quickstart.yaml", "--concurrency", "1", "--acceptance", "0.25")
    assert found["models"]["verifier"]["parameters"] == 134_515_008
    assert found["verifier"]["gpu"] == "CPU-CORE"
    # Measured: vLLM writes 26 tokens/s with this model in float32 on one core.
    plain = planned(
        ROOT / "configs" / "quickstart.yaml",
        "--concurrency",
        "1",
        "--prompt-tokens",
        "10",
        "--answer-tokens",
        "200",
    )
    assert plain["options"][0]["tokens_per_s"] == pytest.approx(26, rel=0.1)


def test_a_file_that_does_not_fit_on_its_nodes_fails_with_a_reason(tmp_path: Path) -> None:
    data = yaml.safe_load((ROOT / "configs" / "gpu-one-node.yaml").read_text())
    data["nodes"] = [{"cpus": 64, "gpus": 4}]
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(data))
    code, output = run(path, *STAND_INS)
    assert code == 1
    assert "draft general does not fit: node 0 has no GPU with 0.34 of it free" in output
    data["nodes"] = [{"cpus": 64, "gpus": 2}]
    path.write_text(yaml.safe_dump(data))
    code, output = run(path, *STAND_INS)
    assert code == 1
    assert "one verifier over 4 GPUs, and a node has 2" in output


def test_a_deadline_that_proposals_miss_is_pointed_out(tmp_path: Path) -> None:
    data = yaml.safe_load((ROOT / "configs" / "gpu-one-node.yaml").read_text())
    path = tmp_path / "fleet.yaml"
    data["link"] = {"step_deadline_ms": 2}
    path.write_text(yaml.safe_dump(data))
    assert any("step_deadline_ms 2" in note for note in planned(path, *STAND_INS)["notes"])
    data["link"] = {"step_deadline_ms": 200}
    path.write_text(yaml.safe_dump(data))
    assert not any("step_deadline_ms" in note for note in planned(path, *STAND_INS)["notes"])


def test_a_gpu_fleet_without_nodes_is_planned_on_a_machine_without_gpus(tmp_path: Path) -> None:
    data = yaml.safe_load((ROOT / "configs" / "gpu-one-node.yaml").read_text())
    del data["nodes"]
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        notes = planned(path, *STAND_INS)["notes"]
    assert any("no GPU here: planned for one node with 8 x H100" in note for note in notes)


def test_drafts_that_cannot_serve_are_pointed_out(tmp_path: Path) -> None:
    notes = planned(
        "--verifier",
        VERIFIER,
        "--draft",
        "q=Qwen/Qwen3-0.6B",
        "--prompt-tokens",
        "50000",
        "--concurrency",
        "1",
    )["notes"]
    assert any("q knows 151936 tokens and the verifier 128256" in note for note in notes)
    assert any("q was made for 40960 tokens, and requests have 50500" in note for note in notes)
    assert planned("--verifier", VERIFIER, "--draft", DRAFT)["notes"] == []
    data = yaml.safe_load((ROOT / "configs" / "gpu-one-node.yaml").read_text())
    data["drafts"]["general"] |= {"max_sessions": 4, "kv_memory_mib": 64}
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(data))
    said = " ".join(planned(path, *STAND_INS)["notes"])
    assert "raise drafts.general.max_sessions" in said
    assert "set drafts.general.kv_memory_mib to" in said


def test_assumptions_are_printed_edited_and_used(tmp_path: Path) -> None:
    result = runner.invoke(app, ["plan", "--print-assumptions"])
    path = tmp_path / "mine.yaml"
    path.write_text(
        result.stdout.replace("acceptance: 0.6", "acceptance: 0.9").replace("gpu: H100", "gpu: H200")
    )
    found = planned("--verifier", VERIFIER, "--draft", DRAFT, "--assumptions", path)
    assert found["models"]["draft"]["acceptance"] == 0.9
    assert found["verifier"]["gpu"] == "H200"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a fleet's YAML file, or --verifier MODEL"),
        (["missing.yaml"], "missing.yaml: cannot be read"),
        (["--verifier", VERIFIER, "--gpu", "H10"], "unknown GPU type 'H10' (did you mean H100?"),
        (["--verifier", "meta-llama/Llama-3.1-405B-Instruct"], "does not fit even over all 8 GPUs"),
        (["--verifier", "meta-llama/Llama-3.1-405B-Instruct"], "in fp8 or int4 it fits"),
        (["--verifier", VERIFIER, "--tensor-parallel", "3"], "64 heads, which do not divide by 3"),
        (["--verifier", VERIFIER, "--tensor-parallel", "1"], "does not fit on one GPU"),
        (["--verifier", VERIFIER, "--prompt-tokens", "-5"], "--prompt-tokens: -5 should be"),
        (["--verifier", VERIFIER, "--prompt-tokens", "200000"], "more than what meta-llama/Llama-3.1-70B"),
        (["--verifier", "nobody/nothing"], "--model-config nobody/nothing=PATH"),
        (["--verifier", "nobody/nothing"], "HF_HUB_OFFLINE is set"),
        (["--verifier", "./none.json"], "no file ./none.json"),
        (["--verifier", "package:nothing"], "package:nothing is not a model package"),
        (["--verifier", VERIFIER, "--acceptance", "code=0.5"], "names 'code', which is no draft here"),
        (["--verifier", VERIFIER, "--verifier-precision", "fp7"], "one of: fp32, bf16, fp8, int8, int4"),
        (
            ["--verifier", VERIFIER, "--json", "/no/such/folder/x.json"],
            "/no/such/folder/x.json cannot be written",
        ),
    ],
)
def test_bad_input_is_named_with_what_to_do(arguments: list[str], said: str) -> None:
    code, output = run(*arguments)
    assert code == 1
    assert said in output


def test_bad_files_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    assert "is empty" in run(empty)[1]
    broken = tmp_path / "config.json"
    for text, said in (
        ("{bad", "line 1: not valid JSON"),
        ("[]", "no model configuration"),
        ('{"a": 1}', "no model_type"),
    ):
        broken.write_text(text)
        code, output = run("--verifier", broken)
        assert code == 1
        assert said in output


def test_lists_of_what_is_known() -> None:
    assert "Qwen/Qwen3-8B" in run("--list-models")[1]
    code, output = run("--list-gpus", "--price", "L4=0.11")
    assert code == 0
    assert "MI300X" in output
    assert "0.11" in output


def test_the_command_line_starts_without_models_libraries() -> None:
    heavy = ("torch", "transformers", "ray", "pydantic")
    code = f"import sys, cluster.cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
