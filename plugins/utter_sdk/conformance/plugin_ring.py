"""Checks of a plugin that inherits the audio ring: does it live with what happens there?"""

from __future__ import annotations

from array import array
from itertools import cycle, islice
from typing import TYPE_CHECKING

from utter_sdk.conformance.lab import Table
from utter_sdk.conformance.report import CheckFailed, NotApplicable

if TYPE_CHECKING:
    from utter_sdk.conformance.lab import Lab
    from utter_sdk.conformance.link import Link
    from utter_sdk.testing.ring import AudioRing

RING = Table()
_SECTION = "Inherited descriptors"
_TIMES_OVER = 3
_BLOCK = 20  # milliseconds


def _need_ring(lab: Lab) -> None:
    if not lab.subject.inherits_ring:
        raise NotApplicable("It inherits no audio ring.")


def _ring_of(link: Link) -> AudioRing:
    if link.ring is None:
        raise NotApplicable("It inherits no audio ring.")
    return link.ring


def _play(ring: AudioRing, seconds: float) -> None:
    """Write something that is no silence, all at once."""
    frames = ring.layout.rate * _BLOCK // 1000
    block = array("f", islice(cycle((0.25, 0.5, -0.25, -0.5)), frames)).tobytes()
    for _ in range(round(seconds * 1000 / _BLOCK)):
        ring.write(block)


@RING.enter(
    "ring.overrun",
    "It goes on answering when the ring has moved on under it, when the microphone is opened again, and when nobody "
    "writes to its wake pipe any more.",
    _SECTION,
    alone=True,
)
def _overrun(lab: Lab) -> None:
    _need_ring(lab)
    with lab.fresh() as link:
        ring = _ring_of(link)
        seconds = ring.layout.capacity / ring.layout.rate
        _play(ring, 1.0)
        link.barrier()
        _play(ring, _TIMES_OVER * seconds)
        link.barrier()
        ring.new_generation()
        _play(ring, 1.0)
        link.barrier()
        ring.stop_waking()
        # Whoever hears on another thread may fall over a little later.
        link.quiet()
        link.barrier()


@RING.enter(
    "ring.end",
    "It exits within 2 s with code 0 when its input ends while it hears.",
    "The plugin's process",
    alone=True,
)
def _end(lab: Lab) -> None:
    _need_ring(lab)
    with lab.fresh() as link:
        _play(_ring_of(link), 1.0)
        link.barrier()
        link.end_input()
        code = link.wait_end()
        if code != 0:
            raise CheckFailed(f"the exit code is {code}", expected="the exit code 0")
