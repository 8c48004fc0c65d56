from __future__ import annotations

import math
import struct
import wave
from array import array
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.voice.cues import CUE_NAMES, CUE_RATE, CuePlayer, cue_pcm, cue_seconds, silence_tones
from utter_runner.voice.fakes import FakeOutput

if TYPE_CHECKING:
    from utter_runner.voice.collaborators import CueName


def samples(name: CueName) -> tuple[float, ...]:
    pcm = cue_pcm(name)
    return struct.unpack(f"<{len(pcm) // 4}f", pcm)


@pytest.mark.parametrize("name", CUE_NAMES)
def test_a_cue_is_short_quiet_and_does_not_click(name: CueName) -> None:
    sound = samples(name)
    assert len(sound) == round(cue_seconds(name) * CUE_RATE)
    assert 0.03 < len(sound) / CUE_RATE < 0.12
    assert 0.1 < max(map(abs, sound)) < 0.2001
    assert sound[0] == 0
    assert abs(sound[-1]) < 1e-6
    # The steepest that a full tone of the highest pitch is; a click is steeper.
    steepest = 0.2 * 2 * math.pi * 1_000 / CUE_RATE
    assert max(abs(after - before) for before, after in pairwise(sound)) < steepest


def test_no_two_cues_sound_the_same_and_the_start_cue_is_no_longer_than_any() -> None:
    assert set(CUE_NAMES) == {"start", "stop", "done", "error", "confirm", "cancel"}
    assert len({cue_pcm(name) for name in CUE_NAMES}) == len(CUE_NAMES)
    assert cue_seconds("start") == min(map(cue_seconds, CUE_NAMES))


def test_the_player_says_when_the_cue_has_died_away() -> None:
    output = FakeOutput()
    assert CuePlayer(output, latency=0.03).play("done") == pytest.approx(0.03 + 0.105)
    assert output.played == [(cue_pcm("done"), CUE_RATE)]


def test_silence_is_a_setting() -> None:
    output = FakeOutput()
    assert CuePlayer(output, enabled=False).play("start") == 0.0
    assert output.played == []


def test_a_broken_loudspeaker_is_logged_and_makes_no_sound(caplog: pytest.LogCaptureFixture) -> None:
    player = CuePlayer(FakeOutput(OSError("no such device")))
    assert player.play("error") == 0.0
    assert "the error cue cannot be played: no such device" in caplog.text


AUDIO = Path(__file__).parents[1] / "data" / "audio" / "en"


def speech(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        whole = array("h", file.readframes(file.getnframes()))
    return struct.pack(f"<{len(whole)}f", *(value / 32768 for value in whole))


def mixed(one: bytes, other: bytes, gain: float) -> bytes:
    first, second = struct.unpack(f"<{len(one) // 4}f", one), struct.unpack(f"<{len(other) // 4}f", other)
    return struct.pack(f"<{len(first)}f", *(a + gain * b for a, b in zip(first, second, strict=True)))


def loudness(data: bytes) -> float:
    return math.fsum(value * value for value in struct.unpack(f"<{len(data) // 4}f", data))


@pytest.mark.parametrize("name", CUE_NAMES)
@pytest.mark.parametrize("gain", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("piece", [320, 341, 1000])
def test_a_cue_that_the_microphone_hears_is_silenced(name: CueName, gain: float, piece: int) -> None:
    player = CuePlayer(FakeOutput())
    player.play(name)
    cue = cue_pcm(name)
    quiet = bytes(4 * 1600)
    random = Random(7)
    noise = struct.pack(f"<{len(cue) // 4}f", *(random.gauss(0, 0.0005) for _ in range(len(cue) // 4)))
    heard = quiet + mixed(noise, cue, gain) + quiet
    left = b"".join(player.silence(heard[at : at + 4 * piece]) for at in range(0, len(heard), 4 * piece))
    assert len(left) == len(heard)
    # Its edges, which fade, may stay.
    assert loudness(left) < 0.1 * loudness(heard)


@pytest.mark.parametrize(
    ("name", "most"),
    # The one that sounds while people begin to speak costs nothing; the lower tones lie where voices are.
    [("start", 0.001), ("stop", 0.03), ("done", 0.03), ("error", 0.01), ("confirm", 0.03), ("cancel", 0.15)],
)
def test_what_people_say_while_a_cue_sounds_stays(name: CueName, most: float) -> None:
    player = CuePlayer(FakeOutput())
    player.play(name)
    lost = total = 0.0
    for path in sorted(AUDIO.glob("recorded_*.wav")):
        said = speech(path)
        left = b"".join(player.silence(said[at : at + 4 * 2560]) for at in range(0, len(said), 4 * 2560))
        lost += loudness(said) - loudness(left)
        total += loudness(said)
    assert lost < most * total


def test_speech_over_a_cue_stays_where_it_is_louder() -> None:
    player = CuePlayer(FakeOutput())
    player.play("start")
    said = speech(AUDIO / "recorded_pause.wav")
    at = max(range(0, len(said) - 3200, 3200), key=lambda one: loudness(said[one : one + 3200]))
    loud = said[at : at + 3200]
    both = mixed(loud, cue_pcm("start"), 0.05)
    assert player.silence(both) == both


def test_only_cues_that_were_played_of_late_are_looked_for() -> None:
    now = 100.0
    player = CuePlayer(FakeOutput(), clock=lambda: now)
    tone = cue_pcm("start")
    assert player.silence(tone) == tone
    player.play("start")
    assert player.silence(tone) != tone
    now += 10
    assert player.silence(tone) == tone


@given(st.lists(st.floats(width=32), max_size=1500))
def test_any_audio_keeps_its_length_and_is_kept_or_silenced(values: list[float]) -> None:
    data = struct.pack(f"<{len(values)}f", *values)
    left = silence_tones(data, [880.0, 440.0])
    assert len(left) == len(data)
    for at in range(0, len(data), 4):
        assert left[at : at + 4] in {data[at : at + 4], bytes(4)}
