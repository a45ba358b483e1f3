from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from deployments.link.client import LinkClient, Peer
from deployments.link.keys import new_keypair
from deployments.link.messages import MAX_PROPOSED, Proposal, Proposals
from deployments.link.server import Request
from deployments.link.settings import LinkSettings
from tests.link.helpers import (
    PATIENCE_S,
    VOCAB,
    FakeDrafter,
    Stepper,
    connect,
    continuation,
    eventually,
    mute,
)

Start = Callable[..., FakeDrafter]


def test_a_step_gets_the_proposals_for_its_context(drafter: FakeDrafter, step: Stepper) -> None:
    contexts = {session: [session, 2, 3] for session in range(16)}
    assert step("code", contexts) == {
        session: continuation(context, 4) for session, context in contexts.items()
    }
    assert len(drafter.requests) == 1


def test_the_whole_context_goes_once_and_then_only_what_is_new(drafter: FakeDrafter, step: Stepper) -> None:
    context = list(range(500))
    for _ in range(5):
        assert step("code", {7: context}) == {7: continuation(context, 4)}
        context = [*context, 9, 8]
    assert [(item.base, len(item.tokens)) for item in drafter.items()] == [
        (0, 500), (500, 2), (502, 2), (504, 2), (506, 2)
    ]  # fmt: skip


def test_several_drafts_are_asked_in_one_step(client: LinkClient, start: Start, step: Stepper) -> None:
    code, medical = start("code"), start("medical")
    connect(client, code, medical)
    got = step.many({"code": {1: [1, 2]}, "medical": {2: [3]}})
    assert got == {1: continuation([1, 2], 4), 2: continuation([3], 4)}


def test_switching_back_to_a_draft_sends_only_what_it_missed(
    client: LinkClient, start: Start, step: Stepper
) -> None:
    code, medical = start("code"), start("medical")
    connect(client, code, medical)
    context = list(range(100))
    for draft in ("code", "medical", "medical", "code"):
        assert step(draft, {1: context}) == {1: continuation(context, 4)}
        context = [*context, 5]
    assert [(item.base, len(item.tokens)) for item in code.items()] == [(0, 100), (100, 3)]


