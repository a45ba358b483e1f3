"""What `specfleet check` finds about models: whether they are there, and whether they fit the verifier."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from cluster.config import FleetConfig
from cluster.problems import Problem
from cluster.yaml_source import KeyPath, dotted
from deployments.models import (
    IncompatibleDraft,
    ModelSourceError,
    check_compatible,
    check_first_layers,
    check_head,
    in_hub_cache,
    layers_of,
    locate_model,
    ready_folder,
)
from deployments.verifier.methods import METHODS


def check_models(config: FleetConfig) -> list[Problem]:
    """Checks the configuration's models as far as their files are here; nothing is loaded."""
    return [*_models(config), *_compatibility(config), *_proposer(config)]


def _models(config: FleetConfig) -> Iterator[Problem]:
    base = Path(config.base_folder) if config.base_folder else None
    sources: list[tuple[KeyPath, str]] = [(("verifier", "model"), config.verifier.model)]
    sources += [(("drafts", name, "model"), draft.model) for name, draft in config.drafts.items()]
    if config.verifier.proposer is None:
        sources.append((("encoder",), config.encoder))
    elif config.verifier.proposer.model is not None:
        sources.append((("verifier", "proposer", "model"), config.verifier.proposer.model))
    for path, source in sources:
        try:
            if path[0] == "drafts" and layers_of(source) is not None:
                continue  # made of the verifier
            location = locate_model(source, base=base)
        except ModelSourceError as error:
            yield Problem(dotted(path), str(error))
            continue
        if location.kind == "hub" and not in_hub_cache(location.detail):
            yield Problem(
                dotted(path),
                f"{source} is no folder here: the first start fetches it from the Hugging Face hub",
                severity="warning",
            )


def _compatibility(config: FleetConfig) -> Iterator[Problem]:
    """Compares drafts with the verifier as far as their files are here; replicas check again at load."""
    base = Path(config.base_folder) if config.base_folder else None
    verifier = _folder(config.verifier.model, base)
    if verifier is None:
        return
    for name, draft in config.drafts.items():
        where = dotted(("drafts", name, "model"))
        try:
            warning = _fits(draft.model, base, verifier, config.verifier.max_model_len)
        except IncompatibleDraft as error:
            yield Problem(where, str(error))
            continue
        if warning is not None:
            yield Problem(where, warning, severity="warning")


def _proposer(config: FleetConfig) -> Iterator[Problem]:
    """Compares a head with the verifier, and looks for packages that vLLM does not bring along."""
    proposer = config.verifier.proposer
    if proposer is None:
        return
    package = METHODS[proposer.method].package
    if package is not None and find_spec(package[0]) is None:
        yield Problem(
            "verifier.proposer.method",
            f"vLLM's {proposer.method} needs a package that is not installed here",
            f"pip install {package[1]}",
            severity="error" if config.nodes is None else "warning",
        )
    base = Path(config.base_folder) if config.base_folder else None
    verifier = _folder(config.verifier.model, base)
    head = _folder(proposer.model, base) if proposer.model is not None else None
    if verifier is None or head is None:
        return
    try:
        check_head(
            verifier,
            head,
            proposer.method,
            proposer.num_speculative_tokens,
            other_vocabulary=proposer.maps_vocabularies,
        )
    except IncompatibleDraft as error:
        yield Problem("verifier.proposer.model", str(error))


def _fits(source: str, base: Path | None, verifier: Path, max_model_len: int | None) -> str | None:
    """Compares one draft; returns a warning, or None when it is right or not here yet."""
    try:
        count = layers_of(source)
    except ModelSourceError:
        return None  # said already
    if count is not None:
        check_first_layers(verifier, count)
        return None
    folder = _folder(source, base)
    return None if folder is None else check_compatible(verifier, folder, max_model_len=max_model_len)


def _folder(source: str, base: Path | None) -> Path | None:
    try:
        return ready_folder(source, base=base)
    except ModelSourceError:
        return None  # said already
