"""A plugin's temporary directory, and what is left of one whose runner was killed."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Any

import pytest

from utter_runner.supervision.scratch import Scratch, remove_abandoned

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef" * 2


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"TMPDIR": str(tmp_path)}


def test_it_is_of_this_user_alone_and_empty_and_goes_with_all_that_is_in_it(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    scratch, other = Scratch("p", environ), Scratch("p", environ)
    path = tmp_path / os.path.basename(scratch.path)  # noqa: PTH119 - whether it lies there is what is asked
    assert (path.stat().st_mode & 0o777, [*path.iterdir()]) == (0o700, [])
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "file").write_text("x")
    scratch.remove()
    scratch.remove()
    assert [*tmp_path.iterdir()] == [tmp_path / os.path.basename(other.path)]  # noqa: PTH119 - as above
    other.remove()


def test_without_a_variable_it_is_in_tmp() -> None:
    scratch = Scratch("p", {})
    try:
        assert scratch.path.startswith("/tmp/utter-p-")  # noqa: S108 - where it is said to be
    finally:
        scratch.remove()


def test_where_it_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Scratch("p", {"TMPDIR": str(tmp_path / "gone")})
    assert str(caught.value.filename).startswith(f"{tmp_path}/gone/utter-p-")


def test_only_what_nobody_holds_is_taken_away(tmp_path: Path, environ: dict[str, str]) -> None:
    scratch = Scratch("mine", environ)
    abandoned = tmp_path / f"utter-some-plugin-{KEY}"
    (abandoned / "deep").mkdir(parents=True)
    target = tmp_path / "precious"
    target.mkdir()
    (tmp_path / f"utter-link-{KEY}").symlink_to(target)
    (tmp_path / f"utter-file-{KEY}").touch()
    for name in (f"utter-short-{KEY[:31]}", f"utter-capitals-{KEY.upper()}", f"other-p-{KEY}", f"utter-{KEY}", "utter"):
        (tmp_path / name).mkdir()
    before = {one.name for one in tmp_path.iterdir()}
    assert remove_abandoned(environ) == [str(abandoned)]
    assert {one.name for one in tmp_path.iterdir()} == before - {abandoned.name}
    scratch.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_is_left_alone(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / f"utter-p-{KEY}"
    path.mkdir()
    os.chown(path, 65534, 65534)
    assert remove_abandoned(environ) == []
    assert path.is_dir()


def test_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    assert remove_abandoned({"TMPDIR": str(tmp_path / "gone")}) == []


@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked", "while it is locked"])
def test_one_that_is_taken_for_abandoned_while_it_is_made_is_made_again(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another runner looks between any two steps of the making."""
    module: Any = os if moment == "before it is opened" else fcntl
    name = "open" if moment == "before it is opened" else "flock"
    real = getattr(module, name)
    met: list[int] = []

    def interrupted(*args: Any, **options: Any) -> Any:
        if not met:
            met.append(-1)
            if moment == "while it is locked":
                # It has the lock, and removes the directory a moment later.
                real(args[0], fcntl.LOCK_UN)
                met[0] = os.open(f"/proc/self/fd/{args[0]}", os.O_RDONLY)
                real(met[0], fcntl.LOCK_EX)
            else:
                assert len(remove_abandoned(environ)) == 1
        return real(*args, **options)

    monkeypatch.setattr(module, name, interrupted)
    scratch = Scratch("p", environ)
    assert os.path.isdir(scratch.path)  # noqa: PTH112 - a string
    assert remove_abandoned(environ) == []
    if met[0] >= 0:
        os.close(met[0])
        assert len(remove_abandoned(environ)) == 1
    scratch.remove()


def test_no_place_where_it_stays_is_an_error(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def always_held(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", always_held)
    with pytest.raises(FileNotFoundError):
        Scratch("p", environ)


def test_where_there_are_no_locks_it_works_and_nothing_is_taken_away(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    scratch = Scratch("p", environ)
    assert remove_abandoned(environ) == []
    assert os.path.isdir(scratch.path)  # noqa: PTH112 - a string
    scratch.remove()


@pytest.mark.parametrize("how", ["its own", "abandoned"])
def test_however_deep_a_plugin_has_made_it_it_goes(tmp_path: Path, environ: dict[str, str], how: str) -> None:
    scratch = Scratch("p", environ)
    back = os.open(".", os.O_RDONLY)
    try:
        os.chdir(scratch.path)
        for _ in range(1_500):
            os.mkdir("d")  # noqa: PTH102 - the path would be too long
            os.chdir("d")
    finally:
        os.chdir(back)
        os.close(back)
    if how == "its own":
        scratch.remove()
    else:
        os.close(scratch._fd)
        assert remove_abandoned(environ) == [scratch.path]
    assert [*tmp_path.iterdir()] == []
