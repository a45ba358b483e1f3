"""From a model source in the configuration to a folder on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deployments.models.errors import ModelSourceError
from deployments.models.first_layers import layers_of
from deployments.models.packages import locate_package, prepare_package, prepared_package

PACKAGE_PREFIX = "package:"
#: Either of these makes a folder a model: a Hugging Face checkpoint, or a draft in our own format.
MARKERS = ("config.json", "draft.json")

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?$")
#: What is fetched from the hub: weights, configuration, tokenizer; no other frameworks' weights.
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]

_PROJECT_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """What a model source turned out to be, found without preparing or fetching anything.

    Attributes:
        kind: a folder, a model inside a Python package, or an id on the Hugging Face hub.
        path: the folder (``folder``), the file or folder in the package (``package``), None for the hub.
        detail: the package's name or the hub id; empty for a folder.
    """

    kind: Literal["folder", "package", "hub"]
    path: Path | None
    detail: str = ""


def locate_model(source: str, *, base: Path | None = None) -> ModelLocation:
    """Says where a model source points, cheaply: nothing is downloaded, converted or loaded.

    Args:
        source: ``package:NAME``, a folder, or a Hugging Face id (``org/name``, ``org/name@revision``).
        base: the folder against which a relative path is tried first (the configuration file's).

    Raises:
        ModelSourceError: nothing of that name; the text lists what was tried.
    """
    if layers_of(source) is not None:
        raise ModelSourceError(
            f"{source} is made of the fleet's own verifier: only a draft can be that (drafts.NAME.model)"
        )
    if source.startswith(PACKAGE_PREFIX):
        name = source.removeprefix(PACKAGE_PREFIX)
        return ModelLocation("package", locate_package(name), name)
    tried = _candidates(source, base)
    for folder in tried:
        if folder.is_dir():
            if any((folder / marker).is_file() for marker in MARKERS):
                return ModelLocation("folder", folder)
            raise ModelSourceError(f"{folder} holds no model: neither {' nor '.join(MARKERS)} is in it")
    # "drafts/code" beside a folder "drafts" is a folder that is missing, not somebody's model on the hub.
    meant_here = any(folder.parent.is_dir() for folder in tried)
    if _HUB_ID.match(source) and not meant_here:
        return ModelLocation("hub", None, source)
    raise ModelSourceError(f"no model folder {source!r}; tried " + ", ".join(str(folder) for folder in tried))


def resolve_model(source: str, *, base: Path | None = None, cache: Path | None = None) -> Path:
    """Returns a local folder for a model source, preparing or downloading it when needed.

    Args:
        source: ``package:NAME``, a folder, or a Hugging Face id.
        base: the folder against which a relative path is tried first.
        cache: where packaged models are prepared; the user's cache folder when None.

    Raises:
        ModelSourceError: the source names nothing, or it cannot be prepared or fetched.
    """
    location = locate_model(source, base=base)
    if location.kind == "package":
        return prepare_package(location.detail, cache)
    if location.path is not None:
        return location.path
    return _fetch(location.detail, [str(folder) for folder in _candidates(source, base)])


def ready_folder(source: str, *, base: Path | None = None, cache: Path | None = None) -> Path | None:
    """The folder that `resolve_model` would return, if it is there already; None if work would be needed.

    Raises:
        ModelSourceError: the source names nothing.
    """
    location = locate_model(source, base=base)
    if location.kind == "package":
        return prepared_package(location.detail, cache)
    if location.path is not None:
        return location.path
    try:
        return _snapshot(location.detail, offline=True)
    except (OSError, ValueError):
        return None


def in_hub_cache(hub_id: str) -> bool:
    """Whether a Hugging Face id can be loaded from the local hub cache, without the network."""
    try:
        _snapshot(hub_id, offline=True)
    except (OSError, ValueError):
        return False
    return True


def _candidates(source: str, base: Path | None) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_absolute():
        return [path]
    roots = [base, Path.cwd(), _PROJECT_ROOT]
    return list(dict.fromkeys((root / path).resolve() for root in roots if root is not None))


def _fetch(hub_id: str, tried: list[str]) -> Path:
    try:
        return _snapshot(hub_id, offline=False)
    except (OSError, ValueError) as error:
        # Hub errors are long; the first line names the cause.
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelSourceError(
            f"cannot get {hub_id!r} from the Hugging Face hub ({cause}); nor is it a folder: tried "
            + ", ".join(tried)
            + ". Check the name and the network, or give the path of a local folder"
        ) from error


def _snapshot(hub_id: str, *, offline: bool) -> Path:
    """The snapshot folder of a hub id. Hub and network errors are OSError or ValueError subclasses."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    name, _, revision = hub_id.partition("@")
    try:
        folder = snapshot_download(
            name, revision=revision or None, local_files_only=offline, allow_patterns=_HUB_PATTERNS
        )
    except HfHubHTTPError as error:
        raise OSError(str(error)) from error
    except RuntimeError as error:  # what httpx raises once its client was closed by a failed try
        raise OSError(str(error)) from error
    return Path(folder)
