"""Drops, repeats and reorders in any combination: what a drafter has must always be a true context.

Client and server are real. Between them, requests and replies wait in two trays, from which the test
delivers, repeats, drops and reorders at will. The drafter follows the resync rule.
"""

from __future__ import annotations

import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

from deployments.link.client import LinkClient, Peer
from deployments.link.messages import Proposals
from deployments.link.server import LinkServer, Request
from deployments.link.settings import LinkSettings
from tests.link.helpers import PATIENCE_S, VOCAB, Contexts, continuation, eventually

# Health must not get in the way here: late drafters are asked at once, and nothing counts as silence.
SETTINGS = LinkSettings(
    peer_silence_s=60, probe_first_ms=0.001, probe_longest_ms=0.001, max_unanswered=64, max_sessions=4
)
tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)


class Trays(RuleBasedStateMachine):
    """One proposer, one drafter, and an unreliable clerk between them."""

    sessions = Bundle("sessions")

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
        self.truth: dict[tuple[int, int], list[int]] = {}
        self.asked: dict[int, tuple[int, int]] = {}
        self.requests: list[Request] = []
        self.replies: list[tuple[bytes, Proposals]] = []

    @rule(target=sessions, first=tokens)
    def open(self, first: list[int]) -> int:
        self.last_session += 1
        self.truth[self.client.epoch, self.last_session] = list(first)
        return self.last_session

    @rule(session=sessions, more=tokens)
    def verify(self, session: int, more: list[int]) -> None:
        """The verifier appends tokens; it never changes any."""
        if (self.client.epoch, session) in self.truth:
            self.truth[self.client.epoch, session] += more

    @rule(chosen=st.lists(sessions, max_size=3, unique=True), length=st.integers(0, 4), grow=st.booleans())
    def ask(self, chosen: list[int], length: int, grow: bool) -> None:
        self.step += 1
        self.asked = {}
        for session in chosen:
            context = self.truth.get((self.client.epoch, session))
            if context is None:
                continue
            self.client.ask("code", session, context, length)
            self.asked[session] = (len(context), length)
            if grow:  # what was asked is what was there when it was asked
                context.append(7)
        self.client.flush(self.step)
        self._gather()

    @rule(index=st.integers(0, 5), again=st.booleans())
    def serve(self, index: int, again: bool) -> None:
        """The drafter gets any of the requests on the way, which may stay there to come again."""
        if index >= len(self.requests):
            return
        request = self.requests[index] if again else self.requests.pop(index)
        reply = self.contexts.reply(request, f"life {self.life}")
        self.replies.append((request.peer, reply))
        for proposal in reply.items:
            truth = self.truth[request.message.epoch, proposal.session]
            if proposal.state == "ok":
                assert self.contexts.known[request.key(proposal.session)] == truth[: proposal.position]

    @rule(index=st.integers(0, 5), again=st.booleans())
    def answer(self, index: int, again: bool) -> None:
        if index < len(self.replies):
            assert self.server.reply(*(self.replies[index] if again else self.replies.pop(index)))

    @rule(index=st.integers(0, 5))
    def lose_request(self, index: int) -> None:
        del self.requests[index : index + 1]

    @rule(index=st.integers(0, 5))
    def lose_reply(self, index: int) -> None:
        del self.replies[index : index + 1]

    @rule(wait_s=st.sampled_from([0, 0.003]))
    def collect(self, wait_s: float) -> None:
        for session, proposed in self.client.collect(self.step, time.monotonic() + wait_s).items():
            position, length = self.asked[session]
            truth = self.truth[self.client.epoch, session]
            assert proposed == continuation(truth[:position], length)

    @rule(session=sessions)
    def evict(self, session: int) -> None:
        for key in [key for key in self.contexts.known if key[-1] == session]:
            del self.contexts.known[key]

    @rule()
    def restart_drafter(self) -> None:
        self.life += 1
        self.contexts = Contexts()

    @rule(session=consumes(sessions))
    def close(self, session: int) -> None:
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
                self.truth[self.client.epoch, session] = [VOCAB - 1 - session, *self.truth[old, session]][:3]
        self._gather()

    @rule(target=sessions)
    def settle(self) -> object:
        """Once the wire works again, a session is served within a few steps."""
        self.requests.clear()
        self.replies.clear()
        session = self.open([1, 2, 3])
        context = self.truth[self.client.epoch, session]

        def served() -> bool:
            self.step += 1
            self.client.ask("code", session, context, 4)
            self.client.flush(self.step)
            self._gather()
            for request in self.requests:
                self.server.reply(request.peer, self.contexts.reply(request, f"life {self.life}"))
            self.requests.clear()
            got = self.client.collect(self.step, time.monotonic() + PATIENCE_S)
            return got.get(session) == continuation(context, 4)

        eventually(served)
        return multiple(session)

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


TestTrays = Trays.TestCase
TestTrays.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
