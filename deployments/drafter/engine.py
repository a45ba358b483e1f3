"""The draft engine: catch up with what the verifier decided, answer with what would come next."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from deployments.drafter.forward import Forward, Row
from deployments.drafter.kv import KVSlots, slots_within
from deployments.drafter.sessions import Session, SessionTable

State = Literal["ok", "resync", "too_long", "busy"]

#: A session asked for within so many seconds is not evicted for another one.
SPARE_S = 1.0


@dataclass(frozen=True, slots=True)
class Ask:
    """The context of `session` is the first `base` tokens already known, then `tokens`; draft `length` more.

    A `length` of 0 only catches up.
    """

    session: Hashable
    base: int
    tokens: Sequence[int]
    length: int

    @property
    def position(self) -> int:
        """Length of the context."""
        return self.base + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Answer:
    """`tokens` continue the context of length `position`.

    States: "ok" (no tokens while a long prompt is still being computed); "resync", less is known than `base`;
    "too_long", the context is past the draft's window; "busy", no room for another session now.
    """

    session: Hashable
    tokens: list[int]
    position: int
    state: State


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of one engine.

    Attributes:
        max_sessions: most sessions at once.
        max_context: longest context in tokens; None is the model's own.
        kv_memory_mib: most memory for KV in MiB; the number of sessions follows from it.
        prefill_chunk: tokens computed in one forward pass before others get their turn again.
        max_length: most tokens drafted per ask.
        spare_s: a session used within so many seconds is not evicted.
    """

    max_sessions: int = 64
    max_context: int | None = None
    kv_memory_mib: int = 512
    prefill_chunk: int = 128
    max_length: int = 64
    spare_s: float = SPARE_S


@dataclass(slots=True)
class EngineCounts:
    """What an engine has done since it was built."""

    turns: int = 0
    drafted: int = 0
    computed: int = 0
    reused: int = 0
    resyncs: int = 0
    too_long: int = 0
    busy: int = 0


@dataclass(slots=True)
class _Work:
    """One ask that can be served in this turn."""

    ask: Ask
    session: Session
    drafted: list[int] = field(default_factory=list)


