"""Which domain a prompt belongs to: sentence embeddings and a logistic regression fitted at start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from router.encoder import Encode

#: The domain of everything that belongs to no other, or that cannot be told.
GENERAL = "general"

#: Inverse strength of the regularisation. Unit vectors and a few dozen examples per domain want a weak one:
#: with scikit-learn's default of 1 the probabilities stay near uniform, and every prompt would look unsure.
_INVERSE_REGULARISATION = 10.0

#: Weight of the system prompt beside what the user wrote. Most system prompts say nothing of the domain, and
#: would blur short questions if they counted in full.
_CONTEXT_WEIGHT = 0.3
#: System prompts are few and come back with every request: their embeddings are kept.
_CONTEXTS_KEPT = 256

#: Longest text that is classified, characters. Enough to tell a domain, and bounded work for any prompt.
MAX_TEXT = 2000
_MAX_CONTEXT = 600
_USER_TURNS = 3


@dataclass(frozen=True, slots=True)
class DomainGuess:
    """What a text seems to be about.

    Attributes:
        domain: The likeliest domain, or `"general"` when unsure.
        probability: Of the likeliest domain, 0 to 1, also when unsure.
        probabilities: Of every domain that has examples; they sum to 1, or are empty when nothing was fitted.
    """

    domain: str
    probability: float
    probabilities: dict[str, float]


class DomainClassifier:
    """Tells domains apart by example prompts.

    Args:
        encode: Texts to unit vectors.
        examples: Domain -> example prompts. Domains without any are never guessed. Examples of `"general"`
            are optional, and help to keep everyday prompts out of the other domains.
        unsure_below: Probability of the likeliest domain under which the guess is `"general"`.

    Raises:
        ValueError: When only one domain has examples: there is nothing to tell it apart from.
    """

    def __init__(
        self, encode: Encode, examples: Mapping[str, Sequence[str]], unsure_below: float = 0.5
    ) -> None:
        self._encode = encode
        self._unsure_below = unsure_below
        self._model: LogisticRegression | None = None
        self._contexts: dict[str, np.ndarray] = {}
        self.domains = tuple(sorted(domain for domain, texts in examples.items() if texts))
        if len(self.domains) == 1:
            raise ValueError(
                f"only domain {self.domains[0]!r} has examples; give examples of at least one other domain "
                f"(of {GENERAL!r}, say), or none at all to send every prompt to the generalist"
            )
        if self.domains:
            texts = [_bounded(text, MAX_TEXT) for domain in self.domains for text in examples[domain]]
            labels = [domain for domain in self.domains for _ in examples[domain]]
            model = LogisticRegression(
                C=_INVERSE_REGULARISATION, class_weight="balanced", max_iter=1000, random_state=0
            )
            self._model = model.fit(encode(texts), labels)

    def classify(self, text: str, context: str = "") -> DomainGuess:
        """Guess the domain of a text. Without a word in either argument the guess is unsure.

        Args:
            text: What the user wrote; `conversation_text` takes it from a chat.
            context: What the operator wrote; `conversation_context` takes it from a chat. Counts for less.
        """
        text, context = text.strip(), context.strip()
        if self._model is None:
            return DomainGuess(GENERAL, 0.0, {})
        if not text and not context:
            return DomainGuess(GENERAL, 0.0, dict.fromkeys(self.domains, 1.0 / len(self.domains)))
        if not context:
            vector = self._encode([_bounded(text, MAX_TEXT)])[0]
        elif not text:
            vector = self._context(context)
        else:
            vector = self._encode([_bounded(text, MAX_TEXT)])[0] + _CONTEXT_WEIGHT * self._context(context)
            vector = vector / max(float(np.linalg.norm(vector)), 1e-9)
        return self._guess(self._model.predict_proba(vector[None, :])[0])

    def _context(self, context: str) -> "np.ndarray":
        context = _bounded(context, _MAX_CONTEXT)
        vector = self._contexts.pop(context, None)
        if vector is None:
            vector = self._encode([context])[0]
            if len(self._contexts) >= _CONTEXTS_KEPT:
                del self._contexts[next(iter(self._contexts))]
        self._contexts[context] = vector  # at the end: the least recently used one is the first
        return vector

    def _guess(self, row: "np.ndarray") -> DomainGuess:
        assert self._model is not None
        probabilities = {str(domain): float(p) for domain, p in zip(self._model.classes_, row, strict=True)}
        likeliest = max(probabilities, key=lambda domain: probabilities[domain])
        probability = probabilities[likeliest]
        sure = probability >= self._unsure_below
        return DomainGuess(likeliest if sure else GENERAL, probability, probabilities)


def conversation_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the user wrote in a chat, bounded to `MAX_TEXT` characters.

    The newest user turn comes first, since encoders cut the end; then the two turns before it (a turn like
    "and in dogs?" means little alone). Answers are left out: the model's own words would keep a conversation
    in the domain it began in.

    Args:
        messages: OpenAI chat messages; `content` is a string, None, or a list of parts of which those with a
            `text` count. Anything else is ignored.
    """
    turns = [text for text in (_content(m) for m in messages if m.get("role") == "user") if text]
    left, kept = MAX_TEXT, []
    for turn in turns[: -_USER_TURNS - 1 : -1]:
        if left > 0:
            kept.append(_bounded(turn, left))
            left -= len(kept[-1]) + 1
    return "\n".join(kept)


def conversation_context(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the operator wrote in a chat: its first system prompt, bounded.

    Args:
        messages: See `conversation_text`.
    """
    for message in messages:
        if message.get("role") in ("system", "developer"):
            text = _content(message)
            if text:
                return _bounded(text, _MAX_CONTEXT)
    return ""


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list | tuple):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


def _bounded(text: str, limit: int) -> str:
    """The beginning and the end of a text: a task often stands before or after the material it is about."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 1]}\n{text[len(text) - tail :]}" if tail else text[:limit]
