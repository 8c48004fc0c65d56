"""The files behind handles: whole or not there, private, and consistent whenever the runner was killed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import killed_files
from utter_runner.dataplane.blobfiles import (
    CHUNK,
    BlobFiles,
    Bytes,
    Found,
    Open,
    StoreError,
    Zeros,
    digest_of,
    file_of,
    name_of,
)
from utter_runner.policy.marks import below as below_mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.policy.marks import Mark

PLUGIN = "1" * 64


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlobFiles]:
    files = BlobFiles(tmp_path / "handles")
    assert files.open() == []
    yield files
    files.close()


def below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}


CONTENTS = [b"", b"x", b"a page" * 1000, bytes(range(256)) * (CHUNK // 128) + b"rest"]


@pytest.mark.parametrize("data", CONTENTS, ids=len)
def test_content_is_written_whole_and_named_by_its_digest(files: BlobFiles, data: bytes) -> None:
    temporary, digest = files.write(Bytes(data))
    assert digest == sha256(data) == digest_of(Bytes(data))
    target = files.plugins / PLUGIN / name_of(digest, "")
    files.place(temporary, target)
    assert target.read_bytes() == data
    assert below(files.root) == {"handles.lock", f"plugins/{PLUGIN}/{digest}"}
    assert target.stat().st_mode & 0o777 == 0o600
    for directory in (files.root, files.plugins, files.plugins / PLUGIN):
        assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("size", [0, 1, CHUNK, 3 * CHUNK + 5])
def test_zeros_are_zeros_and_take_no_room(files: BlobFiles, size: int) -> None:
    temporary, digest = files.write(Zeros(size))
    assert digest == sha256(bytes(size)) == digest_of(Zeros(size))
    assert temporary.read_bytes() == bytes(size)
    assert temporary.stat().st_blocks == 0


@pytest.mark.parametrize("data", CONTENTS, ids=len)
def test_an_open_file_is_copied(files: BlobFiles, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "source").write_bytes(data)
    with (tmp_path / "source").open("rb") as source:
        source.seek(3)
        temporary, digest = files.write(Open(source.fileno(), len(data)))
        assert source.tell() == 3
    assert (temporary.read_bytes(), digest) == (data, sha256(data))


def test_an_open_file_that_is_shorter_than_it_was_fails(files: BlobFiles, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"12345")
    with (tmp_path / "source").open("rb") as source, pytest.raises(OSError, match="after 5 of 6 bytes"):
        files.write(Open(source.fileno(), 6))
    assert below(files.root) == {"handles.lock"}


def test_what_is_given_up_leaves_nothing(files: BlobFiles) -> None:
    seen = 0

    def give_up() -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write(Bytes(bytes(5 * CHUNK)), give_up)
    assert below(files.root) == {"handles.lock"}


def test_a_link_is_another_name_for_the_same_file(files: BlobFiles) -> None:
    temporary, digest = files.write(Bytes(b"shared"))
    one, other = files.plugins / PLUGIN / digest, files.clients / "7" / digest
    files.place(temporary, one)
    for _ in range(2):
        files.link(one, other)
        assert one.stat().st_ino == other.stat().st_ino
        assert below(files.root) == {"handles.lock", f"plugins/{PLUGIN}/{digest}", f"clients/7/{digest}"}
    other.unlink()
    other.write_bytes(b"in the way")
    files.link(one, other)
    assert other.read_bytes() == b"shared"
    one.unlink()
    with pytest.raises(FileNotFoundError):
        files.link(one, other)
    assert other.read_bytes() == b"shared"


def test_what_is_retired_is_out_of_sight_and_deleted_later(files: BlobFiles) -> None:
    temporary, digest = files.write(Bytes(b"old"))
    place = files.clients / "1" / digest
    files.place(temporary, place)
    rubbish = [files.retire(place), files.retire(files.clients / "1")]
    assert not place.parent.exists()
    assert files.retire(place) is None
    files.delete([path for path in rubbish if path is not None])
    assert below(files.root) == {"handles.lock"}


def test_a_directory_that_somebody_tidied_up_is_made_again(files: BlobFiles) -> None:
    for _ in range(2):
        for directory in ("tmp", "plugins"):
            if (files.root / directory).exists():
                subprocess.run(["rm", "-r", files.root / directory], check=True)
        temporary, digest = files.write(Bytes(b"again"))
        files.place(temporary, files.plugins / PLUGIN / digest)
        (files.root / "tmp").rmdir()
        files.link(files.plugins / PLUGIN / digest, files.plugins / PLUGIN / ("2" * 64))
    assert (files.root / "tmp").stat().st_mode & 0o777 == 0o700


# ---- opening


def test_the_next_runner_finds_what_plugins_held_and_nothing_else(files: BlobFiles) -> None:
    part = name_of(sha256(b"in a part"), "../../part")
    assert part.startswith(sha256(b"in a part") + ".")
    assert len(part) == 129
    for data, place in ((b"plain", sha256(b"plain")), (b"in a part", part)):
        files.place(files.write(Bytes(data))[0], files.plugins / PLUGIN / place)
        files.place(files.write(Bytes(data))[0], files.clients / "1" / place)
    os.utime(files.plugins / PLUGIN / part, (1, 1))
    files.write(Bytes(b"unfinished"))
    os.close(files._lock_fd)  # as the kernel does when a process is killed
    files._lock_fd = -1
    again = BlobFiles(files.root)
    found = {(one.directory, one.name, one.size, one.age > 1e9, one.mark) for one in again.open()}
    # What says nothing of where it came from is the screen's.
    assert found == {(PLUGIN, sha256(b"plain"), 5, False, "screen"), (PLUGIN, part, 9, True, "screen")}
    assert below(again.root) == {"handles.lock", f"plugins/{PLUGIN}/{sha256(b'plain')}", f"plugins/{PLUGIN}/{part}"}
    again.close()
    again.close()


@pytest.mark.parametrize("part", ["", "part"])
@pytest.mark.parametrize("mark", ["user", "llm", "screen"])
def test_a_mark_is_found_again_and_only_goes_down(files: BlobFiles, mark: Mark, part: str) -> None:
    name = name_of(sha256(b"marked"), part)
    directory = files.plugins / PLUGIN
    for lower in below_mark(mark):
        path = directory / file_of(name, mark)
        files.place(files.write(Bytes(b"marked"))[0], path)
        files.rename(path, directory / file_of(name, lower))
        # One that is not there has no name to change.
        files.rename(directory / ("f" * 64), directory / file_of(name, "user"))
        files.close()
        files = BlobFiles(files.root)
        assert [(one.name, one.mark) for one in files.open()] == [(name, lower)]
        files.close()
        files.open()
        (directory / file_of(name, lower)).unlink()
    files.close()


@pytest.mark.parametrize(("names", "mark"), [((".user", ""), "screen"), ((".user", ".llm"), "llm")])
def test_of_two_files_of_one_blob_the_lower_one_counts(files: BlobFiles, names: tuple[str, ...], mark: Mark) -> None:
    directory = files.plugins / PLUGIN
    for order in (names, names[::-1]):
        for suffix in order:
            files.place(files.write(Bytes(b"twice"))[0], directory / (sha256(b"twice") + suffix))
        files.close()
        assert [one.mark for one in files.open()] == [mark]
        assert below(files.root) == {"handles.lock", f"plugins/{PLUGIN}/{file_of(sha256(b'twice'), mark)}"}


def test_what_is_no_blob_is_thrown_away(files: BlobFiles, tmp_path: Path) -> None:
    files.close()
    home = tmp_path / "home"
    home.mkdir()
    (home / "precious").write_text("x")
    plugin = files.plugins / PLUGIN
    plugin.mkdir(parents=True)
    (plugin / "readme").write_text("x")
    (plugin / ("a" * 64)).mkdir()
    (plugin / ("b" * 64)).symlink_to(home / "precious")
    os.mkfifo(plugin / ("c" * 64))
    (plugin / f"{'d' * 64}.{'e' * 63}").write_text("x")
    (files.plugins / "lamp").mkdir()
    (files.plugins / ("3" * 64)).symlink_to(home)
    again = BlobFiles(files.root)
    assert again.open() == []
    again.close()
    assert below(files.root) == {"handles.lock"}
    assert (home / "precious").read_text() == "x"


def test_only_one_runner_uses_a_directory(files: BlobFiles) -> None:
    with pytest.raises(StoreError, match=r"Another runner uses .*handles"):
        BlobFiles(files.root).open()


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "precious").write_text("x")
    with pytest.raises(StoreError, match="holds other files"):
        BlobFiles(tmp_path).open()
    assert (tmp_path / "tmp" / "precious").exists()


def test_a_directory_that_cannot_be_one_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=f"{root}.*(exists|Not a directory)"):
            BlobFiles(root).open()


def test_a_directory_that_is_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "handles").mkdir(mode=0o755)
    files = BlobFiles(tmp_path / "handles")
    files.open()
    assert files.root.stat().st_mode & 0o777 == 0o700
    files.close()


# ---- killed at every point


def test_a_runner_that_was_killed_at_any_moment_leaves_a_consistent_directory(tmp_path: Path) -> None:
    subprocess.run([sys.executable, killed_files.__file__, tmp_path], check=True, timeout=100)
    numbers = sorted(int(path.stem) for path in tmp_path.glob("*.done"))
    assert len(numbers) > 40
    for number in numbers:
        files = BlobFiles(tmp_path / str(number))
        found: list[Found] = files.open()
        there: set[tuple[str, ...]] = set()
        # The one that was under way may be there or not.
        unsure: set[tuple[str, ...]] = set()
        screen: set[tuple[str, ...]] = set()
        for line in (tmp_path / f"{number}.done").read_text().splitlines():
            what, *blob = line.split()
            if what == "screen":
                screen.add(tuple(blob))
            else:
                (there.add if what == "there" else there.discard)(tuple(blob))
        for one in found:
            place = files.plugins / one.directory / file_of(one.name, one.mark)
            # What the user's own was, it stays; what somebody else's became, it stays, too.
            assert (one.mark == "user") == (one.directory == killed_files.PLUGIN)
            if (one.directory, one.name) in screen:
                assert one.mark == "screen", number
            assert sha256(place.read_bytes()) == one.name
            assert place.stat().st_size == one.size
            if (one.directory, one.name) not in there:
                unsure.add((one.directory, one.name))
        missing = there - {(one.directory, one.name) for one in found}
        assert len(unsure | missing) <= 1, number
        kept = {f"plugins/{one.directory}/{file_of(one.name, one.mark)}" for one in found} | {"handles.lock"}
        assert below(files.root) == kept
        files.close()
