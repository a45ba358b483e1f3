"""The verifiers a drafter serves: which life of each is current, and since when one is silent."""

from __future__ import annotations

from dataclasses import dataclass, field

#: A session's name in the engine: who (its public key), which verifier, which of its lives, which request.
SessionKey = tuple[str, str, int, int]

#: Verifiers remembered at once; the longest silent one is dropped for a new one.
MOST_CLIENTS = 256


@dataclass(slots=True)
class _Client:
    epoch: int
    heard: float
    sessions: set[SessionKey] = field(default_factory=set)


class Clients:
    """Keeps the sessions of each verifier together, so that they can end together."""

    def __init__(self, idle_s: float) -> None:
        """Args: idle_s: seconds of silence after which a verifier's sessions are to be closed."""
        self._idle_s = idle_s
        self._clients: dict[tuple[str, str], _Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def heard(self, name: tuple[str, str], epoch: int, now: float) -> tuple[bool, set[SessionKey]]:
        """Note a message.

        Args:
            name: public key and name of the verifier.
            epoch: the life that sent it.
            now: the time in seconds.

        Returns:
            Whether the message counts (it is of the newest life known), and sessions to close because of it.
        """
        client = self._clients.get(name)
        ended: set[SessionKey] = set()
        if client is None:
            if len(self._clients) >= MOST_CLIENTS:
                silent = min(self._clients, key=lambda each: self._clients[each].heard)
                ended = self._clients.pop(silent).sessions
            client = self._clients[name] = _Client(epoch, now)
        if epoch < client.epoch:
            return False, ended
        if epoch > client.epoch:
            ended |= client.sessions
            client.epoch, client.sessions = epoch, set()
        client.heard = now
        return True, ended

    def opened(self, key: SessionKey) -> None:
        """Note that a session is in the engine."""
        client = self._clients.get(key[:2])
        if client is not None and client.epoch == key[2]:
            client.sessions.add(key)

    def closed(self, key: SessionKey) -> None:
        """Note that a session is no longer in the engine."""
        client = self._clients.get(key[:2])
        if client is not None:
            client.sessions.discard(key)

    def silent(self, now: float) -> set[SessionKey]:
        """Forget verifiers that have been silent too long; their sessions are to be closed."""
        gone = [name for name, client in self._clients.items() if now - client.heard > self._idle_s]
        ended: set[SessionKey] = set()
        for name in gone:
            ended |= self._clients.pop(name).sessions
        return ended
