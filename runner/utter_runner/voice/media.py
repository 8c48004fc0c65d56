"""The media players, through whoever provides `media.hold@1` (PROTOCOL.md, "media: quiet while somebody speaks").

Rules here: without such a plugin, or while it is down, nothing happens and nobody is told. Each call is bounded by
`CALL_SECONDS`. A release goes to the epoch that was asked to hold and to no other; if that has ended, its players stay
paused, which the user is told.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from utter_protocol.errors import RpcError
from utter_protocol.kinds import MediaHeld, MediaResumed, MediaSession
from utter_runner.config.log_fields import about
from utter_runner.supervision.dialect import decode_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor

MEDIA = "media.hold@1"
HOLD = "media.hold"
RELEASE = "media.release"
CALL_SECONDS = 2.0
"""How long the plugin may take for a hold or a release."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class PluginMedia:
    """The players. This is `voice.collaborators.Media`.

    Args:
        supervisor: knows the plugin.
        warn: told, in a sentence for the user, that players were left paused.
    """

    def __init__(self, supervisor: Supervisor, *, warn: Callable[[str], object]) -> None:
        self._supervisor = supervisor
        self._warn = warn
        self._holders: dict[str, tuple[Instance, int]] = {}
        # What is paused by now, for all sessions.
        self._paused: list[str] = []

    async def hold(self, session: str) -> None:
        """Pause what plays; see `Media.hold`."""
        plugin = self._supervisor.provider(MEDIA)
        if plugin is None or not plugin.running:
            return
        self._holders[session] = plugin, plugin.epoch
        try:
            self._paused += (await _ask(plugin, HOLD, session, MediaHeld)).held
        except RpcError as error:
            log.warning("%s has not paused the media players: %s", plugin.id, error, extra=about(plugin, session))

    async def release(self, session: str) -> None:
        """Play on; see `Media.release`."""
        plugin, epoch = self._holders.pop(session, (None, 0))
        if plugin is None:
            return
        try:
            if plugin.epoch != epoch:
                raise plugin.unavailable()
            await _ask(plugin, RELEASE, session, MediaResumed)
        except RpcError as error:
            log.warning("%s has not played the media players again: %s", plugin.id, error, extra=about(plugin, session))
            if self._paused:
                self._warn(
                    f"{plugin.id} has paused {', '.join(self._paused)} while you spoke, and could not play it again: "
                    "press play there."
                )
            self._paused.clear()
        if not self._holders:
            self._paused.clear()


async def _ask(plugin: Instance, method: str, session: str, result: type[T]) -> T:
    raw = await plugin.call(method, MediaSession(session=session), timeout=CALL_SECONDS)
    return decode_answer(raw, result, method, plugin.id)
