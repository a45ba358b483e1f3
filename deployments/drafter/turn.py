"""Putting waiting requests together into one turn of the engine, and its answers into replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deployments.drafter.clients import SessionKey
from deployments.drafter.engine import Answer, Ask
from deployments.link.messages import Proposal
from deployments.link.server import Request


@dataclass(frozen=True, slots=True)
class Turn:
    """What several requests want together.

    Attributes:
        asks: one per session, the newest request's; newest requests first.
        closed: sessions that end.
        owner: session -> index of the request that its answer goes to.
    """

    asks: list[Ask]
    closed: list[SessionKey]
    owner: dict[SessionKey, int]


def gather(requests: Sequence[Request]) -> Turn:
    """Merge requests, given in the order of their arrival.

    A session that a later request asks for again is answered there only: the later ask says in full where
    the session stands, and nobody waits for the earlier step any more.
    """
    asks: dict[SessionKey, Ask] = {}
    owner: dict[SessionKey, int] = {}
    closed: dict[SessionKey, None] = {}
    order = sorted(
        range(len(requests)), key=lambda index: requests[index].message.step
    )  # stable: per verifier
    for index in order:
        request = requests[index]
        for session in request.message.closed:
            key = request.key(session)
            asks.pop(key, None)
            owner.pop(key, None)
            closed[key] = None
        for item in request.message.items:
            key = request.key(item.session)
            if key in closed:
                continue  # numbers are never used again
            asks.pop(key, None)
            asks[key] = Ask(key, item.base, item.tokens, item.length)
            owner[key] = index
    return Turn(list(reversed(asks.values())), list(closed), owner)


def split(
    requests: Sequence[Request], owner: Mapping[SessionKey, int], answers: Iterable[Answer]
) -> list[list[Proposal]]:
    """The answers as proposals, per request."""
    replies: list[list[Proposal]] = [[] for _ in requests]
    for answer in answers:
        key = answer.session
        assert isinstance(key, tuple)
        replies[owner[key]].append(Proposal(key[3], answer.position, answer.tokens, answer.state))
    return replies
