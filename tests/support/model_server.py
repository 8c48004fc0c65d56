"""An https server that sends one file, and lets the test say for each request in which way it goes wrong.

Rules here: it listens on a port that the system chooses, with a certificate of an authority that was made for the test;
nothing it does outlasts the context manager.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import trustme

from utter_protocol.manifest import Model

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence


class Way(NamedTuple):
    """How one request is answered: what is done, and a number that it needs, mostly of bytes."""

    name: str
    number: int = 0
    text: str = ""


SERVE = Way("serve")


class ModelServer:
    """Serves `content`; a context manager.

    Args:
        directory: where the authority's certificate is written, as `ca.pem`.
        content: the file.
        ways: one for each request in turn; those after are answered well.

    Attributes:
        requests: the path and the Range of each request, "" for none.
        stalled: an answer stands still.
        enough: set by the test; one that is held ends.
    """

    def __init__(self, directory: Path, content: bytes, ways: Sequence[Way] = ()) -> None:
        self.content = content
        self.ways = list(ways)
        self.requests: list[tuple[str, str]] = []
        self.stalled = threading.Event()
        self.enough = threading.Event()
        self.trusted = directory / "ca.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.trusted))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self._context)
        outer = self

        class Server(ThreadingHTTPServer):
            daemon_threads = False

            def get_request(self) -> tuple[socket.socket, Any]:
                plain, address = super().get_request()
                # The handshake is the handler's, in its own thread.
                return outer._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address

            def handle_error(self, *_: object) -> None:
                """A client that has enough goes away."""

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def do_GET(self) -> None:
                self.close_connection = True
                asked = self.headers.get("Range", "")
                outer.requests.append((self.path, asked))
                Answer(outer, self, asked).give(outer.ways.pop(0) if outer.ways else SERVE)

            def log_message(self, *_: object) -> None:
                """It is not for people."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"https://localhost:{self._server.server_address[1]}/model.bin"

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to trust it, and to reach it past any proxy."""
        return {"SSL_CERT_FILE": str(self.trusted), "NO_PROXY": "localhost", "no_proxy": "localhost"}

    def model(self, name: str = "model.bin", **changes: Any) -> Model:
        """The file as a manifest names it."""
        told = {"sha256": hashlib.sha256(self.content).hexdigest(), "size": len(self.content), "url": self.url}
        return Model(name=name, **{**told, **changes})


class Answer:
    """One answer, in one of the ways; each has a method."""

    def __init__(self, server: ModelServer, handler: BaseHTTPRequestHandler, asked: str) -> None:
        self._server = server
        self._handler = handler
        found = re.fullmatch(r"bytes=(\d+)-", asked)
        self._start = int(found[1]) if found else 0

    def give(self, way: Way) -> None:
        with suppress(OSError):
            getattr(self, way.name)(way)

    def _head(self, status: int, length: int, **headers: str) -> None:
        self._handler.send_response(status)
        self._handler.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()

    def _body(self, data: bytes) -> None:
        self._handler.wfile.write(data)
        self._handler.wfile.flush()

    def _right_head(self, length: int | None = None) -> bytes:
        content = self._server.content
        rest = content[self._start :]
        length = len(rest) if length is None else length
        etag = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
        if self._start:
            self._head(206, length, Content_Range=f"bytes {self._start}-{len(content) - 1}/{len(content)}", ETag=etag)
        else:
            self._head(200, length, ETag=etag)
        return rest

    def serve(self, _way: Way) -> None:
        """As it should be."""
        self._body(self._right_head())

    def drop(self, way: Way) -> None:
        """So many bytes, and then the connection ends."""
        self._body(self._right_head()[: way.number])

    def stall(self, way: Way) -> None:
        """So many bytes, and then nothing until the client has enough."""
        self._body(self._right_head()[: way.number])
        self._server.stalled.set()
        self._handler.rfile.read(1)

    def hold(self, way: Way) -> None:
        """So many bytes, and then nothing until the test has enough."""
        self._body(self._right_head()[: way.number])
        self._server.stalled.set()
        self._server.enough.wait(60)

    def ignore_range(self, way: Way) -> None:
        """All of it from the start, or the first `number` bytes."""
        self._start = 0
        self._body(self._right_head()[: way.number or None])

    def other_range(self, way: Way) -> None:
        """A part that begins `number` bytes later."""
        content, start = self._server.content, self._start + way.number
        self._head(206, len(content) - start, Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}")
        self._body(content[start:])

    def no_range(self, _way: Way) -> None:
        """A part that does not say which."""
        self._head(206, len(self._server.content) - self._start)
        self._body(self._server.content[self._start :])

    def status(self, way: Way) -> None:
        """An error; the text is a Retry-After."""
        self._head(way.number, 2, **({"Retry_After": way.text} if way.text else {}))
        self._body(b"no")

    def wrong(self, way: Way) -> None:
        """As many bytes as there should be, and other ones; only the first `number` if that is given."""
        rest = self._right_head()
        self._body(bytes(byte ^ 1 for byte in rest)[: way.number or None])

    def long(self, way: Way) -> None:
        """A length that is `number` bytes too much, or too little if that is negative, and so many bytes."""
        content = self._server.content + bytes(max(0, way.number))
        self._head(200, len(self._server.content) + way.number)
        self._body(content[: len(self._server.content) + way.number])

    def chunked(self, way: Way) -> None:
        """No length, and `number` bytes more than there should be."""
        self._handler.send_response(200)
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()
        for piece in (self._server.content, bytes(way.number)):
            if piece:
                self._body(b"%x\r\n%s\r\n" % (len(piece), piece))
        self._body(b"0\r\n\r\n")

    def endless(self, _way: Way) -> None:
        """No length, and no end."""
        self._handler.send_response(200)
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()
        while True:
            self._body(b"%x\r\n%s\r\n" % (4096, bytes(4096)))

    def packed(self, _way: Way) -> None:
        """Encoded, though it was asked not to be."""
        data = gzip.compress(self._server.content)
        self._head(200, len(data), Content_Encoding="gzip")
        self._body(data)

    def redirect(self, way: Way) -> None:
        """To the address in the text, or to itself."""
        self._head(302, 0, **({"Location": way.text or self._server.url} if way.text != "nowhere" else {}))

    def rubbish(self, _way: Way) -> None:
        """What is no HTTP."""
        self._body(b"\x00\xffnonsense\r\n\r\n")
