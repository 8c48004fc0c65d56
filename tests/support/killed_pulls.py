"""Fetches two models and gives them their names, and is killed before its Nth change of the file system, for every N.

    killed_pulls.py DIRECTORY

Run as a program. For each N there is a subdirectory N with the store, and beside it a file N.done with the name of each
model that was told to be there before the end. The last N is the one that was not killed. What is fetched comes from a
transport in this process: what a server may do is another test's.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from support.killed_files import each_until_one_lives
from support.killed_installs import die_at
from utter_protocol.manifest import Model
from utter_runner.operate.models.download import Download
from utter_runner.operate.models.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENTS = {"base/model.bin": bytes(range(256)) * 30, "base/words.txt": b"words"}
MODELS = {
    name: Model(
        name=name, url=f"https://example.org/{name}", sha256=hashlib.sha256(content).hexdigest(), size=len(content)
    )
    for name, content in CONTENTS.items()
}
_PIECE = 1000


def answer(request: httpx.Request) -> httpx.Response:
    """What a good server answers, in pieces."""
    content = CONTENTS[request.url.path[1:]]
    found = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
    start = int(found[1]) if found else 0
    rest = content[start:]
    headers = {"Content-Length": str(len(rest))}
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    pieces = (rest[at : at + _PIECE] for at in range(0, len(rest), _PIECE))
    return httpx.Response(206 if start else 200, headers=headers, content=pieces)


def work(root: Path, told: Callable[[str], None]) -> None:
    """Fetch both."""
    store = Store(root)
    store.sweep()
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        for name, model in MODELS.items():
            Download(store, model, client, finish=lambda model=model: store.give("ear", model)).run()
            told(name)


def live_until(number: int, directory: Path) -> None:
    """Do the work, and be killed on the way if there are so many changes."""
    with (directory / f"{number}.done").open("wb", buffering=0) as done:
        real_write = os.write
        die_at(number, ("write", "fchmod", "ftruncate"))
        work(directory / str(number), lambda line: real_write(done.fileno(), f"{line}\n".encode()) and None)
        os._exit(0)


def main(directory: Path) -> None:
    """Try every N."""
    sys.exit(each_until_one_lives(lambda number: live_until(number, directory)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
