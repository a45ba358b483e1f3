"""Telling the registry about a drafter once a second, and learning from it which verifiers to serve."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from deployments.drafter.service import DrafterService

logger = logging.getLogger(__name__)

#: Seconds between two announcements; the registry hides who is silent for five.
EVERY_S = 1.0

#: A verifier is served for so many seconds after the registry last named it. A registry that restarts knows
#: nobody for a moment, and that must not cost anyone proposals.
KEEP_S = 10.0

Send = Callable[[dict[str, Any]], Mapping[str, Any]]


class Announcer:
    """Announces a service in a thread of its own until it is stopped. A silent registry changes nothing."""

    def __init__(self, service: DrafterService, about: Mapping[str, Any], send: Send) -> None:
        """Prepare; `start` begins.

        Args:
            service: what is announced.
            about: what never changes: `draft`, `replica`, `pid`, `node`, `model`.
            send: delivers one report and returns the registry's answer; may raise, must not wait for ever.
        """
        self._service = service
        self._about = dict(about)
        self._send = send
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
        self._failing = False
        self._named: dict[str, float] = {}

    def start(self) -> None:
        """Begin to announce."""
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Announce that the drafter stops, and end; waits at most `timeout_s`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether announcements go on."""
        return self._thread.is_alive()

    def report(self) -> dict[str, Any]:
        """The announcement of now."""
        state = "ready" if self._service.ready else "starting"
        if self._stopping.is_set():
            state = "stopping"
        stats = self._service.stats()
        return {
            **self._about,
            "address": self._service.address,
            "public_key": self._service.public_key,
            "state": state,
            "sessions": stats["sessions"],
            "stats": stats,
        }

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._announce()
            self._stopping.wait(EVERY_S)
        self._announce()

    def _admit(self, keys: list[str]) -> None:
        now = time.monotonic()
        self._named |= dict.fromkeys(keys, now)
        self._named = {key: at for key, at in self._named.items() if now - at < KEEP_S}
        self._service.admit(list(self._named))

    def _announce(self) -> None:
        try:
            answer = self._send(self.report())
            self._admit([str(key) for key in answer["client_keys"]])
        except Exception as error:
            if not self._failing and not self._stopping.is_set():
                logger.warning("the registry does not take announcements, trying again: %r", error)
            self._failing = True
        else:
            if self._failing:
                logger.info("the registry takes announcements again")
            self._failing = False
