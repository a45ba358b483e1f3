"""What each drafter surely knows of each session. Bounded; the least recently used entry goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from deployments.link.peer import Asked, Connection


@dataclass(slots=True, eq=False)
class Known:
    """One session at one draft: which replica has it, and how many context tokens that one acknowledged."""

    connection: Connection
    acknowledged: int = 0
    too_long: bool = False
    asked: Asked | None = None

    def forget(self) -> None:
        """Assume that the drafter knows nothing."""
        self.acknowledged = 0
        self.too_long = False


class Sessions:
    """All (session, draft) pairs of one proposer."""

    def __init__(self, limit: int, on_drop: Callable[[int, Known], None]) -> None:
        """Remember at most `limit` pairs; `on_drop(session, known)` hears of each pair that is let go."""
        self._limit = limit
        self._on_drop = on_drop
        self._known: OrderedDict[tuple[int, str], Known] = OrderedDict()
        self._drafts: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, session: int, draft: str) -> Known | None:
        """The pair's entry, now the most recently used, or None."""
        known = self._known.get((session, draft))
        if known is not None:
            self._known.move_to_end((session, draft))
        return known

    def open(self, session: int, draft: str, connection: Connection) -> Known:
        """Place a session at a replica of a draft; a former place is let go."""
        self._drop(session, draft)
        while len(self._known) >= self._limit:
            self._drop(*next(iter(self._known)))
        known = self._known[session, draft] = Known(connection)
        self._drafts.setdefault(session, []).append(draft)
        connection.sessions += 1
        return known

    def close(self, session: int) -> None:
        """Let a session go at every draft."""
        for draft in list(self._drafts.get(session, ())):
            self._drop(session, draft)

    def forget(self, connection: Connection) -> None:
        """Assume that this drafter knows nothing of any session."""
        for known in self._known.values():
            if known.connection is connection:
                known.forget()

    def leave(self, connection: Connection) -> None:
        """Let every session of a drafter go."""
        for session, draft in [key for key, known in self._known.items() if known.connection is connection]:
            self._drop(session, draft)

    def clear(self) -> None:
        """Let everything go."""
        for session, draft in list(self._known):
            self._drop(session, draft)

    def _drop(self, session: int, draft: str) -> None:
        known = self._known.pop((session, draft), None)
        if known is None:
            return
        drafts = self._drafts[session]
        drafts.remove(draft)
        if not drafts:
            del self._drafts[session]
        known.connection.sessions -= 1
        self._on_drop(session, known)
