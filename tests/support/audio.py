"""Recordings for tests, made of numbers, and comparisons that forgive what a sound server may lose."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Samples = npt.NDArray[np.float32]


def babble(seconds: float, rate: int = 16_000, seed: int = 1) -> Samples:
    """Noise in the band and with the rhythm of speech: no two pieces are alike, so any piece tells where it is from."""
    random = np.random.default_rng(seed)
    count = round(seconds * rate)
    spectrum = np.fft.rfft(random.standard_normal(count))
    frequencies = np.fft.rfftfreq(count, 1 / rate)
    spectrum[(frequencies < 200) | (frequencies > 3000)] = 0
    syllables = 0.6 + 0.4 * np.sin(2 * np.pi * 4 * np.arange(count) / rate)
    samples = np.fft.irfft(spectrum, count) * syllables
    scaled: Samples = (samples / np.abs(samples).max() * 0.8).astype("f4")
    return scaled


def tone(frequency: float, seconds: float, rate: int = 16_000) -> Samples:
    """A sine at half volume."""
    samples: Samples = (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype("f4")
    return samples


def wav(samples: Any, rate: int = 16_000, *, encoding: int = 1, bits: int = 16, extensible: bool = False) -> bytes:
    """A WAV file of float samples, one column per channel; encoding 1 is PCM, 3 is float."""
    columns = np.asarray(samples, dtype="f8")
    channels = 1 if columns.ndim == 1 else columns.shape[1]
    flat = columns.reshape(-1)
    if encoding == 3:
        data = flat.astype(f"<f{bits // 8}").tobytes()
    else:
        whole = np.clip(np.rint(flat * 2 ** (bits - 1)), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        data = whole.astype("<i8").view("u1").reshape(-1, 8)[:, : bits // 8].tobytes()
    block = channels * bits // 8
    code = 0xFFFE if extensible else encoding
    fmt = struct.pack("<HHIIHH", code, channels, rate, rate * block, block, bits)
    if extensible:
        fmt += struct.pack("<HHIH", 22, bits, 0, encoding) + bytes.fromhex("000000001000800000aa00389b71")
    body = b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def write_wav(path: Path, samples: Any, rate: int = 16_000, **how: Any) -> Path:
    """The same, into a file."""
    path.write_bytes(wav(samples, rate, **how))
    return path


def floats(pcm: bytes) -> Samples:
    """f32le bytes as an array."""
    return np.frombuffer(pcm, dtype="<f4")


def found_share(recorded: Samples, played: Samples, rate: int = 16_000) -> float:
    """How much of what was played is found in the recording, 0 to 1, looked for in pieces of 100 ms.

    Each piece is looked for on its own, for a sound server that loses a block shifts what follows. Pieces of `babble`
    that do not belong together correlate below 0.3.
    """
    piece = rate // 10
    pieces = [played[at : at + piece] for at in range(0, len(played) - piece + 1, piece)]
    return sum(_found(recorded, wanted) for wanted in pieces) / len(pieces)


def loudest_frequency(samples: Samples, rate: int = 16_000) -> float:
    """In Hz, exact to about half a hertz for a second of a tone."""
    windowed = samples * np.hanning(len(samples))
    spectrum = np.abs(np.fft.rfft(windowed, 4 * len(samples)))
    return float(np.argmax(spectrum) * rate / (4 * len(samples)))


def _found(recorded: Samples, wanted: Samples) -> bool:
    size = len(recorded) + len(wanted)
    products = np.fft.irfft(np.fft.rfft(recorded, size) * np.conj(np.fft.rfft(wanted, size)), size)
    products = products[: len(recorded) - len(wanted) + 1]
    energy = np.convolve(recorded.astype("f8") ** 2, np.ones(len(wanted)), "valid")
    best = np.max(products / np.sqrt(np.maximum(energy, 1e-9) * float(np.sum(wanted.astype("f8") ** 2))))
    return bool(best > 0.7)
