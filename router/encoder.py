"""The sentence encoder that domains are told apart with."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

#: Turns n texts into an array of n unit vectors, float32 [n, width].
Encode = Callable[[list[str]], "np.ndarray"]

#: Tokens of a text that are read: what it is about shows early, and the cost grows with the length.
_READ_TOKENS = 128


def load_encoder(path: Path) -> Encode:
    """Load a sentence-transformers model from a local folder, on the CPU.

    The encoder shares its cores with a verifier that needs them more, so while it encodes it uses one thread.

    Args:
        path: Folder with `modules.json`.

    Raises:
        FileNotFoundError: When the folder holds no sentence-transformers model.
    """
    if not (path / "modules.json").is_file():
        raise FileNotFoundError(
            f"{path} holds no sentence encoder (modules.json is missing); point `encoder` at a folder "
            "saved by sentence-transformers, or leave it out for the packaged one"
        )
    import torch  # imported here: the rest of the router must load without it
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(path), device="cpu", local_files_only=True)
    model.max_seq_length = min(int(model.max_seq_length or _READ_TOKENS), _READ_TOKENS)

    def encode(texts: list[str]) -> "np.ndarray":
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return model.encode(
                texts,
                batch_size=16,
                normalize_embeddings=True,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
        finally:
            torch.set_num_threads(threads)

    return encode
