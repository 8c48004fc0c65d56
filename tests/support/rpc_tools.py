"""One end of a wire under test, the other end in the test's hand, and a reactor whose turns the test takes itself."""

from __future__ import annotations

import array
import json
import logging
import os
import select
import socket
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder, encode_frame
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.rpc.interface import Limits
from utter_runner.rpc.peer import Peer
from utter_runner.rpc.reactor import Reactor

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from utter_protocol.messages import RequestId

Kind: TypeAlias = Literal["socket", "pipes"]
MOST_TURNS = 20_000
_LOGGER = logging.getLogger("utter_runner.rpc")


def shut(fd: int) -> None:
    """Close the sending half of a socket under whoever owns it."""
    with socket.socket(fileno=os.dup(fd)) as half:
        half.shutdown(socket.SHUT_WR)


class Remote:
    """The far end of a wire: writes bytes as they are, reads what has arrived."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.ended = False
        self._decoder = FrameDecoder()
        for fd in {read_fd, write_fd}:
            os.set_blocking(fd, False)

    def write(self, data: bytes) -> int:
        """Write as much as the kernel takes; return how much that was."""
        try:
            return os.write(self.write_fd, data)
        except BlockingIOError:
            return 0

    def pass_on(self, data: bytes, *fds: int) -> None:
        """Send bytes with descriptors, all in one call; the descriptors stay the test's."""
        with socket.socket(fileno=os.dup(self.write_fd)) as connection:
            assert socket.send_fds(connection, [data], fds) == len(data)

    def take_in(self, most: int = 1 << 16) -> tuple[bytes, list[int]]:
        """Read once: bytes, and the descriptors that came with them."""
        with socket.socket(fileno=os.dup(self.read_fd)) as connection:
            try:
                data, beside, flags, _ = connection.recvmsg(most, socket.CMSG_LEN(32), socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return b"", []
            assert not flags & socket.MSG_CTRUNC
            self.ended = not data
            return data, [fd for _, _, numbers in beside for fd in array.array("i", numbers)]

    def send(self, *messages: dict[str, Any]) -> None:
        """Send messages, all in one piece."""
        data = b"".join(encode_frame(json.dumps({"jsonrpc": "2.0"} | message).encode()) for message in messages)
        assert self.write(data) == len(data)

    def read(self, most: int = 1 << 30) -> bytes:
        """Read what is there, at most `most` bytes."""
        parts = []
        while most and not self.ended:
            try:
                data = os.read(self.read_fd, min(most, 1 << 20))
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            self.ended = not data
            parts.append(data)
            most -= len(data)
        return b"".join(parts)

    def receive(self) -> list[dict[str, Any]]:
        """Read the messages that are there."""
        self._decoder.receive(self.read())
        messages = []
        while (body := self._decoder.next_frame()) is not None:
            messages.append(json.loads(body))
        assert self._decoder.take_junk() == b""
        return messages

    def half_close(self) -> None:
        """Send no more."""
        if self.read_fd == self.write_fd:
            shut(self.write_fd)
        elif self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        """Be gone."""
        for fd in {self.read_fd, self.write_fd} - {-1}:
            os.close(fd)
        self.read_fd = self.write_fd = -1


def frame(body: str) -> bytes:
    """Return JSON as a frame."""
    return encode_frame(body.encode())


def ask(request_id: int | str, method: str = "x", **params: Any) -> dict[str, Any]:
    """Return a request for `Remote.send`."""
    return {"id": request_id, "method": method, "params": params}


def codes(messages: list[dict[str, Any]]) -> list[tuple[Any, int]]:
    """Return id and code of the errors among messages."""
    return [(message["id"], message["error"]["code"]) for message in messages if "error" in message]


def later(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
    """Leave a request unanswered."""


def echo(peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
    """Answer a request with its params."""
    peer.reply(request_id, params)


class Recorder:
    """A handler that notes what it is told, and answers a request with its params unless told otherwise."""

    def __init__(self) -> None:
        self.requests: list[tuple[RequestId, str, bytes]] = []
        self.notifications: list[tuple[str, bytes]] = []
        self.junk: list[bytes] = []
        self.closed: list[str] = []
        self.answer: Callable[[Peer, RequestId, str, Raw], object] = echo

    def on_request(self, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        self.requests.append((request_id, method, bytes(params)))
        self.answer(peer, request_id, method, params)

    def on_notification(self, peer: Peer, method: str, params: Raw) -> None:  # noqa: ARG002 - the interface of a handler
        self.notifications.append((method, bytes(params)))

    def on_junk(self, peer: Peer, junk: bytes) -> None:  # noqa: ARG002 - the interface of a handler
        self.junk.append(junk)

    def on_closed(self, peer: Peer, reason: str) -> None:
        assert peer.closed
        self.closed.append(reason)


class Answering(Recorder):
    """A handler that does with a request what its method says, and keeps those to be answered later."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[RequestId] = []
        self.handled = 0
        self.cancelled: Counter[int] = Counter()
        self.answer = self.act

    def act(self, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        self.handled += 1
        peer.on_cancel(request_id, partial(self.cancel, self.handled))
        if method == "raise":
            raise RpcError(ErrorCode.INVALID_PARAMS, "raised")
        if method == "later":
            self.kept.append(request_id)
        elif method == "error":
            peer.reply_error(request_id, RpcError(7, "asked for"))
        else:
            peer.reply(request_id, params)
        if method == "twice":
            peer.reply_error(request_id, RpcError(8, "second answer"))
        elif method == "close":
            peer.close("asked for", flush=True)

    def cancel(self, number: int) -> None:
        self.cancelled[number] += 1

    def answer_kept(self, peer: Peer, index: int, *, error: bool = False) -> None:
        """Answer one of the requests that were kept. It may have ended otherwise; then nothing happens."""
        if self.kept:
            request_id = self.kept.pop(index % len(self.kept))
            if error:
                peer.reply_error(request_id, RpcError(9, "in the end"))
            else:
                peer.reply_object(request_id, "in the end")


class Replies:
    """Callbacks for requests, and what each was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, RpcError | None]] = []

    def __call__(self, result: Raw | None, error: RpcError | None) -> None:
        assert (result is None) == (error is not None)
        self.calls.append((None if result is None else json.loads(bytes(result)), error))

    @property
    def results(self) -> list[Any]:
        return [result for result, error in self.calls if error is None]

    @property
    def codes(self) -> list[int]:
        return [error.code for _, error in self.calls if error is not None]


class _Errors(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


class Rig:
    """A reactor, deadlines, the wires between peers and the test, and what was logged as an error."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.deadlines = Deadlines()
        self.errors: list[str] = []
        self.errors_expected = 0
        self._log = _Errors(self.errors)
        _LOGGER.addHandler(self._log)
        self._peers: list[Peer] = []
        self._remotes: list[Remote] = []

    def wire(self, kind: Kind = "socket") -> tuple[int, int, Remote]:
        """Return the descriptors of the near end, for reading and for writing, and the far end."""
        if kind == "socket":
            near, far = socket.socketpair()
            fd, far_fd = near.detach(), far.detach()
            remote = Remote(far_fd, far_fd)
            read_fd = write_fd = fd
        else:
            read_fd, far_write = os.pipe()
            far_read, write_fd = os.pipe()
            remote = Remote(far_read, far_write)
        self._remotes.append(remote)
        return read_fd, write_fd, remote

    def peer(
        self, kind: Kind = "socket", handler: Recorder | None = None, **limits: int
    ) -> tuple[Peer, Recorder, Remote]:
        """Return a peer, its handler, and the far end."""
        read_fd, write_fd, remote = self.wire(kind)
        handler = handler or Recorder()
        return self._peer(read_fd, write_fd, handler, limits), handler, remote

    def pair(
        self, kind: Kind = "socket", handlers: tuple[Recorder, Recorder] | None = None, **limits: int
    ) -> tuple[Peer, Recorder, Peer, Recorder]:
        """Return two peers that are connected, each with its handler."""
        if kind == "socket":
            near, far = socket.socketpair()
            fds = (near.detach(),) * 2 + (far.detach(),) * 2
        else:
            near_read, far_write = os.pipe()
            far_read, near_write = os.pipe()
            fds = (near_read, near_write, far_read, far_write)
        one, other = handlers or (Recorder(), Recorder())
        return self._peer(*fds[:2], one, limits), one, self._peer(*fds[2:], other, limits), other

    def _peer(self, read_fd: int, write_fd: int, handler: Recorder, limits: dict[str, int]) -> Peer:
        bounds = Limits(**limits)
        peer = Peer(self.reactor, self.deadlines, read_fd, write_fd, handler, name="far", limits=bounds)
        self._peers.append(peer)
        return peer

    @property
    def busy(self) -> bool:
        """Whether the reactor has something to do."""
        return bool(self.reactor._again or select.select([self.reactor._epoll.fileno()], [], [], 0)[0])

    def settle(self) -> int:
        """Take turns until nothing is left to do; return how many it took. A reactor that spins fails the test."""
        for taken in range(MOST_TURNS):
            if not self.busy:
                return taken
            self.reactor.turn()
        raise AssertionError("the reactor does not come to rest")

    def close(self) -> None:
        """Close everything that is still open. More or fewer errors in the log than expected fail the test."""
        for peer in self._peers:
            peer.close("the test is over")
        for remote in self._remotes:
            with suppress(OSError):
                remote.close()
        self.reactor.close()
        _LOGGER.removeHandler(self._log)
        assert len(self.errors) == self.errors_expected, self.errors
