"""Landlock: what is asked of each version of the kernel's, and that the kernel does it."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from utter_runner.supervision.sandbox import landlock

needs_landlock = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")


@pytest.mark.parametrize(
    ("version", "size", "bits"),
    [(1, 8, 13), (2, 8, 14), (3, 8, 15), (4, 16, 15), (5, 16, 16), (6, 24, 16), (9, 24, 16)],
)
def test_no_kernel_is_asked_for_more_than_it_knows(version: int, size: int, bits: int) -> None:
    data = landlock.attributes(version, network=False, abstract=False)
    assert len(data) == size
    fields = struct.unpack(f"={size // 8}Q", data)
    assert fields[0] == 2**bits - 1
    assert fields[1:] == (0b11, 0b11)[: size // 8 - 1]


def test_what_is_permitted_is_left_alone() -> None:
    _, net, scoped = struct.unpack("=3Q", landlock.attributes(6, network=True, abstract=True))
    # Signals to others are nobody's.
    assert (net, scoped) == (0, 0b10)


@needs_landlock
def test_the_kernel_confines_what_asked_for_it(tmp_path: Path) -> None:
    for name in ("open", "closed", "writable"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    read = [*sys.path, "/usr", "/lib", "/lib64", sys.base_prefix, f"{tmp_path}/open", f"{tmp_path}/none"]
    code = (
        "from pathlib import Path\n"
        "from utter_runner.supervision.sandbox import landlock\n"
        f"landlock.restrict(landlock.abi(), {[one for one in read if one]!r}, [{str(tmp_path / 'writable')!r}],"
        " network=False, abstract=False)\n"
        f"home = Path({str(tmp_path)!r})\n"
        "print((home / 'open/file').read_text())\n"
        "(home / 'writable/file').write_text('new'); (home / 'writable/more').mkdir()\n"
        "for attempt in (lambda: (home / 'closed/file').read_text(), lambda: (home / 'open/file').write_text('x'),\n"
        "                lambda: (home / 'open/more').mkdir(), lambda: list(home.iterdir())):\n"
        "    try: attempt()\n"
        "    except OSError as error: print(error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.split() == ["open"] + [str(errno.EACCES)] * 4
    assert (tmp_path / "writable" / "file").read_text() == "new"


@needs_landlock
def test_what_the_kernel_refuses_is_an_error() -> None:
    code = (
        "from utter_runner.supervision.sandbox import landlock\n"
        "landlock.handled = lambda version: 1 << 60\n"
        "landlock.restrict(1, [], [], network=True, abstract=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"Landlock refuses its rules: {os.strerror(errno.EINVAL)}" in done.stderr
