"""Drafters that are slow, silent or lie: they cost proposals, never a stall and never a wrong one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from deployments.link.client import LinkClient
from deployments.link.messages import MAGIC, Item, Proposal, Proposals, Refused, encode
from deployments.link.server import Request
from deployments.link.settings import LinkSettings
from tests.link.helpers import (
    VOCAB,
    FakeDrafter,
    Stepper,
    connect,
    continuation,
    eventually,
    honest,
    mute,
    raw,
)

pytestmark = pytest.mark.process  # waits for real deadlines to pass, one after the other

Start = Callable[..., FakeDrafter]
Lie = Callable[[Request, Item], Proposal]


def liar(
    lie: Lie, *, drafter_id: str = "liar", epoch: int = 0, step: int = 0
) -> Callable[[FakeDrafter, Request], None]:
    def behave(drafter: FakeDrafter, request: Request) -> None:
        message = request.message
        items = [lie(request, item) for item in message.items]
        drafter.server.reply(
            request.peer,
            Proposals(drafter=drafter_id, epoch=message.epoch + epoch, step=message.step + step, items=items),
        )

    return behave


def truth(request: Request, item: Item) -> Proposal:
    return Proposal(item.session, item.position, [1] * item.length)


def say(*frames: bytes) -> Callable[[FakeDrafter, Request], None]:
    return lambda drafter, request: raw(drafter, request, *frames)


LIES = {
    "another session": liar(lambda _, item: Proposal(item.session + 1, item.position, [1])),
    "the same session twice": liar(lambda _, item: Proposal(1, item.position, [1])),
    "an id beyond the vocabulary": liar(lambda _, item: Proposal(item.session, item.position, [1, VOCAB])),
    "more tokens than asked": liar(
        lambda _, item: Proposal(item.session, item.position, [1] * (item.length + 1))
    ),
    "another position": liar(lambda _, item: Proposal(item.session, item.position - 1, [1])),
    "tokens without knowing": liar(lambda _, item: Proposal(item.session, item.position, [1], "resync")),
    "one wrong among right ones": liar(
        lambda request, item: (
            truth(request, item) if item.session == 1 else Proposal(item.session, item.position + 1, [1])
        )
    ),
    "a later epoch": liar(truth, epoch=1),
    "an earlier epoch": liar(truth, epoch=-1),
    "a step to come": liar(truth, step=1),
    "a step long past": liar(truth, step=-1),
    "garbage": say(b"\xff" * 50),
    "nothing": say(b""),
    "two frames": say(b"SF\0\1", b"\xc0"),
    "another version": say(MAGIC + b"\0\x07 and another shape"),
    "a refusal": say(encode(Refused("I do not like you"))),
    "a negative id": say(
        MAGIC + b"\0\1" + b"\x97\xa9proposals\xa1d\x01\x01\x91\x94\x01\x01\x91\xff\xa2ok\x00\xca\0\0\0\0"
    ),
}
COUNTED = ("bad", "foreign", "late", "refused")


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_counted_and_never_believed(
    client: LinkClient, drafter: FakeDrafter, step: Stepper, name: str
) -> None:
    drafter.behaviour = LIES[name]
    contexts = {1: [5, 6, 7], 2: [8]}
    for _ in range(3):
        assert step("code", contexts, wait_s=0.1) == {}
    eventually(lambda: client.available() is not None and sum(client.stats()["code"][c] for c in COUNTED))
    assert client.acknowledged("code", 2) == 0
    drafter.behaviour = honest
    drafter.contexts.known.clear()

    def right() -> bool:
        return step("code", contexts, wait_s=1.0) == {s: continuation(c, 4) for s, c in contexts.items()}

    eventually(right)


@pytest.mark.parametrize("name", LIES)
def test_a_liar_does_not_touch_what_another_draft_says(
    client: LinkClient, start: Start, step: Stepper, name: str
) -> None:
    code, medical = start("code"), start("medical")
    connect(client, code, medical)
    code.behaviour = LIES[name]
    asks = {"code": {1: [1], 2: [1]}, "medical": {3: [9, 9]}}
    for _ in range(3):
        eventually(lambda: step.many(asks, wait_s=0.2) == {3: continuation([9, 9], 4)})


def test_a_silent_drafter_costs_one_deadline(start: Start) -> None:
    """Even one that is still asked in every step, since it is not silent for long enough to be down."""
    settings = LinkSettings(peer_silence_s=60, probe_first_ms=0.1, probe_longest_ms=0.1, max_unanswered=64)
    client = LinkClient("v", vocab_size=VOCAB, settings=settings)
    code, medical, step = start("code"), start("medical"), Stepper(client)
    try:
        connect(client, code, medical)
        code.behaviour = mute
        asks = {"code": {1: [1]}, "medical": {2: [2]}}
        assert step.many(asks, wait_s=2) == {2: continuation([2], 4)}
        before = time.monotonic()
        for session in range(10, 30):  # sessions that the silent one has not heard of yet
            time.sleep(0.001)
            asks["code"][session] = [1]
            assert step.many(asks, wait_s=30) == {2: continuation([2], 4)}
        assert time.monotonic() - before < 30  # not even one of the twenty deadlines
        assert client.stats()["code"]["tokens_sent"] == 21
        assert client.stats()["code"]["missed"] == 1
    finally:
        client.close()


def test_a_silent_drafter_becomes_unavailable_and_comes_back(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    drafter.behaviour = mute
    assert step("code", {1: [1]}, wait_s=0.05) == {}
    assert client.available() == {"code"}  # one late answer is no reason to leave a draft

    def gone() -> bool:
        step("code", {1: [1]})
        return client.available() == set()

    eventually(gone)
    drafter.behaviour = honest

    def back() -> bool:
        step.idle()
        return client.available() == {"code"}

    eventually(back)
    eventually(lambda: step("code", {1: [1, 2]}, wait_s=1.0) == {1: continuation([1, 2], 4)})


def test_messages_to_a_silent_drafter_do_not_pile_up(start: Start) -> None:
    settings = LinkSettings(peer_silence_s=60, probe_first_ms=0.1, probe_longest_ms=0.1, max_unanswered=3)
    client = LinkClient("v", vocab_size=VOCAB, settings=settings)
    drafter, step = start(), Stepper(client)
    try:
        connect(client, drafter)
        drafter.behaviour = mute
        for number in range(200):
            step("code", {number: [1] * 100}, wait_s=0.001)
        assert client.stats()["code"]["sent"] == 3
        assert client.stats()["code"]["skipped"] >= 190
        assert client.available() == {"code"}
    finally:
        client.close()


def test_a_late_answer_is_not_used_but_tells_what_the_drafter_knows(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    release = threading.Event()

    def slow_once(drafter: FakeDrafter, request: Request) -> None:
        release.wait(20)
        honest(drafter, request)

    drafter.behaviour = slow_once
    context = list(range(400))
    assert step("code", {1: context}, wait_s=0.05) == {}
    drafter.behaviour = honest
    release.set()
    eventually(lambda: step("code", {}) == {} and client.acknowledged("code", 1) == 400)
    assert client.stats()["code"]["late"] == 1
    context.append(7)
    assert step("code", {1: context}) == {1: continuation(context, 4)}
    assert drafter.items()[-1].base == 400


def test_a_late_answer_never_passes_for_the_next_step(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    """The drafter is always one step behind: each answer comes while the next step waits."""
    held: list[Request] = []

    def one_behind(drafter: FakeDrafter, request: Request) -> None:
        held.append(request)
        if len(held) > 1:
            honest(drafter, held.pop(0))

    drafter.behaviour = one_behind
    context = [1]

    def many_late() -> bool:
        for session, tokens in step("code", {1: context}, wait_s=0.02).items():
            assert (session, tokens) == (1, continuation(context, 4))
        context.append(3)
        time.sleep(0.002)  # the verifier's own work
        return client.stats()["code"]["late"] > 5

    eventually(many_late)


def test_an_answer_to_an_earlier_step_is_not_taken_for_this_one(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    """The first step's answer comes, out of order, in place of the answer to a later step."""
    held: list[Request] = []

    def hold_the_first(drafter: FakeDrafter, request: Request) -> None:
        if request.message.items and not held:
            held.append(request)
        elif request.message.items:
            honest(drafter, held[0])
        else:
            honest(drafter, request)

    drafter.behaviour = hold_the_first
    assert step("code", {1: [1]}, wait_s=0.05) == {}
    eventually(lambda: step.idle() or client.stats()["code"]["answered"])  # a probe: trusted again
    assert step("code", {1: [1, 2]}, wait_s=0.3) == {}
    assert client.stats()["code"]["late"] == 1
    assert client.acknowledged("code", 1) == 1


