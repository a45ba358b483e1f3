"""From a model's name to its configuration: a file, a folder, a package, the list here, or the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from cluster.planning.count import count
from cluster.planning.errors import PlanError
from cluster.planning.shape import ModelShape
from deployments.models import (
    LAYERS_PREFIX,
    IncompatibleDraft,
    ModelSourceError,
    layers_of,
    locate_model,
    ready_folder,
)
from deployments.models.first_layers import check_configuration

#: A configuration is a few kilobytes; drafts in our own format list token ids and reach some more.
MAX_BYTES = 8 * 2**20
#: Longest wait for the hub, in seconds.
_FETCH_S = 15.0
#: How many models may stand for one another before it is a circle.
_MOST_ALIASES = 8


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model's shape and where its configuration came from.

    Attributes:
        shape: its size.
        origin: for people: a path, "the hub", "the list of known models".
        own_format: whether it is a draft in our own format, whose head may know only some tokens.
    """

    shape: ModelShape
    origin: str
    own_format: bool = False


def find_model(
    source: str,
    *,
    base: Path | None = None,
    stand_ins: Mapping[str, str] | None = None,
    verifier: str | None = None,
) -> FoundModel:
    """The shape of the model that `source` names. Fetches a ``config.json`` at most, never weights.

    Args:
        source: a configuration file, a model folder, ``package:NAME`` or a Hugging Face id; for drafts also
            ``layers:N``.
        base: folder against which relative paths are tried first.
        stand_ins: model -> what to read instead of it, for those that are not here.
        verifier: the verifier's source, where `source` is a draft's.

    Raises:
        PlanError: no such model, or one that is not modelled; the text says what to do.
    """
    count = _layers(source)
    if count is not None and verifier is not None:
        return _first_layers(count, verifier, base, stand_ins)
    named, source = source, _stand_in(source, stand_ins)
    config, origin = _config(source, named, base)
    like = f" ({source})" if named != source else ""
    return FoundModel(_shape(config, _short(named)), origin + like, _own_format(config))


def _layers(source: str) -> int | None:
    try:
        return layers_of(source)
    except ModelSourceError as error:
        raise PlanError(str(error)) from error


def _first_layers(
    count: int, verifier: str, base: Path | None, stand_ins: Mapping[str, str] | None
) -> FoundModel:
    """The verifier with fewer layers: a drafter of its own holds them, embedding and head included."""
    config, origin = _config(_stand_in(verifier, stand_ins), verifier, base)
    try:
        check_configuration(config, count, origin)
    except IncompatibleDraft as error:
        raise PlanError(str(error)) from error
    cut = {key: value for key, value in config.items() if key != "layer_types"}
    shape = _shape({**cut, "num_hidden_layers": count}, f"{LAYERS_PREFIX}{count}")
    return FoundModel(shape, f"the first {count} layers of {origin}")


def _stand_in(source: str, stand_ins: Mapping[str, str] | None) -> str:
    for _ in range(_MOST_ALIASES):
        if stand_ins is None or source not in stand_ins or stand_ins[source] == source:
            break
        source = stand_ins[source]
    return source


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Models whose configuration is listed here: id -> the entry of ``known_models.yaml``."""
    text = resources.files("cluster.planning").joinpath("known_models.yaml").read_text(encoding="utf-8")
    return {name: entry for entry in yaml.safe_load(text) for name in entry["ids"]}


def _config(source: str, named: str, base: Path | None) -> tuple[Mapping[str, Any], str]:
    path = Path(source).expanduser()
    if path.suffix == ".json" or path.is_file():
        candidates = [path] if path.is_absolute() or base is None else [base / path, path]
        found = next((each for each in candidates if each.is_file()), None)
        if found is None:
            raise PlanError(f"no file {source}", "give the path of a model's config.json")
        return _read_json(found), str(found)
    try:
        location = locate_model(source, base=base)
        folder = ready_folder(source, base=base) if location.kind == "package" else location.path
    except ModelSourceError as error:
        raise PlanError(str(error)) from error
    if location.kind == "package":
        if folder is not None:
            return _read_json(folder / "config.json"), str(folder)
        return _gguf(location.path, source), str(location.path)
    if folder is not None:
        file = folder / ("draft.json" if (folder / "draft.json").is_file() else "config.json")
        return _read_json(file), str(file)
    return _from_hub(location.detail, named)


def _from_hub(hub_id: str, named: str) -> tuple[Mapping[str, Any], str]:
    """The configuration of a hub id: from the hub's cache, then the list here, then the network."""
    import httpx
    import huggingface_hub

    name, _, revision = hub_id.partition("@")
    cached = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision or None)
    if isinstance(cached, str):
        return _read_json(Path(cached)), "the hub's cache"
    entry = known_models().get(name)
    if entry is not None:
        return entry["config"], "the list of known models"
    try:
        return _fetch(name, revision or None), "the hub"
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise PlanError(
            f"the configuration of {hub_id!r} is not here and cannot be fetched: {_cause(error)}",
            f"download its config.json and give --model-config {named}=PATH; for a fine-tune of another "
            f"model name that one: --model-config {named}=meta-llama/Llama-3.2-1B-Instruct. Known without "
            "the network: specfleet plan --list-models",
        ) from error


