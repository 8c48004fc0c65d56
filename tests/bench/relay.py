"""Client -> runner -> stdio plugin and back, beside a bare blocking relay to the same plugin, in one run.

Everything runs pinned to one CPU where the system allows it, so that the figures are work and not luck of placement.
The floor is a process that reads a frame from one descriptor and writes it to another, and nothing else: no ids, no
deadlines, no policy. Rounds of both alternate, so that what disturbs the machine disturbs both.

    python tests/bench/relay.py [--json] [--seconds 2] [--rounds 3]
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
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
PLUGIN = HERE / "echo_plugin.py"
DEPTHS = (1, 8, 32, 128)
CYCLE = 4096
DAEMON = ("-m", "utter_runner")

RELAY = """
import os, select, socket, subprocess, sys
plugin = subprocess.Popen([sys.executable, sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
to, back = plugin.stdin.fileno(), plugin.stdout.fileno()
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
client, _ = server.accept()
fd = client.fileno()
while True:
    data = os.read(fd, 65536)
    if not data:
        break
    os.write(to, data)
    os.write(fd, os.read(back, 65536))
plugin.stdin.close()
plugin.wait()
"""

CONFIG = """
[audio]
source = "none"
cues = false
[hotkeys]
enabled = false
[socket]
allow_same_uid = true
[runner]
socket_path = "{socket}"
[log]
level = "error"
[[plugin]]
id = "echo"
kind = "action"
entrypoint = ["{python}", "{plugin}", "echo"]
"""


def frame(message: dict[str, object]) -> bytes:
    """One message as a frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Connection:
    """A blocking client that reads frames and nothing else."""

    def __init__(self, path: str) -> None:
        self.socket = connect(path)
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


def connect(path: str) -> socket.socket:
    """Connect once the other side listens; the directory is polled because neither side can tell us."""
    deadline = time.monotonic() + 30
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            client.close()
            if time.monotonic() > deadline:
                raise SystemExit(f"nobody listens on {path}") from None
            select.select([], [], [], 0.01)
        else:
            return client


def one_at_a_time(connection: Connection, request: bytes, seconds: float) -> list[float]:
    """Round-trip times in microseconds."""
    times = []
    end = time.perf_counter() + seconds
    send, receive, clock = connection.socket.sendall, connection.receive, time.perf_counter
    while clock() < end:
        start = clock()
        send(request)
        body = receive()
        times.append((clock() - start) * 1e6)
    if b'"result"' not in body:
        raise SystemExit(f"the bench got an error: {body[:300]!r}")
    return times


def pipelined(connection: Connection, request: bytes, depth: int, seconds: float) -> float:
    """Requests per second while `depth` are in flight: as many are sent as were answered, all with ids of their own."""
    template = json.loads(request[request.index(b"\r\n\r\n") + 4 :])
    requests = [frame({**template, "id": number}) for number in range(CYCLE)]
    used = depth
    answered = 0
    receive, send, clock = connection.receive_all, connection.socket.sendall, time.perf_counter
    start = clock()
    end = start + seconds
    send(b"".join(requests[:depth]))
    while clock() < end:
        count = receive()
        answered += count
        first = used % CYCLE
        batch = requests[first : first + count]
        send(b"".join(batch if len(batch) == count else batch + requests[: count - len(batch)]))
        used += count
    elapsed = clock() - start
    left = used - answered
    while left:
        left -= receive()
    return answered / elapsed


def measure(seconds: float, rounds: int) -> dict[str, object]:
    """Run everything; return the report."""
    pinned = False
    try:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        pinned = True
    except (AttributeError, OSError):
        pass
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        relay_path = str(directory / "relay.sock")
        relay = stack.enter_context(subprocess.Popen([sys.executable, "-c", RELAY, relay_path, str(PLUGIN)]))
        stack.callback(relay.terminate)
        socket_path = str(directory / "runner.sock")
        config = directory / "runner.toml"
        config.write_text(CONFIG.format(socket=socket_path, python=sys.executable, plugin=PLUGIN))
        runner = stack.enter_context(subprocess.Popen([sys.executable, *DAEMON, "--config", str(config)]))
        stack.callback(runner.terminate)
        floor = Connection(relay_path)
        stack.callback(floor.close)
        client = Connection(socket_path)
        stack.callback(client.close)
        while client.call({"jsonrpc": "2.0", "id": 1, "method": "runner.status"})["result"]["state"] != "ready":  # type: ignore[index]  # a bench reads JSON
            select.select([], [], [], 0.01)
        plain = frame({"jsonrpc": "2.0", "id": 1, "method": "echo.get", "params": {"n": 7}})
        invoke = frame(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "runner.invoke",
                "params": {"plugin": "echo", "method": "echo.get", "params": {"n": 7}},
            }
        )
        action_params = {"op": "echo.run", "args": {"n": 7}, "provenance": "user"}
        action = frame(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "runner.invoke",
                "params": {"plugin": "echo", "method": "action.invoke", "params": action_params},
            }
        )
        for connection, request in ((floor, plain), (client, invoke), (client, action)):
            one_at_a_time(connection, request, min(0.3, seconds))
        floors: list[float] = []
        invokes: list[float] = []
        actions: list[float] = []
        rps: dict[str, list[float]] = {str(depth): [] for depth in DEPTHS}
        share = seconds / rounds
        for _ in range(rounds):
            floors += one_at_a_time(floor, plain, share)
            invokes += one_at_a_time(client, invoke, share)
            actions += one_at_a_time(client, action, share)
            for depth in DEPTHS:
                rps[str(depth)].append(pipelined(client, invoke, depth, share))
    floor_p50 = statistics.median(floors)
    return {
        "floor_p50_us": round(floor_p50, 1),
        "p50_us": round(statistics.median(invokes), 1),
        "p99_us": round(statistics.quantiles(invokes, n=100)[98], 1),
        "ratio": round(statistics.median(invokes) / floor_p50, 2),
        "action_p50_us": round(statistics.median(actions), 1),
        "action_ratio": round(statistics.median(actions) / floor_p50, 2),
        "rps": {depth: round(statistics.median(values)) for depth, values in rps.items()},
        "floor_rps_1": round(1e6 / statistics.fmean(floors)),
        "pinned": pinned,
    }


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure")
    parser.add_argument("--rounds", type=int, default=3, help="how often the figures alternate")
    options = parser.parse_args()
    report = measure(options.seconds, options.rounds)
    if options.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:14} {value}")


if __name__ == "__main__":
    main()
