"""Push-to-talk keys that `input` plugins watch (the stream `input.keys`).

Rules here: one subscription for each epoch of such a plugin; a key that is down when its plugin goes counts as
released; what a plugin sends that is no key is its mistake, and is logged.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from utter_protocol.kinds import KeyItem
from utter_runner.config.log_fields import about

if TYPE_CHECKING:
    from msgspec import Raw

    from utter_runner.supervision.instance import Instance
    from utter_runner.voice.speaker import OpenStream, StreamOpener

logger = logging.getLogger(__name__)

KEYS = "input.keys"

_decode = msgspec.json.Decoder(KeyItem).decode


class Key(Protocol):
    """What a key does (VoiceController)."""

    def press(self, at: int | None = None) -> object:
        """The push-to-talk key went down; `at` is the first frame that may belong to the session."""

    def release(self) -> object:
        """It went up."""

    def toggle(self, at: int | None = None) -> object:
        """The toggle key went down."""

    def listen(self, at: int | None = None) -> object:
        """Something that only begins to listen, such as a wake word."""

    def cancel(self) -> object:
        """The cancel key went down."""


class PluginKeys:
    """Listens to the keys of plugins.

    Args:
        open_stream: subscribes at a plugin.
        controller: what the keys act on.
    """

    def __init__(self, open_stream: StreamOpener, controller: Key) -> None:
        self._open_stream = open_stream
        self._controller = controller
        self._held: set[str] = set()

    def admitted(self, instance: Instance) -> None:
        """A plugin is up: listen, if it has keys."""
        if instance.handshake is None or KEYS not in instance.handshake.streams:
            return
        stream: list[OpenStream] = []

        def on_item(seq: int, data: Raw) -> None:
            self._take(instance.id, data)
            if stream:
                stream[0].acknowledge(seq)

        on_closed = partial(self._closed, instance.id)
        stream.append(self._open_stream(instance, KEYS, b"{}", on_item=on_item, on_closed=on_closed))

    def _take(self, plugin: str, data: Raw) -> None:
        try:
            item = _decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            logger.warning("%s sent in %s what is no key: %s", plugin, KEYS, error, extra=about(plugin))
            return
        if item.key == "push_to_talk":
            self._push_to_talk(plugin, pressed=item.pressed, at=item.at)
        elif not item.pressed:
            return
        elif item.key == "cancel":
            self._controller.cancel()
        else:
            act = self._controller.toggle if item.key == "toggle" else self._controller.listen
            act(item.at)

    def _push_to_talk(self, plugin: str, *, pressed: bool, at: int | None = None) -> None:
        if pressed and plugin not in self._held:
            self._held.add(plugin)
            self._controller.press(at)
        elif not pressed and plugin in self._held:
            self._held.discard(plugin)
            self._controller.release()

    def _closed(self, plugin: str, reason: str) -> None:
        logger.info("%s: %s ended: %s", plugin, KEYS, reason, extra=about(plugin))
        self._push_to_talk(plugin, pressed=False)
