"""Short sounds that say what a session does.

Rules here: tones are computed, never loaded; each is shorter than 120 ms and fades in and out, so that it does not
click. A cue that the microphone hears is silenced where it is louder than everything else, and only there: with
headphones, or when somebody speaks over it, every word stays.
"""

from __future__ import annotations

import cmath
import logging
import math
import sys
import time
from array import array
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat
from operator import mul
from typing import TYPE_CHECKING, get_args

from utter_runner.voice.collaborators import CueName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from utter_runner.voice.collaborators import AudioOutput

CUE_RATE = 16_000
CUE_NAMES: tuple[CueName, ...] = get_args(CueName)
LATENCY = 0.05
"""Seconds from starting a cue until its first sample is heard."""
_FADE_S = 0.008
_LOUDNESS = 0.2
_WINDOW = 160
_HOP = 32
_LOUDEST = 0.6
# Audio reaches the session a while after it was heard, most of all where the loop was busy.
_MEMORY_S = 2.0

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


def silence_tones(data: bytes, hertz: Iterable[float]) -> bytes:
    """Return f32le mono audio at `CUE_RATE` without the parts in which most of the energy lies at one frequency.

    Windows of 10 ms slide over the audio; each in which one of `hertz` has more than 60 % of the energy is silenced.
    """
    samples = array("f", data)
    if sys.byteorder == "big":
        samples.byteswap()
    energy = [0.0, *accumulate(sample * sample for sample in samples)]
    kept = bytearray(data)
    for frequency in hertz:
        turn = cmath.exp(-2j * math.pi * frequency / CUE_RATE)
        phasors = accumulate(repeat(turn, len(samples)), mul, initial=1.0 + 0.0j)
        at_frequency = [0.0j, *accumulate(map(mul, samples, phasors))]
        for start in range(0, len(samples) - _WINDOW + 1, _HOP):
            end = start + _WINDOW
            all_of_it = energy[end] - energy[start]
            tone = abs(at_frequency[end] - at_frequency[start])
            # A full tone of this frequency gives 1; with numbers that are no audio the comparison is false.
            if all_of_it > 0.0 and 2.0 * tone * tone > _LOUDEST * _WINDOW * all_of_it:
                kept[start * 4 : end * 4] = bytes(_WINDOW * 4)
    return bytes(kept)


class CuePlayer:
    """Plays cues on a loudspeaker.

    Args:
        output: the loudspeaker.
        enabled: False keeps it silent.
        latency: seconds from `output.play` until the first sample is heard.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        output: AudioOutput,
        *,
        enabled: bool = True,
        latency: float = LATENCY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        self._enabled = enabled
        self._latency = latency
        self._clock = clock
        self._sounded: deque[tuple[float, CueName]] = deque(maxlen=4)

    def play(self, name: CueName) -> float:
        """Start the cue; returns the seconds until it has died away, 0.0 if nothing sounds."""
        if not self._enabled:
            return 0.0
        try:
            self._output.play(cue_pcm(name), CUE_RATE)
        except Exception as error:  # noqa: BLE001 - a broken loudspeaker must not end a session
            log.warning("the %s cue cannot be played: %s", name, error)
            return 0.0
        self._sounded.append((self._clock(), name))
        return self._latency + cue_seconds(name)

    def silence(self, data: bytes) -> bytes:
        """See `Cues.silence`."""
        since = self._clock() - _MEMORY_S
        tones = {tone.hertz for at, name in self._sounded if at >= since for tone in _TONES[name] if tone.hertz}
        return silence_tones(data, tones) if tones else data
