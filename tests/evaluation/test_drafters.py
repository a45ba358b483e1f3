"""Drafter processes for a measurement: they serve, they end, and one that cannot start says so."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from deployments.drafter.settings import DraftSettings
from deployments.evaluation.drafters import DrafterFailed, DrafterProcesses, DraftToServe

pytestmark = pytest.mark.process

SETTINGS = DraftSettings(model="-", quantise="none", max_sessions=3)


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_they_serve_until_the_block_ends(tiny_llama: Path, verifier: Path, tmp_path: Path) -> None:
    before = children()
    drafts = [DraftToServe(name, tiny_llama, SETTINGS) for name in ("a", "b")]
    with (tmp_path / "log").open("w") as log, DrafterProcesses(drafts, verifier, log, os.environ) as drafters:
        peers = drafters.wait()
        assert [peer["draft"] for peer in peers] == ["a", "b"]
        assert len({peer["address"] for peer in peers}) == 2
        assert len(children() - before) == 2
        drafters.admit("x" * 40)
    assert children() == before


def test_one_that_does_not_start_is_named_with_its_words(
    tiny_llama: Path, verifier: Path, tmp_path: Path
) -> None:
    before = children()
    drafts = [DraftToServe("good", tiny_llama, SETTINGS), DraftToServe("empty", tmp_path, SETTINGS)]
    with (
        (tmp_path / "log").open("w") as log,
        pytest.raises(DrafterFailed, match="draft 'empty' did not start") as failed,
        DrafterProcesses(drafts, verifier, log, os.environ) as drafters,
    ):
        drafters.wait()
    assert str(tmp_path / "log") in str(failed.value)
    assert "neither a draft" in (tmp_path / "log").read_text()
    assert children() == before


def test_one_that_hangs_is_not_waited_for_for_ever(tiny_llama: Path, verifier: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        drafters = DrafterProcesses([DraftToServe("slow", tiny_llama, SETTINGS)], verifier, log, os.environ)
        try:
            with pytest.raises(DrafterFailed, match="was not ready after 0 s"):
                drafters.wait(0.0)
        finally:
            drafters.stop()
            drafters.stop()
