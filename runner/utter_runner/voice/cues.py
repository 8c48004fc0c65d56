"""Short sounds that say what a session does.

Rules here: tones are computed, never loaded; each is shorter than 120 ms and fades in and out, so that it does not
click. The start cue is the shortest: what is said while it sounds is not heard.
"""

from __future__ import annotations

import logging
import math
import sys
from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, get_args

from utter_runner.voice.collaborators import CueName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from utter_runner.voice.collaborators import AudioOutput

CUE_RATE = 16_000
CUE_NAMES: tuple[CueName, ...] = get_args(CueName)
_FADE_S = 0.008
_LOUDNESS = 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Tone:
    hertz: float
    """0 for a pause."""
    seconds: float


_TONES: Mapping[CueName, tuple[_Tone, ...]] = {
    "start": (_Tone(880, 0.05),),
    "stop": (_Tone(587, 0.05),),
    "done": (_Tone(659, 0.045), _Tone(988, 0.06)),
    "error": (_Tone(196, 0.11),),
    "confirm": (_Tone(784, 0.045), _Tone(0, 0.02), _Tone(784, 0.045)),
    "cancel": (_Tone(440, 0.045), _Tone(330, 0.06)),
}


@lru_cache(maxsize=len(CUE_NAMES))
def cue_pcm(name: CueName) -> bytes:
    """The cue as f32le mono at `CUE_RATE`."""
    samples = array("f")
    for tone in _TONES[name]:
        count = round(tone.seconds * CUE_RATE)
        fade = min(round(_FADE_S * CUE_RATE), count // 2)
        for index in range(count):
            edge = min(index, count - 1 - index)
            gain = _LOUDNESS * (0.5 - 0.5 * math.cos(math.pi * min(edge / fade, 1.0)))
            samples.append(gain * math.sin(2 * math.pi * tone.hertz * index / CUE_RATE))
    if sys.byteorder == "big":
        samples.byteswap()
    return samples.tobytes()


def cue_seconds(name: CueName) -> float:
    """How long the cue is."""
    return sum(tone.seconds for tone in _TONES[name])


class CuePlayer:
    """Plays cues on a loudspeaker.

    Args:
        output: the loudspeaker.
        enabled: False keeps it silent.
        latency: seconds from `output.play` until the first sample is heard.
    """

    def __init__(self, output: AudioOutput, *, enabled: bool = True, latency: float = 0.05) -> None:
        self._output = output
        self._enabled = enabled
        self._latency = latency

    def play(self, name: CueName) -> float:
        """Start the cue; returns the seconds until it has died away, 0.0 if nothing sounds."""
        if not self._enabled:
            return 0.0
        try:
            self._output.play(cue_pcm(name), CUE_RATE)
        except Exception as error:  # noqa: BLE001 - a broken loudspeaker must not end a session
            log.warning("the %s cue cannot be played: %s", name, error)
            return 0.0
        return self._latency + cue_seconds(name)
