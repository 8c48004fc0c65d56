from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support import audio
from utter_runner.voice.wavfile import IEEE_FLOAT, PCM, WavError, float_wav, parse_wav

STEREO = np.linspace(-0.5, 0.5, 20).reshape(10, 2)


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("encoding", "bits"), [(PCM, 16), (PCM, 24), (PCM, 32), (IEEE_FLOAT, 32), (IEEE_FLOAT, 64)])
def test_every_understood_format_is_recognised(encoding: int, bits: int, extensible: bool) -> None:
    wav = parse_wav(audio.wav(STEREO, 44_100, encoding=encoding, bits=bits, extensible=extensible))
    assert (wav.encoding, wav.bits, wav.rate, wav.channels, wav.frames) == (encoding, bits, 44_100, 2, 10)
    assert wav.seconds == 10 / 44_100


def test_chunks_of_other_kinds_are_skipped_also_odd_ones() -> None:
    plain = audio.wav(STEREO)
    other = b"LIST" + struct.pack("<I", 5) + b"hello" + b"\0"
    with_list = plain[:12] + other + plain[12:] + other
    assert bytes(parse_wav(with_list).samples) == bytes(parse_wav(plain).samples)


@pytest.mark.parametrize("size", [0, 2**32 - 1, 10_000])
def test_a_size_that_was_never_filled_in_means_up_to_the_end(size: int) -> None:
    plain = audio.wav(STEREO)
    streamed = plain[:40] + struct.pack("<I", size) + plain[44:]
    assert parse_wav(streamed).frames == 10


def test_half_a_frame_at_the_end_is_dropped() -> None:
    assert parse_wav(audio.wav(STEREO)[:-3]).frames == 9


def edited(offset: int, packed: bytes) -> bytes:
    data = bytearray(audio.wav(STEREO))
    data[offset : offset + len(packed)] = packed
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"OggS and so on", "it begins with b'OggS'"),
        (b"RIFF\0\0\0\0AVI ", "it begins with b'RIFF'"),
        (b"RIFF\0\0\0\0WAVE", "no fmt chunk"),
        (audio.wav(STEREO)[:36], "no data chunk"),
        (edited(12, b"junk"), "before it says their format"),
        (edited(16, struct.pack("<I", 14)), "no data chunk"),
        (edited(20, struct.pack("<H", 2)), "16-bit format 0x0002 samples"),
        (edited(20, struct.pack("<H", 0xFFFE)), "no subtype"),
        (edited(34, struct.pack("<H", 8)), "8-bit PCM samples"),
        (edited(24, struct.pack("<I", 3_999)), "rate is 3999 Hz"),
        (edited(24, struct.pack("<I", 384_001)), "rate is 384001 Hz"),
        (edited(22, struct.pack("<H", 0)), "0 channels"),
        (edited(22, struct.pack("<H", 33)), "33 channels"),
        (edited(32, struct.pack("<H", 3)), "2 channels of 16 bit take 4 bytes a frame, and it says 3"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(data: bytes, message: str) -> None:
    with pytest.raises(WavError) as caught:
        parse_wav(data)
    assert message in str(caught.value)


def test_a_short_format_chunk_is_named() -> None:
    data = b"RIFF\0\0\0\0WAVEfmt \x04\0\0\0\x01\0\x01\0data\x02\0\0\0\0\0"
    with pytest.raises(WavError, match="fmt chunk has 4 bytes; it needs 16"):
        parse_wav(data)


@given(data=st.binary(max_size=80), at=st.integers(0, 60), cut=st.integers(0, 90))
@example(data=b"", at=0, cut=44)
def test_no_bytes_make_it_fail_in_another_way(data: bytes, at: int, cut: int) -> None:
    whole = audio.wav(STEREO)
    for broken in (data, whole[:cut], whole[:at] + data + whole[at + len(data) :]):
        try:
            wav = parse_wav(broken)
        except WavError:
            continue
        assert len(wav.samples) % (wav.channels * wav.bits // 8) == 0


@given(st.lists(st.floats(-1, 1, width=32), max_size=50), st.integers(1, 2))
def test_what_is_written_is_read(samples: list[float], channels: int) -> None:
    pcm = struct.pack(f"<{len(samples) * channels}f", *samples * channels)
    wav = parse_wav(float_wav(pcm, 24_000, channels))
    assert (wav.encoding, wav.bits, wav.rate, wav.channels) == (IEEE_FLOAT, 32, 24_000, channels)
    assert bytes(wav.samples) == pcm
