"""A server that speaks the OpenAI API as a test wants it, over real sockets.

Rules here: one thread for each request, on a port of the system's choice; a handler waits for its client, never for
time; leaving the context lets go of whatever still waits and leaves no thread behind.
"""

from __future__ import annotations

import json
import math
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Exchange:
    """One request, and what it is answered.

    Attributes:
        method: GET or POST.
        path: with the API's beginning.
        headers: by lower-case name.
        body: decoded; None without one.
    """

    def __init__(self, handler: BaseHTTPRequestHandler, closing: threading.Event) -> None:
        self.method = handler.command
        self.path = handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        data = handler.rfile.read(int(self.headers.get("content-length", "0")))
        self.body: Any = json.loads(data) if data else None
        self._handler = handler
        self._closing = closing

    def answer(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        """Answer with a whole body."""
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **headers})
        self.write(body)

    def json(self, value: Any, status: int = 200, **headers: str) -> None:
        """Answer with JSON."""
        self.answer(status, json.dumps(value).encode(), **headers)

    def chat(self, text: str | None, *, finish: str = "stop", logprobs: Sequence[Any] | None = None) -> None:
        """Answer as a model that wrote `text`."""
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": finish,
        }
        if logprobs is not None:
            choice["logprobs"] = {"content": list(logprobs)}
        self.json({"id": "c1", "object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": 7}})

    def start_stream(self) -> None:
        """Begin a stream of events."""
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})

    def event(self, value: Any) -> None:
        """Send one event; a text as it is."""
        data = value if isinstance(value, str) else json.dumps(value)
        self.chunk(f"data: {data}\n\n".encode())

    def piece(self, text: str, finish: str | None = None) -> None:
        """Send the next words."""
        self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})

    def chunk(self, data: bytes) -> None:
        """Send bytes of a stream, whatever they are."""
        self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end_stream(self) -> None:
        """End a stream in order."""
        self.write(b"0\r\n\r\n")

    def write(self, data: bytes) -> None:
        """Write to the connection; a client that is gone is none of the server's business."""
        with suppress(ConnectionError):
            self._handler.wfile.write(data)
            self._handler.wfile.flush()

    def hang_up(self) -> None:
        """Close the connection, whatever was sent."""
        self._handler.close_connection = True

    def wait_gone(self) -> bool:
        """Wait until the client closes the connection; False if the test ended before."""
        self.hang_up()
        with suppress(ConnectionError):
            while self._handler.connection.recv(4096):
                pass
        return not self._closing.is_set()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        with suppress(ConnectionError):
            self._handler.end_headers()


Answer = Callable[[Exchange], None]


class LlmServer:
    """The server; use it as a context manager.

    Args:
        chat: answers what is posted to `/v1/chat/completions`.
        models: what `/v1/models` lists; None: it has no such page.
        port: 0, or that of a server that was there before.

    Attributes:
        base_url: what goes into the plugin's settings.
        asked: the exchanges about chats, in order.
        listed: how often the models were asked for.
    """

    def __init__(self, chat: Answer, models: Sequence[str] | None = ("tiny",), port: int = 0) -> None:
        self.asked: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self.listed: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self.chat = chat
        self.models = models
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                outer._open.add(self.connection)

            def finish(self) -> None:
                outer._open.discard(self.connection)
                super().finish()

            def do_GET(self) -> None:
                outer._listed(Exchange(self, outer._closing))

            def do_POST(self) -> None:
                outer._chat(Exchange(self, outer._closing))

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = False
        self.port = self._server.server_port
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="llm server")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def _listed(self, exchange: Exchange) -> None:
        self.listed.put(exchange)
        if exchange.path != "/v1/models" or self.models is None:
            exchange.json({"error": {"message": "no such page"}}, 404)
        else:
            exchange.json({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    def _chat(self, exchange: Exchange) -> None:
        self.asked.put(exchange)
        if exchange.path == "/v1/chat/completions":
            self.chat(exchange)
        else:
            exchange.json({"error": {"message": "no such page"}}, 404)


def token(text: str, probability: float, **others: float) -> dict[str, Any]:
    """An entry of `logprobs.content`: a token that was written, and others that might have been."""
    options = {text: probability, **others}
    top = [{"token": other, "logprob": math.log(value), "bytes": None} for other, value in options.items()]
    return {"token": text, "logprob": math.log(probability), "bytes": None, "top_logprobs": top}
