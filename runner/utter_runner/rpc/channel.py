"""Bytes in and out over a pair of descriptors that never block, and descriptors on sockets: the transport of a peer.

Rules here: the channel owns its descriptors and closes each exactly once; reading takes at most 64 KiB a turn; what is
written in one turn leaves in one system call, and only what the kernel refused waits for writability; a write that
fails says nothing of what arrived before, which stays readable. Bytes and the descriptors that ride on them leave
through one queue.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import termios
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from utter_runner.rpc.descriptors import ROOM, Parcel, all_was_read, close_all, received, send_parcel, unix_socket
from utter_runner.rpc.reactor import HANGUP, READABLE, WRITABLE, Reactor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_SIZE = 64 * 1024
_JOIN_SIZE = 256 * 1024


class Channel:
    """A duplex byte channel; `read_fd` and `write_fd` may be the same descriptor (a socket).

    Args:
        reactor: who reports readiness.
        read_fd: descriptor to read from; becomes the channel's.
        write_fd: descriptor to write to; becomes the channel's.
        on_data: called with bytes that arrived, in a reactor turn.
        on_end: called once when no more bytes will come; the argument says whether the other side is gone for good
            (hang-up, error) or merely closed its sending half.
        on_broken: called once when writing has become impossible. Reading goes on; `read_rest` bounds it.
        on_parcel: called in place of `on_data` with bytes, the descriptors that came with them, which become the
            callee's, and whether some were cut off. Without it descriptors are closed.

    Raises:
        OSError: a descriptor cannot be waited for; both are closed then.
    """

    def __init__(
        self,
        reactor: Reactor,
        read_fd: int,
        write_fd: int,
        *,
        on_data: Callable[[bytes], None],
        on_end: Callable[[bool], None],
        on_broken: Callable[[], None],
        on_parcel: Callable[[bytes, list[int], bool], None] | None = None,
    ) -> None:
        self._reactor = reactor
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_data = on_data
        self._on_end = on_end
        self._on_broken = on_broken
        self._on_parcel = on_parcel
        self._out: deque[bytes | memoryview] = deque()
        self._parcels = 0
        self._passed = 0
        self._socket: socket.socket | None = None
        self._blocked = False
        self._read_ended = False
        self._paused = False
        # How many bytes are still read before the end, once `read_rest` has been called.
        self._left: int | None = None
        self._registered: dict[int, int] = {}
        self._close_when_flushed = False
        self.closed = False
        self.broken = False
        self.queued = 0
        self.on_drained: Callable[[], None] | None = None
        """Called when nothing is queued any more."""
        self._draining = False
        try:
            os.set_blocking(read_fd, False)
            os.set_blocking(write_fd, False)
            if read_fd == write_fd:
                self._socket = unix_socket(read_fd)
            self._interest(read_fd, READABLE)
        except OSError:
            self.close()
            raise

    def pause(self, *, paused: bool) -> None:
        """Stop or go on reading (flow control)."""
        if self._paused != paused and not self._read_ended and not self.closed:
            self._paused = paused
            self._update_interest(self._read_fd)
            self._end_if_read()

    def read_rest(self) -> None:
        """Read what has arrived by now and no more, then report the end: the other side is known to be gone."""
        if self._left is None and not (self._read_ended or self.closed):
            self._left = _unread(self._read_fd)
            self._end_if_read()

    def write(self, data: bytes) -> None:
        """Queue `data`; it leaves at the end of this turn, or at once outside of one. Dropped on a broken channel."""
        if self.broken or self.closed:
            return
        out = self._out
        first = not out
        out.append(data)
        self.queued += len(data)
        # Otherwise somebody sends it: this turn's flush, the one that asked for more, or the kernel when it takes more.
        if first and not (self._blocked or self._draining):
            self._reactor.at_turn_end(self._flush)

    @property
    def passes_descriptors(self) -> bool:
        """Whether descriptors can travel on this channel."""
        return self._socket is not None

    def write_parcel(self, data: bytes, fds: Sequence[int], instead: bytes) -> None:
        """Queue `data` with descriptors that leave with its first byte; they become the channel's.

        Args:
            data: a whole frame.
            fds: at most what the other side expects.
            instead: the frame to send if the kernel has too many descriptors under way.
        """
        if self.broken or self.closed or self._socket is None:
            close_all(fds)
            return
        self._parcels += 1
        self._passed += len(fds)
        self.write(Parcel.of(data, fds, instead))

    @property
    def unread_descriptors(self) -> int:
        """How many descriptors wait here, or in the kernel for a reader that has something yet to read."""
        if self._passed and not self._parcels and all_was_read(self._write_fd):
            self._passed = 0
        return self._passed

    def close(self, *, flush: bool = False) -> None:
        """Close both descriptors, after what is queued has left if `flush`; nothing is read any more."""
        if self.closed:
            return
        if flush and self.queued and not self.broken:
            self._close_when_flushed = True
            if not self._read_ended:
                self._read_ended = True
                self._update_interest(self._read_fd)
            return
        self.closed = True
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
        for fd in {self._read_fd, self._write_fd}:
            if fd >= 0:
                self._forget(fd)
                os.close(fd)
        self._read_fd = self._write_fd = -1
        self._drop_queue()

    @property
    def socket(self) -> socket.socket | None:
        """The socket, to be looked at; None if it is none of those that pass descriptors, or closed."""
        return self._socket

    def close_writing(self) -> None:
        """Give the other side end-of-file, and go on reading. What the kernel does not take now is dropped."""
        if self._write_fd < 0:
            return
        self._flush()
        if self._write_fd < 0:
            # The last flush found the other side gone, and the owner closed the channel.
            return
        self._drop_queue()
        if self._write_fd == self._read_fd:
            self._close_sending_half()
            return
        fd, self._write_fd = self._write_fd, -1
        self.broken = True
        self._forget(fd)
        os.close(fd)

    def _drop_queue(self) -> None:
        if self._parcels:
            for data in self._out:
                if type(data) is Parcel:
                    data.close()
            self._parcels = 0
        self._out.clear()
        self.queued = 0

    def _close_sending_half(self) -> None:
        if self.broken:
            return
        self.broken = True
        self._blocked = False
        if self._socket is not None:
            with suppress(OSError):
                # It fails when the other side is gone, which reading will tell.
                self._socket.shutdown(socket.SHUT_WR)
        self._update_interest(self._read_fd)

    def _interest(self, fd: int, events: int) -> None:
        known = self._registered.get(fd)
        if known is None:
            self._reactor.register(fd, events, self._ready if fd == self._read_fd else self._write_ready)
        elif known != events:
            self._reactor.modify(fd, events)
        self._registered[fd] = events

    def _update_interest(self, fd: int) -> None:
        events = 0
        if fd == self._read_fd and not (self._read_ended or self._paused):
            events |= READABLE
        if fd == self._write_fd and self._blocked:
            events |= WRITABLE
        if events or (fd == self._read_fd == self._write_fd and not self.broken):
            self._interest(fd, events)
        else:
            # What is at its end reports hang-up for ever; nobody waits for this one.
            self._forget(fd)

    def _forget(self, fd: int) -> None:
        if self._registered.pop(fd, None) is not None:
            self._reactor.unregister(fd)

    def _ready(self, events: int) -> None:
        if events & WRITABLE:
            self._writable()
        if self._read_fd not in self._registered:
            # Writing has found out that the channel is at its end.
            return
        if events & READABLE and not (self._read_ended or self._paused):
            self._read(events)
        elif events & HANGUP:
            if self._read_ended:
                self._break()
            elif self._paused:
                # Unread bytes may still wait in the kernel; the hang-up is met again when reading goes on.
                self._forget(self._read_fd)
            else:
                self._end(gone=True)

    def _read(self, events: int) -> None:
        left = self._left
        most = READ_SIZE if left is None else min(READ_SIZE, left)
        ancillary, flags = _NOTHING, 0
        try:
            if self._socket is None:
                data = os.read(self._read_fd, most)
            else:
                data, ancillary, flags, _ = self._socket.recvmsg(most, ROOM, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(gone=bool(events & HANGUP) or left is not None)
            return
        if left is not None:
            self._left = left - len(data)
        if ancillary or flags & socket.MSG_CTRUNC:
            self._take_parcel(data, received(ancillary), bool(flags & socket.MSG_CTRUNC))
        else:
            self._on_data(data)
        if left is not None:
            self._end_if_read()

    def _take_parcel(self, data: bytes, fds: list[int], truncated: bool) -> None:
        if self._on_parcel is not None:
            self._on_parcel(data, fds, truncated)
        else:
            close_all(fds)
            self._on_data(data)

    def _end_if_read(self) -> None:
        # Who paused has something yet to handle and would take what it holds for cut off.
        if self._left == 0 and not (self._paused or self._read_ended or self.closed):
            self._end(gone=True)

    def _end(self, *, gone: bool) -> None:
        self._read_ended = True
        self._update_interest(self._read_fd)
        self._on_end(gone)

    def _write_ready(self, _events: int) -> None:
        # An error condition is met by writing: it says which one.
        self._writable()

    def _writable(self) -> None:
        self._blocked = False
        self._flush()
        if not self._blocked and not self.closed and not self.broken:
            self._update_interest(self._write_fd)

    def _flush(self) -> None:
        self._send()
        while not (self._out or self.closed or self.broken):
            if self._close_when_flushed:
                self.close()
            elif self._refill():
                self._send()
                continue
            return

    def _refill(self) -> bool:
        """Say that nothing is queued any more; whether there is something again."""
        if self.on_drained is None or self._draining:
            return False
        # What it writes waits until it has written all of it, and leaves in one system call.
        self._draining = True
        try:
            self.on_drained()
        except Exception:
            if self._out:
                self._reactor.again(self._flush)
            raise
        finally:
            self._draining = False
        return bool(self._out)

    def _send(self) -> None:
        while self._out and not (self._blocked or self.closed or self.broken):
            data = self._next_chunk()
            try:
                sent = self._send_parcel(data) if type(data) is Parcel else os.write(self._write_fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                if type(data) is Parcel:
                    self._out.appendleft(data)
                self._break()
                return
            self.queued -= sent
            if sent < len(data):
                # What has sent nothing of a parcel has not sent its descriptors either.
                self._out.appendleft(data if type(data) is Parcel and not sent else memoryview(data)[sent:])
                self._blocked = True
                self._update_interest(self._write_fd)

    def _send_parcel(self, parcel: Parcel) -> int:
        """Send what the kernel takes; raises as os.write."""
        if self._socket is None:
            return len(parcel)
        sent = send_parcel(self._socket, parcel)
        if sent == 0:
            return 0
        self._parcels -= 1
        parcel.close()
        if sent is None:
            self._out.appendleft(parcel.instead)
            self.queued += len(parcel.instead)
            return len(parcel)
        return sent

    def _next_chunk(self) -> bytes | memoryview:
        """Take what one system call shall write.

        Joining is bounded, and what the kernel took a part of is not joined again: a long queue is copied once.
        What descriptors ride on goes alone.
        """
        out = self._out
        first = out.popleft()
        if not out or len(first) >= _JOIN_SIZE or type(first) is not bytes:
            return first
        parts: list[bytes | memoryview] = [first]
        size = len(first)
        while out and size + len(out[0]) <= _JOIN_SIZE and type(out[0]) is not Parcel:
            parts.append(out.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def _break(self) -> None:
        if self.broken or self.closed:
            return
        self.broken = True
        self._drop_queue()
        self._blocked = False
        self._update_interest(self._write_fd)
        if self._close_when_flushed:
            self.close()
        self._on_broken()


_NOTHING: list[tuple[int, int, bytes]] = []


def _unread(fd: int) -> int:
    """Return how many bytes the kernel holds for a reader of `fd`, a pipe or a socket."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0
