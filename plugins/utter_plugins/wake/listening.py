"""Following the microphone: every frame once, in order, for as long as there are frames.

Rules here: one thread, which waits for frames and for nothing else: while the microphone is closed, it sleeps. What
was lost, whether by a reopened microphone, by a ring that has moved on or by a machine that is too slow, is said in the
log; the next word is listened for from the present on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn, Protocol

from utter_sdk.microphone import Overrun, RingError

from .models import RATE, STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from utter_protocol.ring import RingLayout

    from .detector import Heard

BATCH = 8 * STEP
"""How many frames are waited for. Half of it costs half as much again."""
PIECE = 100 * STEP
"""How many are taken at most at a time."""
MAX_BEHIND = 2 * RATE
"""How many frames the present may be ahead; the runner uses nothing that is older."""
ACCOUNT_S = 60
"""After so many seconds of sound it is told for the first time what listening costs."""
CLOSED_S = 5.0
"""A microphone that delivers nothing for so long is closed; one that delivers for so long is open."""
CLOSED = (
    "No sound comes from the microphone, so no wake word is heard. It is only open while the key is held: set [audio]"
    ' capture = "always".'
)


class Microphone(Protocol):
    """The audio ring as it is read here (`utter_sdk.microphone.Microphone`)."""

    @property
    def layout(self) -> RingLayout:
        """Rate, channels, capacity."""

    @property
    def position(self) -> int:
        """How many frames have been written."""

    @property
    def generation(self) -> int:
        """How often the source was opened again."""

    def read(self, start: int, count: int) -> bytes:
        """Copy frames. Raises Overrun."""

    def wait(self, position: int, timeout: float | None = None) -> bool:
        """Wait until frame number `position` is there; return whether it is."""


class Detects(Protocol):
    """What finds words (`detector.Detector`)."""

    def restart(self, position: int) -> None:
        """Forget what was heard; the next frame has this number."""

    def take(self, pcm: bytes) -> Iterator[Heard]:
        """Hear the next frames, and yield the words in them."""


class Listening:
    """Hears the microphone's audio from now on.

    Args:
        microphone: the audio ring.
        detector: finds words.
        on_word: told every word.
        on_closed: told when the microphone is found to be closed; at first it is taken to be open.
        on_open: told when it is open again.
        log: told what was lost, in a sentence.

    Raises:
        RingError: the audio is not what the models take.
    """

    def __init__(
        self,
        microphone: Microphone,
        detector: Detects,
        *,
        on_word: Callable[[Heard], object],
        on_closed: Callable[[], object],
        on_open: Callable[[], object],
        log: Callable[[str], object],
    ) -> None:
        layout = microphone.layout
        if (layout.rate, layout.channels) != (RATE, 1):
            raise RingError(
                f"the microphone has {layout.channels} channels at {layout.rate} Hz; wake words are found in one at "
                f"{RATE} Hz"
            )
        self._microphone = microphone
        self._detector = detector
        self._on_word = on_word
        self._on_closed = on_closed
        self._on_open = on_open
        self._log = log
        self._position = 0
        self._generation = 0
        self._heard = 0
        self._began_s = 0.0
        self._account_at = ACCOUNT_S * RATE
        self._open = True
        self._opened_at = 0

    def run(self) -> NoReturn:
        """Listen until waiting for the microphone raises."""
        self._restart()
        self._began_s = time.thread_time()
        while True:
            self._wait()
            self._step()

    def _wait(self) -> None:
        wanted = self._position + BATCH - 1
        if not self._open:
            self._microphone.wait(wanted)
        elif not self._microphone.wait(wanted, CLOSED_S):
            self._open = False
            self._on_closed()
            self._microphone.wait(wanted)

    def _step(self) -> None:
        """Hear what is there."""
        now = self._microphone.position
        if self._microphone.generation != self._generation:
            self._log("the microphone was opened again; listening from here on")
            self._restart()
            return
        if now - self._position > MAX_BEHIND:
            self._log(f"{(now - self._position) / RATE:.1f} s behind the microphone: they are skipped")
            self._restart()
            return
        count = min(now - self._position, PIECE) // STEP * STEP
        try:
            pcm = self._microphone.read(self._position, count)
        except Overrun as overrun:
            self._log(f"sound was lost: {overrun}")
            self._restart()
            return
        for heard in self._detector.take(pcm):
            self._on_word(heard)
        self._position += count
        self._heard += count
        self._account()
        if not self._open and self._position - self._opened_at >= CLOSED_S * RATE:
            self._open = True
            self._on_open()

    def _account(self) -> None:
        """Tell what listening costs, first soon, then whenever it has gone on for twice as long."""
        if self._heard >= self._account_at:
            self._account_at *= 2
            seconds = self._heard / RATE
            share = (time.thread_time() - self._began_s) / seconds
            self._log(f"listened to {seconds:.0f} s of sound, with {100 * share:.1f} % of a processor")

    def _restart(self) -> None:
        self._generation = self._microphone.generation
        self._position = self._opened_at = self._microphone.position
        self._detector.restart(self._position)