def _fetch(name: str, revision: str | None) -> Mapping[str, Any]:
    """A hub model's configuration, by one request: the hub client's own download retries for half a minute.

    Raises:
        OSError, ValueError, httpx.HTTPError: no network, no such model, no access, no configuration.
    """
    import httpx
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set")
    url = hf_hub_url(name, "config.json", revision=revision)
    answer = httpx.get(url, headers=build_hf_headers(), timeout=_FETCH_S, follow_redirects=True)
    answer.raise_for_status()
    data = json.loads(answer.text) if len(answer.content) <= MAX_BYTES else None
    if not isinstance(data, dict):
        raise ValueError("its config.json holds no configuration")
    return data


def _cause(error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        match error.response.status_code:
            case 401 | 403:
                return "no access: it does not exist, is private, or has terms to accept (hf auth login)"
            case 404:
                return "it has no config.json"
            case status:
                return f"the hub answered {status}"
    if isinstance(error, httpx.TransportError):
        return f"the hub cannot be reached ({str(error).strip() or type(error).__name__})"
    return str(error).strip() or type(error).__name__


def _own_format(config: Mapping[str, Any]) -> bool:
    return "architecture" in config and "format_version" in config


def _shape(config: Mapping[str, Any], name: str) -> ModelShape:
    if not _own_format(config):
        return count(config, name)
    # A draft in our own format: parts that it shares with the verifier are loaded all the same, and its
    # head may know only the tokens of its domain.
    shape = count(config["architecture"], name)
    ids = config.get("head_token_ids")
    if not ids:
        return shape
    head = shape.hidden * len(ids)
    extra = head if shape.tables == 0 else head - shape.head  # tied: the embedding stays, the head is a copy
    tables = shape.head if shape.tables == 0 else shape.tables
    return replace(shape, head=head, tables=tables, parameters=shape.parameters + extra, vocabulary=len(ids))


def _gguf(path: Path | None, source: str) -> Mapping[str, Any]:
    """The configuration in the header of a GGUF file; its tensors are not read."""
    if path is None or path.suffix != ".gguf":
        raise PlanError(f"{source} holds no configuration that can be read without preparing it")
    from transformers import AutoConfig

    config: dict[str, Any] = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name).to_dict()
    config.pop("quantization_config", None)  # it is served dequantised
    config["dtype"] = "float32"
    return config


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PlanError(f"{path} is larger than {MAX_BYTES >> 20} MiB: not a model's configuration")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise PlanError(f"{path}: line {error.lineno}: not valid JSON: {error.msg}") from error
    if not isinstance(data, dict) or not data:
        raise PlanError(f"{path} holds no model configuration", "is it a model's config.json?")
    return data


def _short(name: str) -> str:
    """A path's last parts are enough for people; ids stay as they are."""
    return str(Path(*Path(name).parts[-2:])) if name.startswith(("/", "~", ".")) else name
