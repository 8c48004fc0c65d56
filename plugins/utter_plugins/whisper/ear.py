"""The audio ring, if the plugin can have it: over a socket the runner passes it.

Rules here: it is the ring of the runner that is there now; one that has gone takes its ring with it. Whoever reads does
so on the reading thread, and nobody waits there: a ring that has to be asked for is there for the next session.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.ring import Overrun, RingError

if TYPE_CHECKING:
    from utter_sdk import Plugin
    from utter_sdk.ring import RingReader

LOST = "Audio was lost before it could be read from the ring, because the machine was too busy: say it again."


class Ear:
    """Reads what is fed by its place in the ring.

    Args:
        plugin: asks for the ring.
    """

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._reader: RingReader | None = None
        self._of: object = None

    def open(self) -> None:
        """Ask for the ring; on a thread that may wait."""
        connection = self._connection()
        self._reader = self._ask()
        self._of = connection

    def ready(self) -> bool:
        """Whether frames can be read. When another runner is there, its ring is asked for meanwhile."""
        connection = self._connection()
        if self._of is connection:
            return self._reader is not None
        reader, self._reader, self._of = self._reader, None, connection
        if reader is not None:
            reader.close()
        threading.Thread(target=self.open, name="utter-ring", daemon=True).start()
        return False

    def read(self, start: int, count: int) -> bytes:
        """Copy frames.

        Raises:
            RpcError: -32000, they are gone; -32602, there is no ring, or they are not there yet.
        """
        if self._reader is None:
            raise invalid("frames", "there is no audio ring here; feed data_b64")
        try:
            return self._reader.read(start, count)
        except Overrun:
            raise RpcError(ErrorCode.PLUGIN_FAILED, LOST) from None
        except ValueError as error:
            raise invalid("frames", str(error)) from None

    def _ask(self) -> RingReader | None:
        from utter_sdk.ring import RingReader  # noqa: PLC0415 - only where there is a ring

        if self._plugin.hello.transport == "stdio":
            return None
        try:
            with self._plugin.host.fd_pass("memfd.ring").result() as received:
                return RingReader(received.fd)
        except (RpcError, RingError, OSError) as error:
            self._plugin.log(f"without the audio ring: {error}")
            return None

    def _connection(self) -> object:
        return None if self._plugin.served_by is None else self._plugin.served_by.connection


def invalid(name: str, why: str) -> RpcError:
    """What is wrong with a field."""
    return RpcError(ErrorCode.INVALID_PARAMS, f"{name}: {why}.", {"field": name})
