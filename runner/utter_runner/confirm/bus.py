"""A connection to the session bus for as long as one question is open.

Rules here: one task uses it; jeepney is imported when a bus is needed and not before, for it is optional; every call
has a time limit; whatever goes wrong is a `BusError`. What is kept of signals is bounded: a flood costs no memory.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from jeepney import Message
    from jeepney.io.trio import DBusConnection

CALL_SECONDS = 5.0
MAX_SIGNALS = 64
_AUTH_BYTES = 4096


class BusError(Exception):
    """The bus, or who was called on it, is not there or said no; `str()` says which and why."""


class Signal(NamedTuple):
    """A signal: the unique name of who sent it, its interface, its name, and its arguments."""

    sender: str
    interface: str
    member: str
    body: tuple[Any, ...]


class Bus:
    """The connection; see `session_bus`."""

    def __init__(self, connection: DBusConnection) -> None:
        self._connection = connection
        self._signals: deque[Signal] = deque(maxlen=MAX_SIGNALS)

    async def call(self, message: Message) -> tuple[str, tuple[Any, ...]]:
        """Call a method; return what `reply` does, and raise as it does."""
        return await self.reply(await self.send(message))

    async def send(self, message: Message) -> int:
        """Call a method without waiting; return what `reply` takes. Raises BusError: the bus is gone."""
        serial: int = next(self._connection.outgoing_serial)
        try:
            await self._connection.send(message, serial=serial)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise BusError(f"the session bus went away: {error}") from None
        return serial

    async def reply(self, serial: int) -> tuple[str, tuple[Any, ...]]:
        """Wait for the answer to a call; return who answered, by its unique name, and what.

        Raises:
            BusError: the answer is an error, there is none in `CALL_SECONDS`, or the bus is gone.
        """
        from jeepney import HeaderFields, MessageType  # noqa: PLC0415 - optional, see the rules above

        with trio.move_on_after(CALL_SECONDS):
            while True:
                reply = await self._receive()
                fields = reply.header.fields
                if fields.get(HeaderFields.reply_serial) != serial:
                    self._keep(reply)
                elif reply.header.message_type is MessageType.error:
                    raise BusError(str(reply.body[0] if reply.body else fields.get(HeaderFields.error_name)))
                else:
                    return str(fields.get(HeaderFields.sender, "")), tuple(reply.body)
        raise BusError(f"it did not answer within {CALL_SECONDS:g} s")

    async def signal(self) -> Signal:
        """Wait for the next signal. Raises BusError: the bus is gone."""
        while not self._signals:
            self._keep(await self._receive())
        return self._signals.popleft()

    def _keep(self, message: Message) -> None:
        from jeepney import HeaderFields, MessageType  # noqa: PLC0415 - optional, see the rules above

        if message.header.message_type is MessageType.signal:
            fields = message.header.fields
            sender, interface, member = (
                str(fields.get(one, "")) for one in (HeaderFields.sender, HeaderFields.interface, HeaderFields.member)
            )
            self._signals.append(Signal(sender, interface, member, tuple(message.body)))

    async def _receive(self) -> Message:
        try:
            return await self._connection.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel) as error:
            raise BusError(f"the session bus went away: {error}") from None


def bus_address(environ: Mapping[str, str]) -> str:
    """Return where the session bus is, as `DBUS_SESSION_BUS_ADDRESS` or the usual place has it. Raises BusError."""
    address = environ.get("DBUS_SESSION_BUS_ADDRESS", "")
    if not address and environ.get("XDG_RUNTIME_DIR"):
        address = f"unix:path={environ['XDG_RUNTIME_DIR']}/bus"
    if not address:
        raise BusError("there is no session bus: DBUS_SESSION_BUS_ADDRESS is not set")
    return address


@asynccontextmanager
async def session_bus(environ: Mapping[str, str]) -> AsyncIterator[Bus]:
    """Connect to the session bus, and close the connection afterwards.

    Raises:
        BusError: jeepney is not installed, no bus is named, or it cannot be reached.
    """
    try:
        from jeepney.bus import get_connectable_addresses  # noqa: PLC0415 - optional, see the rules above
        from jeepney.io.trio import DBusConnection  # noqa: PLC0415 - see above
    except ImportError:
        raise BusError("the Python package jeepney is missing: pip install 'utter-runner[desktop]'") from None
    address = bus_address(environ)
    try:
        path = next(iter(get_connectable_addresses(address)))
    except (RuntimeError, ValueError, StopIteration) as error:
        raise BusError(f"the session bus address {address!r} is not usable: {error}") from None
    try:
        stream = await trio.open_unix_socket(path)
    except OSError as error:
        raise BusError(f"the session bus at {address} cannot be reached: {error.strerror or error}") from None
    async with stream:
        with trio.move_on_after(CALL_SECONDS) as limit:
            await _authenticate(stream)
        if limit.cancelled_caught:
            raise BusError(f"the session bus at {address} did not answer within {CALL_SECONDS:g} s")
        bus = Bus(DBusConnection(stream.socket))
        await bus.call(_hello())
        yield bus


def _hello() -> Message:
    from jeepney.bus_messages import message_bus  # noqa: PLC0415 - optional, see the rules above

    return message_bus.Hello()


async def _authenticate(stream: trio.SocketStream) -> None:
    """Say who we are, which the bus checks by the socket's credentials. Raises BusError."""
    from jeepney.auth import BEGIN, AuthenticationError, Authenticator  # noqa: PLC0415 - optional, see the rules above

    try:
        dialogue = Authenticator()
        for request in dialogue:
            await stream.send_all(request)
            answer = await stream.receive_some(_AUTH_BYTES)
            if not answer:
                raise BusError("the session bus hung up")
            dialogue.feed(answer)
        await stream.send_all(BEGIN)
    except (trio.BrokenResourceError, trio.ClosedResourceError, AuthenticationError) as error:
        raise BusError(f"the session bus does not let the runner in: {error}") from None
