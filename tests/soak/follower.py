"""Reads the ring of `soak.source` and knows of each frame whether it is the one that is due.

    python follower.py SOCKET REPORT    follows the ring of a daemon until that ends, then writes its report

Rules here: a frame that is missing is lost undeclared unless the ring says so, by an overrun (`Overrun`) or by another
generation; there is no third way.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from utter_protocol.ring import Overrun

if TYPE_CHECKING:
    from utter_protocol.ring import RingView

COUNT = 2**20
CHUNK = 64_000


class Follower:
    """What one reader has seen.

    Attributes:
        read: frames that were read and were right.
        declared: frames that were overwritten before they were read.
        overruns: how often that happened.
        openings: how many frames each opening had of which all was seen, by its number.
        wrong: what was not as it must be, in sentences.
    """

    def __init__(self, view: RingView) -> None:
        self._view = view
        self._cursor = view.oldest
        self._due: int | None = None
        self._opening: int | None = None
        self._opening_frames = 0
        self.read = self.declared = self.overruns = 0
        self.openings: dict[int, int] = {}
        self.wrong: list[str] = []

    def catch_up(self) -> None:
        """Read all that is there."""
        while count := min(CHUNK, self._view.position - self._cursor):
            try:
                frames = np.frombuffer(self._view.read(self._cursor, count), dtype="<f4")
            except Overrun as overrun:
                self.overruns += 1
                self.declared += overrun.oldest - self._cursor
                self._cursor = overrun.oldest
                self._due = self._opening = None
                continue
            self._cursor += count
            self.read += count
            begins = [0, *np.flatnonzero(frames < 0), count]
            for start, end in pairwise(begins):
                if start < end:
                    self._look(frames[start:end])

    def _look(self, frames: np.ndarray) -> None:
        """Frames of one opening, perhaps with its beginning."""
        if frames[0] < 0:
            self._begin(-int(frames[0]))
        at = np.flatnonzero(frames > 0)
        if len(at):
            if self._due is None:
                self._due = int(frames[at[0]]) - 1 - int(at[0])
            due = (self._due + at) % COUNT + 1
            wrong = np.flatnonzero(frames[at] != due)
            if len(wrong):
                first = int(wrong[0])
                found, wanted = int(frames[at[first]]), int(due[first])
                self.wrong.append(f"in opening {self._opening} frame {found} came where {wanted} was due")
                self._due = int(frames[at[first]]) - 1 - int(at[first])
        if self._due is not None:
            self._due += len(frames)
        self._opening_frames += len(frames)

    def _begin(self, number: int) -> None:
        if self._opening is not None:
            self.openings[self._opening] = self._opening_frames
            if number <= self._opening:
                self.wrong.append(f"opening {number} came after opening {self._opening}")
        if self._view.generation < number:
            self.wrong.append(f"opening {number} began in generation {self._view.generation}")
        self._opening, self._opening_frames, self._due = number, 0, 0

    def report(self) -> dict[str, Any]:
        """What has been seen."""
        return {
            "read": self.read,
            "declared": self.declared,
            "overruns": self.overruns,
            "openings": self.openings,
            "wrong": self.wrong[:10],
            "resources": resources("self"),
        }


def resources(pid: int | str) -> dict[str, int]:
    """`{rss_kib, fds, threads}` of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "fds": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
    }


def main() -> None:
    from utter_sdk.client import Client  # noqa: PLC0415 - only the program needs it
    from utter_sdk.ring import RingReader  # noqa: PLC0415 - as above

    with Client.connect(sys.argv[1]) as client, client.fd_pass("memfd.ring", {"wake": True}) as received:
        ring, wake = received.fds
        with RingReader(ring) as view:
            follower = Follower(view)
            sys.stdout.write("following\n")
            sys.stdout.flush()
            open_ = True
            while open_:
                select.select([wake], [], [], 5)
                with contextlib.suppress(BlockingIOError):
                    # The runner's end is closed when it ends.
                    open_ = bool(os.read(wake, 65_536))
                follower.catch_up()
            follower.catch_up()
            Path(sys.argv[2]).write_text(json.dumps(follower.report()))


if __name__ == "__main__":
    main()
