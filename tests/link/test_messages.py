from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.link.messages import (
    HEADER_BYTES,
    MAGIC,
    MAX_PROPOSED,
    PROTOCOL_VERSION,
    BadMessage,
    Item,
    OtherVersion,
    Proposal,
    Proposals,
    Propose,
    Refused,
    decode_reply,
    decode_request,
    encode,
    read_version,
)

counts = st.integers(0, 2**63 - 1)
token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=40)
names = st.text(st.characters(codec="utf-8"), max_size=40)
requests = st.builds(
    Propose,
    verifier=names,
    epoch=counts,
    step=counts,
    items=st.lists(st.builds(Item, counts, counts, token_lists, st.integers(0, MAX_PROPOSED)), max_size=5),
    closed=st.lists(counts, max_size=5),
)
proposals = st.builds(
    Proposals,
    drafter=names,
    epoch=counts,
    step=counts,
    items=st.lists(
        st.builds(
            Proposal, counts, counts, token_lists, st.sampled_from(["ok", "resync", "too_long", "busy"])
        ),
        max_size=5,
    ),
    sessions=counts,
    busy_ms=st.floats(0, 1e9),
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | names
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5),
    max_leaves=12,
)
decoders = st.sampled_from([decode_request, decode_reply])


def header(version: int) -> bytes:
    return MAGIC + version.to_bytes(2, "big")


@given(requests)
def test_requests_survive_the_wire(message: Propose) -> None:
    assert decode_request(encode(message)) == message


@given(proposals)
def test_proposals_survive_the_wire(message: Proposals) -> None:
    assert decode_reply(encode(message)) == message


@given(st.text(st.characters(codec="utf-8"), max_size=1_024))
def test_refusals_survive_the_wire(reason: str) -> None:
    assert decode_reply(encode(Refused(reason))) == Refused(reason)


@given(
    decoders,
    st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: header(PROTOCOL_VERSION) + tail),
)
def test_garbage_is_a_bad_message(decode, data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)


@given(decoders, anything)
def test_well_formed_msgpack_of_another_shape_is_a_bad_message(decode, body: object) -> None:
    with pytest.raises(BadMessage):
        decode(header(PROTOCOL_VERSION) + msgspec.msgpack.encode(body))


@given(requests | proposals, st.data())
def test_any_part_of_a_message_is_a_bad_message(message, data) -> None:
    decode = decode_request if isinstance(message, Propose) else decode_reply
    whole = encode(message)
    with pytest.raises(BadMessage):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(requests, proposals)
def test_each_end_refuses_what_is_meant_for_the_other(request_: Propose, reply: Proposals) -> None:
    with pytest.raises(BadMessage):
        decode_reply(encode(request_))
    with pytest.raises(BadMessage):
        decode_request(encode(reply))


@given(
    requests | proposals,
    st.text(max_size=12).filter(lambda tag: tag not in ("propose", "proposals", "refused")),
)
def test_another_tag_is_a_bad_message(message, tag: str) -> None:
    body = msgspec.msgpack.decode(encode(message)[HEADER_BYTES:])
    for decode in (decode_request, decode_reply):
        with pytest.raises(BadMessage):
            decode(header(PROTOCOL_VERSION) + msgspec.msgpack.encode([tag, *body[1:]]))


@given(requests | proposals, anything)
def test_trailing_data_is_a_bad_message(message, extra: object) -> None:
    decode = decode_request if isinstance(message, Propose) else decode_reply
    body = msgspec.msgpack.decode(encode(message)[HEADER_BYTES:])
    with pytest.raises(BadMessage):
        decode(encode(message) + msgspec.msgpack.encode(extra))
    with pytest.raises(BadMessage):
        decode(header(PROTOCOL_VERSION) + msgspec.msgpack.encode([*body, extra]))


@given(
    decoders,
    st.integers(0, 2**16 - 1).filter(lambda version: version != PROTOCOL_VERSION),
    st.binary(max_size=60) | anything.map(msgspec.msgpack.encode),
)
def test_another_version_is_named_whatever_its_shape(decode, version: int, body: bytes) -> None:
    data = header(version) + body
    assert read_version(data) == version
    with pytest.raises(OtherVersion, match=rf"version {version},.* version {PROTOCOL_VERSION}:") as caught:
        decode(data)
    assert caught.value.version == version


@pytest.mark.parametrize(
    "body",
    [
        ["propose", "v", -1, 0, [], []],
        ["propose", "v", 2**63, 0, [], []],
        ["propose", "v", 0, 0, [[0, 0, [-1], 1]], []],
        ["propose", "v", 0, 0, [[0, 0, [2**31], 1]], []],
        ["propose", "v", 0, 0, [[0, 0, [1.5], 1]], []],
        ["propose", "v", 0, 0, [[0, 0, [True], 1]], []],
        ["propose", "v", 0, 0, [[0, 0, [1], MAX_PROPOSED + 1]], []],
        ["propose", "v" * 257, 0, 0, [], []],
        ["propose", "v", 0, 0, [], [0] * 5_000],
        ["propose", "v", 0, 0],
    ],
)
def test_values_out_of_bounds_are_bad_messages(body: list[object]) -> None:
    with pytest.raises(BadMessage):
        decode_request(header(PROTOCOL_VERSION) + msgspec.msgpack.encode(body))


def test_endless_nesting_is_a_bad_message() -> None:
    for decode in (decode_request, decode_reply):
        with pytest.raises(BadMessage):
            decode(header(PROTOCOL_VERSION) + b"\x91" * 1_000_000)


@pytest.mark.parametrize("tokens", [[object()], [2**70]])
def test_what_cannot_be_sent_is_a_bad_message(tokens: list[int]) -> None:
    with pytest.raises(BadMessage, match="Propose"):
        encode(Propose(verifier="v", epoch=0, step=0, items=[Item(0, 0, tokens, 1)]))


def test_a_step_for_sixteen_requests_is_small() -> None:
    items = [Item(2**20 + i, 700, [31_000, 31_001, 31_002], 4) for i in range(16)]
    assert (
        len(encode(Propose(verifier="verifier#0", epoch=1_800_000_000_000_000_000, step=10**6, items=items)))
        < 400
    )
