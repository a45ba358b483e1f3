"""The registry's view as a gateway sees it: asked for seldom, waited for briefly, kept while it is away."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from deployments.gateway.errors import logger
from deployments.gateway.settings import GatewaySettings

# A registry that just started has not heard everyone yet; reports come about once a second.
_SETTLED_S = 3.0


@dataclass(frozen=True, slots=True)
class FleetPicture:
    """The fleet at one moment.

    Attributes:
        view: `Registry.view()`; empty before the first answer.
        age_s: seconds since the registry answered with it.
        registry_up: whether the registry answered when it was asked last.
    """

    view: dict[str, Any]
    age_s: float
    registry_up: bool


class FleetView:
    """Asks the registry at most once per `registry_cache_s`, for all callers together.

    Args:
        ask: calls `Registry.view()`.
        settings: deadlines and ages.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[dict[str, Any]]],
        settings: GatewaySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._settings = settings
        self._clock = clock
        self._lock = asyncio.Lock()
        self._view: dict[str, Any] = {}
        self._answered = clock()
        self._tried: float | None = None
        self._up = False

    async def get(self) -> FleetPicture:
        """The newest picture to be had within `registry_timeout_s`; never raises."""
        async with self._lock:
            if self._tried is None or self._clock() - self._tried > self._settings.registry_cache_s:
                await self._refresh()
                # From the end of the try: whoever queued behind a slow one must not wait for another.
                self._tried = self._clock()
        return FleetPicture(self._view, self._clock() - self._answered, self._up)

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(self._settings.registry_timeout_s):
                view = await self._ask()
            newcomer = view["registry"]["uptime_s"] < _SETTLED_S
        except Exception as error:
            if self._up:
                logger.warning("the registry does not answer: %r", error)
            self._up = False
            return
        self._up = True
        known = self._view.get("registry", {}).get("incarnation")
        if newcomer and known not in (None, view["registry"]["incarnation"]):
            # Half-filled totals would look to Prometheus as if counters had been reset.
            return
        self._view = view
        self._answered = self._clock()


def health(picture: FleetPicture, patience_s: float) -> dict[str, Any] | None:
    """What /health says, or None when no verifier is known to be ready.

    `degraded` means that answers come but maybe slower: a draft or the registry is away.
    """
    view = picture.view
    ready = [v for v in view.get("verifiers", []) if v["state"] == "ready"]
    if not ready or picture.age_s > patience_s:
        return None
    away = [draft["name"] for draft in view["drafters"] if draft["state"] != "ready"]
    degraded = bool(away) or not picture.registry_up
    return {
        "status": "degraded" if degraded else "ok",
        "verifiers": len(ready),
        "drafts_away": away,
        "registry": "up" if picture.registry_up else "away",
    }
