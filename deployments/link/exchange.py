"""Messages between one proposer and its drafters: what is sent to whom, and what of a reply is believed."""

from __future__ import annotations

import logging
import math
import time

from deployments.link.messages import (
    BadMessage,
    Item,
    OtherVersion,
    Proposals,
    Propose,
    Refused,
    decode_reply,
    encode,
)
from deployments.link.peer import Asked, Connection, Message
from deployments.link.replies import find_fault
from deployments.link.sessions import Sessions
from deployments.link.settings import LinkSettings

logger = logging.getLogger(__name__)

# Replies read from one drafter before the others get their turn, and useless ones before it is shut out.
_READ_AT_ONCE = 16
_MAX_USELESS = 64


class Exchange:
    """The present epoch and step, and the answers to it. Nothing here waits."""

    def __init__(self, verifier: str, vocab_size: int, sessions: Sessions, settings: LinkSettings) -> None:
        self.epoch = time.time_ns()
        self.step = -1
        self.collecting = False
        self.answers: dict[int, list[int]] = {}
        self._verifier = verifier
        self._vocab_size = vocab_size
        self._sessions = sessions
        self._settings = settings

    def begin(self, step: int) -> None:
        """Answers to this step are the ones that count from now on."""
        if step != self.step:
            self.step = step
            self.answers = {}
        self.collecting = True

    def end(self) -> dict[int, list[int]]:
        """The answers to the step; what comes later only shows what a drafter knows."""
        answers, self.answers = self.answers, {}
        self.collecting = False
        return answers

    def renew(self) -> None:
        """Start a new epoch: replies to older messages are foreign."""
        self.epoch = max(time.time_ns(), self.epoch + 1)
        self.answers = {}

    def send(self, connection: Connection, now: float) -> None:
        """Send a drafter what is queued for it and the sessions to close, or a probe if one is due."""
        if not connection.connected(now):
            connection.closed.clear()  # the drafter evicts by itself
            return
        if connection.silent_for(now) > self._settings.peer_silence_s:
            connection.lose(now, "silent")
        up = connection.health.state(now) == "up"
        probing = not up and connection.health.probe_due(now)
        unanswered = connection.unanswered()
        full = unanswered >= self._settings.max_unanswered
        items = connection.queued if (up or probing) and not full else {}
        # Closes are small and must not wait for a step that may never come, so they may go beyond the bound.
        closing = bool(connection.closed) and unanswered < 2 * self._settings.max_unanswered
        connection.figures.skipped += len(connection.queued) - len(items)
        if items or closing or (probing and not full):
            self._send(connection, items, now)
            if not up:
                connection.health.probed(now)

    def read(self, connection: Connection, now: float) -> None:
        """Take in what a drafter has sent, some messages at a time."""
        for data in connection.receive(_READ_AT_ONCE):
            if not self._take(connection, data, now):
                connection.useless += 1
        if connection.useless > _MAX_USELESS:
            connection.shut_out(now)
            connection.lose(now, "shut out: it floods")

    def miss(self, connection: Connection, now: float) -> None:
        """The step's deadline has passed without this drafter."""
        message = connection.in_flight[self.step]
        message.wanted = 0
        message.missed = True
        connection.figures.missed += 1
        connection.health.missed(now)

    def _send(self, connection: Connection, items: dict[int, tuple[Item, Asked]], now: float) -> None:
        request = Propose(
            verifier=self._verifier,
            epoch=self.epoch,
            step=self.step,
            items=[item for item, _ in items.values()],
            closed=list(connection.closed),
        )
        try:
            data = encode(request)
        except BadMessage as error:
            logger.error("nothing is asked of %s in step %d: %s", connection.name, self.step, error)
            connection.figures.dropped += 1
            return
        if not connection.send(data):
            connection.figures.dropped += 1
            connection.lose(now, "unreachable")
            return
        connection.closed.clear()
        message = connection.in_flight.get(self.step) or Message(now)
        for item, asked in items.values():
            message.items[item.session] = asked
            message.wanted += asked.length > 0
            connection.figures.tokens_sent += len(item.tokens)
            known = self._sessions.find(item.session, connection.peer.draft)
            if known is not None and known.connection is connection:
                known.asked = asked
        connection.remember(self.step, message)
        connection.figures.sent += 1
        connection.figures.bytes_sent += len(data)

    def _take(self, connection: Connection, data: bytes, now: float) -> bool:
        """Take one reply in; False if it was of no use."""
        figures = connection.figures
        try:
            reply = decode_reply(data)
        except OtherVersion as error:
            figures.refused += 1
            connection.lose(now, str(error))
            return False
        except BadMessage:
            figures.bad += 1
            return False
        if isinstance(reply, Refused):
            figures.refused += 1
            connection.lose(now, f"refused: {reply.reason}")
            return False
        if reply.epoch != self.epoch or reply.step > self.step:
            figures.foreign += 1
            return False
        message = connection.in_flight.get(reply.step)
        if message is None:
            figures.late += 1
            return False
        fault = find_fault(reply, message, self._vocab_size)
        if fault:
            figures.bad += 1
            self._distrust(connection, reply.step, fault, now)
            return False
        self._believe(connection, reply, message, now)
        return True

    def _believe(self, connection: Connection, reply: Proposals, message: Message, now: float) -> None:
        if connection.incarnation != reply.drafter:
            self._sessions.forget(connection)
            connection.incarnation = reply.drafter
        current = self.collecting and reply.step == self.step
        in_time = current and message.wanted > 0
        for proposal in reply.items:
            asked = message.items.pop(proposal.session)
            message.wanted -= message.wanted > 0 and asked.length > 0
            asked.open = False
            wanted = self._learn(connection, proposal.session, proposal.position, proposal.state)
            if wanted and current and proposal.tokens:
                self.answers[proposal.session] = proposal.tokens
        figures = connection.figures
        if message.missed:
            figures.late += 1
        else:
            figures.answered += 1
        if in_time:
            figures.round_trips += 1
            figures.round_trip_seconds += now - message.sent_at
        if math.isfinite(reply.busy_ms):
            figures.drafter_busy_seconds += reply.busy_ms / 1000
        if not message.items:
            del connection.in_flight[reply.step]
        connection.health.answered(now, in_time=in_time)

    def _learn(self, connection: Connection, session: int, position: int, state: str) -> bool:
        """What an answer says about the drafter's knowledge of a session; False if nobody asks any more."""
        figures = connection.figures
        known = self._sessions.find(session, connection.peer.draft)
        if known is None or known.connection is not connection:
            return False
        if state == "ok":
            known.acknowledged = position
        elif state == "resync":
            figures.resyncs += 1
            known.acknowledged = 0
        elif state == "too_long":
            figures.too_long += 1
            known.too_long = True
        else:
            figures.busy += 1
        return True

    def _distrust(self, connection: Connection, step: int, fault: str, now: float) -> None:
        """It answered nonsense: its answers to this step are void, and what it knows is unknown."""
        logger.warning("%s answered nonsense: %s", connection.name, fault)
        connection.in_flight.pop(step).give_up()
        self._sessions.forget(connection)
        connection.health.missed(now)
