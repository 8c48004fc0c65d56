"""A connection to the session bus: for as long as one question is open, or for as long as hotkeys come over it.

Rules here: one task uses it; jeepney is imported when a bus is needed and not before, for it is optional, and on a
thread; every call has a time limit; whatever goes wrong is a `BusError`. What is kept of signals is bounded, and so is
a message: a flood costs no memory.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from jeepney import Message
    from jeepney.io.trio import DBusConnection

CALL_SECONDS = 5.0
MAX_SIGNALS = 64
MAX_MESSAGE = 1_048_576
"""Bytes of a message to the runner; what it asks for and listens to is a thousandth of that."""
DRIVER = "org.freedesktop.DBus"
"""The name, and the interface, of the bus itself."""
_AUTH_BYTES = 4096
_READ_BYTES = 4096


class BusError(Exception):
    """The bus, or who was called on it, is not there or said no; `str()` says which and why.

    Attributes:
        name: the D-Bus name of the error, if it is an answer; "" otherwise.
    """

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


class NoBusError(BusError):
    """There is no bus to talk to, and trying again would change nothing while this process runs."""


class Signal(NamedTuple):
    """A signal: the unique name of who sent it, its interface, its name, its arguments, and the object it is about."""

    sender: str
    interface: str
    member: str
    body: tuple[Any, ...]
    path: str = ""


class Bus:
    """The connection; see `session_bus`.

    Attributes:
        unique_name: this connection's own name, such as ":1.42".
    """

    def __init__(self, connection: DBusConnection) -> None:
        self.unique_name = ""
        self._connection = connection
        self._signals: deque[Signal] = deque(maxlen=MAX_SIGNALS)
        self._wanted: Callable[[Signal], bool] | None = None

    def only(self, wanted: Callable[[Signal], bool]) -> None:
        """Keep no other signals from now on, so that nobody else can crowd these out."""
        self._wanted = wanted

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
                    name = str(fields.get(HeaderFields.error_name, ""))
                    raise BusError(str(reply.body[0] if reply.body else name), name)
                else:
                    return str(fields.get(HeaderFields.sender, "")), tuple(reply.body)
        raise BusError(f"it did not answer within {CALL_SECONDS:g} s")

    async def signal(self) -> Signal:
        """Wait for the next signal. It may be cancelled, and loses none. Raises BusError: the bus is gone."""
        while not self._signals:
            self._keep(await self._receive())
        return self._signals.popleft()

    def _keep(self, message: Message) -> None:
        from jeepney import HeaderFields, MessageType  # noqa: PLC0415 - optional, see the rules above

        if message.header.message_type is MessageType.signal:
            fields = message.header.fields
            sender, interface, member, path = (
                str(fields.get(one, ""))
                for one in (HeaderFields.sender, HeaderFields.interface, HeaderFields.member, HeaderFields.path)
            )
            signal = Signal(sender, interface, member, tuple(message.body), path)
            if self._wanted is None or self._wanted(signal):
                self._signals.append(signal)

    async def _receive(self) -> Message:
        """Return the next message. A wait that is cancelled loses none."""
        # Whoever sends without end is not to keep others from their turn. From here on nothing is cancelled that has a
        # message in its hands.
        await trio.lowlevel.checkpoint()
        while (message := self._parsed()) is None:
            if self._connection.parser.bytes_desired() > MAX_MESSAGE:
                raise BusError(f"a message on the session bus is longer than max_bus_message ({MAX_MESSAGE}) bytes")
            try:
                data = await self._connection.socket.recv(_READ_BYTES)
            except (OSError, trio.ClosedResourceError) as error:
                raise BusError(f"the session bus went away: {error}") from None
            if not data:
                raise BusError("the session bus went away: it hung up")
            self._connection.parser.add_data(data)
        return message

    def _parsed(self) -> Message | None:
        """Return a message that has arrived, or None. Raises BusError: what has is none."""
        try:
            return self._connection.parser.get_next_message()
        except Exception as error:  # noqa: BLE001 - jeepney says it in many ways, failed assertions among them
            raise BusError(f"what came over the session bus makes no sense: {error!r}") from None


def bus_address(environ: Mapping[str, str]) -> str:
    """Return where the session bus is, as `DBUS_SESSION_BUS_ADDRESS` or the usual place has it. Raises BusError."""
    address = environ.get("DBUS_SESSION_BUS_ADDRESS", "")
    if not address and environ.get("XDG_RUNTIME_DIR"):
        address = f"unix:path={environ['XDG_RUNTIME_DIR']}/bus"
        if not Path(environ["XDG_RUNTIME_DIR"], "bus").exists():
            raise BusError(f"there is no session bus: DBUS_SESSION_BUS_ADDRESS is not set, and there is no {address}")
    if not address:
        raise NoBusError("there is no session bus: DBUS_SESSION_BUS_ADDRESS is not set")
    return address


def _load() -> Callable[[str], Any]:
    """Import what is used of jeepney; return what reads an address. Raises ImportError."""
    from jeepney.bus import get_connectable_addresses  # noqa: PLC0415 - optional, see the rules above

    import_module("jeepney.io.trio")

    return get_connectable_addresses  # type: ignore[no-any-return]  # jeepney has no types


@asynccontextmanager
async def session_bus(environ: Mapping[str, str]) -> AsyncIterator[Bus]:
    """Connect to the session bus, and close the connection afterwards.

    Raises:
        NoBusError: jeepney is not installed, or no bus is named.
        BusError: it cannot be reached.
    """
    address = bus_address(environ)
    try:
        get_connectable_addresses = await trio.to_thread.run_sync(_load)
    except ImportError:
        raise NoBusError("the Python package jeepney is missing: pip install 'utter-runner[desktop]'") from None
    from jeepney.io.trio import DBusConnection  # noqa: PLC0415 - optional, see the rules above

    try:
        path = next(iter(get_connectable_addresses(address)))
    except (RuntimeError, ValueError, StopIteration) as error:
        raise NoBusError(f"the session bus address {address!r} is not usable: {error}") from None
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
        _, (bus.unique_name, *_) = await bus.call(_hello())
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
