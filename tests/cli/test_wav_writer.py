"""A WAV file that is whole after each piece."""

from __future__ import annotations

import math
import os
import struct
import wave
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import audio
from utter_runner.cli.wav_writer import WavWriter
from utter_runner.voice.capture.resample import wav_to_pcm
from utter_runner.voice.wavfile import parse_wav

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    made = os.open(tmp_path / "made.wav", os.O_RDWR | os.O_CREAT)
    yield made
    os.close(made)


def content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@pytest.mark.parametrize("encoding", ["s16", "f32"])
def test_it_is_whole_after_each_piece(fd: int, tmp_path: Path, encoding: Literal["s16", "f32"]) -> None:
    said = audio.babble(0.5)
    writer = WavWriter(fd, 16_000, encoding, seekable=True)
    assert parse_wav(content(fd)).frames == 0
    for at in range(0, len(said), 1000):
        writer.write(said[at : at + 1000].tobytes())
        heard = audio.floats(wav_to_pcm(content(fd)))
        assert len(heard) == writer.frames == at + 1000
        tolerance = 0 if encoding == "f32" else 1 / 65_000
        assert np.abs(heard - said[: at + 1000]).max() <= tolerance
    data = content(fd)
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8


@pytest.mark.parametrize("encoding", ["s16", "f32"])
def test_the_header_is_never_more_than_a_tenth_of_a_second_behind(
    fd: int, monkeypatch: pytest.MonkeyPatch, encoding: Literal["s16", "f32"]
) -> None:
    writer = WavWriter(fd, 16_000, encoding, seekable=True)
    uncounted = []
    write = os.write

    def watched(into: int, data: bytes) -> int:
        written = write(into, data)
        file = content(fd)
        uncounted.append(len(file) - 8 - struct.unpack_from("<I", file, 4)[0])
        return written

    monkeypatch.setattr(os, "write", watched)
    writer.write(bytes(4 * 8_100))
    assert writer.frames == 8_100
    assert sum(uncounted) == len(content(fd)) - (44 if encoding == "s16" else 56)
    assert max(uncounted) == 1_600 * (2 if encoding == "s16" else 4)


def test_other_programs_read_it(fd: int, tmp_path: Path) -> None:
    WavWriter(fd, 16_000, "s16", seekable=True).write(struct.pack("<3f", 0.5, -1.0, 0.0))
    with wave.open(str(tmp_path / "made.wav")) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth(), file.getnframes()) == (1, 16_000, 2, 3)
        assert file.readframes(3) == struct.pack("<3h", 16384, -32768, 0)


@pytest.mark.parametrize("encoding", ["s16", "f32"])
def test_a_pipe_gets_the_largest_length_and_can_be_read(encoding: Literal["s16", "f32"]) -> None:
    reading, writing = os.pipe()
    WavWriter(writing, 16_000, encoding, seekable=False).write(struct.pack("<2f", 0.5, -0.5))
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    assert struct.unpack_from("<I", data, 4)[0] == 0xFFFFFFFF
    assert [*audio.floats(wav_to_pcm(data))] == [0.5, -0.5]


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_any_number_becomes_a_sample(samples: list[float]) -> None:
    fd = os.memfd_create("test")
    try:
        WavWriter(fd, 16_000, "s16", seekable=True).write(struct.pack(f"<{len(samples)}f", *samples))
        written = struct.unpack(f"<{len(samples)}h", content(fd)[44:])
    finally:
        os.close(fd)
    for sample, value in zip(samples, written, strict=True):
        expected = 0.0 if math.isnan(sample) else max(-1.0, min(32767 / 32768, sample))
        assert abs(value / 32768 - expected) <= 0.5001 / 32768
