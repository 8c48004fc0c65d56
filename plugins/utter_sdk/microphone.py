"""`Microphone`: the microphone's audio in a plugin, as the runner wrote it into the audio ring.

Rules here: whoever reads does not know whether the process inherited the ring (over stdio) or was passed it (over a
socket); waiting ends when the request that waits is cancelled, when the microphone is closed and when the runner is
gone. Read PROTOCOL.md, "The audio ring", for what the numbers mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.inherited import MICROPHONE, RING_CAPABILITY
from utter_sdk.handlers import Cancelled
from utter_sdk.requests import current
from utter_sdk.ring import Overrun, RingError, RingReader
from utter_sdk.wakening import Wakening

if TYPE_CHECKING:
    from utter_protocol.ring import RingLayout
    from utter_sdk.connection import Connection
    from utter_sdk.plugin import Plugin

__all__ = ["Microphone", "MicrophoneClosed", "Overrun", "RingError"]


class MicrophoneClosed(Exception):
    """There will be no more frames: the runner has gone, or this end has closed the microphone."""


class InheritedRing(NamedTuple):
    """What a process inherited, for all its microphones: the ring's descriptor, and its wake pipe."""

    fd: int
    wakening: Wakening


class Microphone:
    """The audio ring of the runner; get it from `Plugin.microphone`, and use it in a `with` block.

    Frames are counted from 0 since the runner started, whether or not anybody reads. The runner decides when the
    microphone is open: while it is closed, `position` stands still. One thread at a time reads; `wait` may be called
    beside it.

    Attributes:
        layout: `rate` in frames per second, `channels`, and `capacity`, how many frames the ring holds.
    """

    def __init__(self, reader: RingReader, wakening: Wakening, connection: Connection, *, shared: bool) -> None:
        self.layout: RingLayout = reader.layout
        self._reader = reader
        self._wakening = wakening
        self._connection = connection
        self._shared = shared
        self._closed = False

    @property
    def position(self) -> int:
        """How many frames have been written: the number of the next one."""
        return self._reader.position

    @property
    def oldest(self) -> int:
        """The first frame that can still be read."""
        return self._reader.oldest

    @property
    def generation(self) -> int:
        """How often the audio source was opened again. Where it changes, time has passed between two frames."""
        return self._reader.generation

    def read(self, start: int, count: int) -> bytes:
        """Copy the frames [start, start + count): 32-bit floats, little-endian, channels interleaved.

        Raises:
            Overrun: some of them have been overwritten; go on at its `oldest` or a little later.
            ValueError: a negative number, or frames that are not written yet.
        """
        return self._reader.read(start, count)

    def wait(self, position: int, timeout: float | None = None) -> bool:
        """Wait until frame number `position` has been written; return whether it has.

        It waits on a worker thread: in a handler with `blocking=True`, in a stream, or on a thread of your own.

        Args:
            position: a frame's number, usually where the last read ended.
            timeout: seconds; None waits for as long as it takes.

        Raises:
            MicrophoneClosed: the runner has gone, or `close` was called.
            Cancelled: the request that the calling handler works on was cancelled.
            RuntimeError: it was called where the plugin would not answer meanwhile.
        """
        connection = self._connection
        connection.calls.refuse_to_wait("Microphone.wait()")
        request = current.get()
        waiting = object()

        def ready() -> bool:
            if self._closed:
                raise MicrophoneClosed("the microphone was closed")
            if request is not None and request.cancelled:
                raise Cancelled
            if self._reader.position > position:
                return True
            if self._wakening.ended:
                raise MicrophoneClosed("the runner has gone")
            return False

        if request is None:
            return self._wakening.wait(ready, timeout)
        if not connection.requests.attach(request, waiting, self._wakening.look_again):
            raise Cancelled
        try:
            return self._wakening.wait(ready, timeout)
        finally:
            connection.requests.detach(request, waiting)

    def close(self) -> None:
        """Let go the ring; whoever waits is told. Idempotent."""
        if self._closed:
            return
        self._closed = True
        # From here on nobody who waits looks at the ring.
        self._wakening.look_again()
        self._reader.close()
        if not self._shared:
            self._wakening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_microphone(plugin: Plugin, connection: Connection, inherited: InheritedRing | None) -> Microphone:
    """Return the microphone of a plugin; `Plugin.microphone` says what it raises.

    Args:
        plugin: the plugin.
        connection: the one that the runner has greeted.
        inherited: what the process inherited.
    """
    connection.calls.refuse_to_wait("microphone()")
    if inherited is not None:
        return Microphone(RingReader(inherited.fd), inherited.wakening, connection, shared=True)
    try:
        received = plugin.host.fd_pass("memfd.ring", {"wake": True}).result()
    except RpcError as error:
        if error.data is not None and error.data.get("transport") == "stdio":
            raise RpcError(
                ErrorCode.NOT_PERMITTED,
                f'this process inherited no audio ring: its manifest must require "{RING_CAPABILITY}" and have the '
                f'permission "{MICROPHONE}"',
                {"field": "requires"},
            ) from None
        raise
    with received:
        reader = RingReader(received.fds[0])
        try:
            wakening = Wakening(received.fds[1])
        except BaseException:
            reader.close()
            raise
        received.fds.pop()
    return Microphone(reader, wakening, connection, shared=False)
