"""A real runner behind a proxy that adds one defect: what clients see is a runner that is wrong in one way.

Rules here: a defect changes bytes of the client, or messages of the runner, or how the connection ends; without one the
proxy changes nothing, and passes descriptors on. Each direction of each connection has a thread, so that a client that
does not read holds up itself alone.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from utter_protocol.framing import FrameDecoder, encode_frame

Message = dict[str, Any]
_REQUEST = re.compile(rb'"id":(-?\d+|"[^"]*"),"method":"([^"]*)"')
_MOST_FDS = 16


@dataclass
class Defect:
    """One way in which a runner can be wrong.

    Attributes:
        bytes_of_client: changes a piece that the client sent; None ends the connection.
        message: changes a message of the runner, for the method that it answers ("" for others); may return several.
        besides: messages that the client gets, too, for a piece that it sent.
        descriptors: changes what comes with a frame.
        ignore_half_close: the runner is not told that the client sends no more.
        end_at_half_close: who has sent several requests and sends no more gets no answers.
        never_end: the client is not told that the runner has ended the connection.
        hoard: what a client does not read is kept without a bound.
        one_writer: while one client does not read, nobody gets anything.
        end_after: seconds after which a connection is ended.
        most_connections: how many are accepted, ever.
        socket_mode: of the proxy's socket.
        directory_mode: of its directory.
    """

    bytes_of_client: Callable[[bytes], bytes | None] | None = None
    message: Callable[[str, Message], Message | list[Message] | None] | None = None
    besides: Callable[[bytes], list[Message]] | None = None
    descriptors: Callable[[list[int]], list[int]] | None = None
    ignore_half_close: bool = False
    end_at_half_close: bool = False
    never_end: bool = False
    hoard: bool = False
    one_writer: bool = False
    end_after: float = 0.0
    most_connections: int = 1_000_000
    socket_mode: int = 0o600
    directory_mode: int = 0o700


class BadRunner:
    """The proxy; a context manager. `path` is where clients connect."""

    def __init__(self, upstream: Path, directory: Path, defect: Defect) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self.path = directory / "runner.sock"
        self.defect = defect
        self._upstream = upstream
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self.path.chmod(defect.socket_mode)
        directory.chmod(defect.directory_mode)
        self._listener.listen(64)
        self._connections: list[_Connection] = []
        self.writing = threading.Lock()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while len(self._connections) < self.defect.most_connections:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX)
            try:
                upstream.connect(str(self._upstream))
            except OSError:
                client.close()
                upstream.close()
                continue
            self._connections.append(_Connection(self, client, upstream))
        self._listener.close()


class _Connection:
    def __init__(self, proxy: BadRunner, client: socket.socket, upstream: socket.socket) -> None:
        self._defect = proxy.defect
        self._client = client
        self._upstream = upstream
        self._methods: dict[str, str] = {}
        self._decoder = FrameDecoder()
        self._sending = proxy.writing if proxy.defect.one_writer else threading.Lock()
        self._hoarded: list[bytes] = []
        self._more = threading.Condition()
        self._threads = [threading.Thread(target=work) for work in (self._forward, self._back)]
        if self._defect.hoard:
            self._threads.append(threading.Thread(target=self._send_hoarded))
        self._timer = threading.Timer(self._defect.end_after, self._hang_up)
        if self._defect.end_after:
            self._threads.append(self._timer)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._timer.cancel()
        self._hang_up()
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._upstream.close()

    def _hang_up(self) -> None:
        for one in (self._client, self._upstream):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._more:
            self._hoarded.append(b"")
            self._more.notify()

    def _forward(self) -> None:
        """Client to runner."""
        defect = self._defect
        with suppress(OSError):
            while data := self._client.recv(1 << 20):
                for request_id, method in _REQUEST.findall(data):
                    self._methods[request_id.decode()] = method.decode()
                several = data.count(b"Content-Length") > 1
                if defect.end_at_half_close and several and not self._client.recv(1, socket.MSG_PEEK):
                    # Its last words are not even handed on, so that no answer can be faster.
                    self._hang_up()
                    return
                if defect.besides is not None:
                    for message in defect.besides(data):
                        self._send(encode_frame(json.dumps(message).encode()), [])
                changed = data if defect.bytes_of_client is None else defect.bytes_of_client(data)
                if changed is None:
                    self._hang_up()
                    return
                self._upstream.sendall(changed)
            if not defect.ignore_half_close:
                self._upstream.shutdown(socket.SHUT_WR)
            return
        if not defect.never_end:
            self._hang_up()

    def _back(self) -> None:
        """Runner to client."""
        with suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._upstream, 1 << 20, _MOST_FDS)
                if not data:
                    break
                if self._defect.descriptors is not None:
                    fds = self._defect.descriptors(fds)
                self._send(data if self._defect.message is None else self._changed(data), fds)
        if self._defect.never_end:
            return
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)

    def _changed(self, data: bytes) -> bytes:
        assert self._defect.message is not None
        self._decoder.receive(data)
        out = []
        while (body := self._decoder.next_frame()) is not None:
            message = json.loads(body)
            method = "" if "method" in message else self._methods.get(json.dumps(message["id"]), "")
            changed = self._defect.message(method, message)
            messages = changed if isinstance(changed, list) else [changed] if changed is not None else []
            out += [encode_frame(json.dumps(one).encode()) for one in messages]
        return b"".join(out)

    def _send(self, data: bytes, fds: list[int]) -> None:
        if self._defect.hoard and not fds:
            with self._more:
                self._hoarded.append(data)
                self._more.notify()
            return
        try:
            with self._sending:
                if fds:
                    data = data[socket.send_fds(self._client, [data], fds) :]
                self._client.sendall(data)
        finally:
            for fd in fds:
                os.close(fd)

    def _send_hoarded(self) -> None:
        with suppress(OSError):
            while True:
                with self._more:
                    self._more.wait_for(lambda: bool(self._hoarded))
                    taken, self._hoarded = self._hoarded, []
                for data in taken:
                    if not data:
                        return
                    self._client.sendall(data)
