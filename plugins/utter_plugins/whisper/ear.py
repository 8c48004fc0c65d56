"""The audio ring, where the plugin can have it: passed over a socket, or inherited over stdio.

Rules here: it is the ring of the runner that is there now; one that has gone takes its ring with it. Frames are copied
on the reading thread, which never waits: a ring that has to be asked for is there for a later session.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.ring import Overrun, RingError

if TYPE_CHECKING:
    from utter_sdk import Plugin
    from utter_sdk.microphone import Microphone

LOST = "Audio was lost because the machine was too busy to read it from the ring: say it again."


class Ear:
    """Reads what is fed by its place in the ring.

    Args:
        plugin: asks for the ring.
    """

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._microphone: Microphone | None = None
        # The connection whose ring this is, or that has none.
        self._of: object = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Ask for the ring; on a thread that may wait."""
        connection = self._connection()
        microphone = self._ask()
        with self._lock:
            if self._connection() is connection:
                self._microphone, self._of = microphone, connection
                return
        if microphone is not None:
            microphone.close()

    def ready(self) -> bool:
        """Whether frames can be read. When another runner is there, its ring is asked for meanwhile."""
        with self._lock:
            connection = self._connection()
            if self._of is connection:
                return self._microphone is not None
            microphone, self._microphone, self._of = self._microphone, None, connection
        if microphone is not None:
            microphone.close()
        threading.Thread(target=self.open, name="utter-ring", daemon=True).start()
        return False

    def read(self, start: int, count: int) -> bytes:
        """Copy frames.

        Raises:
            RpcError: -32000, they are gone; -32602, there is no ring, or they are not there yet.
        """
        if self._microphone is None:
            raise invalid("frames", "there is no audio ring here; feed data_b64")
        try:
            return self._microphone.read(start, count)
        except Overrun:
            raise RpcError(ErrorCode.PLUGIN_FAILED, LOST) from None
        except ValueError as error:
            raise invalid("frames", str(error)) from None

    def _ask(self) -> Microphone | None:
        try:
            return self._plugin.microphone()
        except RpcError as error:
            # Over stdio the ring is there for those who configured it; otherwise audio comes in messages.
            if self._plugin.hello.transport != "stdio":
                self._plugin.log(f"goes without the audio ring: {error.message}")
        except (RingError, OSError) as error:
            self._plugin.log(f"goes without the audio ring: {error}")
        return None

    def _connection(self) -> object:
        return None if self._plugin.served_by is None else self._plugin.served_by.connection


def invalid(name: str, why: str) -> RpcError:
    """What is wrong with a field."""
    return RpcError(ErrorCode.INVALID_PARAMS, f"{name}: {why}.", {"field": name})
