"""Training on a real tiny verifier: it learns, it goes on exactly where it was, its checkpoints are whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from deployments.distillation.errors import DistillError, NoSpace, Stopped
from deployments.distillation.progress import Stop
from deployments.distillation.score import score
from deployments.distillation.settings import DistillSettings
from deployments.distillation.student import Student, VerifierParts
from deployments.distillation.texts import Text
from deployments.distillation.train import Trained, train
from deployments.distillation.writing import training_requests
from tests.distillation.tiny import WORDS, TransformersWriter, small_settings, write_verifier

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_verifier(tmp_path_factory.mktemp("verifier"))


@pytest.fixture(scope="module")
def texts(verifier: Path) -> list[Text]:
    prompts = [[1, 5 + number, 60 - number, 2, 3] for number in range(40)]
    wanted = training_requests(prompts, small_settings().texts)[:40]
    return [text for _, text in sorted(TransformersWriter(verifier).write(wanted), key=lambda pair: pair[0])]


def start(verifier: Path) -> Student:
    return VerifierParts(verifier).student([0, 3], head_ids=list(range(2, WORDS)), limit=WORDS)


def run(
    verifier: Path,
    texts: list[Text],
    folder: Path,
    settings: DistillSettings | None = None,
    stop_after: int | None = None,
) -> Trained:
    stop = Stop()

    def report(part: str, done: float, total: float, remark: str) -> None:
        stop.wanted = stop_after is not None and done >= stop_after

    choices = settings or small_settings()
    return train(start(verifier), texts[:30], texts[30:], choices, folder, report, stop)


def weights(trained: Trained) -> dict[str, torch.Tensor]:
    return trained.student.trained()


def equal(a: Trained, b: Trained) -> bool:
    one, other = weights(a), weights(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "how",
    [
        {"loss": "mixed"},
        {"loss": "kl"},
        {"loss": "reverse-kl"},
        {"loss": "ce"},
        {"optimizer": "adamw"},
        {"precision": "bfloat16"},
    ],
    ids=lambda how: "-".join(map(str, how.values())),
)
def test_a_few_dozen_steps_raise_acceptance(
    verifier: Path, texts: list[Text], tmp_path: Path, how: dict[str, object]
) -> None:
    before = score(start(verifier), texts[:30])
    trained = run(verifier, texts, tmp_path, small_settings(steps=40, **how))
    after = score(trained.student, texts[:30])
    assert after.matches > before.matches + 0.15
    assert after.mean_length > before.mean_length + 0.1
    losses = [note["loss"] for note in trained.history]
    assert sum(losses[-5:]) < sum(losses[:5])


def test_embedding_and_head_stay_the_verifiers(verifier: Path, texts: list[Text], tmp_path: Path) -> None:
    trained = run(verifier, texts, tmp_path, small_settings(steps=3))
    parts = VerifierParts(verifier)
    names = set(weights(trained))
    assert "model.norm.weight" in names
    assert {name.split(".")[2] for name in names if ".layers." in name} == {"0", "1"}
    embedding = dict(trained.student.body.named_parameters())["embed_tokens.weight"]
    assert torch.equal(embedding, parts.embedding)
    assert torch.equal(trained.student.head, parts.head[2:WORDS])


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_an_interrupted_training_ends_in_the_same_bits(
    verifier: Path, texts: list[Text], tmp_path: Path, optimizer: str
) -> None:
    settings = small_settings(steps=12, optimizer=optimizer)
    whole = run(verifier, texts, tmp_path / "whole", settings)
    for after in (5, 9):
        with pytest.raises(Stopped, match=f"stopped after {after} of 12 steps"):
            run(verifier, texts, tmp_path / "parts", settings, stop_after=after)
    resumed = run(verifier, texts, tmp_path / "parts", settings)
    assert equal(whole, resumed)
    assert [note["loss"] for note in resumed.history] == [note["loss"] for note in whole.history]
    # Once more finds it done.
    assert equal(whole, run(verifier, texts, tmp_path / "parts", settings))


def test_another_seed_gives_another_draft_and_begins_anew(
    verifier: Path, texts: list[Text], tmp_path: Path
) -> None:
    first = run(verifier, texts, tmp_path, small_settings(steps=4))
    said = []

    def report(part: str, done: float, total: float, remark: str) -> None:
        said.append(remark)

    other = train(start(verifier), texts[:30], [], small_settings(steps=4, seed=1), tmp_path, report, Stop())
    assert not equal(first, other)
    assert said[0] == "texts or settings have changed: training begins anew"


def test_minutes_become_steps_once_and_for_all(verifier: Path, texts: list[Text], tmp_path: Path) -> None:
    settings = small_settings(steps=None, minutes=0.02)
    with pytest.raises(Stopped) as caught:
        run(verifier, texts, tmp_path, settings, stop_after=1)
    planned = int(str(caught.value).split(" of ")[1].split()[0])
    resumed = run(verifier, texts, tmp_path, settings)
    assert resumed.steps == planned
    # The steps that were taken to measure the speed left nothing behind.
    assert equal(resumed, run(verifier, texts, tmp_path / "counted", small_settings(steps=planned)))


_TRAIN = """
import sys
from pathlib import Path
import torch
from deployments.distillation.progress import Stop
from deployments.distillation.student import VerifierParts
from deployments.distillation.texts import TextStore
from deployments.distillation.train import train
from tests.distillation.tiny import WORDS, small_settings
verifier, store, folder = Path(sys.argv[1]), TextStore(Path(sys.argv[2])), Path(sys.argv[3])
steps = int(sys.argv[4])
if len(sys.argv) > 5:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[5]), int(sys.argv[5])))
texts = store.get([str(number) for number in range(len(store))])
student = VerifierParts(verifier).student([0, 3], head_ids=list(range(2, WORDS)), limit=WORDS)
settings = small_settings(steps=steps, checkpoint_minutes=0)
train(student, texts[:30], texts[30:], settings, folder, lambda *said: print(*said, flush=True), Stop())
"""


def stored(texts: list[Text], folder: Path) -> Path:
    from deployments.distillation.texts import TextStore

    TextStore(folder).add([(str(number), text) for number, text in enumerate(texts)])
    return folder


def test_a_kill_in_the_middle_of_writing_checkpoints_costs_nothing_but_steps(
    verifier: Path, texts: list[Text], tmp_path: Path
) -> None:
    folder, store = tmp_path / "checkpoints", stored(texts, tmp_path / "texts")
    command = [sys.executable, "-c", _TRAIN, str(verifier), str(store), str(folder), "60"]
    killed_at = []
    for wanted in (6, 17):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            parts = line.split()
            if parts[0] == "training" and float(parts[1]) >= wanted:
                killed_at.append(float(parts[1]))
                break
        # A checkpoint follows every step: it is being written about now.
        time.sleep(0.004)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        process.stdout.close()
    assert len(killed_at) == 2
    whole = run(verifier, texts, tmp_path / "whole", small_settings(steps=60))
    assert equal(whole, run(verifier, texts, folder, small_settings(steps=60, checkpoint_minutes=0)))
    assert not list(folder.glob(".partial-*"))


def test_no_room_for_a_checkpoint_leaves_the_one_before(
    verifier: Path, texts: list[Text], tmp_path: Path
) -> None:
    folder, store = tmp_path / "checkpoints", stored(texts, tmp_path / "texts")
    with pytest.raises(Stopped):
        run(verifier, texts, folder, small_settings(steps=6), stop_after=2)
    [before] = folder.glob("*.pt")
    content = before.read_bytes()
    limit = str(len(content) // 2)
    command = [sys.executable, "-c", _TRAIN, str(verifier), str(store), str(folder), "6", limit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert NoSpace.__name__ in done.stderr
    assert "no room to write" in done.stderr
    assert before.read_bytes() == content
    assert list(folder.iterdir()) == [before]
    assert run(verifier, texts, folder, small_settings(steps=6)).steps == 6


def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(
    verifier: Path, texts: list[Text], tmp_path: Path
) -> None:
    settings = small_settings(steps=8, checkpoint_minutes=0)
    with pytest.raises(Stopped):
        run(verifier, texts, tmp_path, settings, stop_after=4)
    last = sorted(tmp_path.glob("*.pt"))[-1]
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    with pytest.raises(DistillError, match=rf"{last.name} is damaged .*remove it"):
        run(verifier, texts, tmp_path, settings)
    last.unlink()
    assert equal(run(verifier, texts, tmp_path, settings), run(verifier, texts, tmp_path / "whole", settings))


def test_a_rate_that_is_too_high_is_told(verifier: Path, texts: list[Text], tmp_path: Path) -> None:
    wild = small_settings(steps=40, learning_rate=1e30, warmup=0)
    with pytest.raises(
        DistillError, match=r"no number any more after \d+ steps: lower training\.learning_rate"
    ):
        run(verifier, texts, tmp_path, wild)


def test_one_device_only(
    verifier: Path, texts: list[Text], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DistillError, match="trains on one device"):
        run(verifier, texts, tmp_path)
