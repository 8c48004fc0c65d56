"""A client that knows the published page about the protocol and nothing else: standard library, blocking, one thread.

Rules here: nothing of this repository is imported, and nothing is done that the page does not say; what a client from
elsewhere does goes through or does not go through here first.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Self


class RemoteError(Exception):
    """A request was answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.data: Any = error.get("data")


class SpecClient:
    """JSON-RPC 2.0, one message per frame, `Content-Length: <bytes>\\r\\n\\r\\n<utf8 json>` over a unix socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self._file = self.socket.makefile("rb")
        self._next_id = 0
        self._answers: dict[Any, dict[str, Any]] = {}
        self.notifications: deque[dict[str, Any]] = deque()
        self.confirm: Callable[[dict[str, Any]], bool] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode()
        self.socket.sendall(b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)

    def receive(self) -> dict[str, Any] | None:
        """The next message, or None at the end."""
        length = 0
        while (line := self._file.readline()) != b"\r\n":
            if not line:
                return None
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        message: dict[str, Any] = json.loads(self._file.read(length))
        assert message["jsonrpc"] == "2.0"
        return message

    def request(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Send a request and do not wait; return its id. The first is 0."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        self.send({"id": request_id, "method": method, "params": params or {}})
        return request_id

    def pass_fd(self, kind: str, meta: dict[str, Any]) -> tuple[Any, int]:
        """`fd.pass` over SCM_RIGHTS: the result, and the one descriptor beside it. Nothing else may be under way."""
        request_id = self.request("fd.pass", {"kind": kind, "meta": meta})
        data, fds, flags, _ = socket.recv_fds(self.socket, 65536, 1)
        assert not flags & socket.MSG_CTRUNC
        head, _, body = data.partition(b"\r\n\r\n")
        assert int(head.removeprefix(b"Content-Length: ")) == len(body)
        answer = json.loads(body)
        assert answer["id"] == request_id
        if "error" in answer:
            assert not fds
            raise RemoteError(answer["error"])
        (fd,) = fds
        return answer["result"], fd

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.send({"method": method, "params": params})

    def wait(self, request_id: int) -> Any:
        """The result of a request; meanwhile answer what the runner asks and keep what it tells."""
        while request_id not in self._answers:
            self._take()
        answer = self._answers.pop(request_id)
        if "error" in answer:
            raise RemoteError(answer["error"])
        return answer["result"]

    def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        return self.wait(self.request(method, params))

    def item(self, stream_id: str) -> dict[str, Any]:
        """The next item of a stream: its params, or those of `stream.closed`."""
        while True:
            for notification in self.notifications:
                if notification["params"].get("stream_id") == stream_id:
                    self.notifications.remove(notification)
                    params: dict[str, Any] = notification["params"]
                    return params
            self._take()

    def _take(self) -> None:
        message = self.receive()
        if message is None:
            raise EOFError
        if "method" not in message:
            assert message["id"] not in self._answers, "answered twice"
            self._answers[message["id"]] = message
        elif "id" not in message:
            self.notifications.append(message)
        elif message["method"] == "host.confirm" and self.confirm is not None:
            self.send({"id": message["id"], "result": {"approved": self.confirm(message["params"])}})
        else:
            self.send({"id": message["id"], "error": {"code": -32601, "message": "unknown method"}})
