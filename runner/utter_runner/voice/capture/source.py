"""What a source of live audio is.

Rules here: the Protocol, its error, and the source that stands for "no microphone"; nothing that records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Frames = bytes | bytearray | memoryview
OnFrames = Callable[[Frames], None]
"""Takes whole frames (f32le, 16 kHz, mono) from any thread and returns at once; the buffer may be reused afterwards."""


class SourceError(Exception):
    """A source could not be opened, or ended.

    Args:
        reason: one sentence or more for a person: what happened and what to do.
        permanent: trying again cannot help; nothing is tried until the configuration or the installation changes.
    """

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent


class AudioSource(Protocol):
    """Something that delivers audio in real time while it is open."""

    @property
    def description(self) -> str:
        """What a person calls it, for status and messages."""
        ...

    @property
    def live(self) -> bool:
        """Whether it is a device, of which nothing but zeros means that something is wrong."""
        ...

    async def prepare(self) -> None:
        """Does what is slow and can be done without opening the device, such as starting a program. Never raises.

        What it has made is used up by `run`, so it is worth calling before each opening.
        """
        ...

    async def aclose(self) -> None:
        """Gives back what `prepare` has made, even when it is cancelled. Never raises; for a source that is not open.

        Whoever has called `prepare` or `run` calls it when the source is not needed any more.
        """
        ...

    async def run(self, on_frames: OnFrames) -> None:
        """Opens the device and delivers frames until it is cancelled, which closes the device within a few seconds.

        May be called again when it has ended, after which nothing is delivered any more.

        Raises:
            SourceError: the device could not be opened, or ended by itself.
        """
        ...


class NoSource:
    """Stands for a microphone that there is not.

    Args:
        reason: why, in a sentence that also says what to do.
    """

    description = "none"
    live = False

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def prepare(self) -> None:
        """Nothing to prepare."""

    async def aclose(self) -> None:
        """Nothing to give back."""

    async def run(self, on_frames: OnFrames) -> None:  # noqa: ARG002 - there is nothing to deliver
        """Gives the reason.

        Raises:
            SourceError: always, and permanent.
        """
        raise SourceError(self.reason, permanent=True)