def test_a_flood_does_not_hold_up_a_step(client: LinkClient, start: Start, step: Stepper) -> None:
    code, medical = start("code"), start("medical")
    connect(client, code, medical)
    stop = threading.Event()

    def flood(drafter: FakeDrafter, request: Request) -> None:
        while not stop.is_set():
            try:
                raw(drafter, request, b"SF\0\1 useless")
            except Exception:  # its pipe is full, or it was shut out
                if stop.wait(0.001) or not drafter.server.stats():
                    return

    code.behaviour = flood
    try:
        for _ in range(10):
            got = step.many({"code": {1: [1]}, "medical": {2: [2]}}, wait_s=3)
            assert got == {2: continuation([2], 4)}
        assert client.available() == {"medical"}
        assert client.stats()["code"]["bad"] > 64
    finally:
        stop.set()
    code.behaviour = honest  # shut out, not banned for ever
    eventually(lambda: step.idle() or client.available() == {"code", "medical"})
    eventually(lambda: step("code", {4: [4]}, wait_s=1) == {4: continuation([4], 4)})


def test_the_deadline_holds_while_answers_to_something_else_pour_in(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    def chatter(drafter: FakeDrafter, request: Request) -> None:
        for _ in range(40):
            drafter.server.reply(
                request.peer, Proposals(drafter="d", epoch=request.message.epoch, step=0, items=[])
            )

    drafter.behaviour = chatter
    before = time.monotonic()
    for _ in range(5):
        assert step("code", {1: [1]}, wait_s=0.05) == {}
    assert time.monotonic() - before < 10


def test_a_deadline_that_has_passed_only_looks(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    drafter.behaviour = mute
    before = time.monotonic()
    assert step("code", {1: [1]}, wait_s=-1e6) == {}
    assert step("code", {2: [1]}, wait_s=0) == {}
    assert time.monotonic() - before < 10


def test_an_answer_to_a_closed_session_is_ignored(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    client.ask("code", 1, [1], 4)
    client.ask("code", 2, [2], 4)
    client.flush(1)
    client.close_session(1)
    assert client.collect(1, time.monotonic() + 20) == {2: continuation([2], 4)}
    assert client.acknowledged("code", 1) == 0
    step.step = 1
    step.idle()
    eventually(lambda: len(drafter.contexts.known) == 1)
