from __future__ import annotations

from typing import Any

import pytest

from utter_runner.voice.settings import VoiceSettings


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = VoiceSettings()
    assert (settings.pre_roll_ms, settings.post_roll_ms, settings.tap_ms) == (300, 200, 150)
    assert (settings.max_ms, settings.tap) == (60_000, "ignore")
    assert (settings.silence_ms, settings.no_speech_ms) == (1_200, 6_000)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pre_roll_ms": -1}, "pre_roll_ms is -1; it must be between 0 and 2000 milliseconds"),
        ({"post_roll_ms": 2_001}, "post_roll_ms is 2001"),
        ({"tap_ms": 1_001}, "between 0 and 1000"),
        ({"max_ms": 999}, "between 1000 and 60000"),
        ({"max_ms": 60_001}, "between 1000 and 60000"),
        ({"silence_ms": 299}, "silence_ms is 299; it must be between 300 and 10000"),
        ({"no_speech_ms": 60_001}, "no_speech_ms is 60001; it must be between 1000 and 60000"),
        ({"stall_ms": 99}, "between 100 and 60000"),
        ({"stt_timeout_ms": 0}, "between 1 and 60000"),
        ({"cue_margin_ms": 501}, "between 0 and 500"),
        ({"tap": "twice"}, 'tap is "twice"; it must be "ignore" or "toggle"'),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VoiceSettings(**wrong)
