"""The microphone of a `FakeRunner`: a real ring, which a thread feeds.

Rules here: what is heard is repeated as long as somebody may listen, faster than it would be in life.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Self

from utter_runner.dataplane.ring import RingWriter

if TYPE_CHECKING:
    from support.fake_runner import FakeRunner

DEVICE = "the fake microphone"
_PACE_S = 0.002


class FakeMicrophone:
    """Answers `audio.open`, `audio.close` and `fd.pass` of the runner; a context manager.

    Args:
        runner: whose microphone it is.
        heard: f32le frames that are written again and again; nothing is written of nothing.
        seconds: what the ring holds.
        block: how many frames are written at once.
    """

    def __init__(self, runner: FakeRunner, heard: bytes, *, seconds: float = 60.0, block: int = 1600) -> None:
        self._heard = heard
        self._block = 4 * block
        self._ring = RingWriter.create(seconds)
        self._pipes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="fake microphone")
        layout = self._ring.layout
        runner.answers["audio.open"] = {"open": True, "device": DEVICE}
        runner.answers["audio.close"] = {}
        runner.answers["fd.pass"] = {
            "rate": layout.rate,
            "channels": layout.channels,
            "capacity": layout.capacity,
            "header_size": 128,
        }
        runner.descriptors["fd.pass"] = self._pass

    def _pass(self) -> list[int]:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._pipes.append(writing)
        self._ring.attach(writing)
        return [os.open(f"/proc/self/fd/{self._ring.fd}", os.O_RDONLY | os.O_CLOEXEC), reading]

    def _feed(self) -> None:
        at = 0
        while not self._stop.wait(_PACE_S):
            piece = self._heard[at : at + self._block]
            self._ring.write(piece)
            at = (at + len(piece)) % max(1, len(self._heard))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for pipe in self._pipes:
            self._ring.detach(pipe)
            os.close(pipe)
        self._ring.close()
