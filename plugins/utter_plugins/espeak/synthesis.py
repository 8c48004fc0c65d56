"""Speech as samples instead of sound: espeak-ng's WAV output, taken apart as it comes.

Rules here: the program is never further ahead than its pipe is long, because nobody reads for it; the sizes in the
header of a WAV that is still being written mean nothing and are not looked at.
"""

from __future__ import annotations

import os
import struct
import subprocess
from typing import IO, TYPE_CHECKING, Self

import msgspec

from utter_protocol.kinds import SpeechFormat

from .voice import failure, options

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_MS = 100
"""How much speech a piece holds."""
MAX_PIECE = 24 * 1024
"""How many bytes at most, so that it is 32 KiB as base64."""
_MAX_HEADER = 4096
_PCM, _BITS = 1, 16


class SynthesisError(Exception):
    """There is no speech. The text says why, in a sentence."""


class Synthesis:
    """One run of espeak-ng that plays nothing; use it as a context manager, which ends it.

    Args:
        program: its path.
        voice: which voice.
        rate: words per minute.
        volume: 0 to 200.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, program: str, *, voice: str, rate: int, volume: int) -> None:
        # A file, because a pipe that nobody reads would stop the program.
        self._errors = os.fdopen(os.memfd_create("espeak-ng"), "w+b")
        try:
            self._process = subprocess.Popen(
                [program, *options(voice, rate, volume), "--stdout"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except BaseException:
            self._errors.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.wait()
        for pipe in (*self._pipes(), self._errors):
            pipe.close()

    def kill(self) -> None:
        """End it now, from any thread; whoever reads finds the end."""
        self._process.kill()

    def begin(self, text: str) -> SpeechFormat:
        """Hand over the text, which must be clean, and wait for the beginning of the speech.

        Raises:
            SynthesisError: there is none.
        """
        stdin, out = self._pipes()
        try:
            with stdin:
                stdin.write(text.encode())
        except BrokenPipeError:
            # It ended without reading; how it ended says why.
            self._finish()
        try:
            return _read_header(out)
        except (ValueError, struct.error) as error:
            self._finish()
            raise SynthesisError(f"espeak-ng did not write a WAV: {error}.") from None

    def pieces(self, speech: SpeechFormat) -> Iterator[bytes]:
        """The speech, whole frames in each piece.

        Raises:
            SynthesisError: it broke off.
        """
        _, out = self._pipes()
        frame = frame_size(speech)
        while piece := out.read(min(speech.rate * PIECE_MS // 1000, MAX_PIECE // frame) * frame):
            if whole := piece[: len(piece) - len(piece) % frame]:
                yield whole
        self._finish()

    def _finish(self) -> None:
        code = self._process.wait()
        self._errors.seek(0)
        if wrong := failure(code, self._errors.read()):
            raise SynthesisError(wrong)

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        stdin, out = self._process.stdin, self._process.stdout
        if stdin is None or out is None:
            raise RuntimeError("both are pipes")
        return stdin, out


def frame_size(speech: SpeechFormat) -> int:
    """How many bytes a frame has."""
    return speech.channels * _BITS // 8


def _read_header(out: IO[bytes]) -> SpeechFormat:
    """Read up to the first sample.

    Raises:
        ValueError: it is no WAV with 16-bit samples.
        struct.error: it ends in the middle.
    """
    start = out.read(12)
    if not start:
        raise ValueError("it wrote nothing")
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        raise ValueError("it does not begin like one")
    speech = None
    while True:
        name, size = struct.unpack("<4sI", out.read(8))
        if name == b"data":
            break
        if size > _MAX_HEADER:
            raise ValueError("its header is too long")
        chunk = out.read(size + size % 2)
        if name == b"fmt ":
            kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", chunk[:16])
            if (kind, bits) != (_PCM, _BITS):
                raise ValueError(f"its samples have {bits} bits in format {kind}")
            speech = msgspec.convert({"encoding": "s16le", "rate": rate, "channels": channels}, SpeechFormat)
    if speech is None:
        raise ValueError("it does not say in which format it is")
    return speech
