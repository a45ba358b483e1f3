"""Announcements: what the registry is told, and that its silence costs nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.drafter import announce
from deployments.drafter.announce import Announcer
from deployments.drafter.checkpoint import load_draft
from deployments.drafter.engine import DraftEngine
from deployments.drafter.service import DrafterService
from deployments.link.keys import new_keypair
from deployments.registry.state import RegistryState
from tests.drafter.test_service import eventually

ABOUT = {"draft": "code", "replica": "code#1", "pid": os.getpid(), "node": "127.0.0.1", "model": "configs/x"}


@pytest.fixture
def service(tiny_llama: Path, verifier: Path) -> Iterator[DrafterService]:
    service = DrafterService(DraftEngine(load_draft(tiny_llama, verifier).forward))
    service.start()
    service.wait_ready()
    yield service
    service.stop()


class Registry:
    """The real registry's state, with a switch for being away."""

    def __init__(self) -> None:
        self.restart()
        self.away = False
        self.reports: list[dict[str, Any]] = []

    def restart(self) -> None:
        self.state = RegistryState(["code"], None, now=time.monotonic())

    def __call__(self, report: dict[str, Any]) -> Any:
        if self.away:
            raise TimeoutError("away")
        self.reports.append(report)
        return self.state.announce(report, time.monotonic())

    def verifier(self, key: str) -> Any:
        about = {
            "replica": "v#1",
            "model": "m",
            "public_key": key,
            "pid": 1,
            "state": "ready",
            "snapshot": {},
        }
        return self.state.report(about, time.monotonic())


def test_the_registry_accepts_and_hands_out_what_is_announced(
    service: DrafterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announce, "EVERY_S", 0.05)
    registry, key = Registry(), new_keypair().public
    announcer = Announcer(service, ABOUT, registry)
    announcer.start()
    eventually(lambda: registry.reports)
    [entry] = registry.verifier(key)["drafters"]
    assert (entry["address"], entry["public_key"]) == (service.address, service.public_key)
    eventually(lambda: service._server._admitted == {key})
    # A registry that restarts knows no verifier for a moment: those admitted stay.
    registry.restart()
    count = len(registry.reports)
    eventually(lambda: len(registry.reports) > count + 2)
    assert service._server._admitted == {key}
    registry.away = True
    time.sleep(0.2)
    assert announcer.alive
    registry.away = False
    eventually(lambda: len(registry.reports) > count + 4)
    announcer.stop()
    assert registry.reports[-1]["state"] == "stopping"
    assert registry.verifier(key)["drafters"] == []


def test_keys_that_the_registry_no_longer_names_expire(
    service: DrafterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announce, "EVERY_S", 0.05)
    monkeypatch.setattr(announce, "KEEP_S", 0.2)
    keys = [new_keypair().public for _ in range(2)]
    named = list(keys)
    announcer = Announcer(service, ABOUT, lambda report: {"client_keys": named})
    announcer.start()
    eventually(lambda: service._server._admitted == set(keys))
    named.pop()
    eventually(lambda: service._server._admitted == set(keys[:1]))
    announcer.stop()
    assert not announcer.alive
