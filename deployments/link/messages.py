"""What goes over the wire: one request, two replies, and a version that can always be read.

A message is four bytes (`SF` and the protocol version, big-endian) and then a msgpack array. The first
four bytes keep their meaning in every version, whatever the rest looks like, so that two versions
can refuse each other by name instead of misreading each other.

Why no message can harm a session: the verified tokens of a session never change and its number is never
used again within an epoch, so every item is a true slice of one text. A repeated, late or reordered
item can make the drafter know less than the proposer believes; that ends in "resync".
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 1
MAGIC = b"SF"
HEADER_BYTES = 4
MAX_ITEMS = 4_096
MAX_PROPOSED = 64

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Name = Annotated[str, Meta(max_length=256)]
State = Literal["ok", "resync", "too_long", "busy"]


class BadMessage(ValueError):
    """Bytes that are no message of this protocol version."""


class OtherVersion(BadMessage):
    """A message of another protocol version; `version` says which."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"peer speaks link protocol version {version}, this end speaks version {PROTOCOL_VERSION}: "
            "run the same release on verifiers and drafters"
        )
        self.version = version


class Item(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One session's part of a request.

    The session's context is its first `base` tokens, which the drafter already has, and then `tokens`.
    `length` more are wanted; 0 means to catch up only.
    """

    session: Count
    base: Count
    tokens: list[TokenId]
    length: Annotated[int, Meta(ge=0, le=MAX_PROPOSED)]

    @property
    def position(self) -> int:
        """Context length after this item: where proposals continue."""
        return self.base + len(self.tokens)


class Propose(
    msgspec.Struct, frozen=True, array_like=True, tag="propose", forbid_unknown_fields=True, kw_only=True
):
    """A proposer asks one drafter. No items: only closes, or a probe; it is answered all the same.

    `verifier` and `epoch` name one life of one proposer, `step` is the verifier's step. `closed` are sessions
    to free. The drafter's key for a session is (verifier, epoch, session).
    """

    verifier: Name
    epoch: Count
    step: Count
    items: Annotated[list[Item], Meta(max_length=MAX_ITEMS)]
    closed: Annotated[list[Count], Meta(max_length=MAX_ITEMS)] = []


class Proposal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One session's part of a reply: `tokens` continue the context of length `position`.

    States: "ok"; "resync", the drafter has less than the item's base; "too_long", the context exceeds the
    draft's window; "busy", no room now. Only "ok" carries tokens, and says that the drafter has the
    session's context up to `position`. What it drafted itself does not count as known.
    """

    session: Count
    position: Count
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_PROPOSED)]
    state: State = "ok"


class Proposals(
    msgspec.Struct, frozen=True, array_like=True, tag="proposals", forbid_unknown_fields=True, kw_only=True
):
    """A drafter's reply to one `Propose`, with its `epoch` and `step`. Items may come in several replies.

    `drafter` names this life of the drafter (`LinkServer.incarnation`); another name means that it knows
    nothing of what was sent before. `sessions` is how many it holds, `busy_ms` the time it computed.
    """

    drafter: Name
    epoch: Count
    step: Count
    items: Annotated[list[Proposal], Meta(max_length=MAX_ITEMS)]
    sessions: Count = 0
    busy_ms: Annotated[float, Meta(ge=0)] = 0.0


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused", forbid_unknown_fields=True):
    """The drafter will not serve this peer or could not read its message; `reason` is for people."""

    reason: Annotated[str, Meta(max_length=1_024)]


Reply = Proposals | Refused
Message = TypeVar("Message")

_HEADER = MAGIC + PROTOCOL_VERSION.to_bytes(2, "big")
_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Propose)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Proposals | Refused)


def encode(message: Propose | Proposals | Refused) -> bytes:
    """Turn a message into bytes.

    Raises:
        BadMessage: a field holds what cannot be sent (not an int, above 64 bits).
    """
    try:
        return _HEADER + _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, UnicodeError) as error:
        raise BadMessage(f"cannot encode {type(message).__name__}: {error}") from error


def decode_request(data: bytes | memoryview) -> Propose:
    """Read what a proposer sent.

    Raises:
        OtherVersion: it is of another protocol version.
        BadMessage: it is anything else that is not a `Propose`.
    """
    return _decode(data, _requests)


def decode_reply(data: bytes | memoryview) -> Reply:
    """Read what a drafter sent.

    Raises:
        OtherVersion: it is of another protocol version.
        BadMessage: it is anything else that is neither `Proposals` nor `Refused`.
    """
    return _decode(data, _replies)


def read_version(data: bytes | memoryview) -> int:
    """Protocol version of a message, whatever the rest of it looks like.

    Raises:
        BadMessage: it is no message of this protocol in any version.
    """
    if len(data) < HEADER_BYTES or bytes(data[:2]) != MAGIC:
        raise BadMessage("no link message: its first bytes are not SF and a version")
    return int.from_bytes(data[2:HEADER_BYTES], "big")


def _decode(data: bytes | memoryview, decoder: msgspec.msgpack.Decoder[Message]) -> Message:
    version = read_version(data)
    if version != PROTOCOL_VERSION:
        raise OtherVersion(version)
    try:
        return decoder.decode(memoryview(data)[HEADER_BYTES:])
    # Deep nesting raises RecursionError; text that is not UTF-8, a UnicodeDecodeError (a ValueError).
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise BadMessage(f"malformed link message: {error}") from error
