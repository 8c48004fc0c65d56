"""What the benches share: where they run, the daemon that they measure, a client, and how a report is printed.

Rules here: no figures. Each bench is run as `python tests/bench/X.py`, so it finds this module beside itself.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")

DAEMON = ("-m", "utter_runner")
HEAD = """
[audio]
{audio}
cues = false
[hotkeys]
enabled = false
[socket]
allow_same_uid = true
max_requests_per_s = 0
max_bytes_per_s = 0
[log]
level = "{level}"
[runner]
socket_path = "{socket}"
"""
"""How every configuration begins: no bound on what a client sends; what follows goes on with keys of `[runner]`."""
NO_AUDIO = 'source = "none"'
"""The keys of `[audio]` without a microphone."""


def pin() -> bool:
    """Stay on one CPU with whatever is started from now on; return whether the system allows it."""
    try:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    except (AttributeError, OSError):
        return False
    return True


@contextmanager
def daemon(directory: Path, rest: str = "", audio: str = NO_AUDIO) -> Iterator[str]:
    """Run a daemon with the usual configuration, the rest of it and keys of `[audio]`; the path of its socket."""
    path = str(directory / "runner.sock")
    config = directory / "runner.toml"
    config.write_text(HEAD.format(level="error", socket=path, audio=audio) + rest)
    with subprocess.Popen([sys.executable, *DAEMON, "--config", str(config)]) as process:
        try:
            yield path
        finally:
            process.terminate()


def patiently(attempt: Callable[[], T], *errors: type[Exception]) -> T:
    """Do something again until none of the errors comes of it; neither side can tell us when the other listens."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return attempt()
        except errors as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"nobody listens: {error}") from None
            select.select([], [], [], 0.01)


def frame(message: dict[str, object]) -> bytes:
    """One message as a frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Connection:
    """A blocking client that reads frames and nothing else."""

    def __init__(self, path: str) -> None:
        self.socket = patiently(lambda: _connected(path), FileNotFoundError, ConnectionRefusedError)
        self.buffer = b""

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send everything."""
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """Return one body."""
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end >= 0:
                size = end + 4 + int(self.buffer[16:end])
                if len(self.buffer) >= size:
                    body, self.buffer = self.buffer[end + 4 : size], self.buffer[size:]
                    return body
            data = self.socket.recv(262144)
            if not data:
                raise SystemExit("the connection was closed in the middle of the bench")
            self.buffer += data

    def receive_all(self) -> int:
        """Return how many bodies have arrived, at least one; every one must be a result."""
        while True:
            count = self.buffer.count(b"Content-Length: ")
            end = self.buffer.rfind(b"\r\n\r\n")
            last = self.buffer.rfind(b"Content-Length: ")
            if end > last >= 0 and len(self.buffer) == end + 4 + int(self.buffer[last + 16 : end]):
                if self.buffer.count(b'"result"') != count:
                    raise SystemExit(f"the bench got an error: {self.buffer[:500]!r}")
                self.buffer = b""
                return count
            data = self.socket.recv(262144)
            if not data:
                raise SystemExit("the connection was closed in the middle of the bench")
            self.buffer += data

    def call(self, message: dict[str, object]) -> dict[str, object]:
        """One request, decoded answer."""
        self.send(frame(message))
        answer: dict[str, object] = json.loads(self.receive())
        return answer

    def wait_ready(self) -> None:
        """Wait until the daemon at the other end has started its plugins."""
        while self.call({"jsonrpc": "2.0", "id": 1, "method": "runner.status"})["result"]["state"] != "ready":  # type: ignore[index]  # a bench reads JSON
            select.select([], [], [], 0.01)


def _connected(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(path)
    except OSError:
        client.close()
        raise
    return client


def p50_and_p99(values: list[float]) -> tuple[float, float]:
    """The middle of the values, and what only one of a hundred exceeds, to one decimal."""
    return round(statistics.median(values), 1), round(statistics.quantiles(values, n=100)[98], 1)


def arguments(about: str | None, **defaults: tuple[float | str, str]) -> argparse.Namespace:
    """The command line: `json`, and numbers and names with their defaults and what they mean."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    for name, (default, meaning) in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=meaning)
    return parser.parse_args()


def show(report: dict[str, object], *, as_json: bool) -> None:
    """Print a report, for programs or a line for each figure."""
    if as_json:
        print(json.dumps(report))
        return
    width = max(map(len, report))
    for name, value in report.items():
        print(f"{name:{width}} {value}")
