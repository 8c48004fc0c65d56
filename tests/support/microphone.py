"""A microphone for the tests of plugins that follow it, and sound for it.

Rules here: it does what it was told, step by step, on the thread that waits for it; nothing takes time.
"""

from __future__ import annotations

import wave
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from utter_protocol.ring import Overrun, RingLayout
from utter_sdk.microphone import MicrophoneClosed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.audio import Samples

WORDS = Path(__file__).parents[1] / "data" / "audio" / "wake"
SPEECH = Path(__file__).parents[1] / "data" / "audio" / "en"
RATE = 16_000
_KEPT = 5 * RATE


def recording(path: Path) -> Samples:
    """A 16 kHz mono 16-bit WAV file."""
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getsampwidth(), file.getnchannels()) == (RATE, 2, 1)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype("f4") / 32_768


def pause(seconds: float, seed: int = 1) -> Samples:
    """A room in which nobody speaks: noise 65 dB below the loudest sound."""
    noise: Samples = (np.random.default_rng(seed).standard_normal(round(seconds * RATE)) * 5e-4).astype("f4")
    return noise


class Silent:
    """A step: the microphone delivers nothing until whoever waits has given up waiting."""


class Reopened:
    """A step: the source is opened again."""


class Overtaken:
    """A step: the ring has lost everything before its present."""


class Unplugged(MicrophoneClosed):
    """The steps are over: the runner has gone."""


class ScriptedMicrophone:
    """A `utter_sdk.microphone.Microphone` that delivers what it was told to.

    Args:
        steps: what happens while somebody waits: sound that comes in one piece, or one of the classes above.
        layout: other than the usual one.
        start: how many frames there were before.

    Attributes:
        waits: the time-out of every wait.
    """

    def __init__(self, steps: Iterable[object], *, layout: RingLayout | None = None, start: int = 0) -> None:
        self.layout = layout or RingLayout(rate=RATE, channels=1, capacity=70 * RATE)
        self.position = start
        self.oldest = 0
        self.generation = 1
        self.waits: list[float | None] = []
        self.closed = False
        self._sound = np.zeros(0, "f4")
        self._steps = list(steps)

    def read(self, start: int, count: int) -> bytes:
        """Copy frames."""
        assert start + count <= self.position
        if start < self.oldest:
            raise Overrun(self.oldest)
        first = self.position - len(self._sound)
        assert start >= first, "longer ago than this microphone remembers"
        return self._sound[start - first : start - first + count].astype("<f4").tobytes()

    def wait(self, position: int, timeout: float | None = None) -> bool:
        """Let things happen until frame number `position` is there, or until there is silence."""
        self.waits.append(timeout)
        while self.position <= position:
            if not self._steps:
                raise Unplugged
            step = self._steps.pop(0)
            if step is Reopened:
                self.generation += 1
            elif step is Overtaken:
                self.oldest = self.position
            elif step is not Silent:
                kept = self._sound[-_KEPT:]
                self._sound = np.concatenate([kept, np.asarray(step, "f4")])
                self.position += len(self._sound) - len(kept)
            elif timeout is not None:
                return False
        return True

    def close(self) -> None:
        """Let go."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