class DraftEngine:
    """Batched greedy drafting over KV slots. Not thread-safe: one thread owns it.

    Everything a caller may repeat, lose or reorder is harmless: an ask says in full where it stands, and what
    does not fit is answered with "resync".
    """

    def __init__(
        self,
        forward: Forward,
        limits: EngineLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allocate the KV slots.

        Args:
            forward: the model.
            limits: bounds; the defaults suit a small draft on a CPU.
            clock: seconds, only differences matter.

        Raises:
            ValueError: not even one session fits into the memory given.
        """
        self._limits = limits or EngineLimits()
        self._forward = forward
        self._clock = clock
        bounds = [forward.max_positions, self._limits.max_context]
        self._window = min((bound for bound in bounds if bound is not None), default=4096)
        count = slots_within(forward.kv, self._window, self._limits.max_sessions, self._limits.kv_memory_mib)
        self._slots = KVSlots(forward.kv, count, self._window, forward.device)
        self._sessions = SessionTable(self._slots, self._limits.spare_s)
        self.counts = EngineCounts()

    def __len__(self) -> int:
        """Sessions held."""
        return len(self._sessions)

    @property
    def window(self) -> int:
        """Longest context, drafted tokens included."""
        return self._window

    @property
    def capacity(self) -> int:
        """Most sessions held at once."""
        return self._slots.count

    @property
    def evictions(self) -> int:
        """Sessions that had to make room for others."""
        return self._sessions.evictions

    @property
    def behind(self) -> bool:
        """Whether `advance` has something to do: a long prompt is not computed yet."""
        return bool(self._sessions.behind())

    def propose(self, asks: Sequence[Ask]) -> list[Answer]:
        """One turn: catch up with every ask's context, then draft for those that want it.

        A prompt of more than a chunk is answered "ok" without tokens and computed by `advance`, so that the
        others are not held up.

        Args:
            asks: what is wanted; of several asks for one session the last one counts and answers them all.

        Returns:
            One answer per session asked for, in the order of their last asks.
        """
        self.counts.turns += 1
        latest = {ask.session: ask for ask in asks}
        works: list[_Work] = []
        answers: dict[Hashable, Answer] = {}
        for ask in latest.values():
            accepted = self._accept(ask)
            if isinstance(accepted, _Work):
                works.append(accepted)
                answers[ask.session] = Answer(ask.session, accepted.drafted, ask.position, "ok")
            else:
                answers[ask.session] = Answer(ask.session, [], ask.position, accepted)
        self._answer(self._catch_up(works))
        return [answers[session] for session in latest]

    def advance(self) -> bool:
        """Compute one chunk of the prompts that are behind; False when none is left."""
        behind = self._sessions.behind()
        if not behind:
            return False
        rows: list[tuple[Session, int]] = []
        room = self._limits.prefill_chunk
        for session in behind:
            if room == 0:
                break
            count = min(room, session.missing)
            room -= count
            rows.append((session, count))
        self._compute(rows, predict=False)
        return any(session.missing for session in behind)

    def follow(self, text: Sequence[int], start: int) -> list[int]:
        """What would be proposed first after each prefix of a text that is known already: teacher forcing.

        As long as proposals are accepted, a draft's context is the text itself. So one pass over the text
        says for every place how far a proposal made there would have been right.

        Args:
            text: token ids, prompt and answer.
            start: length of the shortest prefix, at least 1.

        Returns:
            The token proposed after text[:start], text[:start + 1], ... text[:-1]: one per token from
            `start` on, but none for prefixes as long as the draft's window or longer.

        Raises:
            ValueError: the text has ids that the draft cannot read, or every slot is held by a session.
        """
        if start < 1 or not all(0 <= token < self._forward.vocab_size for token in text):
            raise ValueError(
                f"the text has token ids outside 0..{self._forward.vocab_size - 1}, or no prompt"
            )
        slot = self._slots.take()
        if slot is None:
            raise ValueError("all KV slots are held by sessions: close some before scoring texts")
        best: list[int] = []
        try:
            known = text[: min(len(text), self._window) - 1]
            for begin in range(0, len(known), self._limits.prefill_chunk):
                row = Row(slot, begin, known[begin : begin + self._limits.prefill_chunk], True)
                best += self._forward.best_after_each(self._slots, row)
        finally:
            self._slots.give_back(slot)
        return best[start - 1 :]

    def close(self, session: Hashable) -> bool:
        """Forget a session and free its KV; False if it was not known (closed or evicted before)."""
        return self._sessions.close(session)

    def close_all(self, sessions: Collection[Hashable] | None = None) -> int:
        """Forget the given sessions, or all; returns how many were known."""
        return sum(self.close(session) for session in list(self._sessions if sessions is None else sessions))

    def _accept(self, ask: Ask) -> _Work | Literal["resync", "too_long", "busy"]:
        """Bring a session's text up to date; what stands in the way, if anything does."""
        if ask.base < 0 or not all(0 <= token < self._forward.vocab_size for token in ask.tokens):
            self._sessions.close(ask.session)
            self.counts.resyncs += 1
            return "resync"
        if ask.position > self._window:
            self._sessions.close(ask.session)
            self.counts.too_long += 1
            return "too_long"
        session = self._sessions.get(ask.session)
        if ask.base > (len(session.context) if session is not None else 0) or not ask.position:
            self.counts.resyncs += 1
            return "resync"
        now = self._clock()
        if session is None:
            session = self._sessions.open(ask.session, now, self.counts.turns)
            if session is None:
                self.counts.busy += 1
                return "busy"
        else:
            self._sessions.touch(ask.session, now, self.counts.turns)
        session.follow(ask.base, list(ask.tokens))
        self.counts.reused += len(session.cached) - min(ask.base, len(session.cached))
        return _Work(ask, session)

    def _catch_up(self, works: Sequence[_Work]) -> list[_Work]:
        """Compute the contexts of one pass, shortest first; returns the works that now have a first token."""
        rows: list[tuple[Session, int]] = []
        ready: list[_Work] = []
        room = self._limits.prefill_chunk
        for work in sorted(works, key=lambda work: work.session.missing):
            session, wants = work.session, min(work.ask.length, self._limits.max_length)
            if wants and not session.missing:
                del session.cached[-1:]  # the last token again: its output is what is asked for
            if not session.missing:
                continue
            # Rows of a few tokens always go: only prompts are long enough to hold others up.
            if session.missing > room and session.missing > _ALWAYS:
                break
            room = max(0, room - session.missing)
            rows.append((session, session.missing))
            ready.append(work)
        wanted = [min(work.ask.length, self._window - work.ask.position) > 0 for work in ready]
        firsts = self._compute(rows, predict=wanted)
        for work, first, want in zip(ready, firsts, wanted, strict=True):
            if want:
                work.drafted.append(first)
        return [work for work, want in zip(ready, wanted, strict=True) if want]

    def _answer(self, works: Sequence[_Work]) -> None:
        """Draft on, one token per pass and session, until all have the length they want."""
        self.counts.drafted += len(works)
        while True:
            works = [work for work in works if len(work.drafted) < self._most(work.ask)]
            if not works:
                return
            rows = [Row(w.session.slot, len(w.session.cached), w.drafted[-1:], True) for w in works]
            for work, token in zip(works, self._forward.step(self._slots, rows), strict=True):
                work.session.cached.append(work.drafted[-1])
                work.drafted.append(token)
            self.counts.drafted += len(works)

    def _most(self, ask: Ask) -> int:
        return min(ask.length, self._limits.max_length, self._window - ask.position)

    def _compute(self, rows: Sequence[tuple[Session, int]], predict: bool | Sequence[bool]) -> list[int]:
        """Compute the next `count` context tokens of each session."""
        if not rows:
            return []
        wanted = [predict] * len(rows) if isinstance(predict, bool) else predict
        batch = [
            Row(session.slot, len(session.cached), session.context[len(session.cached) :][:count], want)
            for (session, count), want in zip(rows, wanted, strict=True)
        ]
        tokens = self._forward.step(self._slots, batch)
        for (session, _), row in zip(rows, batch, strict=True):
            session.cached.extend(row.tokens)
        self.counts.computed += sum(len(row.tokens) for row in batch)
        return tokens


#: Missing tokens up to which a session takes part in a turn whatever the chunk's room.
_ALWAYS = 16
