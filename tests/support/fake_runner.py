"""A runner for tests of clients: a real unix socket that speaks the client API with scripted answers.

Rules here: each connection has one thread; what a test scripted is all that is answered, anything else is -32601;
`close` joins every thread.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Answer = dict[str, Any] | RpcError | Callable[["Connection", dict[str, Any]], dict[str, Any]]

STREAM_ID = "stream-1"


class Connection:
    """One client, as a scripted answer sees it."""

    def __init__(self, runner: FakeRunner, sock: socket.socket) -> None:
        self._runner = runner
        self._sock = sock
        self._decoder = FrameDecoder()
        self._waiting: list[dict[str, Any]] = []
        self._next_id = 0
        self._seq = 0
        self._authenticated = runner.token is None

    def emit(self, event: dict[str, Any]) -> None:
        """Send an event on the client's `runner.events` stream."""
        self._send(
            {"method": "runner.events", "params": {"stream_id": STREAM_ID, "seq": self._seq, "data": event}},
        )
        self._seq += 1

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send the client a request and return its result; raises the RpcError that it answers."""
        self._next_id += 1
        wanted = f"runner-{self._next_id}"
        self._send({"id": wanted, "method": method, "params": params})
        while True:
            message = self._read()
            if message is None:
                raise ConnectionResetError
            if message.get("id") == wanted and "method" not in message:
                break
            self._waiting.append(message)
        if "error" in message:
            raise RpcError(message["error"]["code"], message["error"]["message"])
        return dict(message["result"])

    def cancel(self, number: int) -> None:
        """Withdraw the request that was asked as the `number`th."""
        self._send({"method": "$/cancel", "params": {"id": f"runner-{number}"}})

    def hang_up(self) -> None:
        """Close the connection, as a runner that dies does."""
        self._sock.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Answer requests until the client leaves."""
        with self._sock, suppress(OSError):
            while (message := self._waiting.pop(0) if self._waiting else self._read()) is not None:
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method is None:
            return
        self._runner.note(method, params)
        if "id" not in message:
            return
        try:
            result = self._answer(method, params)
        except RpcError as error:
            body: dict[str, Any] = {"code": error.code, "message": error.message}
            if error.data is not None:
                body["data"] = error.data
            self._send({"id": message["id"], "error": body})
            return
        fds = self._runner.descriptors.get(method, list)()
        self._send({"id": message["id"], "result": result}, fds)
        if method == "stream.subscribe":
            for event in self._runner.events:
                self.emit(event)

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "runner.auth":
            self._authenticated = params.get("token") == self._runner.token
            if not self._authenticated:
                raise RpcError(ErrorCode.NOT_PERMITTED, "The token is wrong.")
            return {"ok": True}
        if not self._authenticated:
            raise RpcError(ErrorCode.NOT_PERMITTED, "Authenticate with runner.auth first.")
        if method == "stream.subscribe":
            return {"stream_id": STREAM_ID, "mode": "lossy"}
        if method == "stream.stop":
            return {}
        answer = self._runner.answers.get(method)
        if answer is None:
            raise RpcError(ErrorCode.METHOD_NOT_FOUND, f"{method} is not scripted")
        if isinstance(answer, RpcError):
            raise answer
        return answer if isinstance(answer, dict) else answer(self, params)

    def _read(self) -> dict[str, Any] | None:
        while (body := self._decoder.next_frame()) is None:
            data = self._sock.recv(65536)
            if not data:
                return None
            self._decoder.receive(data)
        message = msgspec.json.decode(body)
        assert isinstance(message, dict)
        return message

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        frame = encode_frame(msgspec.json.encode({"jsonrpc": "2.0", **message}))
        if fds:
            sent = socket.send_fds(self._sock, [frame], fds)
            frame = frame[sent:]
            for fd in fds:
                os.close(fd)
        self._sock.sendall(frame)


class FakeRunner:
    """Listens until it is closed; a context manager.

    Attributes:
        path: of the socket.
        answers: what to answer, by method: a result, an RpcError, or a function of the connection and the params.
        descriptors: by method, what makes the descriptors that ride on its answer, and are closed then.
        events: what the `runner.events` stream carries right after a subscription.
        calls: (method, params) of everything that arrived, in order.
        connections: of all clients so far.
        token: what `runner.auth` must carry; None: no authentication is needed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Answer] = {}
        self.descriptors: dict[str, Callable[[], list[int]]] = {}
        self.events: list[dict[str, Any]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.token: str | None = None
        self._called = threading.Condition()
        self.connections: list[Connection] = []
        self._threads: list[tuple[socket.socket, threading.Thread]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, name="fake runner")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Record a call."""
        with self._called:
            self.calls.append((method, params))
            self._called.notify_all()

    def wait_call(self, method: str, timeout: float = 30) -> dict[str, Any]:
        """Wait until `method` has been called, and return the params of the first such call."""
        with self._called:
            assert self._called.wait_for(lambda: method in self.methods(), timeout), f"{method} was not called"
            return next(params for name, params in self.calls if name == method)

    def methods(self) -> list[str]:
        """The methods that were called, in order."""
        return [method for method, _ in self.calls]

    def close(self) -> None:
        """Stop listening, hang up on everybody, wait for the threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for sock, thread in self._threads:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(self, sock)
            thread = threading.Thread(target=connection.serve, name="fake runner connection")
            self.connections.append(connection)
            self._threads.append((sock, thread))
            thread.start()
