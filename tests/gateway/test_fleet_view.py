"""The gateway's copy of the registry's view; asked of a real registry state, with time passed in."""

import asyncio
from typing import Any

import pytest

from deployments.gateway.fleet_view import FleetView, health
from deployments.gateway.settings import GatewaySettings
from deployments.registry.state import RegistryState

SETTINGS = GatewaySettings(registry_cache_s=0.5, registry_timeout_s=0.05)


class Fleet:
    """A registry whose clock, presence and speed the test decides."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.hangs = False
        self.restart()
        self.view = FleetView(self._ask, SETTINGS, clock=lambda: self.now)

    def restart(self) -> None:
        self.state = RegistryState(["code"], now=self.now)

    def hear(self, *, drafter: bool = True, proposed: int = 4) -> None:
        figures = {"proposed": proposed, "accepted": 2, "steps": 1}
        snapshot = {"acceptance": {"code": {"code": figures}}}
        self.state.report({"replica": "v", "model": "m", "pid": 1, "snapshot": snapshot}, self.now)
        if drafter:
            entry = {"draft": "code", "replica": "d", "address": "tcp://h:1", "public_key": "k", "pid": 2}
            self.state.announce(entry, self.now)

    async def _ask(self) -> dict[str, Any]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        return self.state.view(self.now)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.mark.asyncio
async def test_callers_share_one_question(fleet: Fleet) -> None:
    await asyncio.gather(*(fleet.view.get() for _ in range(20)))
    assert fleet.asked == 1
    fleet.now += 0.6
    await fleet.view.get()
    assert fleet.asked == 2


@pytest.mark.asyncio
async def test_nobody_waits_twice_for_a_registry_that_hangs(fleet: Fleet) -> None:
    fleet.hear()
    await fleet.view.get()
    fleet.hangs = True
    fleet.now += 1
    pictures = await asyncio.gather(*(fleet.view.get() for _ in range(20)))
    assert fleet.asked == 2
    assert all(not picture.registry_up and picture.view["verifiers"] for picture in pictures)


@pytest.mark.asyncio
async def test_a_registry_that_just_started_again_is_not_believed_yet(fleet: Fleet) -> None:
    fleet.hear(proposed=40)
    fleet.now += 5
    fleet.hear(proposed=40)
    assert (await fleet.view.get()).view["acceptance"]["code"]["code"]["proposed"] == 40
    fleet.restart()
    fleet.now += 1
    picture = await fleet.view.get()
    assert picture.registry_up
    assert picture.view["acceptance"]["code"]["code"]["proposed"] == 40
    fleet.hear(proposed=44)
    fleet.now += 3
    assert (await fleet.view.get()).view["acceptance"]["code"]["code"]["proposed"] == 44


@pytest.mark.asyncio
async def test_the_first_view_counts_at_once(fleet: Fleet) -> None:
    fleet.hear()
    assert health(await fleet.view.get(), 30) == {
        "status": "ok",
        "verifiers": 1,
        "drafts_away": [],
        "registry": "up",
    }


@pytest.mark.asyncio
async def test_health(fleet: Fleet) -> None:
    assert health(await fleet.view.get(), 30) is None, "no verifier yet"
    fleet.now += 1
    fleet.hear(drafter=False)
    degraded = health(await fleet.view.get(), 30)
    assert degraded is not None
    assert (degraded["status"], degraded["drafts_away"]) == ("degraded", ["code"])

    fleet.hangs = True
    fleet.now += 20
    still = health(await fleet.view.get(), 30)
    assert still is not None
    assert (still["status"], still["registry"]) == ("degraded", "away")
    fleet.now += 20
    assert health(await fleet.view.get(), 30) is None, "what was last known is too old"


@pytest.mark.asyncio
async def test_a_verifier_that_is_away_is_not_healthy(fleet: Fleet) -> None:
    fleet.hear()
    fleet.now += 10
    assert health(await fleet.view.get(), 30) is None
