"""Archives of every kind come out the same; what no package needs is refused, and nothing is written elsewhere."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import socket
import stat
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.packages import KEPT, Entry, entries_of, files_below, package, tar_bytes, zip_bytes
from utter_runner.operate.archives import copy_directory, unpack
from utter_runner.operate.contents import check_links, digest_of
from utter_runner.operate.errors import OperateError
from utter_runner.operate.packages import package_digest
from utter_runner.operate.tree import MAX_DEPTH, Limits

SMALL = Limits(max_package_files=20, max_package_bytes=3 * 2**20, max_package_ratio=200)
GOOD = Entry("utter-plugin.toml", b"name")


def unpacked(data: bytes, directory: Path, limits: Limits = SMALL) -> Path:
    """What an archive becomes, as the installation sees it."""
    archive, target = directory / "archive", directory / "target"
    archive.write_bytes(data)
    target.mkdir()
    with archive.open("rb") as file:
        unpack(file, "lamp.tar", target, limits)
    check_links(target, "lamp.tar")
    return target


# ---- what is let in


def archives(source: Path) -> dict[str, bytes]:
    entries = entries_of(source)
    tar = tar_bytes(entries)
    return {
        "tar": tar,
        "ustar": tar_bytes(entries, form=tarfile.USTAR_FORMAT),
        "gnu": tar_bytes(entries, form=tarfile.GNU_FORMAT),
        "gz": gzip.compress(tar),
        "bz2": bz2.compress(tar),
        "xz": lzma.compress(tar),
        "xz in two streams": lzma.compress(tar[:700]) + lzma.compress(tar[700:]) + bytes(8),
        "zip": zip_bytes(entries),
        "stored": zip_bytes(entries, zipfile.ZIP_STORED),
        "with dots": tar_bytes([Entry("./", kind=tarfile.DIRTYPE), *entries_of(source, "./")]),
        "in a directory": tar_bytes(entries_of(source, "lamp-1.0/")),
        "zipped in a directory": zip_bytes(entries_of(source, "lamp-1.0/")),
        "backwards": tar_bytes(entries[::-1]),
    }


def test_every_archive_of_a_package_has_the_digest_of_its_directory(tmp_path: Path) -> None:
    source = package(tmp_path / "source")
    expected = package_digest(source)
    for name, data in archives(source).items():
        (tmp_path / "archive").write_bytes(data)
        assert package_digest(tmp_path / "archive") == expected, name
    # Each thing that is in it counts, and nothing else does.
    (source / "bin" / "__pycache__" / "more.pyc").write_text("")
    (source / "empty").mkdir()
    (source / "utter-plugin.minisig").write_text("")
    (source / "bin" / "lamp").chmod(0o700)
    os.utime(source / "bin" / "lamp", (0, 0))
    assert package_digest(source) == expected
    changes: list[Callable[[], object]] = [
        lambda: (source / "bin" / "lamp").chmod(0o644),
        lambda: (source / "bin" / "lamp").write_text("else"),
        lambda: (source / "bin" / "lamp").rename(source / "bin" / "lump"),
        lambda: ((source / "bin" / "light").unlink(), (source / "bin" / "light").symlink_to("lump")),
    ]
    seen = {expected}
    for change in changes:
        change()
        if (source / "bin" / "light").exists():
            seen.add(package_digest(source))
    assert len(seen) == 4


def test_the_digest_is_what_the_protocol_says(tmp_path: Path) -> None:
    import hashlib  # noqa: PLC0415 - what is compared is made by hand here

    source = package(tmp_path / "source")
    lines = b"utter-package 1\n"
    for name in sorted(KEPT):
        path = source / name
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        kind = "link" if path.is_symlink() else "755" if name == "bin/lamp" else "644"
        lines += f"{kind} {hashlib.sha256(content).hexdigest()} {name}\n".encode()
    assert package_digest(source) == f"sha256:{hashlib.sha256(lines).hexdigest()}"


@pytest.mark.parametrize("make", [tar_bytes, zip_bytes])
def test_modes_are_made_usual(tmp_path: Path, make: Callable[[list[Entry]], bytes]) -> None:
    target = unpacked(make([Entry("run", mode=0o6777), Entry("read", mode=0o4606), Entry("none", mode=0)]), tmp_path)
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in target.iterdir()} == {
        "run": "0o755",
        "read": "0o644",
        "none": "0o644",
    }


def test_hard_links_become_files_of_their_own(tmp_path: Path) -> None:
    hard = Entry("b", kind=tarfile.LNKTYPE, link="./a")
    target = unpacked(tar_bytes([Entry("a", b"content", mode=0o755), hard]), tmp_path)
    assert [(target / name).read_bytes() for name in "ab"] == [b"content"] * 2
    assert (target / "a").stat().st_nlink == 1
    assert (target / "b").stat().st_mode & 0o777 == 0o755


# ---- what is not

LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE
NAMES = {
    "/etc/passwd": "has an absolute path",
    "../up": "as a part of its path",
    "a/../../up": "as a part of its path",
    "a//b": "as a part of its path",
    "a/./b": "as a part of its path",
    "C:evil": "drive letter",
    "c:/evil": "drive letter",
    "a\\..\\b": "hide or change",
    "new\nline": "hide or change",
    "esc\x1b[2J": "hide or change",
    "bidi\u202egnp.exe": "hide or change",
    "zero\u200bwidth": "hide or change",
    "n" * 256: "too long",
    "/".join(["long" * 20] * 20): "too long",
    "/".join("d" * (MAX_DEPTH + 1)): "deeper than 32",
}


@pytest.mark.parametrize("make", [tar_bytes, zip_bytes])
@pytest.mark.parametrize(("name", "why"), NAMES.items(), ids=[repr(name)[:20] for name in NAMES])
def test_a_name_that_leads_elsewhere_or_hides_something(
    tmp_path: Path, name: str, why: str, make: Callable[[list[Entry]], bytes]
) -> None:
    with pytest.raises(OperateError, match=why) as error:
        unpacked(make([GOOD, Entry(name)]), tmp_path)
    assert str(error.value).startswith(f"lamp.tar: the entry {name[:200]!r} ")
    assert files_below(tmp_path / "target") == {GOOD.name}


REFUSED = {
    "a device": ([Entry("x", kind=tarfile.CHRTYPE)], "'x' is neither a file"),
    "a disk": ([Entry("x", kind=tarfile.BLKTYPE)], "'x' is neither a file"),
    "a pipe": ([Entry("x", kind=tarfile.FIFOTYPE)], "'x' is neither a file"),
    "twice": ([Entry("x"), Entry("x")], "'x' has the same name as 'x'"),
    "twice with dots": ([Entry("x"), Entry("./x")], "'./x' has the same name"),
    "case": ([Entry("Read"), Entry("READ")], "'READ' has the same name as 'Read'"),
    "case of a directory": ([Entry("a/x"), Entry("A/y")], "'A/y' has the same name as 'a'"),
    "composed": ([Entry("\u00e9"), Entry("e\u0301")], "has the same name as '\u00e9'"),
    "folded": ([Entry("stra\u00dfe"), Entry("STRASSE")], "has the same name"),
    "a file as a directory": ([Entry("x"), Entry("x/y")], "'x/y' has the same name"),
    "a directory as a file": ([Entry("x/y"), Entry("x")], "'x' has the same name"),
    "a link as a directory": ([Entry("x", kind=LINK, link="."), Entry("x/y")], "'x/y' has the same name"),
    "a link out": ([Entry("x", kind=LINK, link="../y")], "link 'x' leads"),
    "a link to the root": ([Entry("x", kind=LINK, link="/etc")], "not relative"),
    "a link to a drive": ([Entry("x", kind=LINK, link="C:y")], "not relative"),
    "a link to nothing": ([Entry("x", kind=LINK, link="y")], "link 'x' leads to nothing"),
    "a link to no name": ([Entry("x", kind=LINK, link="a\nb")], "no usable path"),
    "a link to itself": ([Entry("x", kind=LINK, link="x")], "link 'x' leads to nothing"),
    "a link around": ([Entry("a/x", kind=LINK, link="..")], "'a/x' leads to a directory that it lies in"),
    "links by way of links": (
        [Entry("d/f"), Entry("a", kind=LINK, link="d"), Entry("b", kind=LINK, link="a/../..")],
        "link 'b' leads out of the package",
    ),
    "too many": ([Entry(f"f{n}") for n in range(21)], r"at most 20 \(max_package_files\)"),
    "too many directories": ([Entry(f"d{n}/", kind=tarfile.DIRTYPE) for n in range(21)], "max_package_files"),
    "too much": ([Entry(f"f{n}", os.urandom(2**20)) for n in range(4)], r"3145728 bytes.*\(max_package_bytes\)"),
    "a bomb": ([Entry("x", bytes(2 * 2**20))], r"\(max_package_ratio\)"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_package_needs(tmp_path: Path, kind: str) -> None:
    entries, why = REFUSED[kind]
    with pytest.raises(OperateError, match=why):
        unpacked(tar_bytes(entries, "w:gz"), tmp_path)
    (tmp_path / "zip").mkdir()
    with pytest.warns(UserWarning, match="Duplicate name") if kind == "twice" else ExitStack():
        data = zip_bytes(entries)
    with pytest.raises(OperateError, match=why):
        unpacked(data, tmp_path / "zip")


def sparse() -> bytes:
    header = tarfile.TarInfo("x")
    header.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99999999999"}
    header.size = 512
    return header.tobuf(tarfile.PAX_FORMAT) + b"1\n0\n0\n".ljust(512, b"\0") + bytes(1024)


TAR_ONLY = {
    "a hard link to what is not there": (tar_bytes([Entry("x", kind=HARD, link="../../etc/passwd")]), "'x'|etc/passwd"),
    "a hard link to a link": (
        tar_bytes([GOOD, Entry("l", kind=LINK, link=GOOD.name), Entry("x", kind=HARD, link="l")]),
        "'x' is a hard link to 'l'",
    ),
    "sparse": (sparse(), "'x' is a sparse file"),
    "cut off": (tar_bytes([Entry("x", b"y" * 5000)])[:3000], "damaged"),
    "nothing": (b"", "damaged"),
    "no archive": (b"#!/bin/sh\n" * 100, "damaged"),
    "a bad header in the middle": (tar_bytes([Entry("x"), Entry("y")])[:512] + b"rubbish!" * 64, "damaged"),
    "an endless header": (tar_bytes([Entry("x", b"y" * 2**21, kind=b"x")]), "more than 1048576 bytes between"),
    "gzip cut off": (gzip.compress(tar_bytes([Entry("x", os.urandom(5000))]))[:-900], "damaged"),
    "xz cut off": (lzma.compress(tar_bytes([Entry("x", os.urandom(5000))]))[:-900], "damaged"),
    "xz that wants memory": (
        lzma.compress(tar_bytes([GOOD]), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**29}]),
        "damaged.*[Mm]emory",
    ),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd, which is not read"),
    "no UTF-8": (tar_bytes([Entry("n\udcff")], form=tarfile.GNU_FORMAT), "damaged"),
}


@pytest.mark.parametrize("kind", TAR_ONLY)
def test_tar_archives_that_are_odd(tmp_path: Path, kind: str) -> None:
    data, why = TAR_ONLY[kind]
    with pytest.raises(OperateError, match=why):
        unpacked(data, tmp_path)


def lying_zip(size: int) -> bytes:
    """A zip archive whose only file says that it is smaller, or larger, than it is."""
    data = bytearray(zip_bytes([Entry("x", os.urandom(100_000))]))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<L", data, data.index(signature) + offset, size)
    return bytes(data)


def crowded_zip() -> bytes:
    data = bytearray(zip_bytes([Entry("x")]))
    struct.pack_into("<HHL", data, data.index(b"PK\x05\x06") + 8, 60_000, 60_000, 2**31)
    return bytes(data)


def encrypted_zip() -> bytes:
    data = bytearray(zip_bytes([Entry("x")]))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    return bytes(data)


def zip64() -> bytes:
    data = zip_bytes([Entry("x")])
    end = data.index(b"PK\x05\x06")
    return data[:end] + b"PK\x06\x07" + bytes(16) + data[end:]


ZIP_ONLY = {
    "smaller than it is": (lying_zip(10), "damaged"),
    "larger than it is": (lying_zip(200_000), "damaged"),
    "larger than all may be": (lying_zip(2**31), "max_package_bytes"),
    "crowded": (crowded_zip(), "60000 entries.*max_package_files"),
    "encrypted": (encrypted_zip(), "'x' is encrypted"),
    "zip64": (zip64(), "zip64"),
    "lzma": (zip_bytes([Entry("x", b"y" * 100)], zipfile.ZIP_LZMA), "compressed in a way"),
    "no contents": (b"PK\x03\x04" + bytes(100), "no table of contents"),
    "cut off": (zip_bytes([Entry("x", b"y" * 5000)])[:100], "no table of contents"),
    "a NUL in a name": (zip_bytes([Entry("safe.txt1evil")]).replace(b"safe.txt1", b"safe.txt\0"), "hide or change"),
}


@pytest.mark.parametrize("kind", ZIP_ONLY)
def test_zip_archives_that_are_odd(tmp_path: Path, kind: str) -> None:
    data, why = ZIP_ONLY[kind]
    with pytest.raises(OperateError, match=why):
        unpacked(data, tmp_path)


def test_what_is_in_a_directory_and_no_file(tmp_path: Path) -> None:
    source = package(tmp_path / "source")
    os.mkfifo(source / "pipe")
    with pytest.raises(OperateError, match="'pipe' is neither a file"):
        package_digest(source)
    (source / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "s"))
        with pytest.raises(OperateError, match="'s' is neither a file"):
            package_digest(source)
    (source / "s").unlink()
    (source / "out").symlink_to(tmp_path)
    with pytest.raises(OperateError, match=r"'out' is a link to .*not relative to the package"):
        package_digest(source)
    (source / "out").unlink()
    (source / "huge").write_bytes(b"")
    os.truncate(source / "huge", 2**40)
    with pytest.raises(OperateError, match=r"'huge' makes the package larger.*max_package_bytes"):
        package_digest(source)


# ---- whatever comes

part = st.sampled_from(["a", "b", "A", "..", ".", "", "c", "ab", "x" * 300, "\u202e", "C:", "\x00", "~"])
name = st.lists(part, min_size=1, max_size=4).map("/".join)
KINDS = [tarfile.REGTYPE, tarfile.DIRTYPE, LINK, HARD, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"7", b"Z"]
entry = st.builds(
    Entry,
    name=name,
    data=st.binary(max_size=600),
    kind=st.sampled_from(KINDS),
    mode=st.integers(0, 0o7777),
    link=st.one_of(name, name.map("../".__add__), st.just("/etc/hostname")),
)


def hostile(entries: list[Entry], zipped: bool) -> bytes:
    if not zipped:
        return tar_bytes([one for one in entries if "\x00" not in one.name + one.link])
    known = {tarfile.REGTYPE, tarfile.DIRTYPE, LINK, tarfile.FIFOTYPE, tarfile.CHRTYPE}
    # The library that writes them ends a name at a NUL, and warns of two that are the same.
    unique = {one.name.partition("\x00")[0]: one for one in entries if one.kind in known and one.name}
    return zip_bytes(list(unique.values()))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(entries=[Entry("\x00/a"), Entry("\x00", b"x")], zipped=True, flips=[])
@given(entries=st.lists(entry, max_size=6), zipped=st.booleans(), flips=st.lists(st.integers(0, 2**31), max_size=3))
def test_nothing_is_written_elsewhere(entries: list[Entry], zipped: bool, flips: list[int]) -> None:
    data = bytearray(hostile(entries, zipped))
    for flip in flips:
        data[flip % len(data)] ^= 1 << flip % 8
    with tempfile.TemporaryDirectory() as root:
        outer = Path(root, "outer")
        outer.mkdir()
        (outer / "precious").write_text("mine")
        try:
            target = unpacked(bytes(data), outer, Limits(20, 100_000, 200))
        except OperateError:
            target = outer / "target"
        else:
            # What is let in stays within, and is nothing but files and links.
            assert digest_of(target)
            for path in target.rglob("*"):
                assert path.resolve(strict=True).is_relative_to(target.resolve())
                assert path.is_symlink() or stat.S_IMODE(path.stat().st_mode) in {0o644, 0o755} or path.is_dir()
        assert {path.name for path in outer.iterdir()} == {"precious", "archive", "target"}
        assert (outer / "precious").read_text() == "mine"
        assert {path.name for path in Path(root).iterdir()} == {"outer"}


def test_a_directory_is_copied_whole_and_by_itself(tmp_path: Path) -> None:
    source = package(tmp_path / "source")
    (tmp_path / "target").mkdir()
    copy_directory(source, tmp_path / "target", Limits())
    assert files_below(tmp_path / "target") == KEPT
    assert digest_of(tmp_path / "target") == digest_of(source)
