from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings as hypothesis_settings

from deployments.link.client import LinkClient
from deployments.link.settings import LinkSettings
from tests.link.helpers import VOCAB, FakeDrafter, Stepper, connect

# How long one example takes says nothing on a busy machine.
hypothesis_settings.register_profile("link", deadline=None)
hypothesis_settings.load_profile("link")


@pytest.fixture
def settings() -> LinkSettings:
    return LinkSettings(peer_silence_s=0.5, probe_first_ms=10, probe_longest_ms=50, handshake_ms=500)


@pytest.fixture
def client(settings: LinkSettings) -> Iterator[LinkClient]:
    client = LinkClient("verifier#0", vocab_size=VOCAB, settings=settings)
    yield client
    errors = client.errors
    client.close()
    assert errors == 0


@pytest.fixture
def start() -> Iterator[Callable[..., FakeDrafter]]:
    """Start fake drafters; they end with the test."""
    drafters: list[FakeDrafter] = []

    def begin(draft: str = "code", settings: LinkSettings | None = None) -> FakeDrafter:
        drafters.append(FakeDrafter(draft, settings=settings))
        return drafters[-1]

    yield begin
    for drafter in drafters:
        drafter.stop()


@pytest.fixture
def drafter(start: Callable[..., FakeDrafter], client: LinkClient) -> FakeDrafter:
    drafter = start()
    connect(client, drafter)
    return drafter


@pytest.fixture
def step(client: LinkClient) -> Stepper:
    return Stepper(client)
