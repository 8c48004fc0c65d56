"""Writes blobs and is killed before its Nth change of the file system, for every N. Run as a program.

    killed_files.py DIRECTORY

For each N there is a subdirectory N with the store, and beside it a file N.done with a line for each blob that was told
to be there, to be the screen's, or not to be there any more, before the end. The last N is the one that was not killed.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utter_runner.dataplane.blobfiles import CHUNK, BlobFiles, Bytes, Zeros, file_of

if TYPE_CHECKING:
    from collections.abc import Callable

PLUGIN, OTHER = "1" * 64, "2" * 64
CHANGES = ("open", "write", "rename", "link", "unlink", "mkdir", "rmdir", "ftruncate", "chmod")


def die_at(number: int) -> None:
    """Have this process killed at its Nth change; of a write, in the middle of it."""
    changes = count()

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            if next(changes) == number:
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return change

    for name in CHANGES:
        setattr(os, name, wrapped(name, getattr(os, name)))


def work(root: Path, told: Callable[[str], None]) -> None:
    """A life of a store: what it wrote, shared, and let go."""
    files = BlobFiles(root)
    files.open()
    places = {}
    for content in (Bytes(b"small"), Bytes(bytes(CHUNK + 5)), Zeros(5000)):
        temporary, sha256 = files.write(content)
        places[sha256] = files.plugins / PLUGIN / file_of(sha256, "user")
        files.place(temporary, places[sha256])
        told(f"there {PLUGIN} {sha256}")
    for sha256, place in places.items():
        other = files.plugins / OTHER
        files.link(place, other / file_of(sha256, "llm"))
        told(f"there {OTHER} {sha256}")
        files.rename(other / file_of(sha256, "llm"), other / file_of(sha256, "screen"))
        told(f"screen {OTHER} {sha256}")
        files.link(place, files.clients / "1" / sha256)
    for sha256, place in places.items():
        rubbish = files.retire(place)
        told(f"gone {PLUGIN} {sha256}")
        assert rubbish is not None
        files.delete([rubbish])
    files.close()


def live_until(number: int, directory: Path) -> None:
    """Do the work, and be killed on the way if there are so many changes."""
    with (directory / f"{number}.done").open("wb", buffering=0) as done:
        # The file that says how far it came is written by what is not counted.
        real_write, fd = os.write, done.fileno()
        die_at(number)
        work(directory / str(number), lambda line: real_write(fd, f"{line}\n".encode()))
        os._exit(0)


def each_until_one_lives(live: Callable[[int], None]) -> int:
    """Run `live` with 0, 1, 2, ... in a process each, until one ends by itself; return its exit code."""
    for number in count():
        child = os.fork()
        if not child:
            live(number)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
    raise AssertionError("there are enough numbers")


def main(directory: Path) -> None:
    """Try every N."""
    sys.exit(each_until_one_lives(lambda number: live_until(number, directory)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
