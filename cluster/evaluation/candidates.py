"""Who may propose: the configuration's drafts, further ones, the verifier's layers, looked-up text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cluster.config import FleetConfig
from deployments.drafter.layers import resolve_draft
from deployments.drafter.settings import QUANTISATIONS, DraftSettings
from deployments.evaluation.lookup import NgramSource, Source, SuffixSource
from deployments.models import (
    IncompatibleDraft,
    ModelSourceError,
    check_compatible,
    layers_of,
)
from deployments.models.first_layers import count_layers

Kind = Literal["draft", "layers", "lookup"]

#: Sources that need no model, by the word that names them.
LOOKUPS: Final[Mapping[str, Callable[[], Source]]] = {"ngram": NgramSource, "suffix": SuffixSource}

#: A draft in other numbers than the configuration's first: `,quantise=none` after the source.
_QUANTISE: Final = re.compile(r"^(?P<source>.+),quantise=(?P<how>[^,]*)$")
#: What a candidate may be called: the same as a draft in a configuration.
NAME: Final = re.compile(r"^[a-z0-9][a-z0-9_.-]{0,62}$")
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
        extra: further candidates, each `NAME=SOURCE` or `NAME=SOURCE,quantise=none`.
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
        except (IncompatibleDraft, EvaluationError) as error:
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
            f"{' or '.join(LOOKUPS)}; for example --draft small=Qwen/Qwen2.5-0.5B-Instruct. A model may end "
            "in ,quantise=none or ,quantise=int8"
        )
    if not NAME.match(name) or name == "none":
        raise EvaluationError(
            f"--draft {text}: {name!r} is no name for a draft; use small letters, digits, dots and dashes"
        )
    return name, source


def _draft(config: FleetConfig, verifier: Path, name: str, settings: DraftSettings) -> Candidate:
    kind, folder = _resolve(config, verifier, f"drafts.{name}.model", name, settings.model)
    return Candidate(name, kind, settings.model, folder, settings, configured=True)


def _extra(config: FleetConfig, verifier: Path, name: str, source: str) -> Candidate:
    if source in LOOKUPS:
        return Candidate(name, "lookup", source)
    like = next(iter(config.drafts.values()))  # on the same device and cores as the fleet's own
    changed: dict[str, str] = {}
    if found := _QUANTISE.match(source):
        changed["quantise"] = _quantise(name, source, found["how"], like)
    model = found["source"] if found else source
    kind, folder = _resolve(config, verifier, f"--draft {name}={source}", name, model)
    return Candidate(name, kind, source, folder, like.model_copy(update={"model": model, **changed}))


def _quantise(name: str, source: str, how: str, like: DraftSettings) -> str:
    if how not in QUANTISATIONS:
        raise EvaluationError(f"--draft {name}={source}: quantise is {' or '.join(QUANTISATIONS)}")
    if how == "int8" and not like.runs_int8(how):
        raise EvaluationError(
            f"--draft {name}={source}: 8 bits are for float32 on CPUs; drafts on GPUs run in their dtype"
        )
    return how


def _resolve(
    config: FleetConfig, verifier: Path, where: str, name: str, source: str
) -> tuple[Literal["draft", "layers"], Path]:
    """The folder of a draft that fits the verifier."""
    base = Path(config.base_folder) if config.base_folder else None
    try:
        kind: Literal["draft", "layers"] = "draft" if layers_of(source) is None else "layers"
        folder = resolve_draft(source, verifier, base=base)
        if kind == "draft":
            check_compatible(verifier, folder, max_model_len=config.verifier.max_model_len)
    except ModelSourceError as error:
        near = difflib.get_close_matches(source, [*LOOKUPS, "layers:8"], n=1)
        hint = f"; did you mean {near[0]}?" if near and not source.startswith("layers") else ""
        raise EvaluationError(f"{where}: {error}{hint}") from error
    except IncompatibleDraft as error:
        raise EvaluationError(f"draft {name}: {error}") from error
    return kind, folder
