"""A whole distillation: check, have texts written, train, measure, write."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from deployments.distillation.card import Story
from deployments.distillation.errors import DistillError
from deployments.distillation.export import export
from deployments.distillation.files import no_space_named, require_space
from deployments.distillation.head_ids import choose_head_ids
from deployments.distillation.own_prompts import ids_of, make_up_prompts
from deployments.distillation.progress import Report, Stop
from deployments.distillation.prompts import Prompts, fitting, read_prompts
from deployments.distillation.score import Score, score
from deployments.distillation.settings import DistillSettings, TextSettings
from deployments.distillation.student import Student, VerifierParts
from deployments.distillation.texts import Text, TextStore
from deployments.distillation.train import train
from deployments.distillation.vllm_writer import VllmWriter, end_ids
from deployments.distillation.writing import Scribe, Writer, held_back_requests, write_training_texts
from deployments.models.tokenizers import read_tokenizer, tokenizer_sha256

_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")
#: Given up to here, a file's content tells one checkpoint from another well enough.
_HASHED_BYTES = 1 << 20
#: Under these names the card shows what every draft is compared with.
THIS, BEFORE = "this draft", "before training"

#: Starts a writer: verifier folder, settings, tokens of the longest prompt.
StartWriter = Callable[[Path, TextSettings, int], Writer]


@dataclass(frozen=True, slots=True)
class Job:
    """What to distil from what.

    Attributes:
        verifier: its checkpoint folder.
        verifier_name: its name for people.
        prompts: JSONL file.
        name: the draft's.
        out: the folder to write; appears only when all is done.
        work: folder for texts and checkpoints; the same one goes on where an earlier run stopped.
        settings: all choices.
        compare: name -> other draft folders to measure on the same prompts.
        licence: for the card.
        replace: whether `out` may exist.
    """

    verifier: Path
    verifier_name: str
    prompts: Path
    name: str
    out: Path
    work: Path
    settings: DistillSettings
    compare: Mapping[str, Path] = field(default_factory=dict)
    licence: str = "that of the verifier, from which it derives"
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Distilled:
    """What came out: the folder, and scores on the held-back prompts by name (`THIS`, `BEFORE`, others)."""

    folder: Path
    scores: Mapping[str, Score]


def distill(job: Job, report: Report, stop: Stop, start_writer: StartWriter = VllmWriter) -> Distilled:
    """Make a draft. The same call again goes on after an interruption.

    Raises:
        DistillError: something has to be mended; it is checked first what can be checked first.
        Stopped: on request; texts and a checkpoint are kept in the work folder.
    """
    _check_names(job)
    parts = VerifierParts(job.verifier)
    prompts = read_prompts(job.prompts, job.settings.hold_back)
    _check_space(job, _check_students(job, parts))
    try:
        with no_space_named(job.work):
            job.work.mkdir(parents=True, exist_ok=True)
            lock = FileLock(job.work / ".lock", timeout=0)
            with lock:
                return _locked(job, parts, prompts, report, stop, start_writer)
    except Timeout as error:
        raise DistillError(
            f"another distillation is at work in {job.work}: wait for it, or choose another with --work"
        ) from error


def _locked(
    job: Job, parts: VerifierParts, prompts: Prompts, report: Report, stop: Stop, start_writer: StartWriter
) -> Distilled:
    settings = job.settings
    material = _write_texts(job, parts, prompts, report, stop, start_writer)
    limit = read_tokenizer(job.verifier).size
    head = choose_head_ids(material.train, settings.student.head_ids, limit, end_ids(job.verifier))
    student = _first_student(job, parts, head, limit)
    report("measuring", 0, 1, "the draft before training")
    before = score(parts.rounded(student, limit), material.held_back)
    trained = train(
        student, material.train, material.held_back, settings, job.work / "checkpoints", report, stop
    )
    report("measuring", 0, 1, "the trained draft")
    scores = {THIS: score(parts.rounded(trained.student, limit), material.held_back), BEFORE: before}
    for name, folder in job.compare.items():
        other = parts.load(folder, head_ids=None, limit=limit, keep_head=True)
        scores[name] = score(other, material.held_back)
    story = Story(
        name=job.name,
        verifier=job.verifier_name,
        licence=job.licence,
        settings=settings,
        prompts=len(prompts.train),
        own_prompts=material.own_prompts,
        held_back=len(material.held_back),
        text_tokens=sum(len(text.answer) for text in material.train),
        steps=trained.steps,
        seen_tokens=trained.tokens,
        seconds=trained.seconds,
        scores=scores,
    )
    report("writing", 0, 1, str(job.out))
    return Distilled(export(trained.student, job.out, job.verifier, story), scores)


@dataclass(frozen=True, slots=True)
class _Material:
    train: list[Text]
    held_back: list[Text]
    own_prompts: int


def _write_texts(
    job: Job, parts: VerifierParts, prompts: Prompts, report: Report, stop: Stop, start_writer: StartWriter
) -> _Material:
    settings = job.settings.texts
    tokenizer = _tokenizer(job.verifier)
    longest = _context(parts.config) - settings.max_tokens
    given = fitting(ids_of(tokenizer, prompts.train), longest)
    held_back = fitting(ids_of(tokenizer, prompts.held_back), longest)
    # Room for prompts made up later; the engine's length is fixed when it starts.
    most = min(longest, max(128, *(len(ids) for ids in [*given, *held_back])))
    scribe = Scribe(
        TextStore(job.work / "texts"),
        verifier_digest(job.verifier, settings.dtype),
        lambda: start_writer(job.verifier, settings, most),
        report,
        stop,
    )
    try:
        made_up = make_up_prompts(
            scribe,
            tokenizer,
            prompts.train,
            prompts.held_back,
            settings.own_prompts,
            end_ids(job.verifier),
            job.settings.training.seed,
        )
        own = [ids for ids in ids_of(tokenizer, made_up) if len(ids) <= most]
        measured = scribe.all_of(held_back_requests(held_back, settings), "held-back texts")
        texts = write_training_texts(scribe, [*given, *own], settings)
    finally:
        scribe.close()
    return _Material(texts, [text for text in measured if len(text.answer)], len(own))


def _first_student(job: Job, parts: VerifierParts, head: Sequence[int] | None, limit: int) -> Student:
    choice = job.settings.student
    if choice.start_from is not None:
        return parts.load(Path(choice.start_from), head_ids=head, limit=limit)
    return parts.student(choice.layers or parts.default_layers(), head_ids=head, limit=limit)


def verifier_digest(folder: Path, dtype: str) -> str:
    """A digest that is another one for other weights, another tokenizer or another number format."""
    digest = hashlib.sha256(f"{dtype} {tokenizer_sha256(folder)}".encode())
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_HASHED_BYTES))
            file.seek(max(0, path.stat().st_size - _HASHED_BYTES))
            digest.update(file.read(_HASHED_BYTES))
    return digest.hexdigest()


def _check_names(job: Job) -> None:
    if not _NAME.match(job.name):
        raise DistillError(
            f"--name {job.name!r} is no name for a draft: small letters, digits, - and _, at most 63"
        )
    if job.out.exists() and not job.replace:
        raise DistillError(f"{job.out} is there already: choose another folder, or say --replace")


def _check_students(job: Job, parts: VerifierParts) -> int:
    """Find out before any text is written whether the draft can be started and the others be measured.

    Returns:
        Bytes of what will be trained, in float32.
    """
    limit = read_tokenizer(job.verifier).size
    weights = _first_student(job, parts, [0], limit).trained().values()
    for folder in job.compare.values():
        parts.load(folder, head_ids=[0], limit=limit)
    return 4 * sum(tensor.numel() for tensor in weights)


def _check_space(job: Job, weights: int) -> None:
    texts = job.settings.texts
    # Ids and odds of the top k, and half as much again for what comes too much.
    text_bytes = int(1.5 * texts.tokens * (8 + 6 * texts.top_k))
    # Three checkpoints for a moment, each of weights and up to two figures an optimiser keeps for every one.
    require_space(job.work, text_bytes + 3 * 3 * weights, "texts and checkpoints")
    require_space(job.out.parent, weights, "the draft")


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # every kind of broken folder ends here, each with its own type
        raise DistillError(f"the tokenizer in {folder} cannot be loaded: {error}") from error


def _context(config: Mapping[str, Any]) -> int:
    inner = config.get("text_config")
    sizes = inner if isinstance(inner, dict) and "max_position_embeddings" not in config else config
    return int(sizes.get("max_position_embeddings", 2048))
