"""Says what became of a spoken command, and is silent when the next one begins.

Rules here: it hears the session's events on their way out and changes none of them; speaking never holds a session up;
the key going down ends whatever is spoken, before the microphone hears it, and nothing is said while a session listens.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol

import trio

from utter_protocol.errors import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.kinds import SpeakResult
    from utter_protocol.methods import SessionReport

logger = logging.getLogger(__name__)

SPEAK_SECONDS = 60.0
_MOST_WAITING = 8
# Who gave a command up knows it, and what nobody said is nothing to talk about.
_UNSAID = frozenset({"cancelled", "tap", "nothing_heard"})
_FINE = "done"


class Mouth(Protocol):
    """What speaks (voice.speaker.Speaker)."""

    async def speak(self, text: str, voice: str = "", *, timeout: float) -> SpeakResult:
        """Speak a text and wait. Raises RpcError."""

    def hush(self) -> bool:
        """End what is spoken."""


class Announcer:
    """Stands between the sessions and those who are told of them.

    Args:
        mouth: speaks.
        when: `off`, `problems` (what was not done) or `all`.
        emit: who is told every event.
    """

    def __init__(
        self, mouth: Mouth, when: Literal["off", "problems", "all"], emit: Callable[[dict[str, Any]], None]
    ) -> None:
        self._mouth = mouth
        self._when = when
        self._emit = emit
        self._texts: trio.MemorySendChannel[str] | None = None
        self._listening = ""

    def reconfigure(self, when: Literal["off", "problems", "all"]) -> None:
        """Say something else from the next report on."""
        self._when = when

    async def run(self) -> None:
        """Say what is reported until cancelled."""
        send, receive = trio.open_memory_channel[str](_MOST_WAITING)
        try:
            async with send, receive, trio.open_nursery() as nursery:
                self._texts = send
                # One after the other into the speaker, where the newer text ends the older.
                async for text in receive:
                    nursery.start_soon(self._say, text)
        finally:
            self._texts = None

    def emit(self, event: dict[str, Any]) -> None:
        """Pass an event of a session on, and say or silence what it calls for."""
        self._emit(event)
        if event["event"] == "session" and event["state"] == "listening":
            self._listening = event["session"]
            self._mouth.hush()
        elif event["event"] == "session" and event["session"] == self._listening:
            self._listening = ""
        elif event["event"] == "report" and not self._listening:
            self._report(event["report"])

    def _report(self, report: SessionReport) -> None:
        wanted = self._when == "all" or (self._when == "problems" and report.outcome != _FINE)
        if wanted and report.detail and report.outcome not in _UNSAID and self._texts is not None:
            with suppress(trio.WouldBlock):
                self._texts.send_nowait(report.detail)

    async def _say(self, text: str) -> None:
        try:
            await self._mouth.speak(text, timeout=SPEAK_SECONDS)
        except RpcError as error:
            logger.warning("a result could not be spoken: %s", error)
        except Exception:
            # Whoever speaks must not take the runner along.
            logger.exception("a result could not be spoken")
