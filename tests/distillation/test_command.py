"""``specfleet distill`` as people meet it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cluster.cli import app
from cluster.distill_progress import DistillProgress, duration
from deployments.distillation.errors import Stopped
from deployments.distillation.progress import Stop
from deployments.distillation.run import Job, distill
from tests.distillation.tiny import TransformersWriter, small_settings, write_prompts, write_verifier

runner = CliRunner()


def run(*arguments: str | Path) -> tuple[int, str]:
    result = runner.invoke(app, ["distill", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def usual(folder: Path) -> list[str | Path]:
    return ["--verifier", folder / "v", "--prompts", folder / "p", "--name", "mine", "--out", folder / "out"]


def test_every_choice_can_be_listed_without_anything_else() -> None:
    code, output = run("--show-settings")
    assert code == 0
    assert "hold_back" in output
    assert "Answer tokens to train on" in output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--layers", "0,x"], "--layers '0,x' is no list of layers"),
        (["--loss", "hinge"], "training.loss: Input should be 'kl', 'reverse-kl', 'ce' or 'mixed'"),
        (["--hold-back", "1.5"], "hold_back: Input should be less than 1"),
        (
            ["--minutes", "-1", "--tokens", "0"],
            "texts.tokens: Input should be greater than or equal to 1; training",
        ),
        ([], "no model folder"),
    ],
)
def test_wrong_flags_are_named(tmp_path: Path, flags: list[str], said: str) -> None:
    code, output = run(*usual(tmp_path), *flags)
    assert code == 1
    assert said in output
    assert not (tmp_path / "out").exists()


def test_a_settings_file_is_checked_and_overruled_by_flags(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({"texts": {"tokens": 10, "token": 5}}))
    code, output = run(*usual(tmp_path), "--settings", file)
    assert code == 1
    assert "texts.token: Extra inputs are not permitted" in output
    file.write_text("- 1")
    assert "must hold keys and values" in run(*usual(tmp_path), "--settings", file)[1]
    assert "cannot be read" in run(*usual(tmp_path), "--settings", tmp_path / "none")[1]
    file.write_text(yaml.safe_dump({"training": {"loss": "hinge", "steps": 3}}))
    assert "no model folder" in run(*usual(tmp_path), "--settings", file, "--loss", "kl")[1]


@pytest.mark.process
def test_what_stops_a_distillation_is_one_line(tmp_path: Path) -> None:
    write_verifier(tmp_path / "v")
    write_prompts(tmp_path / "p", count=2)
    code, output = run(*usual(tmp_path), "--work", tmp_path / "work")
    assert code == 1
    assert "error" in output
    assert "holds 2 different prompts; at least 4 are needed" in output
    assert "Traceback" not in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "v"]


@pytest.mark.process
def test_ctrl_c_stops_it_and_the_same_command_goes_on(tmp_path: Path) -> None:
    verifier, prompts = write_verifier(tmp_path / "v"), write_prompts(tmp_path / "p")
    choices = small_settings(steps=600)
    _write_texts(Job(verifier, "v", prompts, "mine", tmp_path / "out", tmp_path / "work", choices))
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(choices.model_dump()))
    flags = [*usual(tmp_path), "--settings", tmp_path / "s.yaml", "--work", tmp_path / "work"]
    command = [sys.executable, "-u", "-m", "cluster.cli", "distill", *map(str, flags)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "training 1 of 600" in line:
            process.send_signal(signal.SIGINT)
            break
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 600 steps; a checkpoint is written; the same command goes on from here" in " ".join(
        said.split()
    )
    assert str(tmp_path / "work") in said
    assert not (tmp_path / "out").exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "training 1 of 600" not in done.stdout
    assert "training 600 of 600" in done.stdout
    assert "this draft" in done.stdout
    assert (tmp_path / "out" / "draft.json").is_file()


def _write_texts(job: Job) -> None:
    """Have all texts written without vLLM, and stop there."""
    stop = Stop()

    def report(part: str, done: float, total: float, remark: str) -> None:
        stop.wanted = part == "training"

    with pytest.raises(Stopped):
        distill(job, report, stop, TransformersWriter)
    shutil.rmtree(job.work / "checkpoints")


def test_time_left_counts_only_what_this_run_did() -> None:
    from io import StringIO

    from rich.console import Console

    now = [0.0]
    shown = StringIO()
    progress = DistillProgress(Console(file=shown, width=200), lambda: now[0])
    progress.report("training", 60, 100, "loss 1.0")  # taken up at 60
    now[0] = 20
    progress.report("training", 70, 100, "loss [0.9]")
    lines = shown.getvalue().splitlines()
    assert "left" not in lines[0]
    assert "training 70 of 100, 60 s left: loss [0.9]" in lines[1]
    now[0] = 21
    progress.report("training", 71, 100, "")
    assert len(shown.getvalue().splitlines()) == 2  # not every step
    progress.report("training", 100, 100, "")
    assert "100 of 100" in shown.getvalue().splitlines()[-1]


def test_durations() -> None:
    assert [duration(each) for each in (5.2, 99, 180, 7500)] == ["5 s", "99 s", "3 min", "2 h 05 min"]
