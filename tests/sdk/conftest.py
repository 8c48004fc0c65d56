"""Tiny plugins and clients for the SDK's tests.

Rules here: a plugin under test is a real process; its source stands in the test that uses it.
"""

from __future__ import annotations

import socket
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from utter_protocol.framing import FrameDecoder, encode_frame
from utter_sdk.testing import PluginProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PREAMBLE = """
from __future__ import annotations
import os, signal, subprocess, sys, threading
from typing import Any
import msgspec
from utter_sdk import ActionResult, AsyncStream, Cancelled, ErrorCode, Plugin, RpcError, Stream, StreamClosed
plugin = Plugin("tiny", version="1.2.3", kind="bundle")
"""


@pytest.fixture
def run_plugin(tmp_path: Path) -> Iterator[Callable[..., PluginProcess]]:
    """Starts a plugin from the source between the preamble and `plugin.run()`, shakes hands, and ends it."""
    started: list[PluginProcess] = []

    def run(source: str = "", **options: Any) -> PluginProcess:
        script = tmp_path / f"plugin{len(started)}.py"
        script.write_text(PREAMBLE + textwrap.dedent(source) + "\nplugin.run()\n")
        process = PluginProcess([sys.executable, script], **options)
        process.__enter__()
        started.append(process)
        return process

    yield run
    for process in started:
        process.close()


class FakeRunner:
    """The runner's end of one connection, driven by a test's script on a thread of its own.

    Attributes:
        path: the socket.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._listener.settimeout(20)
        self._decoder = FrameDecoder()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._connection: socket.socket | None = None

    def serve(self, script: Callable[[FakeRunner], None]) -> None:
        """Accept a connection and run `script` on it, then close it."""

        def run() -> None:
            try:
                self._connection, _ = self._listener.accept()
                self._connection.settimeout(20)
                with self._connection:
                    script(self)
            except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
                self._failure = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def receive(self) -> dict[str, Any]:
        """Return the next message."""
        while (body := self._decoder.next_frame()) is None:
            data = self.connection.recv(65536)
            if not data:
                raise EOFError
            self._decoder.receive(data)
        message: dict[str, Any] = msgspec.json.decode(body)
        return message

    def expect(self, method: str) -> dict[str, Any]:
        """Return the next message, which must be a request or notification `method`."""
        message = self.receive()
        assert message.get("method") == method, message
        return message

    def send(self, **members: Any) -> None:
        """Send a message."""
        self.connection.sendall(encode_frame(msgspec.json.encode({"jsonrpc": "2.0", **members})))

    @property
    def connection(self) -> socket.socket:
        """The accepted connection."""
        assert self._connection is not None
        return self._connection

    def close(self) -> None:
        """Wait for the script and raise what it raised."""
        if self._thread is not None:
            self._thread.join(20)
            assert not self._thread.is_alive()
        self._listener.close()
        if self._failure is not None:
            raise self._failure


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[FakeRunner]:
    fake = FakeRunner(str(tmp_path / "s"))
    yield fake
    fake.close()
