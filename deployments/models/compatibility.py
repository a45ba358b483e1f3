"""Whether a draft can propose for a verifier: the same ids must mean the same text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from deployments.models.errors import IncompatibleDraft
from deployments.models.quantisation import check_readable
from deployments.models.tokenizers import TokenizerContent, read_tokenizer

#: The names under which model families write their context length, the commonest first.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")

#: Differing tokens that an error names: enough to see whether it is one added token or another language.
SHOWN_TOKENS: Final = 3


def check_compatible(verifier: Path, draft: Path, *, max_model_len: int | None = None) -> str | None:
    """Checks a draft against its verifier before either is loaded.

    Only files of configuration and tokenizer are read. A padded vocabulary (``vocab_size`` above the
    tokenizer's) is fine on both sides: whoever drafts must not propose the padding ids.

    Args:
        verifier: the verifier's checkpoint folder.
        draft: a Hugging Face checkpoint folder, or a draft in our own format (``draft.json``).
        max_model_len: the verifier's context in tokens, as served; its configuration's when None.

    Returns:
        A warning for people when the draft's context is shorter than the verifier's (requests past it go
        on without its proposals), else None.

    Raises:
        IncompatibleDraft: the tokenizers differ, the draft cannot take every id of the verifier, or its
            weights are quantised in a way that drafters cannot read.
    """
    try:
        wanted = read_tokenizer(verifier)
        verifier_config = _read_json(verifier / "config.json")
        description = _read_json(draft / "draft.json") if (draft / "draft.json").is_file() else None
        if description is None:
            _same_tokenizer(wanted, read_tokenizer(draft), verifier, draft)
            whole_config = _read_json(draft / "config.json")
            check_readable(draft, whole_config)
            draft_config = _text_config(whole_config)
            _takes_every_id(draft, draft_config, wanted)
        else:
            draft_config = description.get("architecture") or {}
            _made_for(verifier, draft, description, wanted, _text_config(verifier_config))
    except (OSError, ValueError) as error:
        if isinstance(error, IncompatibleDraft):
            raise
        raise IncompatibleDraft(
            f"draft {draft} cannot be compared with verifier {verifier}: {error}"
        ) from error

    served = max_model_len or _context(_text_config(verifier_config))
    own = _context(draft_config)
    if served is not None and own is not None and own < served:
        return (
            f"draft {draft.name} knows {own} tokens of context and the verifier serves {served}: "
            f"requests longer than {own} tokens go on without its proposals"
        )
    return None


def _same_tokenizer(ours: TokenizerContent, theirs: TokenizerContent, verifier: Path, draft: Path) -> None:
    difference = _difference(ours, theirs)
    if difference is not None:
        raise IncompatibleDraft(
            f"draft {draft} has another tokenizer than verifier {verifier}: {difference}. A draft proposes "
            "token ids and the verifier checks ids, so the same id has to be the same text for both. Use a "
            "draft of the verifier's own family, or make one with `specfleet distill`"
        )


def _difference(ours: TokenizerContent, theirs: TokenizerContent) -> str | None:
    """The first difference that a person can act on, or None."""
    kinds = f"the verifier's is {ours.kind}, the draft's {theirs.kind}" if ours.kind != theirs.kind else ""
    if ours.tokens != theirs.tokens:
        ids = ours.tokens.keys() | theirs.tokens.keys()
        differing = sorted(index for index in ids if ours.tokens.get(index) != theirs.tokens.get(index))
        shown = ", ".join(
            f"{index} ({_text(ours, index)} for the verifier, {_text(theirs, index)} for the draft)"
            for index in differing[:SHOWN_TOKENS]
        )
        more = f"{len(differing)} of {len(ids)} token ids differ, such as {shown}"
        return f"{kinds}; {more}" if kinds else more
    if kinds:
        return kinds
    if ours.merges != theirs.merges:
        return "the same tokens, but other merges, so that texts are split differently"
    return None


def _text(tokenizer: TokenizerContent, index: int) -> str:
    text = tokenizer.tokens.get(index)
    return "nothing" if text is None else repr(text)


def _takes_every_id(draft: Path, config: dict[str, Any], wanted: TokenizerContent) -> None:
    rows = config.get("vocab_size")
    if isinstance(rows, int) and rows < wanted.size:
        raise IncompatibleDraft(
            f"draft {draft} has an embedding of {rows} rows, but token ids up to {wanted.size - 1}: "
            "the checkpoint was resized; take one whose vocab_size covers the tokenizer"
        )


def _made_for(
    verifier: Path,
    draft: Path,
    description: dict[str, Any],
    wanted: TokenizerContent,
    verifier_config: dict[str, Any],
) -> None:
    """Checks a draft of our own format, which borrows the verifier's tokenizer, embedding or head."""
    carried = description.get("tokenizer_sha256")
    if carried != wanted.sha256():
        raise IncompatibleDraft(
            f"draft {draft} was made for the tokenizer of {description.get('verifier', 'another verifier')} "
            f"(sha256 {str(carried)[:12]}), and {verifier} has another one (sha256 {wanted.sha256()[:12]}): "
            "take the draft that was trained for this verifier"
        )
    config = description.get("architecture") or {}
    if description.get("shares") and config.get("hidden_size") != verifier_config.get("hidden_size"):
        raise IncompatibleDraft(
            f"draft {draft} shares the verifier's {' and '.join(description['shares'])}, but its hidden "
            f"size is {config.get('hidden_size')} and the verifier's, {verifier}, is "
            f"{verifier_config.get('hidden_size')}"
        )
    head = description.get("head_token_ids") or []
    if head and not (min(head) >= 0 and max(head) < wanted.size):
        raise IncompatibleDraft(
            f"draft {draft} lists head token ids outside 0..{wanted.size - 1}, the verifier's own: "
            "its draft.json is damaged or was made for another verifier"
        )


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Multimodal checkpoints keep the language model's figures one level down."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) and "vocab_size" not in config else config


def _context(config: dict[str, Any]) -> int | None:
    values = (config.get(key) for key in _CONTEXT_KEYS)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return data
