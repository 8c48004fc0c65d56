"""A private session bus and services on it, for tests.

Rules here: each bus is a real `dbus-daemon` with its socket in the test's own directory; a service answers on a thread
of its own until it is closed; both are context managers that leave nothing behind.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Self

from jeepney import DBusAddress, HeaderFields, MessageType, new_error, new_method_return, new_signal
from jeepney.bus import get_connectable_addresses
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection, Proxy, prep_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from jeepney import Message

_MPRIS = "org.mpris.MediaPlayer2."
_PLAYER = "org.mpris.MediaPlayer2.Player"
_OPEN_POLICY = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:dir={directory}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


class PrivateBus:
    """A session bus of its own; `address` is what goes into DBUS_SESSION_BUS_ADDRESS."""

    def __init__(self, directory: Path) -> None:
        config = directory / "bus.conf"
        config.write_text(_OPEN_POLICY.format(directory=directory))
        self._daemon = subprocess.Popen(
            ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--print-address=1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._daemon.stdout is not None
        self.address = self._daemon.stdout.readline().strip()
        assert self.address, "dbus-daemon did not start"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the daemon and wait for it, unless that was done."""
        if self._daemon.returncode is None:
            self._daemon.kill()
            self._daemon.communicate()


class Service:
    """A bus name whose method calls are answered by a function.

    Args:
        address: the bus.
        name: the well-known name to own.
        answer: gets (interface, member, body); returns (signature, body) to reply with, an error name (str) to refuse,
            or None to stay silent.

    Attributes:
        calls: a queue of the (member, body) that arrived.
        caller: the unique name of whoever made the call that is answered now.
    """

    def __init__(
        self, address: str, name: str, answer: Callable[[str, str, tuple[Any, ...]], tuple[str, Any] | str | None]
    ) -> None:
        self.name = name
        self.calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self.caller = ""
        self._answer = answer
        self._connection = DBusConnection(prep_socket(next(get_connectable_addresses(address))))
        Proxy(message_bus, self._connection, timeout=5).RequestName(name)
        self._thread = threading.Thread(target=self._serve, name=f"bus service {name}")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def emit(
        self, path: str, interface: str, signal: str, signature: str = "", body: tuple[Any, ...] = (), *, to: str = ""
    ) -> None:
        """Send a signal, to everybody who listens or to one connection alone."""
        message = new_signal(DBusAddress(path, interface=interface), signal, signature or None, body)
        if to:
            message.header.fields[HeaderFields.destination] = to
        self._connection.send(message)

    def _serve(self) -> None:
        while True:
            try:
                message = self._connection.receive()
                if message.header.message_type is MessageType.method_call:
                    self._take(message)
            except OSError:
                return

    def _take(self, message: Message) -> None:
        fields = message.header.fields
        member = fields[HeaderFields.member]
        body = tuple(message.body)
        self.calls.put((member, body))
        self.caller = fields.get(HeaderFields.sender, "")
        answer = self._answer(fields.get(HeaderFields.interface, ""), member, body)
        if isinstance(answer, str):
            self._connection.send(new_error(message, answer, "s", ("refused for the test",)))
        elif answer is not None:
            self._connection.send(new_method_return(message, *answer))


class MediaPlayer(Service):
    """A media player that does what it is told and says so.

    Args:
        address: the bus.
        name: the part behind the MPRIS prefix.
        status: its PlaybackStatus.
        identity: its Identity; None: the name.
        can: properties such as {"CanPause": False}.
        silent: it never answers.
        deaf: it takes `Pause` and goes on playing until `obey`, as players do that pause in their own time.
    """

    def __init__(
        self,
        address: str,
        name: str,
        status: str = "Playing",
        *,
        identity: str | None = None,
        can: Mapping[str, bool] | None = None,
        silent: bool = False,
        deaf: bool = False,
    ) -> None:
        self.status = status
        self.commands: list[str] = []
        self.silent = silent
        self._identity = identity or name
        self._can = dict(can or {})
        self._deaf = deaf
        self._changed = threading.Condition()
        super().__init__(address, _MPRIS + name, self._do)

    def press(self, *statuses: str) -> None:
        """Somebody uses the player's own buttons: it gets these PlaybackStatus, one after the other."""
        for status in statuses:
            self._become(status)

    def obey(self) -> None:
        """A deaf player does at last what it was told."""
        self._deaf = False
        self._become("Paused")

    def wait(self, status: str, timeout: float = 30.0) -> None:
        """Return when it has a PlaybackStatus."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.status == status, timeout):
                raise AssertionError(f"{self.name} is {self.status} and was told {self.commands}")

    def _do(self, _interface: str, member: str, body: tuple[Any, ...]) -> tuple[str, Any] | str | None:
        if self.silent:
            return None
        if member == "GetAll":
            flags = {key: ("b", value) for key, value in self._can.items()}
            state = {"PlaybackStatus": ("s", self.status), **flags}
            return "a{sv}", (state if body[0] == _PLAYER else {"Identity": ("s", self._identity)},)
        self.commands.append(member)
        if member == "PlayPause":
            member = "Pause" if self.status == "Playing" else "Play"
        target = {"Play": "Playing", "Pause": "Paused", "Stop": "Stopped"}.get(member)
        if target and not (self._deaf and target == "Paused") and not (target == "Paused" and self.status == "Stopped"):
            self._become(target)
        return "", ()

    def _become(self, status: str) -> None:
        with self._changed:
            if self.status == status:
                return
            self.status = status
            self._changed.notify_all()
        body = (_PLAYER, {"PlaybackStatus": ("s", status)}, [])
        self.emit("/org/mpris/MediaPlayer2", "org.freedesktop.DBus.Properties", "PropertiesChanged", "sa{sv}as", body)


def mpris_player(
    address: str,
    name: str,
    *,
    status: str = "Stopped",
    identity: str | None = None,
    silent: bool = False,
    can: Mapping[str, bool] | None = None,
) -> Service:
    """A media player `org.mpris.MediaPlayer2.<name>` that accepts every command.

    Args:
        address: the bus.
        name: the part behind the MPRIS prefix.
        status: its PlaybackStatus.
        identity: its Identity; None: it has no root interface properties.
        silent: it never answers.
        can: properties such as {"CanGoNext": False}.
    """

    def answer(_interface: str, member: str, body: tuple[Any, ...]) -> tuple[str, Any] | str | None:
        if silent:
            return None
        if member != "GetAll":
            return "", ()
        if body[0].endswith(".Player"):
            flags = {key: ("b", value) for key, value in (can or {}).items()}
            return "a{sv}", ({"PlaybackStatus": ("s", status), **flags},)
        if identity is None:
            return "org.freedesktop.DBus.Error.UnknownInterface"
        return "a{sv}", ({"Identity": ("s", identity)},)

    return Service(address, _MPRIS + name, answer)
