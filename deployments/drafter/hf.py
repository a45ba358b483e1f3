"""Any Hugging Face causal LM as a draft: its own code, our KV slots behind its cache interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CompressedTensorsConfig,
    DynamicCache,
    PreTrainedModel,
)
from transformers.cache_utils import Cache, DynamicLayer

from deployments.drafter.forward import Head, Row
from deployments.drafter.kv import KVShape, KVSlots
from deployments.drafter.quantise import Int8Linear, quantise_weight
from deployments.drafter.weights import DraftError

#: Rows up to so many tokens share a padded batch; longer ones run alone, or their padding would cost more.
_SHARE = 16


class HfForward:
    """A transformers model on KV slots (see `forward.Forward`)."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        token_ids: Sequence[int] | None,
        vocab_limit: int | None,
        quantise: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Prepare a loaded model.

        Args:
            model: a causal language model with attention layers only.
            token_ids: ids that may be proposed; None is all.
            vocab_limit: ids from here on are never proposed.
            quantise: linear layers in 8 bits (CPU only).
            device: where to run.
            dtype: type of weights, activations and KV.

        Raises:
            DraftError: the model keeps something else than keys and values of equal shape in every layer.
        """
        self.device = device
        self._model = model.eval().requires_grad_(False)
        nn.Module.to(self._model, device=device, dtype=dtype)
        config = model.config.get_text_config()
        self.vocab_size = int(_weight(model.get_input_embeddings()).shape[0])
        self.max_positions = _window(config)
        self.kv, hidden, logits = _probe(self._model, device)
        head = self._model.get_output_embeddings()
        self._base: nn.Module | None = self._model.base_model
        self._head = Head.build(
            _weight(head),
            getattr(head, "bias", None),
            token_ids=token_ids,
            vocab_limit=vocab_limit,
            quantise=quantise,
            device=device,
            dtype=dtype,
        )
        if hidden is None or not torch.equal(head(hidden).argmax(-1), logits.argmax(-1)):
            self._base = None  # this model does more than a linear layer on its last hidden state
            allowed = range(self.vocab_size) if token_ids is None else token_ids
            limit = self.vocab_size if vocab_limit is None else vocab_limit
            self._allowed = torch.tensor([token for token in allowed if token < limit], device=device)
        if quantise:
            _quantise_linears(self._model, skip=head)

    @torch.inference_mode()
    def step(self, slots: KVSlots, rows: Sequence[Row]) -> list[int]:
        """See `forward.Forward.step`."""
        tokens = [-1] * len(rows)
        short = [index for index, row in enumerate(rows) if len(row.tokens) <= _SHARE]
        groups = [short] if short else []
        groups += [[index] for index, row in enumerate(rows) if len(row.tokens) > _SHARE]
        for group in groups:
            # In the order of their slots: neighbours are read as one view, without copying.
            group = sorted(group, key=lambda index: rows[index].slot)
            for index, token in zip(group, self._run(slots, [rows[i] for i in group]), strict=True):
                tokens[index] = token
        return tokens

    @torch.inference_mode()
    def best_after_each(self, slots: KVSlots, row: Row) -> list[int]:
        """See `forward.Forward.best_after_each`."""
        count = len(row.tokens)
        return self._best(slots, _Batch.build([row], self.device), [0] * count, list(range(count)))

    def _run(self, slots: KVSlots, rows: Sequence[Row]) -> list[int]:
        batch = _Batch.build(rows, self.device)
        wanted = [index for index, row in enumerate(rows) if row.predict]
        best = self._best(slots, batch, wanted, [batch.counts[index] - 1 for index in wanted])
        tokens = [-1] * len(rows)
        for index, token in zip(wanted, best, strict=True):
            tokens[index] = token
        return tokens

    def _best(self, slots: KVSlots, batch: _Batch, rows: list[int], places: list[int]) -> list[int]:
        """Run a batch; the likeliest next tokens at the given places of the given rows."""
        inputs = {
            "input_ids": batch.ids,
            "position_ids": batch.positions,
            "attention_mask": batch.mask(self.kv.dtype),
            "cache": SlotCache(slots, batch),
            "use_cache": True,
        }
        if self._base is not None:
            states = self._base(**inputs).last_hidden_state
            return self._head.best(states[rows, places]).tolist() if rows else []
        scores = self._model(**inputs).logits
        return self._allowed[scores[rows, places][:, self._allowed].argmax(-1)].tolist() if rows else []


class _Batch:
    """Rows padded on the right to one length, and where their tokens go."""

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        self.counts = [len(row.tokens) for row in rows]
        self.width = max(self.counts)
        self.total = max(row.start + len(row.tokens) for row in rows)
        self.device = device
        self.slots = [row.slot for row in rows]
        self.starts = torch.tensor([row.start for row in rows], device=device)
        counts = torch.tensor(self.counts, device=device)
        self.ends = counts - 1
        padded = [list(row.tokens) + [0] * (self.width - len(row.tokens)) for row in rows]
        self.ids = torch.tensor(padded, device=device)
        steps = torch.arange(self.width, device=device)
        # Padding repeats the row's last position: it reads what a real token reads and is never NaN.
        self.positions = self.starts[:, None] + torch.minimum(steps, self.ends[:, None])
        self.real = (steps < counts[:, None]).nonzero(as_tuple=True)
        self.slot_ids = torch.tensor(self.slots, device=device)

    @classmethod
    def build(cls, rows: Sequence[Row], device: torch.device) -> _Batch:
        """Lay out rows."""
        return cls(rows, device)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Additive attention mask [rows, 1, width, total]."""
        keys = torch.arange(self.total, device=self.device)
        hidden = keys > self.positions[:, None, :, None]
        return torch.zeros(hidden.shape, dtype=dtype, device=self.device).masked_fill_(
            hidden, torch.finfo(dtype).min
        )


