"""CURVE key pairs: every drafter and every verifier worker makes its own at start."""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

KEY_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair in Z85 text, 40 characters each. Only the public half may leave the process."""

    public: str
    secret: str = field(repr=False)


def new_keypair() -> KeyPair:
    """Make a key pair.

    Raises:
        RuntimeError: the installed libzmq was built without CURVE.
    """
    if not zmq.has("curve"):
        raise RuntimeError("this libzmq has no CURVE encryption: install the pyzmq wheel, which has it")
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def is_public_key(text: object) -> bool:
    """Whether `text` can be a public key: 40 characters of Z85."""
    if not isinstance(text, str) or len(text) != KEY_CHARACTERS or not text.isascii():
        return False
    try:
        return len(z85.decode(text.encode("ascii"))) == 32
    except (KeyError, ValueError, OverflowError):
        return False
    except Exception:  # the decoder raises struct.error for digits above 32 bits
        return False