def test_catching_up_is_sent_but_not_waited_for(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    drafter.behaviour = mute
    assert step("code", {1: [1, 2, 3]}, length=0) == {}  # would last PATIENCE_S if it waited
    eventually(lambda: drafter.requests)
    assert client.stats()["code"]["missed"] == 0


def test_a_draft_is_prefilled_beside_a_running_one(client: LinkClient, start: Start, step: Stepper) -> None:
    code, medical = start("code"), start("medical")
    connect(client, code, medical)
    context = list(range(300))
    client.ask("medical", 1, context, 0)
    assert step("code", {1: context}) == {1: continuation(context, 4)}

    def known() -> bool:
        client.available()
        step.idle()
        return client.acknowledged("medical", 1) == 300

    eventually(known)
    assert step("medical", {1: [*context, 1]}) == {1: continuation([*context, 1], 4)}
    assert medical.items()[-1].base == 300


def test_a_session_that_still_catches_up_is_not_asked_again(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    held: list[Request] = []

    def hold_prefill(drafter: FakeDrafter, request: Request) -> None:
        if any(item.length == 0 for item in request.message.items):
            held.append(request)
        else:
            drafter.server.reply(request.peer, drafter.reply(request))

    drafter.behaviour = hold_prefill
    context = list(range(50))
    step("code", {1: context}, length=0)
    eventually(lambda: held)
    assert not client.ask("code", 1, context, 4)
    assert step("code", {2: [1]}) == {2: continuation([1], 4)}  # others go on
    drafter.behaviour = lambda drafter, request: [
        drafter.server.reply(one.peer, drafter.reply(one)) for one in (held.pop(), request)
    ]
    step("code", {2: [1, 2]})
    eventually(lambda: client.available() and client.acknowledged("code", 1) == 50)


def test_a_reply_may_come_in_parts(drafter: FakeDrafter, step: Stepper) -> None:
    def one_by_one(drafter: FakeDrafter, request: Request) -> None:
        whole = drafter.reply(request)
        for proposal in reversed(whole.items):
            drafter.server.reply(
                request.peer,
                Proposals(drafter=whole.drafter, epoch=whole.epoch, step=whole.step, items=[proposal]),
            )

    drafter.behaviour = one_by_one
    contexts = {1: [1], 2: [2], 3: [3]}
    assert step("code", contexts) == {
        session: continuation(tokens, 4) for session, tokens in contexts.items()
    }


def test_a_drafter_that_lost_a_session_gets_all_of_it_again(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    step("code", {1: [1, 2, 3]})
    drafter.contexts.known.clear()
    assert step("code", {1: [1, 2, 3, 4]}) == {}
    assert client.stats()["code"]["resyncs"] == 1
    assert step("code", {1: [1, 2, 3, 4]}) == {1: continuation([1, 2, 3, 4], 4)}
    assert drafter.items()[-1].base == 0


def test_another_life_of_a_drafter_is_known_to_know_nothing(drafter: FakeDrafter, step: Stepper) -> None:
    step("code", {1: [1, 2, 3], 2: [4, 5]})
    drafter.contexts.known.clear()

    def reborn(drafter: FakeDrafter, request: Request) -> None:
        drafter.server.reply(request.peer, drafter.contexts.reply(request, "another life"))

    drafter.behaviour = reborn
    assert step("code", {1: [1, 2, 3, 4]}) == {}
    assert step("code", {2: [4, 5, 6]}) == {2: continuation([4, 5, 6], 4)}  # without a resync of its own


def test_a_context_beyond_the_window_is_not_sent_again(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    def narrow(drafter: FakeDrafter, request: Request) -> None:
        message = request.message
        items = [Proposal(item.session, item.position, [], "too_long") for item in message.items]
        drafter.server.reply(
            request.peer, Proposals(drafter="d", epoch=message.epoch, step=message.step, items=items)
        )

    drafter.behaviour = narrow
    assert step("code", {1: [1] * 900}) == {}
    assert not client.ask("code", 1, [1] * 901, 4)
    assert step("code", {}) == {}
    assert len(drafter.items()) == 1


def test_a_busy_drafter_is_asked_again(client: LinkClient, drafter: FakeDrafter, step: Stepper) -> None:
    def full(drafter: FakeDrafter, request: Request) -> None:
        message = request.message
        items = [Proposal(item.session, 0, [], "busy") for item in message.items]
        drafter.server.reply(
            request.peer, Proposals(drafter="d", epoch=message.epoch, step=message.step, items=items)
        )

    drafter.behaviour = full
    assert step("code", {1: [1, 2]}) == {}
    assert client.stats()["code"]["busy"] == 1
    assert client.acknowledged("code", 1) == 0


def test_closed_sessions_ride_on_the_next_message(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    step("code", {1: [1], 2: [2]})
    client.close_session(1)
    step("code", {2: [2, 2]})
    assert drafter.requests[-1].message.closed == [1]
    assert len(drafter.contexts.known) == 1


def test_closed_sessions_are_told_even_when_nothing_is_asked(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    step("code", {1: [1], 2: [2]})
    client.close_session(1)
    client.close_session(2)
    step.idle()
    eventually(lambda: not drafter.contexts.known)


def test_closing_reaches_a_drafter_that_is_late(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    drafter.behaviour = mute
    for session in range(6):
        step("code", {session: [1]}, wait_s=0.01)
    for session in range(6):
        client.close_session(session)
    client.flush(step.step)  # the last one before the verifier falls idle
    asked = {item.session for item in drafter.items()}
    eventually(lambda: asked <= {closed for request in drafter.requests for closed in request.message.closed})


def test_every_draft_of_a_session_is_told(client: LinkClient, start: Start, step: Stepper) -> None:
    code, medical = start("code"), start("medical")
    connect(client, code, medical)
    step("code", {1: [1]})
    step("medical", {1: [1, 2]})
    client.close_session(1)
    step.idle()
    eventually(lambda: not code.contexts.known and not medical.contexts.known)


def test_a_session_nobody_heard_of_is_closed_in_silence(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    client.ask("code", 1, [1], 4)
    client.close_session(1)
    client.close_session(99)
    assert step("code", {}) == {}
    assert client.stats()["code"]["sent"] == 0


def test_the_least_recently_used_session_makes_room(start: Start) -> None:
    client = LinkClient("v", vocab_size=VOCAB, settings=LinkSettings(max_sessions=3))
    drafter, step = start(), Stepper(client)
    try:
        connect(client, drafter)
        for session in (1, 2, 3, 1, 4):
            step("code", {session: [session]})
        step.idle()
        eventually(lambda: [2] in [request.message.closed for request in drafter.requests])
        assert client.stats()["code"]["sessions"] == 3
        assert step("code", {2: [2]}) == {2: continuation([2], 4)}
    finally:
        client.close()


def test_forget_all_starts_a_new_epoch(client: LinkClient, drafter: FakeDrafter, step: Stepper) -> None:
    step("code", {1: [1, 2, 3]})
    epoch = client.epoch
    client.forget_all()
    assert client.epoch > epoch
    assert step("code", {1: [4, 5]}) == {1: continuation([4, 5], 4)}
    assert drafter.items()[-1].base == 0
    assert len(drafter.contexts.known) == 1  # the former epoch's session was closed


def test_arrays_are_read_like_lists(drafter: FakeDrafter, step: Stepper) -> None:
    row = np.arange(2_000, dtype=np.int32) % VOCAB
    assert step("code", {1: row[:1_500]}) == {1: continuation(row[:1_500].tolist(), 4)}  # type: ignore[dict-item]
    assert step("code", {1: row}) == {1: continuation(row.tolist(), 4)}  # type: ignore[dict-item]


def test_a_restarted_drafter_at_another_address_serves_on(
    client: LinkClient, start: Start, step: Stepper
) -> None:
    first = start()
    connect(client, first)
    step("code", {1: [1, 2, 3]})
    second = start()
    second.server.admit([client.public_key])
    client.set_peers([second.peer])
    assert client.acknowledged("code", 1) == 0
    eventually(lambda: client.available() == {"code"})
    assert step("code", {1: [1, 2, 3, 4]}) == {1: continuation([1, 2, 3, 4], 4)}
    assert second.items()[0].base == 0


def test_sessions_stay_with_their_replica_and_spread_over_all(
    client: LinkClient, start: Start, step: Stepper
) -> None:
    replicas = [start(), start()]
    for replica in replicas:
        replica.server.admit([client.public_key])
    client.set_peers([replica.peer for replica in replicas])
    eventually(lambda: len(client.available()) and "down" not in client.stats()["code"]["replicas"].values())
    context = {session: [session] for session in range(8)}
    for _ in range(3):
        assert len(step("code", context)) == 8
        context = {session: [*tokens, 1] for session, tokens in context.items()}
    seen = [{item.session for item in replica.items()} for replica in replicas]
    assert not seen[0] & seen[1]
    assert [len(sessions) for sessions in seen] == [4, 4]


def test_sessions_of_a_lost_replica_move_to_another(client: LinkClient, start: Start, step: Stepper) -> None:
    replicas = [start(), start()]
    for replica in replicas:
        replica.server.admit([client.public_key])
    client.set_peers([replica.peer for replica in replicas])
    eventually(lambda: len(client.available()) and "down" not in client.stats()["code"]["replicas"].values())
    assert len(step("code", {1: [1], 2: [2]})) == 2
    client.set_peers([replicas[1].peer])
    assert len(step("code", {1: [1, 1], 2: [2, 2]})) == 2


def test_available_follows_the_connection(client: LinkClient, start: Start) -> None:
    code, medical = start("code"), start("medical")
    connect(client, code, medical)
    medical.stop()
    eventually(lambda: client.available() == {"code"})
    client.set_peers([])
    assert client.available() == set()


def test_an_unknown_draft_is_not_asked(client: LinkClient, drafter: FakeDrafter, step: Stepper) -> None:
    assert not client.ask("nobody", 1, [1], 4)
    assert step("nobody", {1: [1]}) == {}


def test_a_drafter_that_does_not_admit_this_verifier_is_not_available(
    client: LinkClient, start: Start, step: Stepper
) -> None:
    drafter = start()
    drafter.server.admit([new_keypair().public])
    client.set_peers([drafter.peer])
    eventually(lambda: drafter.server.stats()["turned_away"])
    assert client.available() == set()
    assert step("code", {1: [1]}) == {}
    assert drafter.requests == []
    drafter.server.admit([client.public_key])
    eventually(lambda: client.available() == {"code"})
    assert step("code", {1: [1]}) == {1: continuation([1], 4)}


@pytest.mark.parametrize(
    "peer",
    [
        Peer("code", "0", "nonsense", new_keypair().public),
        Peer("code", "0", "tcp://127.0.0.1:99999999", new_keypair().public),
        Peer("code", "0", "tcp://127.0.0.1:1", "no key"),
    ],
)
def test_one_malformed_peer_does_not_keep_the_others_away(
    client: LinkClient, start: Start, step: Stepper, peer: Peer
) -> None:
    drafter = start("medical")
    drafter.server.admit([client.public_key])
    client.set_peers([peer, drafter.peer])
    eventually(lambda: client.available() == {"medical"})
    assert step("medical", {1: [1]}) == {1: continuation([1], 4)}


def test_nothing_is_collected_for_a_step_that_was_not_flushed(
    client: LinkClient, drafter: FakeDrafter, step: Stepper
) -> None:
    assert client.collect(99, time.monotonic() + PATIENCE_S) == {}
    client.ask("code", 1, [1], 4)
    client.flush(100)
    assert client.collect(99, time.monotonic() + PATIENCE_S) == {}
    assert client.collect(100, time.monotonic() + PATIENCE_S) == {1: continuation([1], 4)}
    assert client.collect(100, time.monotonic() + PATIENCE_S) == {}


def test_more_than_the_most_is_never_asked(drafter: FakeDrafter, step: Stepper) -> None:
    assert len(step("code", {1: [1]}, length=10_000)[1]) == MAX_PROPOSED
    assert step("code", {1: [1]}, length=-3) == {}


class Broken(list[int]):
    def __getitem__(self, part: object) -> list[int]:  # type: ignore[override]
        raise RuntimeError("no tokens here")


def test_nothing_that_is_asked_can_raise_or_harm_the_others(start: Start) -> None:
    client = LinkClient("v", vocab_size=VOCAB)
    drafter, step = start(), Stepper(client)
    try:
        connect(client, drafter)
        senseless: list[tuple[object, object]] = [
            (1, Broken([1])),
            (2, [-1]),
            (3, [VOCAB]),
            (4, ["text"]),
            (5, None),
            (-6, [1]),
            (2**63, [1]),
            ("seven", [1]),
            (None, [1]),
            (8, [1.5]),
        ]
        for session, context in senseless:
            client.ask("code", session, context, 4)  # type: ignore[arg-type]
        assert client.errors >= len(senseless) - 1
        got = step("code", {100: [1, 2]}, wait_s=0.5)
        got = got or step("code", {100: [1, 2]})
        assert got == {100: continuation([1, 2], 4)}
    finally:
        client.close()
