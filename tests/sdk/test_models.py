"""A plugin asks where its models are."""

from __future__ import annotations

from pathlib import Path

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk import Plugin


@pytest.fixture
def plugin() -> Plugin:
    return Plugin("ear", version="1.0.0", kind="stt")


def test_a_file_or_the_directory_of_several(plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.bin").write_bytes(b"x")
    monkeypatch.setenv("UTTER_MODELS", str(tmp_path))
    assert plugin.model("base/model.bin") == tmp_path / "base" / "model.bin"
    assert plugin.model("base") == tmp_path / "base"


def test_what_is_missing_is_named_with_the_command(
    plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.bin").symlink_to("../../sha256/nothing")
    monkeypatch.setenv("UTTER_MODELS", str(tmp_path))
    for name in ("gone.bin", "never.bin"):
        with pytest.raises(RpcError, match=f"The model {name} has not been fetched: utter models pull ear") as error:
            plugin.model(name)
        assert (error.value.code, error.value.data) == (ErrorCode.PLUGIN_FAILED, {"model": name})


def test_without_any_it_says_where_they_are_named(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UTTER_MODELS", raising=False)
    with pytest.raises(RpcError, match="no models for ear: neither its manifest nor its"):
        plugin.model("x")
