"""Where models come from and whether two of them fit together. Runs on every node."""

from deployments.models.compatibility import check_compatible
from deployments.models.errors import IncompatibleDraft, ModelSourceError
from deployments.models.first_layers import LAYERS_PREFIX, check_first_layers, layers_of
from deployments.models.heads import check_head
from deployments.models.sources import ModelLocation, in_hub_cache, locate_model, ready_folder, resolve_model
from deployments.models.tokenizers import TokenizerContent, read_tokenizer, tokenizer_sha256

__all__ = [
    "LAYERS_PREFIX",
    "IncompatibleDraft",
    "ModelLocation",
    "ModelSourceError",
    "TokenizerContent",
    "check_compatible",
    "check_first_layers",
    "check_head",
    "in_hub_cache",
    "layers_of",
    "locate_model",
    "read_tokenizer",
    "ready_folder",
    "resolve_model",
    "tokenizer_sha256",
]
