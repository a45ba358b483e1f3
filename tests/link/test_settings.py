from __future__ import annotations

import pytest
from pydantic import ValidationError

from deployments.link.keys import is_public_key, new_keypair
from deployments.link.settings import LinkSettings


def test_every_setting_is_described() -> None:
    assert all(field.description for field in LinkSettings.model_fields.values())


@pytest.mark.parametrize(
    "wrong",
    [{"step_deadline_ms": 0}, {"stepdeadline": 1}, {"probe_longest_ms": 1}, {"heartbeat_timeout_ms": 100}],
)
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        LinkSettings(**wrong)  # type: ignore[arg-type]


def test_the_longest_context_fits_in_a_message() -> None:
    settings = LinkSettings()
    assert settings.max_message_tokens * 5 < settings.max_message_bytes


def test_keys_are_new_each_time_and_the_secret_is_not_shown() -> None:
    one, other = new_keypair(), new_keypair()
    assert one.public != other.public
    assert one.secret not in repr(one)
    assert is_public_key(one.public)


@pytest.mark.parametrize("text", ["", "x" * 39, "x" * 41, " " * 40, "é" * 40, "#" * 40, None, b"x" * 40])
def test_what_is_no_key(text: object) -> None:
    assert not is_public_key(text)
