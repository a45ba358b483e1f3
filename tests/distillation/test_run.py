"""A whole distillation of a tiny verifier: what comes out, going on after an end, nothing half-written."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.distillation.errors import DistillError, NoSpace, Stopped
from deployments.distillation.progress import Stop
from deployments.distillation.run import BEFORE, THIS, Distilled, Job, distill
from deployments.distillation.settings import DistillSettings
from deployments.distillation.student import VerifierParts
from deployments.drafter.checkpoint import load_draft, read_description
from deployments.drafter.engine import DraftEngine, EngineLimits
from deployments.models import check_compatible
from tests.distillation.tiny import TransformersWriter, small_settings, write_prompts, write_verifier
from tests.drafter.conftest import draft

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_verifier(tmp_path_factory.mktemp("verifier"))


@pytest.fixture
def job(verifier: Path, tmp_path: Path) -> Job:
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    return Job(
        verifier, "Tiny", prompts, "mine", tmp_path / "drafts" / "mine", tmp_path / "work", small_settings()
    )


def with_settings(job: Job, **changes: dict[str, Any]) -> Job:
    data = job.settings.model_dump()
    for part, values in changes.items():
        data[part] = {**data[part], **values}
    return dataclasses.replace(job, settings=DistillSettings.model_validate(data))


def go(job: Job, stop_at: tuple[str, float] | None = None) -> tuple[Distilled, list[str]]:
    stop, said = Stop(), []

    def report(part: str, done: float, total: float, remark: str) -> None:
        said.append(part)
        stop.wanted = stop.wanted or (stop_at is not None and part == stop_at[0] and done >= stop_at[1])

    return distill(job, report, stop, TransformersWriter), said


def test_what_comes_out_is_a_draft_that_the_fleet_serves(job: Job, verifier: Path) -> None:
    result, said = go(job)
    assert list(dict.fromkeys(said)) == ["held-back texts", "texts", "measuring", "training", "writing"]
    assert result.folder == job.out
    assert {path.name for path in job.out.iterdir()} == {"draft.json", "model.safetensors", "README.md"}
    assert [path.name for path in job.out.parent.iterdir()] == ["mine"]
    assert check_compatible(verifier, job.out) is None
    description = read_description(job.out)
    assert description.name == "mine"
    assert description.verifier == "Tiny"
    assert description.initialised_from_layers == [0, 3]
    assert description.head_token_ids is not None
    assert len(description.head_token_ids) <= 48
    figures = description.measured["held_back"][THIS]
    assert figures["accepted_by_position"] == [round(share, 4) for share in result.scores[THIS].by_position]
    card = (job.out / "README.md").read_text()
    assert f"{result.scores[THIS].mean_length:.2f}" in card
    assert "trained: 30 steps" not in card
    assert "30 steps over" in card
    # Loaded again it scores exactly what was said of it, and the drafter's own engine says the same tokens.
    parts = VerifierParts(verifier)
    student = parts.load(job.out, head_ids=None, limit=61, keep_head=True).eval()
    context = [1, 10, 20, 2, 3]
    engine = DraftEngine(load_draft(job.out, verifier, quantise=False).forward, EngineLimits(max_context=64))
    proposed = draft(engine, "s", context, 4)
    expected: list[int] = []
    for _ in range(4):
        tokens = torch.tensor([context + expected])
        best = student.scores(student(tokens, torch.tensor([tokens.shape[1] - 1]))).argmax(-1)
        expected.append(int(student.ids[best]))
    assert proposed == expected


def test_interrupted_anywhere_it_ends_in_the_same_files(job: Job, tmp_path: Path) -> None:
    go(job)
    parts = dataclasses.replace(job, out=tmp_path / "other" / "mine", work=tmp_path / "other-work")
    for place in (("held-back texts", 2), ("texts", 7), ("training", 3), ("training", 20)):
        with pytest.raises(Stopped):
            go(parts, place)
        assert not parts.out.exists()
    _, said = go(parts)
    assert "texts" not in said
    ours, theirs = (folder / "model.safetensors" for folder in (job.out, parts.out))
    assert ours.read_bytes() == theirs.read_bytes()
    one, other = read_description(job.out), read_description(parts.out)
    assert one == other


def test_prompts_of_its_own(job: Job) -> None:
    more = with_settings(job, texts={"own_prompts": 6, "tokens": 900})
    _, said = go(more)
    assert said[0] == "prompts"
    card = (job.out / "README.md").read_text()
    assert "that the verifier made up itself" in card
    _, said = go(dataclasses.replace(more, replace=True))
    assert "prompts" not in said


def test_going_on_from_a_draft_and_comparing_with_it(job: Job, tmp_path: Path) -> None:
    first, _ = go(job)
    second = dataclasses.replace(
        with_settings(job, student={"start_from": str(job.out)}),
        name="better",
        out=tmp_path / "better",
        compare={"mine": job.out},
    )
    result, _ = go(second)
    assert set(result.scores) == {THIS, BEFORE, "mine"}
    assert result.scores["mine"] == first.scores[THIS]
    assert "draft mine, itself from the verifier's layers 0, 3" in (second.out / "README.md").read_text()
    assert read_description(second.out).initialised_from_layers == [0, 3]


def test_all_ids_and_default_layers(job: Job) -> None:
    result, _ = go(with_settings(job, student={"head_ids": None, "layers": None}, training={"steps": 2}))
    description = read_description(job.out)
    assert description.head_token_ids is None
    assert description.initialised_from_layers == [0, 1, 3]
    assert result.scores[THIS].coverage > 0.95


def test_a_full_disk_while_the_draft_is_written_leaves_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deployments.drafter.pack as pack

    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(pack, "_compact_json", full)  # after the weights, before the card
        with pytest.raises(NoSpace, match="no room to write"):
            go(job)
    assert list(job.out.parent.iterdir()) == []
    _, said = go(job)
    assert said.count("training") == 0  # the work was kept
    before = {path.name: path.read_bytes() for path in job.out.iterdir()}
    monkeypatch.setattr(pack, "_compact_json", full)
    with pytest.raises(NoSpace):
        go(dataclasses.replace(job, replace=True))
    assert {path.name: path.read_bytes() for path in job.out.iterdir()} == before
    assert [path.name for path in job.out.parent.iterdir()] == ["mine"]


_KILLED_WHILE_WRITING = """
import os, pickle, signal, sys
from pathlib import Path
import deployments.drafter.pack as pack
from deployments.distillation.progress import Stop
from deployments.distillation.run import distill
from tests.distillation.tiny import TransformersWriter
pack._compact_json = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
distill(pickle.loads(Path(sys.argv[1]).read_bytes()), lambda *said: None, Stop(), TransformersWriter)
"""


def test_a_kill_while_the_draft_is_written_leaves_no_draft_and_the_next_run_makes_it(
    job: Job, tmp_path: Path
) -> None:
    (tmp_path / "job").write_bytes(pickle.dumps(job))
    command = [sys.executable, "-c", _KILLED_WHILE_WRITING, str(tmp_path / "job")]
    assert subprocess.run(command, timeout=100, check=False).returncode == -9
    assert not job.out.exists()
    assert len(list(job.out.parent.iterdir())) == 1  # what it was writing
    _, said = go(job)
    assert "training" not in said
    assert [path.name for path in job.out.parent.iterdir()] == ["mine"]


def test_bad_input_is_told_before_any_work(job: Job, tmp_path: Path) -> None:
    other = write_verifier(tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["w60"], tokenizer["model"]["vocab"]["w59"] = 59, 60
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    quick = with_settings(job, training={"steps": 1})
    made, _ = go(quick)
    foreign = dataclasses.replace(quick, verifier=other, out=tmp_path / "x", work=tmp_path / "w")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.jsonl").write_text("")
    cases = [
        (dataclasses.replace(job, name="Mine!"), r"--name 'Mine!' is no name for a draft"),
        (job, r"drafts/mine is there already: choose another folder, or say --replace"),
        (
            with_settings(foreign, student={"start_from": str(made.folder)}),
            "has another one .* take one that was made",
        ),
        (dataclasses.replace(foreign, compare={"a": made.folder}), "was made for the tokenizer of Tiny"),
        (dataclasses.replace(foreign, compare={"a": tmp_path / "empty"}), r"holds no draft\.json"),
        (dataclasses.replace(foreign, prompts=tmp_path / "empty.jsonl"), "holds 0 different prompts"),
        (dataclasses.replace(foreign, verifier=tmp_path / "empty"), "the verifier in .* cannot be read"),
        (with_settings(foreign, student={"layers": [0, 4]}), "layer 4 does not exist: .* layers are 0 to 3"),
        (with_settings(foreign, texts={"max_tokens": 200}), "no prompt has at most -72 tokens"),
        (
            with_settings(foreign, texts={"tokens": 10**12}),
            r"texts and checkpoints need about .* free some space",
        ),
    ]
    for bad, said in cases:
        with pytest.raises(DistillError, match=said):
            go(bad)
        assert not (tmp_path / "x").exists()
    assert not list((tmp_path / "w").glob("texts/*"))


def test_two_at_once_in_one_work_folder(job: Job) -> None:
    from filelock import FileLock

    job.work.mkdir()
    with FileLock(job.work / ".lock"), pytest.raises(DistillError, match="another distillation is at work"):
        go(job)
