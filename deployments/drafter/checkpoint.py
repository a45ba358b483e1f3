"""Loading drafts: our own format (`draft.json`) or any Hugging Face checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from deployments.drafter.forward import Forward, Head
from deployments.drafter.llama import LlamaConfig, LlamaForward
from deployments.drafter.weights import Checkpoint, DraftError, Weight, dtype_of
from deployments.models import IncompatibleDraft
from deployments.models.first_layers import first_layers_tensors
from deployments.models.quantisation import check_readable, quantisation_of
from deployments.models.tokenizers import read_tokenizer

FORMAT_VERSION = 1
DESCRIPTION_FILE = "draft.json"
WEIGHTS_FILE = "model.safetensors"
Backend = Literal["auto", "own", "transformers"]


class DraftDescription(BaseModel):
    """The contents of `draft.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = Field(description="Version of this format.")
    name: str = Field(min_length=1, description="The draft's name.")
    architecture: dict[str, Any] = Field(description="Hugging Face configuration of the small model.")
    shares: list[Literal["embedding", "head", "layers"]] = Field(
        description="What is not stored here but read from the verifier's checkpoint; layers: the first "
        "ones, and the norm after the last."
    )
    head_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, description="Token ids that the draft may propose, ascending; null is all."
    )
    quantisation: Literal["none", "int8"] = Field(description="How linear layers are stored.")
    initialised_from_layers: list[int] = Field(
        default_factory=list, description="Layers of the verifier that training started from."
    )
    verifier: str = Field(min_length=1, description="Name of the verifier it was made for.")
    tokenizer_sha256: str = Field(
        min_length=64, max_length=64, description="Digest of the verifier's tokenizer."
    )
    measured: Any = Field(default=None, description="What was measured, with how.")


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft that is ready to run."""

    name: str
    forward: Forward
    backend: Literal["own", "transformers"]


def load_draft(
    folder: Path,
    verifier: Path,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantise: bool = True,
    backend: Backend = "auto",
) -> LoadedDraft:
    """Load a draft.

    Of the verifier only the tensors that the draft shares are read. Padding of the vocabulary, ids from the
    size of the verifier's tokenizer on, is never proposed.

    Args:
        folder: the draft, in our own format or a Hugging Face checkpoint.
        verifier: the verifier's checkpoint folder.
        device: `cpu`, `cuda`, or another torch device.
        dtype: `auto` or the name of a torch type.
        quantise: linear layers in 8 bits; only on CPUs, ignored elsewhere.
        backend: `own` for our Llama code, `transformers` for theirs, `auto` for ours where possible.

    Raises:
        DraftError: it cannot be loaded; the text says why.
    """
    place = _Place(torch.device(device), dtype_of(dtype, torch.device(device)), quantise)
    limit = vocabulary_size(verifier)
    if (folder / DESCRIPTION_FILE).is_file():
        description = read_description(folder)
        return _load_own_format(folder, verifier, description, place, limit, backend)
    config = _read_config(folder)
    sizes = LlamaConfig.read(config) if backend != "transformers" else None
    if sizes is None and backend == "own":
        raise DraftError(f"{folder} is no plain Llama: only transformers can run it")
    if quantisation_of(config) is not None:
        return _load_quantised(folder, config, sizes, place, limit)
    if sizes is not None:
        checkpoint = Checkpoint(folder)
        forward = _own(
            sizes, checkpoint.weights(), checkpoint.embedding(), checkpoint.head(), place, limit, None
        )
        return LoadedDraft(folder.name, forward, "own")
    from deployments.drafter.hf import load_model  # transformers takes seconds to import: only where needed

    return LoadedDraft(
        folder.name, _theirs(load_model(str(folder), place.dtype), place, limit, None), "transformers"
    )


def read_description(folder: Path) -> DraftDescription:
    """Read and check `draft.json`.

    Raises:
        DraftError: it is missing or not valid.
    """
    path = folder / DESCRIPTION_FILE
    try:
        return DraftDescription.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DraftError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DraftError(
            f"{path} is not a draft of format {FORMAT_VERSION}: {where}: {first['msg']}"
        ) from error


def vocabulary_size(verifier: Path) -> int | None:
    """One more than the largest token id of the verifier's tokenizer; None when it has no tokenizer."""
    try:
        return read_tokenizer(verifier).size
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Place:
    device: torch.device
    dtype: torch.dtype
    wants_int8: bool

    @property
    def quantise(self) -> bool:
        return self.wants_int8 and self.device.type == "cpu" and self.dtype == torch.float32


def _load_quantised(
    folder: Path, config: dict[str, Any], sizes: LlamaConfig | None, place: _Place, limit: int | None
) -> LoadedDraft:
    """Load a checkpoint that was published quantised: made plain first, then treated as any other."""
    try:
        check_readable(folder, config)
    except IncompatibleDraft as error:
        raise DraftError(str(error)) from error
    from deployments.drafter.hf import build_model, dequantised

    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    tensors = dequantised(folder, plain)
    if sizes is None:
        model = build_model(plain, tensors, place.dtype)
        return LoadedDraft(folder.name, _theirs(model, place, limit, None), "transformers")
    weights = {name: Weight(tensor) for name, tensor in tensors.items()}
    embedding = _shared_or(None, "embedding", weights)
    head = _shared_or(None, "head", weights)
    return LoadedDraft(folder.name, _own(sizes, weights, embedding, head, place, limit, None), "own")


def _load_own_format(
    folder: Path,
    verifier: Path,
    description: DraftDescription,
    place: _Place,
    limit: int | None,
    backend: Backend,
) -> LoadedDraft:
    config = description.architecture
    shared = Checkpoint(verifier) if description.shares else None
    weights = (
        _first_layers(shared, int(config["num_hidden_layers"]))
        if shared is not None and "layers" in description.shares
        else Checkpoint(folder).weights()
    )
    embedding = _shared_or(shared if "embedding" in description.shares else None, "embedding", weights)
    head = _shared_or(shared if "head" in description.shares else None, "head", weights)
    if embedding.shape[1] != config.get("hidden_size"):
        raise DraftError(
            f"draft {folder} has hidden size {config.get('hidden_size')}, "
            f"the embedding it shares {embedding.shape[1]}: it was made for {description.verifier}, "
            f"not for {verifier}"
        )
    sizes = LlamaConfig.read(config) if backend != "transformers" else None
    ids = description.head_token_ids
    try:
        if sizes is not None:
            return LoadedDraft(
                description.name, _own(sizes, weights, embedding, head, place, limit, ids), "own"
            )
        if backend == "own":
            raise DraftError(f"{folder} is no plain Llama: only transformers can run it")
        from deployments.drafter.hf import build_model

        tensors = {name: weight.float() for name, weight in weights.items()}
        tensors |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
        model = build_model(config, tensors, place.dtype)
        return LoadedDraft(description.name, _theirs(model, place, limit, ids), "transformers")
    except KeyError as error:
        raise DraftError(f"{folder / WEIGHTS_FILE} lacks the tensor {error}") from error


def _first_layers(verifier: Checkpoint, count: int) -> dict[str, Weight]:
    """The verifier's own first layers and its last norm, mapped from its files."""
    try:
        names = first_layers_tensors(verifier.names, count, verifier.folder)
    except IncompatibleDraft as error:
        raise DraftError(str(error)) from error
    return {name: Weight(verifier.tensor(name)) for name in names}


def _shared_or(
    shared: Checkpoint | None, what: Literal["embedding", "head"], weights: dict[str, Weight]
) -> Tensor:
    if shared is not None:
        return shared.embedding() if what == "embedding" else shared.head()
    names = (
        ["model.embed_tokens.weight"]
        if what == "embedding"
        else ["lm_head.weight", "model.embed_tokens.weight"]
    )
    for name in names:
        if name in weights:
            return weights[name].float()
    raise DraftError(f"the draft neither shares nor stores its {what}")


def _own(
    sizes: LlamaConfig,
    weights: dict[str, Weight],
    embedding: Tensor,
    head: Tensor,
    place: _Place,
    limit: int | None,
    token_ids: Sequence[int] | None,
) -> LlamaForward:
    built = _head(head, place, limit, token_ids)
    return LlamaForward(
        sizes, weights, embedding, built, quantise=place.quantise, device=place.device, dtype=place.dtype
    )


def _theirs(model: Any, place: _Place, limit: int | None, token_ids: Sequence[int] | None) -> Forward:
    from deployments.drafter.hf import HfForward

    return HfForward(
        model,
        token_ids=token_ids,
        vocab_limit=limit,
        quantise=place.quantise,
        device=place.device,
        dtype=place.dtype,
    )


def _head(weight: Tensor, place: _Place, limit: int | None, token_ids: Sequence[int] | None) -> Head:
    try:
        return Head.build(
            weight,
            None,
            token_ids=token_ids,
            vocab_limit=limit,
            quantise=place.quantise,
            device=place.device,
            dtype=place.dtype,
        )
    except ValueError as error:
        raise DraftError(str(error)) from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DraftError(
            f"{folder} is neither a draft (no {DESCRIPTION_FILE}) nor a Hugging Face checkpoint: {error}"
        ) from error
    if not isinstance(config, dict):
        raise DraftError(f"{path} does not hold a JSON object")
    return config
