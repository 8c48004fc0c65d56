"""A WAV file in place of a microphone, in real time.

Rules here: paced by trio's clock, so that a test's clock can make it fast; the file is read anew whenever it is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import trio

from utter_runner.voice.capture.resample import RATE, MissingLibrary, wav_to_pcm
from utter_runner.voice.capture.source import SourceError
from utter_runner.voice.wavfile import WavError

if TYPE_CHECKING:
    from utter_runner.voice.capture.source import OnFrames

_BLOCK = RATE // 50
_MAX_SECONDS = 3600.0


class WavSource:
    """Plays a file into the ring each time it is opened, and silence after its end, as a microphone goes on.

    Args:
        path: a WAV file (PCM 16/24/32 bit or float, any rate, any channels), at most an hour.
        speed: how many times faster than real time.
    """

    live = False

    def __init__(self, path: str | Path, *, speed: float = 1.0) -> None:
        self._path = Path(path)
        self._speed = speed

    @property
    def description(self) -> str:
        """The file's name."""
        return f"the file {self._path.name}"

    async def prepare(self) -> None:
        """Nothing to prepare: a file that changes is read as it is when it is opened."""

    async def aclose(self) -> None:
        """Nothing to give back."""

    async def run(self, on_frames: OnFrames) -> None:
        """Delivers the file and then silence, 20 ms at a time. See `AudioSource.run`."""
        pcm = memoryview(await trio.to_thread.run_sync(self._load, abandon_on_cancel=True))
        silence = bytes(4 * _BLOCK)
        start = trio.current_time()
        block = 0
        while True:
            # A microphone has a block when its time is over, not when it begins.
            await trio.sleep_until(start + (block + 1) * _BLOCK / RATE / self._speed)
            on_frames(pcm[4 * _BLOCK * block : 4 * _BLOCK * (block + 1)] or silence)
            block += 1

    def _load(self) -> bytes:
        try:
            return wav_to_pcm(self._path.read_bytes(), _MAX_SECONDS)
        except OSError as error:
            raise SourceError(f"The recording {self._path} cannot be read: {error.strerror}.") from error
        except (WavError, MissingLibrary) as error:
            raise SourceError(f"The recording {self._path} cannot be used. {error}", permanent=True) from error
