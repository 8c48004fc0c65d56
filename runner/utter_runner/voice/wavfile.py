"""WAV files, read and written in memory (RIFF/WAVE: Microsoft "Multiple Channel Audio Data and WAVE Files").

Rules here: standard library only, and only the container; samples are converted in `capture.resample`. A file that
cannot be used is a `WavError` that says what is wrong with it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PCM = 1
IEEE_FLOAT = 3
_EXTENSIBLE = 0xFFFE
# The tail of every KSDATAFORMAT_SUBTYPE GUID; the first two bytes of the GUID are the format's code.
_SUBTYPE_TAIL = bytes.fromhex("000000001000800000aa00389b71")
_FMT = struct.Struct("<HHIIHH")

MIN_RATE, MAX_RATE = 4_000, 384_000
MAX_CHANNELS = 32


class WavError(ValueError):
    """The file is no WAV file that can be used; the message is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class WavFile:
    """What a WAV file holds.

    Args:
        encoding: `PCM` (16, 24 or 32 bit, signed) or `IEEE_FLOAT` (32 or 64 bit).
        bits: bits per sample.
        rate: frames per second.
        channels: samples per frame, interleaved.
        samples: little-endian samples, whole frames.
    """

    encoding: int
    bits: int
    rate: int
    channels: int
    samples: memoryview

    @property
    def frames(self) -> int:
        """How many frames there are."""
        return len(self.samples) * 8 // (self.bits * self.channels)

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.frames / self.rate


def parse_wav(data: bytes) -> WavFile:
    """Finds format and samples of a WAV file.

    A data chunk that says it is longer than the file, as programs leave it that write to a pipe or are killed, counts
    up to the file's end.

    Raises:
        WavError: no RIFF/WAVE file, no format or data, or a format that is not read here.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        what = f"it begins with {data[:4]!r}" if data else "it is empty"
        raise WavError(f"This is not a WAV file: {what}, and a WAV file begins with RIFF, a size and WAVE.")
    view = memoryview(data)
    fmt: memoryview | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = bytes(view[at : at + 4]), int.from_bytes(view[at + 4 : at + 8], "little")
        body = view[at + 8 : at + 8 + size]
        if name == b"fmt ":
            fmt = body
        elif name == b"data":
            if fmt is None:
                raise WavError("The WAV file has its samples before it says their format (no fmt chunk before data).")
            # Streaming writers leave 0 where they could not go back to write the size.
            return _with_samples(fmt, body if size else view[at + 8 :])
        # Chunks are padded to even sizes.
        at += 8 + size + size % 2
    raise WavError(f"The WAV file has no {'data' if fmt is not None else 'fmt'} chunk; it seems to be cut off.")


def float_wav(pcm: bytes, rate: int, channels: int = 1) -> bytes:
    """A WAV file of little-endian float32 samples, for programs that play one."""
    frame = 4 * channels
    fmt = _FMT.pack(IEEE_FLOAT, channels, rate, rate * frame, frame, 32)
    chunks = b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", len(pcm))
    return b"RIFF" + struct.pack("<I", len(chunks) + len(pcm)) + chunks + pcm


def _with_samples(fmt: memoryview, samples: memoryview) -> WavFile:
    if len(fmt) < _FMT.size:
        raise WavError(f"The WAV file's fmt chunk has {len(fmt)} bytes; it needs {_FMT.size}.")
    code, channels, rate, _, block, bits = _FMT.unpack_from(fmt)
    if code == _EXTENSIBLE:
        if len(fmt) < 40 or bytes(fmt[26:40]) != _SUBTYPE_TAIL:  # noqa: PLR2004 - offsets of the extensible format
            raise WavError("The WAV file's extensible format has no subtype that is known here.")
        code = int.from_bytes(fmt[24:26], "little")
    if (code, bits) not in {(PCM, 16), (PCM, 24), (PCM, 32), (IEEE_FLOAT, 32), (IEEE_FLOAT, 64)}:
        kind = {PCM: "PCM", IEEE_FLOAT: "float"}.get(code, f"format {code:#06x}")
        raise WavError(f"The WAV file has {bits}-bit {kind} samples; PCM of 16, 24 or 32 bit and float are understood.")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise WavError(f"The WAV file's rate is {rate} Hz; {MIN_RATE} to {MAX_RATE} Hz are understood.")
    if not 1 <= channels <= MAX_CHANNELS:
        raise WavError(f"The WAV file has {channels} channels; 1 to {MAX_CHANNELS} are understood.")
    if block != channels * bits // 8:
        raise WavError(
            f"The WAV file contradicts itself: {channels} channels of {bits} bit take {channels * bits // 8} bytes"
            f" a frame, and it says {block}."
        )
    return WavFile(code, bits, rate, channels, samples[: len(samples) // block * block])
