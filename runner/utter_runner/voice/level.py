"""How loud the microphone is, for whoever draws a meter: the stream `audio.level`.

Rules here: nothing is read, computed or timed while nobody asks for it or the microphone is closed, and asking does not
open it. The meter reads the ring beside everybody else and disturbs nobody.
"""

from __future__ import annotations

import math
from operator import mul
from typing import TYPE_CHECKING

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import AudioLevel
from utter_protocol.ring import Overrun

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.voice.capture.capture import Capture

PERIOD = 0.05
"""Seconds between two measurements."""
SILENCE_DB = -120.0
"""What silence is called; nothing is quieter."""
CLIPPED = 0.999
"""From this amplitude on a sample has hit the end of its range; 16-bit devices reach no more than 0.99997."""


def measure(frames: bytes) -> AudioLevel:
    """Measure f32le mono audio, at least one frame. What is no number counts as silence."""
    samples: list[float] = [*memoryview(frames).cast("f")]
    power = sum(map(mul, samples, samples))
    if not math.isfinite(power):
        samples = [sample if math.isfinite(sample) else 0.0 for sample in samples]
        power = sum(map(mul, samples, samples))
    peak = max(map(abs, samples))
    return AudioLevel(
        rms_db=_decibels(math.sqrt(power / len(samples))), peak_db=_decibels(peak), clipped=peak >= CLIPPED
    )


def _decibels(amplitude: float) -> float:
    return max(SILENCE_DB, round(20 * math.log10(amplitude), 1)) if amplitude > 0 else SILENCE_DB


class LevelMeter:
    """Measures what the microphone delivers.

    Args:
        capture: the microphone.
        on_level: told every level while somebody wants them.
    """

    def __init__(self, capture: Capture, on_level: Callable[[AudioLevel], object]) -> None:
        self._capture = capture
        self._on_level = on_level
        self._wanted = False
        self._wake = trio.Event()

    def refusal(self) -> RpcError | None:
        """Why there is nothing to measure and never will be, if so."""
        reason = self._capture.hopeless
        return RpcError(ErrorCode.PLUGIN_FAILED, f"there is no audio: {reason}") if reason else None

    def want(self, wanted: bool) -> None:
        """Begin to measure, or stop."""
        self._wanted = wanted
        if wanted:
            self._wake.set()
        else:
            self._wake = trio.Event()

    async def run(self) -> None:
        """Measure whenever somebody wants it, until cancelled."""
        while True:
            await self._wake.wait()
            await self._capture.until_delivering()
            await self._measure_until_unwanted()

    async def _measure_until_unwanted(self) -> None:
        capture = self._capture
        at, due = capture.position, trio.current_time()
        while self._wanted and capture.delivering:
            due = max(due + PERIOD, trio.current_time())
            await trio.sleep_until(due)
            position = capture.position
            # After a pause only what is heard now counts.
            start = max(at, capture.oldest, position - capture.rate)
            at = position
            if start < position and self._wanted:
                try:
                    frames = capture.read(start, position - start)
                except Overrun:
                    continue
                self._on_level(measure(frames))
