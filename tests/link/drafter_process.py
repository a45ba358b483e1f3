"""A fake drafter as a process of its own: prints its address and key, serves until stdin closes."""

from __future__ import annotations

import sys
import threading

from tests.link.helpers import FakeDrafter


def main(verifier_key: str) -> None:
    drafter = FakeDrafter()
    drafter.server.admit([verifier_key])
    print(drafter.server.address, drafter.server.public_key, flush=True)
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    closed.wait()
    drafter.stop()


if __name__ == "__main__":
    main(sys.argv[1])
