"""What the engine remembers of each session, and which one has to go when there is no room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from deployments.drafter.kv import KVSlots


@dataclass(slots=True)
class Session:
    """One request's text, as far as its verifier has told, and what of it is computed.

    Attributes:
        slot: its KV slot.
        context: verified token ids.
        cached: token ids whose KV the slot holds: a prefix of the context, or the context and drafted tokens.
        used: time of the last ask, in seconds of the engine's clock.
        turn: number of the last turn that asked.
    """

    slot: int
    context: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    used: float = 0.0
    turn: int = 0

    def follow(self, base: int, tokens: list[int]) -> None:
        """Make the context its first `base` tokens and `tokens`; keep all KV that still belongs to it.

        `base` must not exceed the context. KV that was computed while drafting stays where the verifier took
        the drafted tokens; the rest is rolled back by forgetting it.
        """
        agreed = min(base, len(self.cached))
        del self.context[base:]
        self.context.extend(tokens)
        most = min(len(self.cached), len(self.context))
        while agreed < most and self.cached[agreed] == self.context[agreed]:
            agreed += 1
        del self.cached[agreed:]

    @property
    def missing(self) -> int:
        """Context tokens whose KV is still to be computed; none when drafted tokens are cached beyond it."""
        return max(0, len(self.context) - len(self.cached))


class SessionTable:
    """Sessions by key, least recently used first; each holds one slot."""

    def __init__(self, slots: KVSlots, spare_s: float) -> None:
        """Args: slots: the pool; spare_s: a session used within so many seconds is never evicted."""
        self._slots = slots
        self._spare_s = spare_s
        self._sessions: OrderedDict[Hashable, Session] = OrderedDict()
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._sessions)

    def get(self, key: Hashable) -> Session | None:
        """A session, if it is known."""
        return self._sessions.get(key)

    def touch(self, key: Hashable, now: float, turn: int) -> None:
        """Note that a session was asked for."""
        session = self._sessions[key]
        session.used, session.turn = now, turn
        self._sessions.move_to_end(key)

    def open(self, key: Hashable, now: float, turn: int) -> Session | None:
        """A new session, if need be in place of the least recently used; None when all are in use."""
        slot = self._slots.take()
        if slot is None:
            oldest = next(iter(self._sessions))
            idle = now - self._sessions[oldest].used
            # Evicting what the next step asks for again would only make everyone prefill in turn.
            if self._sessions[oldest].turn == turn or idle < self._spare_s:
                return None
            self.close(oldest)
            self.evictions += 1
            slot = self._slots.take()
            assert slot is not None
        session = self._sessions[key] = Session(slot, used=now, turn=turn)
        return session

    def close(self, key: Hashable) -> bool:
        """Forget a session and free its slot; False if it is not known."""
        session = self._sessions.pop(key, None)
        if session is None:
            return False
        self._slots.give_back(session.slot)
        return True

    def behind(self) -> list[Session]:
        """Sessions with missing KV, the most recently used first."""
        return [session for session in reversed(self._sessions.values()) if session.missing]
