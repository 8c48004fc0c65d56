"""The numbers of a push-to-talk session, as `[voice]` sets them.

Rules here: immutable; a value outside its bounds is refused with its name, its bounds and its unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_BOUNDS = {
    "pre_roll_ms": (0, 2_000),
    "post_roll_ms": (0, 2_000),
    "tap_ms": (0, 1_000),
    "max_ms": (1_000, 60_000),
    "silence_ms": (300, 10_000),
    "no_speech_ms": (1_000, 60_000),
    "stall_ms": (100, 60_000),
    "cue_margin_ms": (0, 500),
    "stt_timeout_ms": (1, 60_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceSettings:
    """How a session treats the key and the audio around it.

    Attributes:
        pre_roll_ms: audio from before the key went down that belongs to the utterance.
        post_roll_ms: audio from after the key went up that still does.
        tap_ms: a key that is held for less than this is a tap.
        tap: what a tap does: nothing, or keep listening until the next press.
        max_ms: after this long a session ends as if the key had been released.
        silence_ms: without a held key, so much silence after speech ends a session.
        no_speech_ms: without a held key, a session in which nobody speaks ends after so long.
        stall_ms: a microphone that delivers nothing for so long is given up. Behind the key 2 s are given at least.
        cue_margin_ms: how long after its end a cue may still arrive from the microphone.
        stt_timeout_ms: how long the recogniser may take once it has all audio.

    Raises:
        ValueError: a number is out of its bounds.
    """

    pre_roll_ms: int = 300
    post_roll_ms: int = 200
    tap_ms: int = 150
    tap: Literal["ignore", "toggle"] = "ignore"
    max_ms: int = 60_000
    silence_ms: int = 1_200
    no_speech_ms: int = 6_000
    stall_ms: int = 500
    cue_margin_ms: int = 60
    stt_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; it must be between {least} and {most} milliseconds")
        if self.tap not in {"ignore", "toggle"}:
            raise ValueError(f'tap is "{self.tap}"; it must be "ignore" or "toggle"')
