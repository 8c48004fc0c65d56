"""Whatever a file or a device gives -> float32, 16 kHz, mono.

Rules here: numpy and soxr are imported when they are needed and only then; a plain 16 kHz mono 16-bit recording needs
neither. Conversion is work for a worker thread, not for the loop.
"""

from __future__ import annotations

import array
import sys
from typing import TYPE_CHECKING, Any

from utter_runner.voice.wavfile import IEEE_FLOAT, WavError, WavFile, parse_wav

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

RATE = 16_000
MAX_SECONDS = 60.0


class MissingLibrary(Exception):
    """numpy or soxr is needed and not installed."""

    def __init__(self, purpose: str, error: ImportError) -> None:
        super().__init__(
            f"{purpose} needs numpy and soxr, which are not installed ({error}). Install them with:"
            " pip install 'utter-runner[audio]'"
        )


def wav_to_pcm(data: bytes, max_seconds: float = MAX_SECONDS) -> bytes:
    """Converts a whole WAV file (PCM 16/24/32 bit or float, any rate, any channels) to f32le, 16 kHz, mono.

    Args:
        data: the file.
        max_seconds: the longest recording that is accepted.

    Raises:
        WavError: the file cannot be used; the message says what is wrong with it.
        MissingLibrary: it is not plain 16 kHz mono 16-bit PCM, and numpy or soxr is not installed.
    """
    wav = parse_wav(data)
    if not wav.frames:
        raise WavError("The WAV file has no samples in it.")
    if wav.seconds > max_seconds:
        raise WavError(f"The recording lasts {wav.seconds:.1f} s; at most {max_seconds:g} s are accepted.")
    if (wav.encoding, wav.bits, wav.rate, wav.channels) == (1, 16, RATE, 1):
        return _plain(wav.samples)
    try:
        import numpy as np  # noqa: F401, PLC0415 - optional and slow to import
        import soxr  # noqa: PLC0415 - optional
    except ImportError as error:
        purpose = f"A {wav.rate} Hz recording with {wav.channels} channels of {wav.bits} bit"
        raise MissingLibrary(purpose, error) from error
    mono = _as_mono_floats(wav)
    resampled = soxr.resample(mono, wav.rate, RATE, quality="HQ") if wav.rate != RATE else mono
    return resampled.astype("<f4").tobytes()


class StreamResampler:
    """Interleaved float32 frames of any rate and channels -> f32le, 16 kHz, mono, piece by piece.

    The output lags a few milliseconds behind the input: a resampler must have seen what comes after a sample.

    Args:
        rate: frames per second of the input.
        channels: samples per frame of the input.

    Raises:
        MissingLibrary: numpy or soxr is not installed.
    """

    def __init__(self, rate: int, channels: int) -> None:
        try:
            import numpy as np  # noqa: PLC0415 - optional and slow to import
            import soxr  # noqa: PLC0415 - optional
        except ImportError as error:
            raise MissingLibrary(f"A device that records at {rate} Hz with {channels} channels", error) from error
        self._numpy = np
        self._channels = channels
        self._stream: Any = soxr.ResampleStream(rate, RATE, 1, dtype="float32") if rate != RATE else None

    def process(self, frames: bytes | memoryview) -> bytes:
        """Takes whole frames in, gives what is ready, which may be nothing."""
        samples = self._numpy.frombuffer(frames, dtype="<f4").reshape(-1, self._channels)
        mono = samples.mean(axis=1, dtype="f4")
        return bytes((mono if self._stream is None else self._stream.resample_chunk(mono)).tobytes())


def _plain(samples: memoryview) -> bytes:
    numbers = array.array("h", samples.tobytes())
    if sys.byteorder != "little":
        numbers.byteswap()
    floats = array.array("f", (number / 32768.0 for number in numbers))
    if sys.byteorder != "little":
        floats.byteswap()
    return floats.tobytes()


def _as_mono_floats(wav: WavFile) -> npt.NDArray[np.float32]:
    import numpy as np  # noqa: PLC0415 - optional; the caller has seen to it

    if wav.encoding == IEEE_FLOAT:
        values = np.frombuffer(wav.samples, dtype=f"<f{wav.bits // 8}").astype("f4")
        if not np.isfinite(values).all():
            raise WavError("The recording holds samples that are not numbers (NaN or infinite).")
    elif wav.bits == 24:  # noqa: PLR2004 - three bytes a sample, which numpy has no type for
        wide = np.zeros((len(wav.samples) // 3, 4), dtype=np.uint8)
        wide[:, 1:] = np.frombuffer(wav.samples, dtype=np.uint8).reshape(-1, 3)
        values = wide.view("<i4")[:, 0].astype("f4") / 2.0**31
    else:
        values = np.frombuffer(wav.samples, dtype=f"<i{wav.bits // 8}").astype("f4") / 2.0 ** (wav.bits - 1)
    mono: npt.NDArray[np.float32] = values.reshape(-1, wav.channels).mean(axis=1, dtype="f4")
    return mono
