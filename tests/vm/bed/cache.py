"""Where what was built is kept, and when it is built anew.

Rules here: a thing's key is the hash of everything that goes into it, so that it is never stale. It is built in a
directory beside its place and renamed when it is complete; a build that was killed leaves nothing that counts. What
the current tree does not use is deleted by `prune`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "vm"
# What a failed test leaves, and the figures.
LOGS = CACHE / "logs"
BED = Path(__file__).resolve().parent


class BedError(Exception):
    """The bed cannot be built or used; the message says why and what to do."""


def say(text: str) -> None:
    """Tell whoever waits what happens, at once."""
    print(f"vm: {text}", file=sys.stderr, flush=True)


def key_of(*parts: str | Path) -> str:
    """A key for texts and for files with their names, modes and contents; directories count with all that they hold."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(b"text %d\n" % len(part) + part.encode())
            continue
        files = [part] if part.is_file() else sorted(one for one in part.rglob("*") if one.is_file())
        for file in files:
            if "__pycache__" in file.parts:
                continue
            data = file.read_bytes()
            executable = os.access(file, os.X_OK)
            digest.update(f"file {file.relative_to(part.parent)} {executable} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]


def built(name: str, key: str, build: Callable[[Path], None], lock: str = "") -> Path:
    """The directory `name-key`, which `build` fills if it is not there.

    Args:
        name: what it is.
        key: `key_of` everything that goes into it.
        build: gets a directory to fill; what it raises leaves nothing behind that counts.
        lock: what else must not be built at the same time, by a common name; else only this.
    """
    place = CACHE / f"{name}-{key}"
    with _locked(lock or name):
        if not place.is_dir():
            started = time.monotonic()
            say(f"building {name}")
            making = place.with_name(f"{place.name}.part")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)
            build(making)
            making.rename(place)
            say(f"built {name} in {time.monotonic() - started:.0f} s")
    return place


def prune(*kept: Path) -> None:
    """Delete what was built and is none of `kept`."""
    for one in CACHE.iterdir():
        if one.is_dir() and "-" in one.name and one not in kept:
            shutil.rmtree(one)


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """One process at a time builds it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