class SlotCache(Cache):
    """What transformers sees of our KV slots during one pass."""

    def __init__(self, slots: KVSlots, batch: _Batch) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._batch = batch
        first, last = batch.slots[0], batch.slots[-1]
        self._run = slice(first, last + 1) if batch.slots == list(range(first, last + 1)) else None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values [rows, heads, width, head_dim]; return all that the rows have."""
        pool, batch = self._slots.layers[layer_idx], self._batch
        row, offset = batch.real
        slot, place = batch.slot_ids[row], batch.positions[row, offset]
        pool[slot, 0, :, place] = key_states[row, :, offset].to(pool.dtype)
        pool[slot, 1, :, place] = value_states[row, :, offset].to(pool.dtype)
        held = pool[self._run] if self._run is not None else pool[batch.slot_ids, :, :, : batch.total]
        return held[:, 0, :, : batch.total], held[:, 1, :, : batch.total]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that the longest row already has."""
        return self._batch.total - self._batch.width

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the keys that `update` returns."""
        return self._batch.total, 0


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def _window(config: Any) -> int | None:
    """Longest context that full attention over the slots is right for."""
    names = (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "sliding_window",
        "attention_chunk_size",
    )
    bounds = [getattr(config, name, None) for name in names]
    return min((bound for bound in bounds if isinstance(bound, int) and bound > 0), default=None)


@torch.inference_mode()
def _probe(model: PreTrainedModel, device: torch.device) -> tuple[KVShape, Tensor | None, Tensor]:
    """Run two tokens: shape of the cache, last hidden states (None if the model has none), logits."""
    name = type(model).__name__
    ids = torch.tensor([[0, 1]], device=device)
    cache = DynamicCache(config=model.config)
    try:
        logits = model(input_ids=ids, cache=cache, use_cache=True).logits
        hidden = getattr(model.base_model(input_ids=ids), "last_hidden_state", None)
    except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise DraftError(f"{name} cannot be a draft: it does not run with a KV cache ({error})") from error
    shapes = set()
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or not _plain(layer):
            raise DraftError(
                f"{name} cannot be a draft: its {type(layer).__name__} is not plain keys and values; "
                "take a model with attention layers only"
            )
        assert layer.keys is not None
        shapes.add((layer.keys.shape[1], layer.keys.shape[3], layer.keys.dtype))
    if len(shapes) != 1:
        raise DraftError(f"{name} cannot be a draft: its layers keep keys and values of different shapes")
    heads, head_dim, dtype = shapes.pop()
    return KVShape(len(cache.layers), heads, head_dim, dtype), hidden, logits


def _plain(layer: DynamicLayer) -> bool:
    keys, values = layer.keys, layer.values
    return keys is not None and values is not None and keys.ndim == 4 and keys.shape == values.shape


class _Int8Module(nn.Module):
    """`Int8Linear` in a place where a model has an `nn.Linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._linear = Int8Linear(*quantise_weight(linear.weight), linear.bias)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Multiply [..., in]."""
        return self._linear(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


def _quantise_linears(model: nn.Module, skip: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child is not skip:
                setattr(module, name, _Int8Module(child))


def load_model(folder: str, dtype: torch.dtype) -> PreTrainedModel:
    """Load a Hugging Face checkpoint folder without network.

    Raises:
        DraftError: transformers cannot read it as a causal LM.
    """
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except Exception as error:  # every kind of broken checkpoint ends here, each with its own type
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise DraftError(f"{folder} cannot be loaded as a causal LM: {cause}") from error


def dequantised(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a checkpoint in compressed-tensors, in float32 under their usual names.

    Args:
        folder: the checkpoint.
        config: its configuration without the quantisation.

    Raises:
        DraftError: transformers cannot read it, or finds no weights for some of the model's tensors.
    """
    try:
        settings = dict(config)
        plain = AutoConfig.for_model(settings.pop("model_type"), **settings)
        with torch.device("meta"):
            wanted = set(AutoModelForCausalLM.from_config(plain).state_dict())
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
            quantization_config=CompressedTensorsConfig(run_compressed=False),
        )
    except Exception as error:  # every kind of broken checkpoint ends here, each with its own type
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise DraftError(f"{folder} cannot be loaded as a quantised causal LM: {cause}") from error
    model, report = loaded
    found = {name: tensor for name, tensor in model.state_dict().items() if name in wanted}
    lost = sorted((wanted - set(found)) | set(report["missing_keys"]))
    if lost:  # transformers would go on with random numbers in their place
        raise DraftError(
            f"{folder}: no weights for {', '.join(lost[:3])}: its quantization_config and its tensors do not "
            "belong together; fetch the checkpoint again, or take an unquantised one"
        )
    return {name: tensor.detach().to(torch.float32) for name, tensor in found.items()}


def build_model(config: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype) -> PreTrainedModel:
    """Build a model from a configuration dictionary and all of its tensors under their usual names.

    Raises:
        DraftError: the architecture is unknown, or tensors are missing or of another shape.
    """
    try:
        settings = dict(config)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
        report = model.load_state_dict(tensors, strict=False)
    except (KeyError, ValueError, RuntimeError) as error:
        raise DraftError(f"the draft's architecture cannot be built: {error}") from error
    if report.missing_keys or report.unexpected_keys:
        raise DraftError(
            f"the draft's weights do not fit its architecture: missing {report.missing_keys[:3]}, "
            f"unexpected {report.unexpected_keys[:3]}"
        )
    return model.to(dtype)
