"""The bed by hand: `PYTHONPATH=tests python -m vm.bed build|shell|clean`.

build [--fresh]   build what is missing of the guest, its checkpoint and the runner's disk; --fresh: all anew
shell             a guest, and a prompt whose lines run in it as alice (or with `root:` in front, as root)
clean             delete everything that was built
"""

from __future__ import annotations

import shutil
import sys
import time

from vm.bed.cache import CACHE, BedError, say
from vm.bed.guest import GuestError, started
from vm.bed.image import USER
from vm.bed.machine import build_all

_COMMAND_SECONDS = 600.0


def shell() -> None:
    """Run lines of standard input in a guest until it ends."""
    with started(build_all()) as guest:
        print(f"{guest.shared} here is /mnt/host there; Ctrl-D ends the guest.", flush=True)
        while True:
            print("alice$ ", end="", flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            command = line.removeprefix("root:")
            user = USER if command == line else "root"
            try:
                done = guest.run("sh", "-c", command, user=user, timeout=_COMMAND_SECONDS)
            except GuestError as error:
                print(error)
                return
            print(f"{done.out}{done.err}", end="")
            if done.code:
                print(f"exit code {done.code}")


def main(arguments: list[str]) -> int:
    """The command line; returns the exit code."""
    try:
        match arguments:
            case ["build"] | ["build", "--fresh"]:
                if "--fresh" in arguments:
                    shutil.rmtree(CACHE, ignore_errors=True)
                began = time.monotonic()
                build_all(tidy=True)
                say(f"the guest is ready ({time.monotonic() - began:.0f} s)")
            case ["shell"]:
                shell()
            case ["clean"]:
                shutil.rmtree(CACHE, ignore_errors=True)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except BedError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
