"""The connection to the session bus: what it refuses, what it keeps, and what a wait loses."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from jeepney import DBusAddress, HeaderFields, new_method_call, new_signal
from jeepney.bus import get_connectable_addresses
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection, Proxy, prep_socket
from jeepney.io.trio import DBusConnection as DBusConnectionOverTrio

from support.dbus import PrivateBus, Service
from utter_runner.rpc import bus as module
from utter_runner.rpc.bus import MAX_SIGNALS, Bus, BusError, NoBusError, session_bus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "org.example.Demo"


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    with PrivateBus(tmp_path) as made:
        yield made


@pytest.fixture
def other(bus: PrivateBus) -> Iterator[DBusConnection]:
    """Somebody else on the bus."""
    connection = DBusConnection(prep_socket(next(get_connectable_addresses(bus.address))))
    Proxy(message_bus, connection, timeout=30)
    yield connection
    connection.close()


def signal(to: str, number: int, *, padding: int = 0) -> Any:
    message = new_signal(DBusAddress("/demo", interface=NAME), "Count", "us", (number, "x" * padding))
    message.header.fields[HeaderFields.destination] = to
    return message


def environ(bus: PrivateBus) -> dict[str, str]:
    return {"DBUS_SESSION_BUS_ADDRESS": bus.address}


async def test_signals_come_in_order_with_what_they_are_about(bus: PrivateBus, other: DBusConnection) -> None:
    async with session_bus(environ(bus)) as made:
        made.only(lambda one: one.interface == NAME)
        for number in range(3):
            other.send(signal(made.unique_name, number))
        with trio.fail_after(60):
            found = [await made.signal() for _ in range(3)]
    assert [(one.path, one.interface, one.member, one.body) for one in found] == [
        ("/demo", NAME, "Count", (number, "")) for number in range(3)
    ]
    assert {one.sender for one in found} != {""}


async def test_a_wait_that_is_cancelled_loses_nothing(bus: PrivateBus, other: DBusConnection) -> None:
    async with session_bus(environ(bus)) as made:
        made.only(lambda one: one.interface == NAME)
        found = []
        with trio.fail_after(60):
            for number in range(50):
                # Longer than what is read at once, so that some waits end in the middle of a message.
                other.send(signal(made.unique_name, number, padding=20_000))
                got = None
                with trio.move_on_after(0.0001 * (number % 7)):
                    got = await made.signal()
                found.append((got or await made.signal()).body[0])
    assert found == list(range(50))


async def test_of_signals_that_nobody_takes_the_latest_are_kept(bus: PrivateBus, other: DBusConnection) -> None:
    with Service(bus.address, NAME, lambda *_: ("", ())) as service:
        async with session_bus(environ(bus)) as made:
            for number in range(MAX_SIGNALS + 40):
                other.send(signal(made.unique_name, number))
            # What came before them is read on the way to an answer that comes after them.
            Proxy(message_bus, other, timeout=30).GetId()
            await made.call(new_method_call(DBusAddress("/", bus_name=service.name, interface=NAME), "Ping"))
            with trio.fail_after(60):
                found = [(await made.signal()).body[0] for _ in range(MAX_SIGNALS)]
    assert found == list(range(40, MAX_SIGNALS + 40))


async def test_those_that_are_wanted_are_not_crowded_out(bus: PrivateBus, other: DBusConnection) -> None:
    with Service(bus.address, NAME, lambda *_: ("", ())) as service:
        async with session_bus(environ(bus)) as made:
            made.only(lambda one: bool(one.body[0] == 7))
            for number in range(MAX_SIGNALS + 40):
                other.send(signal(made.unique_name, number))
            Proxy(message_bus, other, timeout=30).GetId()
            await made.call(new_method_call(DBusAddress("/", bus_name=service.name, interface=NAME), "Ping"))
            with trio.fail_after(60):
                assert (await made.signal()).body[0] == 7


async def test_a_message_that_is_too_long_ends_the_connection(
    bus: PrivateBus, other: DBusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MESSAGE", 10_000)
    async with session_bus(environ(bus)) as made:
        made.only(lambda one: one.interface == NAME)
        other.send(signal(made.unique_name, 1, padding=9_000))
        other.send(signal(made.unique_name, 2, padding=20_000))
        with trio.fail_after(60):
            assert (await made.signal()).body[0] == 1
            with pytest.raises(BusError, match=r"longer than max_bus_message \(10000\) bytes"):
                await made.signal()


async def test_an_error_has_its_name(bus: PrivateBus) -> None:
    async with session_bus(environ(bus)) as made:
        with pytest.raises(BusError) as error:
            await made.call(new_method_call(DBusAddress("/", bus_name="org.example.Nobody", interface=NAME), "Ping"))
    assert error.value.name == "org.freedesktop.DBus.Error.ServiceUnknown"


async def test_a_bus_that_dies_is_noticed_by_who_waits(bus: PrivateBus) -> None:
    async with session_bus(environ(bus)) as made:
        made.only(lambda one: one.interface == NAME)
        bus.close()
        with trio.fail_after(60), pytest.raises(BusError, match="the session bus went away"):
            await made.signal()


class _Wire:
    """The socket's end of a connection that says these bytes, in pieces, and hangs up."""

    def __init__(self, data: bytes, step: int) -> None:
        self._pieces = [data[at : at + step] for at in range(0, len(data), step)]

    async def recv(self, _size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._pieces.pop(0) if self._pieces else b""


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    st.integers(0, 400),
    st.integers(1, 200),
    st.binary(max_size=40),
)
def test_whatever_comes_over_the_wire_ends_in_a_bus_error(
    changes: list[tuple[int, int]], cut: int, step: int, tail: bytes
) -> None:
    listed = [("push_to_talk", {"trigger_description": ("s", "Ctrl+F1"), "more": ("a{sv}", {"x": ("ao", ["/a"])})})]
    said = new_signal(DBusAddress("/demo", interface=NAME), "Changed", "oa(sa{sv})", ("/session", listed))
    data = bytearray(said.serialise(serial=7))
    for at, value in changes:
        data[at % len(data)] = value

    async def read() -> None:
        connection = DBusConnectionOverTrio(_Wire(bytes(data[: len(data) - cut % len(data)]) + tail, step))
        bus = Bus(connection)
        while True:
            await bus.signal()

    with pytest.raises(BusError):
        trio.run(read)


@pytest.mark.parametrize(
    ("environ", "kind", "text"),
    [
        ({}, NoBusError, "DBUS_SESSION_BUS_ADDRESS is not set"),
        ({"DBUS_SESSION_BUS_ADDRESS": "unix:"}, NoBusError, "is not usable"),
        ({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nonexistent/bus"}, BusError, "cannot be reached: No such file"),
        ({"XDG_RUNTIME_DIR": "/nonexistent"}, BusError, "there is no unix:path=/nonexistent/bus"),
    ],
)
async def test_without_a_bus_it_says_why(environ: dict[str, str], kind: type[BusError], text: str) -> None:
    with pytest.raises(BusError, match=text) as error:
        async with session_bus(environ):
            pass
    assert type(error.value) is kind


async def test_without_jeepney_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jeepney.bus", None)
    with contextlib.suppress(KeyError):
        monkeypatch.delitem(sys.modules, "jeepney.io.trio")
    with pytest.raises(NoBusError, match=r"pip install 'utter-runner\[desktop\]'"):
        async with session_bus({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nonexistent/bus"}):
            pass
