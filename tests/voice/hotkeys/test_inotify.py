from __future__ import annotations

import select
from typing import TYPE_CHECKING

import pytest

from utter_runner.voice.hotkeys.inotify import DirectoryWatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[DirectoryWatch, Path]]:
    directory = tmp_path / "input"
    directory.mkdir()
    watch = DirectoryWatch(str(directory))
    yield watch, directory
    watch.close()
    watch.close()


def readable(watch: DirectoryWatch) -> bool:
    return bool(select.select([watch.fd], [], [], 0)[0])


def test_quiet_until_something_changes(watched: tuple[DirectoryWatch, Path]) -> None:
    watch, directory = watched
    assert not readable(watch)
    assert not watch.drain()
    (directory / "event0").touch()
    assert readable(watch)
    assert watch.drain()
    assert not readable(watch)


def test_permissions_and_removal_are_changes(watched: tuple[DirectoryWatch, Path]) -> None:
    watch, directory = watched
    node = directory / "event0"
    node.touch()
    watch.drain()
    node.chmod(0o600)
    assert watch.drain()
    node.unlink()
    assert watch.drain()


def test_a_directory_that_comes_later_is_noticed_and_then_watched(tmp_path: Path) -> None:
    directory = tmp_path / "input"
    watch = DirectoryWatch(str(directory))
    try:
        (tmp_path / "other").mkdir()
        assert not watch.drain()
        directory.mkdir()
        assert watch.drain()
        (directory / "event0").touch()
        assert watch.drain()
        (tmp_path / "another").mkdir()
        assert not readable(watch)
    finally:
        watch.close()


def test_a_directory_that_goes_and_comes_back_is_watched_again(watched: tuple[DirectoryWatch, Path]) -> None:
    watch, directory = watched
    directory.rmdir()
    assert watch.drain()
    directory.mkdir()
    assert watch.drain()
    (directory / "event0").touch()
    assert watch.drain()


def test_nothing_to_watch_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        DirectoryWatch(str(tmp_path / "missing" / "input"))
