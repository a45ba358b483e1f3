"""Which texts to have the verifier write, and keeping them as they come."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Protocol

from deployments.distillation.errors import DistillError
from deployments.distillation.progress import Report, Stop
from deployments.distillation.settings import TextSettings
from deployments.distillation.texts import Request, Text, TextStore

#: More answers to the same prompt would hardly be new ones.
MOST_ANSWERS = 16


class Writer(Protocol):
    """A verifier that writes texts."""

    def write(self, requests: Sequence[Request]) -> Generator[tuple[int, Text], None, None]:
        """Write the texts, each given out as soon as it is finished with its place in `requests`."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class Scribe:
    """Has texts written that are not there yet; starts the verifier only when one is missing.

    Args:
        store: where they are kept.
        verifier: a digest of the verifier, part of every key.
        start: starts the writer. It runs until `close`.
        report: told the progress in tokens or texts.
        stop: looked at between texts.
        shard: texts that are kept at once; so many at most are lost when the process is killed.
    """

    def __init__(
        self,
        store: TextStore,
        verifier: str,
        start: Callable[[], Writer],
        report: Report,
        stop: Stop,
        shard: int = 32,
    ) -> None:
        self._store = store
        self._verifier = verifier
        self._start = start
        self._report = report
        self._stop = stop
        self._shard = shard
        self._writer: Writer | None = None

    def close(self) -> None:
        """End the writer, if one was started."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def all_of(self, requests: Sequence[Request], what: str) -> list[Text]:
        """The texts of all requests, in their order; those that are missing are written now.

        Raises:
            NoSpace: the disk is full. What was written before is kept.
            Stopped: somebody wants an end. Likewise.
        """
        keys = [request.key(self._verifier) for request in requests]
        missing = {
            key: request for key, request in zip(keys, requests, strict=True) if key not in self._store
        }
        if missing:
            self._write(list(missing), list(missing.values()), what, len(keys))
        return self._store.get(keys)

    def _write(self, keys: list[str], requests: list[Request], what: str, total: int) -> None:
        done = total - len(requests)
        if self._writer is None:
            self._report(what, done, total, "starting the verifier")
            self._writer = self._start()
            self._stop.check()
        waiting: list[tuple[str, Text]] = []
        try:
            with closing(self._writer.write(requests)) as written:
                for place, text in written:
                    waiting.append((keys[place], text))
                    done += 1
                    self._report(what, done, total, "")
                    if len(waiting) >= self._shard:
                        self._store.add(waiting)
                        waiting = []
                    self._stop.check()
        finally:
            self._store.add(waiting)


def write_training_texts(
    scribe: Scribe, prompts: Sequence[Sequence[int]], settings: TextSettings
) -> list[Text]:
    """Texts to train on: a greedy answer to every prompt, then sampled ones until there are enough tokens.

    Args:
        scribe: has them written.
        prompts: token ids of each prompt.
        settings: how many, how long.

    Returns:
        Always the same texts in the same order for the same prompts and settings, however often it was
        interrupted, on the same machine.

    Raises:
        DistillError: the verifier answers nothing.
    """
    order = training_requests(prompts, settings)
    chosen: list[Text] = []
    tokens = asked = 0
    mean = float(settings.max_tokens)  # rather too few at first than texts that nobody needs
    while tokens < settings.tokens and asked < len(order):
        needed = max(1, math.ceil((settings.tokens - tokens) / mean))
        batch = order[asked : asked + needed]
        asked += len(batch)
        for text in scribe.all_of(batch, "texts"):
            if tokens < settings.tokens and len(text.answer):
                chosen.append(text)
                tokens += len(text.answer)
        if not tokens:
            raise DistillError("the verifier answers every prompt with nothing: check the prompts' format")
        mean = max(1.0, tokens / len(chosen))
    return chosen


def training_requests(prompts: Sequence[Sequence[int]], settings: TextSettings) -> list[Request]:
    """All texts that may be asked for, in the order in which they are wanted."""
    # By content: a file in another order, or one with further prompts, finds the texts that are there.
    ordered = sorted((tuple(prompt) for prompt in prompts), key=lambda ids: _digest(ids))
    return [
        Request(ids, settings.temperature if answer else 0.0, answer, settings.max_tokens, settings.top_k)
        for answer in range(MOST_ANSWERS)
        for ids in ordered
    ]


def held_back_requests(prompts: Sequence[Sequence[int]], settings: TextSettings) -> list[Request]:
    """The greedy answers that are measured on."""
    return [Request(tuple(ids), 0.0, 0, settings.max_tokens, settings.top_k) for ids in prompts]


def _digest(ids: tuple[int, ...]) -> str:
    return hashlib.sha256(repr(ids).encode()).hexdigest()
