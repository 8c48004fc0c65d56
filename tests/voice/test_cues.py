from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from utter_runner.voice.cues import CUE_NAMES, CUE_RATE, CuePlayer, cue_pcm, cue_seconds
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
