"""Meeting a plugin on its socket: accepting the one that is expected, or dialling it.

Rules here: whoever is let in has been identified (`plugin_socket.refusal`), away from the loop and within a bound; all
others are closed, counted, and logged rarely, however many they are. While nobody is expected, strangers are either
turned away or left in the kernel's queue, which is bounded. A connection that is returned is the caller's.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from utter_runner.rpc.credentials import peer_credentials
from utter_runner.rpc.reactor import READABLE
from utter_runner.supervision.plugin_socket import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.rpc.deadlines import Deadlines
    from utter_runner.rpc.endpoint import Endpoint
    from utter_runner.rpc.reactor import Reactor
    from utter_runner.supervision.plugin_socket import Guest

logger = logging.getLogger(__name__)

_LOG_SECONDS = 60.0
_RETRY_SECONDS = 0.2
_TURNED_AWAY_AT_ONCE = 16
_LOOKING = 4
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Doorkeeper:
    """Tells one plugin's process from others, and keeps count of those.

    Args:
        plugin: the plugin's id, for the log.
        limit: seconds that it may take to find out who somebody is.
    """

    def __init__(self, plugin: str, limit: float) -> None:
        self.refused = 0
        self._plugin = plugin
        self._limit = limit
        self._limiter = trio.CapacityLimiter(_LOOKING)
        self._silent_until = 0.0

    async def refuses(self, connection: socket.socket, guest: Guest) -> str | None:
        """Return why the other end of a connection is not the guest, or None if it is."""
        with trio.move_on_after(self._limit):
            why = await trio.to_thread.run_sync(
                refusal, connection, guest, abandon_on_cancel=True, limiter=self._limiter
            )
            if why is not None:
                self.note(connection, why)
            return why
        why = "it could not be found out in time who it is"
        self.note(connection, why)
        return why

    def note(self, connection: socket.socket, why: str) -> None:
        """Count a connection that is refused, and log it unless one was logged a moment ago."""
        self.refused += 1
        if trio.current_time() < self._silent_until:
            return
        self._silent_until = trio.current_time() + _LOG_SECONDS
        logger.warning(
            "%s: a connection with pid %d was refused: %s (%d refused so far)",
            self._plugin,
            peer_credentials(connection).pid,
            why,
            self.refused,
        )


class Door:
    """The listening socket of a plugin with the transport `connect`.

    Args:
        endpoint: the socket; becomes the door's.
        keeper: says who may come in.
        reactor: reports strangers.
        deadlines: for a pause when there are no descriptors.
    """

    def __init__(self, endpoint: Endpoint, keeper: Doorkeeper, reactor: Reactor, deadlines: Deadlines) -> None:
        self.endpoint = endpoint
        self._keeper = keeper
        self._reactor = reactor
        self._deadlines = deadlines
        self._shut: str | None = None
        self._watched = False

    async def admit(self, guest: Guest) -> socket.socket:
        """Wait until the guest has connected, and refuse everybody else who comes meanwhile."""
        self.shut(None)
        listener = self.endpoint.listener
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                connection = listener.accept()[0]
            except BlockingIOError:
                continue
            except OSError:
                # Usually there are no descriptors left; whoever it is waits in the kernel's queue meanwhile.
                await trio.sleep(_RETRY_SECONDS)
                continue
            if await _is_guest(connection, guest, self._keeper) is None:
                return connection

    def shut(self, why: str | None) -> None:
        """Turn everybody away who connects from now on; with None, let them wait until `admit`."""
        self._shut = why
        if self._watched != (why is not None):
            self._watched = not self._watched
            if self._watched:
                self._reactor.register(self.endpoint.listener.fileno(), READABLE, self._turn_away)
            else:
                self._reactor.unregister(self.endpoint.listener.fileno())

    def close(self) -> None:
        """Stop listening and remove the socket file."""
        self.shut(None)
        self.endpoint.close()

    def _turn_away(self, _events: int) -> None:
        for _ in range(_TURNED_AWAY_AT_ONCE):
            try:
                connection = self.endpoint.listener.accept()[0]
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._pause()
                return
            with connection:
                self._keeper.note(connection, self._shut or "")

    def _pause(self) -> None:
        """Leave the listener alone for a moment: one that stays readable would spin the loop."""
        why = self._shut
        self.shut(None)
        self._shut = why

        def resume() -> None:
            # Unless it has been opened, closed or shut again since.
            if self._shut is why and not self._watched:
                self.shut(why)

        self._deadlines.add(trio.current_time() + _RETRY_SECONDS, resume)


async def dial(
    path: Path,
    guest: Guest,
    keeper: Doorkeeper,
    *,
    pauses: tuple[float, float],
    on_trouble: Callable[[str], None],
) -> socket.socket:
    """Connect to a plugin with the transport `listen`, as soon as it listens.

    Args:
        path: its socket.
        guest: who must be listening there.
        keeper: finds out whether it is.
        pauses: the first and the longest pause between two tries, in seconds.
        on_trouble: told after each try why there is no connection yet.
    """
    pause, longest = pauses
    while True:
        try:
            connection = _connect(path)
        except OSError as error:
            on_trouble(_why_not(path, error))
        else:
            why = await _is_guest(connection, guest, keeper)
            if why is None:
                return connection
            on_trouble(f"whoever listens on {path} was refused: {why}")
        await trio.sleep(pause)
        pause = min(2 * pause, longest)


async def _is_guest(connection: socket.socket, guest: Guest, keeper: Doorkeeper) -> str | None:
    """Return None if the guest is at the other end; else close the connection and return why not."""
    try:
        why = await keeper.refuses(connection, guest)
    except BaseException:
        connection.close()
        raise
    if why is not None:
        connection.close()
    return why


def _connect(path: Path) -> socket.socket:
    status = path.lstat()
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.ENOTSOCK, "it is not a socket")
    if status.st_uid != os.getuid():
        raise OSError(errno.EPERM, f"it belongs to uid {status.st_uid}, not to you")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        connection.connect(os.fspath(path))
    except OSError:
        connection.close()
        raise
    return connection


def _why_not(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return f"nobody listens on {path}"
    if isinstance(error, BlockingIOError):
        return f"whoever listens on {path} does not accept connections"
    return f"{path} cannot be dialled: {error.strerror}"
