"""The blocking session-bus connection that media control, D-Bus activation, holds and the watch of the players share.

Rules here: jeepney is imported when a bus is needed and not before; every call has a time limit; a connection lives for
one action, for one watch, or as long as players are held.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from .failure import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jeepney import Message

CALL_TIMEOUT_S = 1.0


class BusError(Exception):
    """An error reply, or no reply in time; `str()` is the bus's own text."""


class SessionBus:
    """One connection to the session bus, used as a context manager.

    Args:
        env: where `DBUS_SESSION_BUS_ADDRESS` (or `XDG_RUNTIME_DIR`, whose `bus` socket is the usual place) is read.

    Raises:
        Failure: jeepney is not installed, no bus is named, or it cannot be reached.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        try:
            from jeepney.bus import get_connectable_addresses  # noqa: PLC0415 - optional, see the rules above
            from jeepney.io.blocking import DBusConnection, prep_socket  # noqa: PLC0415 - optional, see the rules above
        except ImportError as error:
            raise Failure(
                "The session bus cannot be used: the Python package jeepney is missing. "
                "Install the desktop extra: pip install 'utter-runner[desktop]'."
            ) from error
        address = bus_address(env)
        try:
            path = next(get_connectable_addresses(address))
        except (RuntimeError, ValueError) as error:
            raise Failure(f"The session bus address {address!r} is not usable: {error}.") from error
        try:
            sock = prep_socket(path, timeout=CALL_TIMEOUT_S)
        except OSError as error:
            raise Failure(f"The session bus at {address} cannot be reached: {error}.") from error
        try:
            self._connection = DBusConnection(sock)
        except OSError as error:
            sock.close()
            raise Failure(f"The session bus at {address} went away: {error}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, message: Message) -> int:
        """Send a message without waiting; return its serial, which the reply will name.

        Raises:
            Failure: the bus is gone.
        """
        serial: int = next(self._connection.outgoing_serial)
        try:
            self._connection.send(message, serial=serial)
        except OSError as error:
            raise Failure(f"The session bus went away: {error}.") from error
        return serial

    def receive(self, timeout_s: float | None = None) -> Message:
        """Wait for the next message; None: for as long as it takes.

        Raises:
            Failure: the bus is gone.
            TimeoutError: none came in time.
        """
        try:
            return self._connection.receive(timeout=None if timeout_s is None else max(0.0, timeout_s))
        except TimeoutError:
            raise
        except OSError as error:
            raise Failure(f"The session bus went away: {error}.") from error

    def call(self, message: Message, timeout_s: float = CALL_TIMEOUT_S) -> tuple[Any, ...]:
        """Call a method and return the reply's body.

        Raises:
            BusError: the reply is an error, or there is none in time.
        """
        reply = self.call_all([message], timeout_s)[0]
        if isinstance(reply, BusError):
            raise reply
        return reply

    def call_all(self, messages: list[Message], timeout_s: float = CALL_TIMEOUT_S) -> list[tuple[Any, ...] | BusError]:
        """Call several methods side by side; one that hangs costs the others nothing but the shared time limit."""
        from jeepney import HeaderFields, MessageType  # noqa: PLC0415 - optional, see the rules above

        waiting: dict[int, int] = {}
        replies: list[tuple[Any, ...] | BusError] = [BusError("it did not answer in time")] * len(messages)
        deadline = time.monotonic() + timeout_s
        try:
            for index, message in enumerate(messages):
                serial = next(self._connection.outgoing_serial)
                waiting[serial] = index
                self._connection.send(message, serial=serial)
            while waiting:
                reply = self._connection.receive(timeout=max(0.0, deadline - time.monotonic()))
                index = waiting.pop(reply.header.fields.get(HeaderFields.reply_serial, -1), -1)
                if index < 0:
                    continue
                if reply.header.message_type is MessageType.error:
                    replies[index] = BusError(str(reply.body[0] if reply.body else "it answered with an error"))
                else:
                    replies[index] = tuple(reply.body)
        except TimeoutError:
            pass
        except OSError as error:
            raise Failure(f"The session bus went away: {error}.") from error
        return replies


def bus_address(env: Mapping[str, str]) -> str:
    """The address of the session bus, as `DBUS_SESSION_BUS_ADDRESS` has it.

    Raises:
        Failure: the environment names none.
    """
    address = env.get("DBUS_SESSION_BUS_ADDRESS", "")
    if not address and env.get("XDG_RUNTIME_DIR"):
        address = f"unix:path={env['XDG_RUNTIME_DIR']}/bus"
    if not address:
        raise Failure(
            "There is no session bus: DBUS_SESSION_BUS_ADDRESS is not set for the plugin. "
            "Name it in pass_env of the desktop plugin."
        )
    return address
