"""What the daemon says of itself while it runs: its own streams, its warnings, and events in the log if wanted.

Rules here: nobody waits for a listener; what was said, shown or planned reaches the log only with `[log] content`.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from utter_protocol.contracts import RUNNER_STREAMS
from utter_protocol.kinds import SttResult
from utter_runner.clients.events import EventBus
from utter_runner.clients.logs import STREAM as LOG_STREAM
from utter_runner.dataplane.hub import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from utter_protocol.kinds import SttPartial
    from utter_protocol.methods import AudioLevel, Transcript
    from utter_runner.clients.logs import LogBacklog
    from utter_runner.config import Config
    from utter_runner.dataplane.hub import Hub
    from utter_runner.setup import Setup
    from utter_runner.voice.level import LevelMeter

logger = logging.getLogger("utter_runner")

_CONTENT_EVENTS = frozenset({"heard", "plan", "confirm", "result"})


class Announcer:
    """Tells clients, plugins and the log.

    Args:
        hub: knows the subscribers.
        config: returns the configuration that holds now.
        status: what `runner.status` answers.
    """

    def __init__(self, hub: Hub, config: Callable[[], Config], status: Callable[[], dict[str, Any]]) -> None:
        self._hub = hub
        self._config = config
        self._status = status
        self._events = EventBus(hub, status)
        self._partials = Topic(hub, "stt.partial", RUNNER_STREAMS["stt.partial"])
        self._finals = Topic(hub, "stt.final", RUNNER_STREAMS["stt.final"])
        self._level: Topic | None = None
        self._warnings: list[str] = []
        self._set_up_warnings: list[str] = []

    def topics(self, meter: LevelMeter, log: LogBacklog) -> Iterator[Topic]:
        """Yield what can be subscribed to, with the level that `meter` measures and what is logged."""
        self._level = Topic(
            self._hub, "audio.level", RUNNER_STREAMS["audio.level"], refusal=meter.refusal, on_active=meter.want
        )
        lines = Topic(self._hub, LOG_STREAM, RUNNER_STREAMS[LOG_STREAM], on_active=log.want)
        log.serve(lines)
        yield from (self._events, self._level, self._partials, self._finals, lines)

    # ---- events

    def emit(self, event: dict[str, Any]) -> None:
        """Tell of a change."""
        self._events.emit(event)
        if self._config().log.content and event["event"] in _CONTENT_EVENTS:
            # JSON with escapes: what was heard or planned cannot forge a line of the log.
            logger.info("content: %s", json.dumps(msgspec.to_builtins(event)))

    def state_changed(self) -> None:
        """Tell of the whole state."""
        self._events.emit({"event": "state", "status": self._status()})

    def partial(self, partial: SttPartial) -> None:
        """Tell what has been understood so far."""
        self._events.emit({"event": "partial", "session": partial.session, "text": partial.text})
        self._partials.send(partial)

    def final(self, session: str, transcript: Transcript) -> None:
        """Tell what has been understood."""
        self._finals.send(SttResult(session=session, text=transcript.text.strip(), confidence=transcript.confidence))

    def level(self, level: AudioLevel) -> None:
        """Tell how loud it is."""
        if self._level is not None:
            self._level.send(level)

    # ---- warnings

    def warn(self, text: str) -> None:
        """Warn of what is part of the status from now on."""
        logger.warning("%s", text)
        self._warnings.append(text)

    def warn_now(self, text: str) -> None:
        """Warn of what may pass, and is no part of the status for ever."""
        logger.warning("%s", text)
        self._events.emit({"event": "warning", "text": text})

    def warn_of(self, setup: Setup) -> None:
        """Warn of what is wrong, or unwise, in a configuration that takes effect."""
        warnings = [*setup.problems, *setup.config.warnings]
        if setup.config.socket is None:
            warnings.append("There is no [socket] section, so every program of this user may use the runner.")
        if setup.config.log.content:
            warnings.append("[log] content is on: what is said and shown is logged.")
        for text in warnings:
            if text not in self._set_up_warnings:
                logger.warning("%s", text)
        self._set_up_warnings = warnings

    def warnings(self) -> list[str]:
        """Return those that are part of the status."""
        return [*self._set_up_warnings, *self._warnings]
