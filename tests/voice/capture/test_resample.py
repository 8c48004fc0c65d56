from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from support import audio
from utter_runner.voice.capture.resample import RATE, MissingLibrary, StreamResampler, wav_to_pcm
from utter_runner.voice.wavfile import IEEE_FLOAT, PCM, WavError


@contextmanager
def no_libraries() -> Iterator[None]:
    """Neither library can be imported inside; what the test itself needs them for stays outside."""
    with mock.patch.dict(sys.modules, {"numpy": None, "soxr": None}):
        yield


def test_a_plain_recording_needs_no_library_and_keeps_every_sample() -> None:
    values = np.array([0, 1, -1, 100, -32768, 32767]) / 32768
    data = audio.wav(values)
    with no_libraries():
        pcm = wav_to_pcm(data)
    assert audio.floats(pcm).tolist() == values.tolist()


def test_what_needs_a_library_says_so() -> None:
    data = audio.wav(audio.tone(440, 0.1, 48_000), 48_000, bits=24)
    with no_libraries():
        with pytest.raises(MissingLibrary) as caught:
            wav_to_pcm(data)
        with pytest.raises(MissingLibrary, match="A device that records at 44100 Hz with 2 channels"):
            StreamResampler(44_100, 2)
    message = str(caught.value)
    assert "A 48000 Hz recording with 1 channels of 24 bit needs numpy and soxr" in message
    assert "utter-runner[audio]" in message


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("encoding", "bits", "precision"),
    [(PCM, 16, 2e-5), (PCM, 24, 1e-7), (PCM, 32, 1e-7), (IEEE_FLOAT, 32, 1e-7), (IEEE_FLOAT, 64, 1e-7)],
)
def test_every_format_gives_the_same_samples(encoding: int, bits: int, precision: float, extensible: bool) -> None:
    wanted = audio.babble(0.2)
    data = audio.wav(wanted, encoding=encoding, bits=bits, extensible=extensible)
    np.testing.assert_allclose(audio.floats(wav_to_pcm(data)), wanted, atol=precision)


def test_channels_are_averaged() -> None:
    left, right = audio.tone(440, 0.1), audio.tone(1000, 0.1)
    both = np.stack([left, right], axis=1)
    mono = audio.floats(wav_to_pcm(audio.wav(both, encoding=IEEE_FLOAT, bits=32)))
    np.testing.assert_allclose(mono, (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_pitch_length_and_level_survive_any_rate(rate: int, channels: int) -> None:
    tone = np.repeat(audio.tone(440, 1.0, rate)[:, None], channels, axis=1)
    pcm = audio.floats(wav_to_pcm(audio.wav(tone, rate)))
    assert len(pcm) == pytest.approx(RATE, abs=2)
    assert audio.loudest_frequency(pcm) == pytest.approx(440, abs=0.5)
    assert np.abs(pcm[1000:-1000]).max() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("rate", "channels"), [(44_100, 2), (48_000, 1), (48_000, 2), (16_000, 2), (8_000, 1)])
def test_piece_by_piece_gives_what_the_whole_gives(rate: int, channels: int) -> None:
    mono = audio.babble(2.0, rate)
    frames = np.repeat(mono[:, None], channels, axis=1).astype("<f4")
    resampler = StreamResampler(rate, channels)
    block = rate // 50
    pieces = [resampler.process(frames[at : at + block].tobytes()) for at in range(0, len(frames), block)]
    result = audio.floats(b"".join(pieces))
    whole = audio.floats(wav_to_pcm(audio.wav(mono, rate, encoding=IEEE_FLOAT, bits=32)))
    # What has not come out yet waits for samples that follow.
    assert len(whole) - RATE * 0.03 <= len(result) <= len(whole)
    np.testing.assert_allclose(result, whole[: len(result)], atol=1e-3)


def test_a_recording_that_is_too_long_is_refused_before_it_is_converted() -> None:
    with pytest.raises(WavError, match=r"lasts 60\.5 s; at most 60 s are accepted"):
        wav_to_pcm(audio.wav(np.zeros(RATE * 121 // 2)))
    with pytest.raises(WavError, match=r"at most 0\.5 s"):
        wav_to_pcm(audio.wav(np.zeros(RATE)), max_seconds=0.5)


def test_a_recording_without_samples_is_refused() -> None:
    with pytest.raises(WavError, match="no samples"):
        wav_to_pcm(audio.wav(np.zeros(0)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    with pytest.raises(WavError, match="not numbers"):
        wav_to_pcm(audio.wav(np.array([0.0, value]), encoding=IEEE_FLOAT, bits=32))
