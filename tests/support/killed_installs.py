"""Installs, updates and removes a package, and is killed before its Nth change of the file system, for every N.

    killed_installs.py DIRECTORY [without-exchange]

Run as a program. DIRECTORY has the packages `1` and `2`. For each N there is a subdirectory `N.home`, and beside it a
file N.done with a line for each step that was done before the end. The last N is the one that was not killed. The
second argument stands for a file system on which two paths cannot change places.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.killed_files import each_until_one_lives
from support.packages import places_in
from utter_runner.operate import staging
from utter_runner.operate.packages import Demand, installed_entry, offered, remove

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGES = ("open", "mkdir", "rename", "unlink", "rmdir", "symlink", "fsync")


def die_at(number: int, more: tuple[str, ...] = ()) -> None:
    """Have this process killed at its Nth change; `more` are functions of `os` that count besides."""
    changes, opening = count(), os.open

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            # To open what is there changes nothing.
            if (real is not opening or arguments[1] & os.O_CREAT) and next(changes) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return change

    # What a lost process had written is there without this, and it takes most of the time.
    os.fsync = lambda _descriptor: None
    for name in (*CHANGES, *more):
        setattr(os, name, wrapped(getattr(os, name)))
    staging.exchange = wrapped(staging.exchange)


def work(home: Path, packages: Path, told: Callable[[str], None]) -> None:
    """The life of a package: version 1, version 2, and gone."""
    places = places_in(home)
    with offered(places, packages / "1", Demand()) as offer:
        offer.accept()
    told("installed")
    with offered(places, packages / "2", Demand(), updates="lamp") as offer:
        offer.accept()
    told("updated")
    remove(places, "lamp", installed_entry(places, "lamp"))
    told("removed")


def live_until(number: int, directory: Path) -> None:
    """Do the work, and be killed on the way if there are so many changes."""
    home = directory / f"{number}.home"
    home.mkdir()
    with (directory / f"{number}.done").open("wb", buffering=0) as done:
        die_at(number)
        work(home, directory, lambda line: done.write(f"{line}\n".encode()) and None)
        os._exit(0)


def main(directory: Path, how: list[str]) -> None:
    """Try every N."""
    if how:
        staging.exchange = lambda _first, _second: False
    sys.exit(each_until_one_lives(lambda number: live_until(number, directory)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
