"""Whenever an installation is killed, there is the old package or the new one, and the next command puts it right."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import killed_installs
from support.packages import package, places_in
from utter_runner.operate import lockfile, staging
from utter_runner.operate.contents import digest_of
from utter_runner.operate.errors import OperateError
from utter_runner.operate.packages import Demand, offered, package_digest
from utter_runner.operate.staging import exchange, staged


@pytest.mark.parametrize("how", [[], ["without-exchange"]], ids=["exchange", "rename"])
def test_killed_at_every_change(tmp_path: Path, how: list[str]) -> None:
    digests = {}
    for version in ("1", "2"):
        digests[package_digest(package(tmp_path / version, f"{version}.0.0"))] = version
    env = {**os.environ, "PYTHONPATH": str(Path(killed_installs.__file__).parents[1])}
    argv = [sys.executable, killed_installs.__file__, str(tmp_path), *how]
    subprocess.run(argv, env=env, check=True, timeout=100)
    numbers = sorted(int(path.stem) for path in tmp_path.glob("*.done"))
    assert len(numbers) > 50
    seen = set()
    for number in numbers:
        places = places_in(tmp_path / f"{number}.home")
        place = places.plugins / "lamp"
        done = (tmp_path / f"{number}.done").read_text().split()
        # What is in the place is whole at any moment.
        before = digests[digest_of(place)] if place.exists() else "none"
        with staged(places):
            pass
        after = digests[digest_of(place)] if place.exists() else "none"
        entries = lockfile.read(places.lockfile)
        assert [digests[entry.digest] for entry in entries.values()] == [after] * (after != "none"), number
        expected = {0: {"none", "1"}, 1: {"1", "2"}, 2: {"2", "none"}, 3: {"none"}}[len(done)]
        assert {after} <= expected, number
        # Without an exchange there is a moment of an update in which there is none; it does not last.
        assert before in expected | ({"none"} if how else set()), number
        assert [path.name for path in places.plugins.iterdir()] == ["lamp"] * (after != "none")
        assert [path.name for path in places.lockfile.parent.iterdir() if not path.name.startswith(".")] in (
            ["install.lock"],
            [],
        )
        seen.add((len(done), before, after))
    # Both ways of every step were there, and steps that the next command had to complete.
    assert {(0, "none", "none"), (0, "1", "1"), (1, "1", "1"), (1, "2", "2"), (2, "none", "none")} <= seen
    assert {(0, "none", "1"), (1, "1" if not how else "none", "2"), (2, "2", "none")} <= seen


def test_what_another_command_works_on_is_left_alone(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    with staged(places) as first:
        (first.directory / "half").write_text("done")
        with staged(places) as second:
            assert first.directory != second.directory
        assert (first.directory / "half").exists()
    assert list(places.plugins.iterdir()) == []


def test_paths_change_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("")
    (tmp_path / "b").mkdir()
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot")
    assert (tmp_path / "b" / "x").exists()
    with pytest.raises(OSError, match="No such file") as error:
        exchange(tmp_path / "a", tmp_path / "none")
    assert error.value.errno == errno.ENOENT
    monkeypatch.setattr(staging.ctypes, "CDLL", lambda *_, **__: object())
    assert not exchange(tmp_path / "a", tmp_path / "b")


def test_a_commit_that_nobody_can_read_is_named(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    left = places.plugins / ".staging-x"
    left.mkdir(parents=True)
    (left / "commit.json").write_text("{")
    with pytest.raises(OperateError, match=f"delete {left}"), staged(places):
        pass
    assert left.exists()


def test_nothing_is_put_in_place_that_cannot_be_recorded(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    source = package(tmp_path / "source")
    with offered(places, source, Demand()) as offer:
        places.lockfile.write_text("rubbish")
        with pytest.raises(OperateError, match=r"install\.lock:1: "):
            offer.accept()
    assert places.lockfile.read_text() == "rubbish"
    assert list(places.plugins.iterdir()) == []
