from __future__ import annotations

from typing import TYPE_CHECKING

from utter_plugins.commands.watch import stamps

if TYPE_CHECKING:
    from pathlib import Path


def test_stamps_tell_changes_apart(tmp_path: Path) -> None:
    file, folder = tmp_path / "one.toml", tmp_path / "folder"
    assert stamps([file], [folder]) == {}
    file.write_text("a")
    first = stamps([file], [folder])
    assert first.keys() == {str(file)}
    assert stamps([file], [folder]) == first
    folder.mkdir()
    (folder / "deep").mkdir()
    (folder / "deep/app.desktop").write_text("x")
    assert stamps([file], [folder]).keys() == {str(file), str(folder / "deep/app.desktop")}
    file.write_text("ab")
    assert stamps([file], [folder])[str(file)] != first[str(file)]
