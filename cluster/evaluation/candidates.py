"""Who may propose: the configuration's drafts, further ones, the verifier's layers, looked-up text."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cluster.config import FleetConfig
from deployments.drafter.layers import count_layers, write_first_layers
from deployments.drafter.settings import DraftSettings
from deployments.drafter.weights import DraftError
from deployments.evaluation.lookup import NgramSource, Source, SuffixSource
from deployments.models import (
    IncompatibleDraft,
    ModelSourceError,
    check_compatible,
    resolve_model,
)
from deployments.models.packages import build_once, default_cache

Kind = Literal["draft", "layers", "lookup"]

#: Sources that need no model, by the word that names them.
LOOKUPS: Final[Mapping[str, Callable[[], Source]]] = {"ngram": NgramSource, "suffix": SuffixSource}

_NAME: Final = re.compile(r"^[a-z0-9][a-z0-9_.-]{0,62}$")
_LAYERS: Final = re.compile(r"^layers:(\d+)$")
#: Which part of the verifier's layers stands for self-speculation when nobody says.
_DEFAULT_SHARE: Final = 4


class EvaluationError(ValueError):
    """Something that the evaluation cannot go on with; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One source of proposals.

    Attributes:
        name: its name in tables, and in the configuration where it is a draft.
        kind: a model with a drafter of its own, the verifier's first layers, or looked-up text.
        source: where it comes from, as people write it.
        folder: the model's folder; None for looked-up text.
        settings: how its drafter runs; None for looked-up text.
        configured: whether the configuration has it already.
    """

    name: str
    kind: Kind
    source: str
    folder: Path | None = None
    settings: DraftSettings | None = None
    configured: bool = False

    @property
    def has_drafter(self) -> bool:
        """Whether the fleet can serve it: looked-up text it only scores so far."""
        return self.kind != "lookup"


def find_candidates(
    config: FleetConfig, verifier: Path, extra: Sequence[str], *, defaults: bool
) -> tuple[list[Candidate], list[str]]:
    """Resolve every candidate to a folder.

    Args:
        config: the fleet.
        verifier: the verifier's checkpoint folder.
        extra: further candidates, each `NAME=SOURCE`.
        defaults: whether to add the verifier's first layers, n-grams and suffixes.

    Returns:
        The candidates, and remarks on those of the defaults that are not possible here.

    Raises:
        EvaluationError: a candidate cannot be used; the text says which, and what to write.
    """
    candidates = [_draft(config, verifier, name, draft) for name, draft in config.drafts.items()]
    for text in extra:
        name, source = _split(text)
        if name in {candidate.name for candidate in candidates}:
            raise EvaluationError(f"--draft {text}: there is a candidate {name!r} already; take another name")
        candidates.append(_extra(config, verifier, name, source))
    remarks: list[str] = []
    if defaults:
        names = {candidate.name for candidate in candidates}
        sources = {candidate.source for candidate in candidates}
        try:
            count = max(1, count_layers(verifier) // _DEFAULT_SHARE)
            if not any(source.startswith("layers:") for source in sources):
                candidates.append(_extra(config, verifier, f"first-{count}-layers", f"layers:{count}"))
        except (DraftError, EvaluationError) as error:
            remarks.append(f"self-speculation is left out: {error}")
        for word in LOOKUPS:
            if word not in sources and word not in names:
                candidates.append(_extra(config, verifier, word, word))
    return candidates, remarks


def _split(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not equals or not source:
        raise EvaluationError(
            f"--draft {text}: write NAME=SOURCE, where SOURCE is a Hugging Face id, a folder, layers:N, "
            f"{' or '.join(LOOKUPS)}; for example --draft small=Qwen/Qwen2.5-0.5B-Instruct"
        )
    if not _NAME.match(name) or name == "none":
        raise EvaluationError(
            f"--draft {text}: {name!r} is no name for a draft; use small letters, digits, dots and dashes"
        )
    return name, source


def _draft(config: FleetConfig, verifier: Path, name: str, settings: DraftSettings) -> Candidate:
    folder = _resolve(config, f"drafts.{name}.model", settings.model)
    _compatible(config, verifier, name, folder)
    return Candidate(name, "draft", settings.model, folder, settings, configured=True)


def _extra(config: FleetConfig, verifier: Path, name: str, source: str) -> Candidate:
    if source in LOOKUPS:
        return Candidate(name, "lookup", source)
    like = next(iter(config.drafts.values()))  # on the same device and cores as the fleet's own
    layers = _LAYERS.match(source)
    if layers:
        folder = _first_layers(verifier, int(layers[1]))
        settings = like.model_copy(update={"model": str(folder)})
        return Candidate(name, "layers", source, folder, settings)
    if source.startswith("layers"):
        raise EvaluationError(f"--draft {name}={source}: write layers:N, for example layers:8")
    folder = _resolve(config, f"--draft {name}", source)
    _compatible(config, verifier, name, folder)
    return Candidate(name, "draft", source, folder, like.model_copy(update={"model": source}))


def _resolve(config: FleetConfig, where: str, source: str) -> Path:
    base = Path(config.base_folder) if config.base_folder else None
    try:
        return resolve_model(source, base=base)
    except ModelSourceError as error:
        near = difflib.get_close_matches(source, [*LOOKUPS, "layers:8"], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise EvaluationError(f"{where}: {error}{hint}") from error


def _compatible(config: FleetConfig, verifier: Path, name: str, folder: Path) -> None:
    try:
        check_compatible(verifier, folder, max_model_len=config.verifier.max_model_len)
    except IncompatibleDraft as error:
        raise EvaluationError(f"draft {name}: {error}") from error


def _first_layers(verifier: Path, count: int) -> Path:
    """The draft of the verifier's first layers, written once per verifier and count."""
    weights = sorted(verifier.glob("*.safetensors"))
    # A verifier that was trained on lies in the same folder and is another one all the same.
    state = [str(verifier.resolve()), *(f"{file.name}:{file.stat().st_mtime_ns}" for file in weights)]
    digest = hashlib.sha256("\n".join(state).encode()).hexdigest()[:10]
    target = default_cache().parent / "layers" / f"{verifier.name}-{digest}-first-{count}"
    try:
        return build_once(target, lambda folder: write_first_layers(verifier, count, folder))
    except (DraftError, ModelSourceError) as error:
        raise EvaluationError(str(error)) from error
