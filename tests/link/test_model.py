"""Drops, repeats and reorders in any combination: what a drafter has must always be a true context.

Client and server are real. Between them, requests and replies wait in two trays, from which the test
delivers, repeats, drops and reorders at will. The drafter follows the resync rule. What lies in the trays
depends on time (probes), so no choice of the test may depend on it, or failures could not be repeated.
"""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from deployments.link.client import LinkClient, Peer
from deployments.link.messages import Proposals
from deployments.link.server import LinkServer, Request
from deployments.link.settings import LinkSettings
from tests.link.helpers import VOCAB, Contexts, continuation, eventually

# Health must not get in the way here: late drafters are asked at once, and silence passes soon.
SETTINGS = LinkSettings(
    peer_silence_s=0.2, probe_first_ms=0.001, probe_longest_ms=0.001, max_unanswered=64, max_sessions=4
)
picks = st.integers(0, 2)
tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)


class Trays(RuleBasedStateMachine):
    """One proposer, one drafter, and an unreliable clerk between them."""

    @initialize()
    def connect(self) -> None:
        self.server = LinkServer("127.0.0.1")
        self.client = LinkClient("v", vocab_size=VOCAB, settings=SETTINGS)
        self.server.admit([self.client.public_key])
        self.client.set_peers([Peer("code", "0", self.server.address, self.server.public_key)])
        eventually(lambda: self.server.poll(0.005) or self.client.available())
        self.contexts = Contexts()
        self.life = 0
        self.step = 0
        self.last_session = 0
        # (epoch, session) -> all verified tokens, of closed sessions too: old messages may still come.
        self.truth: dict[tuple[int, int], list[int]] = {}
        self.open: list[int] = []

        self.asked: dict[int, tuple[int, int]] = {}
        self.requests: list[Request] = []
        self.replies: list[tuple[bytes, Proposals]] = []
        self.begin_session([1])

    @rule(first=tokens)
    def begin_session(self, first: list[int]) -> None:
        self.last_session += 1
        self.open.append(self.last_session)
        self.truth[self.client.epoch, self.last_session] = list(first)

    def context(self, session: int) -> list[int]:
        return self.truth[self.client.epoch, session]

    @precondition(lambda self: self.open)
    @rule(pick=picks, more=tokens)
    def verify(self, pick: int, more: list[int]) -> None:
        """The verifier appends tokens; it never changes any."""
        self.context(self.open[pick % len(self.open)]).extend(more)

    @precondition(lambda self: self.open)
    @rule(chosen=st.sets(picks, min_size=1), length=st.integers(0, 4), grow=st.booleans())
    def ask(self, chosen: set[int], length: int, grow: bool) -> None:
        self.step += 1
        self.asked = {}
        for session in {self.open[pick % len(self.open)] for pick in chosen}:
            context = self.context(session)
            self.client.ask("code", session, context, length)
            self.asked[session] = (len(context), length)
            if grow:  # what was asked is what was there when it was asked
                context.append(7)
        self.client.flush(self.step)
        self._gather()

    @rule()
    def probe(self) -> None:
        self.step += 1
        self.asked = {}
        self.client.flush(self.step)
        self._gather()

    @rule(index=st.integers(0, 5), again=st.booleans())
    def serve(self, index: int, again: bool) -> None:
        """The drafter gets any of the requests on the way, which may stay there to come again."""
        if self.requests:
            index %= len(self.requests)
            self._serve(self.requests[index] if again else self.requests.pop(index))

    @rule(again=st.booleans(), seed=st.integers(0, 1_000))
    def storm(self, again: bool, seed: int) -> None:
        """Everything on the way arrives, in any order, and some of it not for the last time."""
        shuffle = random.Random(seed).shuffle
        shuffle(self.requests)
        for request in self.requests:
            self._serve(request)
        shuffle(self.replies)
        for peer, reply in self.replies:
            self.server.reply(peer, reply)
        if not again:
            self.requests.clear()
            self.replies.clear()
        self.collect(0.003)

    def _serve(self, request: Request) -> None:
        reply = self.contexts.reply(request, f"life {self.life}")
        self.replies.append((request.peer, reply))
        for proposal in reply.items:
            truth = self.truth[request.message.epoch, proposal.session]
            if proposal.state == "ok":
                assert self.contexts.known[request.key(proposal.session)] == truth[: proposal.position]

    @rule(index=st.integers(0, 5), again=st.booleans())
    def answer(self, index: int, again: bool) -> None:
        if self.replies:
            index %= len(self.replies)
            assert self.server.reply(*(self.replies[index] if again else self.replies.pop(index)))

    @rule(index=st.integers(0, 5))
    def lose_request(self, index: int) -> None:
        if self.requests:
            del self.requests[index % len(self.requests)]

    @rule(index=st.integers(0, 5))
    def lose_reply(self, index: int) -> None:
        if self.replies:
            del self.replies[index % len(self.replies)]

    @rule(wait_s=st.sampled_from([0, 0.003]))
    def collect(self, wait_s: float) -> None:
        for session, proposed in self.client.collect(self.step, time.monotonic() + wait_s).items():
            position, length = self.asked[session]
            truth = self.truth[self.client.epoch, session]
            assert proposed == continuation(truth[:position], length)

    @precondition(lambda self: self.open)
    @rule(pick=picks)
    def evict(self, pick: int) -> None:
        session = self.open[pick % len(self.open)]
        for key in [key for key in self.contexts.known if key[-1] == session]:
            del self.contexts.known[key]

    @rule()
    def restart_drafter(self) -> None:
        self.life += 1
        self.contexts = Contexts()

    @precondition(lambda self: self.open)
    @rule(pick=picks)
    def close(self, pick: int) -> None:
        session = self.open.pop(pick % len(self.open))
        self.client.close_session(session)
        self.asked.pop(session, None)

    @rule()
    def restart_verifier(self) -> None:
        """Session numbers and steps start again, with other texts; old messages are still on their way."""
        old = self.client.epoch
        self.client.forget_all()
        self.step = 0
        self.asked = {}
        for epoch, session in list(self.truth):
            if epoch == old:
                self.truth[self.client.epoch, session] = [
                    VOCAB - 1 - token for token in self.truth[old, session]
                ]
        self._gather()

    @precondition(lambda self: self.open)
    @rule(pick=picks)
    def settle(self, pick: int) -> None:
        """Once the wire works again, any session is served again, whatever was lost."""
        self.requests.clear()
        self.replies.clear()
        session = self.open[pick % len(self.open)]
        context = self.context(session)

        def served() -> bool:
            self.step += 1
            self.client.ask("code", session, context, 4)
            self.client.flush(self.step)
            self._gather()
            for request in self.requests:
                self.server.reply(request.peer, self.contexts.reply(request, f"life {self.life}"))
            self.requests.clear()
            got = self.client.collect(self.step, time.monotonic() + 1)
            return got.get(session) == continuation(context, 4)

        eventually(served)

    def teardown(self) -> None:
        if hasattr(self, "client"):
            assert self.client.errors == 0
            self.client.close()
            self.server.close()

    def _gather(self) -> None:
        """Take every request that was sent off the real wire and put it into the tray."""
        sent = self.client.stats()["code"]["sent"]

        def all_there() -> bool:
            self.requests += self.server.poll(0)
            return self.server.stats()["received"] == sent

        eventually(all_there)


TestTrays = pytest.mark.process(Trays.TestCase)
TestTrays.settings = settings(
    max_examples=100, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
