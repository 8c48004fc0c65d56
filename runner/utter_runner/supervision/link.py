"""Meeting a plugin on its socket: accepting the one that is expected, or dialling it.

Rules here: whoever is let in has been identified (`plugin_socket.refusal`), away from the loop and within a bound; all
others are closed, counted, and logged rarely, however many they are. While one is let in, others are turned away; while
nobody is expected they wait in the kernel's queue, which is bounded. A connection that is returned is the caller's.
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

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.config.log_fields import about
from utter_runner.rpc.credentials import Allowed, peer_credentials
from utter_runner.rpc.endpoint import EndpointError, make_directory
from utter_runner.rpc.reactor import READABLE
from utter_runner.supervision.launch import SpawnError, listen_for
from utter_runner.supervision.plugin_socket import Guest, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.rpc.deadlines import Deadlines
    from utter_runner.rpc.endpoint import Endpoint
    from utter_runner.rpc.reactor import Reactor
    from utter_runner.supervision.spec import PluginSpec, Timing

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
        """Return None if the guest is at the other end; else close the connection and return why not."""
        why: str | None = "it could not be found out in time who it is"
        try:
            with trio.move_on_after(self._limit):
                why = await trio.to_thread.run_sync(
                    refusal, connection, guest, abandon_on_cancel=True, limiter=self._limiter
                )
        except BaseException:
            connection.close()
            raise
        if why is not None:
            self.note(connection, why)
            connection.close()
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
            extra=about(self._plugin),
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
            if await self._keeper.refuses(connection, guest) is None:
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


class Meeting:
    """Where the runner and one plugin meet, over all of its epochs.

    Args:
        spec: the plugin's; not over stdio.
        timing: bounds.
        reactor: reports strangers.
        deadlines: keeps pauses.
    """

    def __init__(self, spec: PluginSpec, timing: Timing, reactor: Reactor, deadlines: Deadlines) -> None:
        self._spec = spec
        self.timing = timing
        self._reactor = reactor
        self._deadlines = deadlines
        self._keeper = Doorkeeper(spec.id, timing.identify)
        self._allowed = None if spec.allow_binaries is None else Allowed(spec.allow_binaries)
        self._door: Door | None = None

    @property
    def refused(self) -> int:
        """How many connections were refused."""
        return self._keeper.refused

    @property
    def endpoint(self) -> Endpoint | None:
        """What listens already. One whose file is gone can be reached by nobody, and is given up."""
        if self._door is not None and not self._door.endpoint.in_place():
            self.close()
        return self._door.endpoint if self._door is not None else None

    def take(self, endpoint: Endpoint | None) -> None:
        """Listen on an endpoint that was made together with a process."""
        if endpoint is not None and (self._door is None or self._door.endpoint is not endpoint):
            self.close()
            self._open(endpoint)

    async def wait(self, on_trouble: Callable[[str], None]) -> socket.socket:
        """Wait until a plugin that somebody else starts is there, however long that takes.

        Args:
            on_trouble: told why it is not there, now and then, in one phrase.
        """
        guest = Guest(allow_binaries=self._allowed)
        pauses = (self.timing.dial_first, self.timing.absent_most)
        if self._spec.transport == "listen":
            try:
                make_directory(Path(self._spec.socket_path).parent)
            except EndpointError as error:
                on_trouble(str(error))
            return await self._dial(guest, pauses, on_trouble)
        pause, longest = pauses
        while self.endpoint is None or self._door is None:
            try:
                self._open(listen_for(self._spec))
            except SpawnError as error:
                on_trouble(str(error))
                await trio.sleep(pause)
                pause = min(2 * pause, longest)
        on_trouble(f"nobody has connected to {self._spec.socket_path}")
        return await self._door.admit(guest)

    async def expect(self, pid: int, mark: str) -> socket.socket:
        """Wait until a process that the runner has started is there.

        Args:
            pid: the process.
            mark: what it and its descendants carry as UTTER_INSTANCE.

        Raises:
            RpcError: -32001, it was not there within the time for the handshake.
        """
        guest = Guest(pid=pid, mark=mark)
        troubles = [f"it has not connected to {self._spec.socket_path}"]
        with trio.move_on_after(self.timing.handshake):
            if self._door is not None:
                return await self._door.admit(guest)
            return await self._dial(guest, (self.timing.dial_first, self.timing.dial_most), troubles.append)
        milliseconds = round(self.timing.handshake * 1000)
        raise RpcError(
            ErrorCode.TIMED_OUT,
            f"{self._spec.id} could not be reached within {milliseconds} ms: {troubles[-1]}",
            {"bound": "handshake_timeout_ms", "limit": milliseconds},
        )

    def occupied(self, *, by_plugin: bool) -> None:
        """Turn everybody else away while the plugin is connected."""
        if self._door is not None:
            self._door.shut("it is connected already" if by_plugin else None)

    def close(self) -> None:
        """Stop listening: nobody can connect until the next epoch."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def _open(self, endpoint: Endpoint) -> None:
        self._door = Door(endpoint, self._keeper, self._reactor, self._deadlines)

    async def _dial(
        self, guest: Guest, pauses: tuple[float, float], on_trouble: Callable[[str], None]
    ) -> socket.socket:
        """Connect to a plugin with the transport `listen`, as soon as the guest listens."""
        path = Path(self._spec.socket_path)
        pause, longest = pauses
        while True:
            try:
                connection = _connect(path)
            except OSError as error:
                on_trouble(_why_not(path, error))
            else:
                why = await self._keeper.refuses(connection, guest)
                if why is None:
                    return connection
                on_trouble(f"whoever listens on {path} was refused: {why}")
            await trio.sleep(pause)
            pause = min(2 * pause, longest)
