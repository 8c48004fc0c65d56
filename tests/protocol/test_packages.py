"""Where packages are looked for, which is taken, and which is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import utter_plugins
from utter_protocol import packages
from utter_protocol.packages import (
    MANIFEST_NAME,
    Package,
    PackageError,
    all_packages,
    bundled_directory,
    check_package,
    find_package,
    user_directories,
)

STRANGER = 54_321


def package(directory: Path) -> Path:
    """A package's manifest, of which nothing but the place matters here."""
    directory.mkdir(parents=True)
    (directory / MANIFEST_NAME).write_text(f'name = "{directory.name}"\n')
    return directory / MANIFEST_NAME


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `path` be a stranger's: truly if we may, else by being somebody else ourselves."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


# ---- where


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, ["/h/.local/share", "/usr/local/share", "/usr/share"]),
        ({"HOME": "/h", "XDG_DATA_HOME": "/d", "XDG_DATA_DIRS": "/a:/b"}, ["/d", "/a", "/b"]),
        (
            {"HOME": "/h", "XDG_DATA_HOME": "", "XDG_DATA_DIRS": ""},
            ["/h/.local/share", "/usr/local/share", "/usr/share"],
        ),
        # A path that is not absolute is left out; one that is named twice is looked at once.
        ({"HOME": "/h", "XDG_DATA_HOME": "d", "XDG_DATA_DIRS": "a:/b::./c:/b"}, ["/b"]),
        ({}, ["/.local/share", "/usr/local/share", "/usr/share"]),
    ],
)
def test_the_directories_of_the_user_and_the_system(environ: dict[str, str], expected: list[str]) -> None:
    assert [str(path) for path in user_directories(environ)] == [f"{base}/utter/plugins" for base in expected]


def test_the_shipped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(bundled_directory()) == utter_plugins.__path__[0]
    manifest = Path(utter_plugins.__path__[0], "espeak", MANIFEST_NAME)
    assert find_package("espeak", []) == Package("espeak", manifest, bundled=True)
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    assert bundled_directory() is None
    assert find_package("espeak", []) is None


# ---- which


def test_the_first_directory_that_has_it_wins_and_the_shipped_one_comes_last(tmp_path: Path) -> None:
    first, second = package(tmp_path / "1" / "timer"), package(tmp_path / "2" / "timer")
    mine = package(tmp_path / "2" / "espeak")
    places = [tmp_path / "nowhere", tmp_path / "1", tmp_path / "2"]
    assert find_package("timer", places) == Package("timer", first, bundled=False)
    assert find_package("timer", [str(place) for place in places[::-1]]) == Package("timer", second, bundled=False)
    assert find_package("espeak", places) == Package("espeak", mine, bundled=False)
    assert find_package("clock", places) is None


def test_what_only_looks_like_a_package_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "bare").mkdir()
    (tmp_path / "odd" / MANIFEST_NAME).mkdir(parents=True)
    for name in ("file", "bare", "odd", "nowhere"):
        assert find_package(name, [tmp_path]) is None
    with pytest.raises(PackageError, match="cannot be reached"):
        find_package("nul\0", [tmp_path])
    assert {name for name, _ in all_packages([tmp_path])} == {name for name, _ in all_packages([])}


def test_what_is_there_and_cannot_be_reached_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(PackageError, match=f"{tmp_path}/loop/{MANIFEST_NAME} cannot be reached: Too many levels"):
        find_package("loop", [tmp_path])


def test_a_place_that_cannot_be_looked_into_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path / "closed" / "espeak")
    (tmp_path / "closed").chmod(0)
    places = [tmp_path / ("x" * 300), tmp_path / "closed"]
    if os.geteuid() == 0:
        # Nothing is closed to root.
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "closed" and access(path, mode))
    found = find_package("espeak", places)
    assert found is not None
    assert found.bundled
    (tmp_path / "closed").chmod(0o700)


def test_all_are_those_that_would_be_found(tmp_path: Path) -> None:
    package(tmp_path / "1" / "timer")
    package(tmp_path / "2" / "timer")
    package(tmp_path / "2" / "espeak")
    (tmp_path / "2" / "espeak").chmod(0o777)
    places = [tmp_path / "1", tmp_path / "2"]
    found = dict(all_packages(places))
    assert list(found) == sorted(found)
    assert found["timer"] == find_package("timer", places)
    assert isinstance(found["espeak"], PackageError)
    assert found["desktop"] == find_package("desktop", [])


# ---- which not


@pytest.mark.parametrize("what", ["the place", "the package", "the manifest"])
def test_what_everybody_can_change_is_refused(tmp_path: Path, what: str) -> None:
    manifest = package(tmp_path / "here" / "timer")
    path = {"the place": tmp_path / "here", "the package": manifest.parent, "the manifest": manifest}[what]
    path.chmod(0o777)
    # Nor is the next one taken instead.
    package(tmp_path / "next" / "timer")
    with pytest.raises(PackageError) as error:
        find_package("timer", [tmp_path / "here", tmp_path / "next"])
    assert str(error.value) == (
        f"{path} can be changed by every user, who could put other code there: run chmod o-w {path}"
    )
    path.chmod(0o775)
    assert find_package("timer", [tmp_path / "here"])


def test_in_a_directory_like_tmp_a_package_may_lie_and_not_be_like_it(tmp_path: Path) -> None:
    manifest = package(tmp_path / "here" / "timer")
    (tmp_path / "here").chmod(0o1777)
    assert find_package("timer", [tmp_path / "here"])
    manifest.parent.chmod(0o1777)
    with pytest.raises(PackageError, match="can be changed by every user"):
        find_package("timer", [tmp_path / "here"])


@pytest.mark.parametrize("what", ["the place", "the package", "the manifest"])
def test_what_is_somebody_elses_is_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = package(tmp_path / "here" / "timer")
    path = {"the place": tmp_path / "here", "the package": manifest.parent, "the manifest": manifest}[what]
    assert find_package("timer", [tmp_path / "here"])
    give_away(path, monkeypatch)
    with pytest.raises(PackageError, match=r"is owned by user \d+, who could put other code there"):
        find_package("timer", [tmp_path / "here"])


def test_what_is_roots_may_be_used_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = package(tmp_path / "timer")
    if os.geteuid() != 0:
        pytest.skip("only root makes files that are root's")
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    check_package(manifest)


def test_a_link_is_as_good_as_what_it_leads_to_and_as_who_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = package(tmp_path / "elsewhere" / "timer")
    (tmp_path / "here").mkdir()
    link = tmp_path / "here" / "timer"
    link.symlink_to(real.parent)
    assert find_package("timer", [tmp_path / "here"])
    real.parent.chmod(0o777)
    with pytest.raises(PackageError, match="can be changed by every user"):
        find_package("timer", [tmp_path / "here"])
    real.parent.chmod(0o755)
    give_away(link, monkeypatch)
    with pytest.raises(PackageError, match="is owned by user"):
        find_package("timer", [tmp_path / "here"])


def test_a_package_that_is_gone_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=f"{tmp_path / 'timer'} cannot be read: No such file or directory"):
        check_package(tmp_path / "timer" / MANIFEST_NAME)
