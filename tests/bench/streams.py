"""Items of a plugin's stream through the runner to its subscribers, beside a bare relay of the same bytes, in one run.

Everything runs pinned to one CPU where the system allows it, so that the figures are work and not luck of placement.
The floor is the same plugin, sending the same number of items of the same size as fast as it is read, behind a process
that reads bytes from it and writes them to the subscribers' sockets in turn, and nothing else: no frames, no queues, no
credit. Rounds alternate, so that what disturbs the machine disturbs all.

`ratio` is floor_fps / fps, as in relay.py: how many times the floor's time an item takes; less is better. `lost` counts
items that never arrived. `p50_us` and `p99_us` are from the plugin's write to the subscriber's read while 1,000 items a
second come in all. The last row has one subscriber and that pace: nothing may be lost.

    python tests/bench/streams.py [--json] [--rounds 3] [--scale 1.0]
"""

from __future__ import annotations

import select
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from common import Connection, arguments, daemon, frame, p50_and_p99, pin, show
from stream_plugin import METHOD, answer, closed, data_of, head_of, item

PLUGIN = Path(__file__).with_name("stream_plugin.py")
PAYLOADS = {640: 40_000, 3_200: 20_000, 32_000: 4_000}
"""How many items of each size a measurement has, over all subscribers."""
SUBSCRIBERS = (1, 32)
WINDOW = 64
PACE = 1_000
_SEQ = b'"seq":'
_STAMP = b'"t":'
_END = b'"stream.closed"'
_BUFFER = bytearray(262_144)
_VIEW = memoryview(_BUFFER)

RELAY = """
import os, socket, subprocess, sys, threading
plugin = subprocess.Popen([sys.executable, sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
to, back = plugin.stdin.fileno(), plugin.stdout.fileno()
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
clients = [server.accept()[0] for _ in range(int(sys.argv[3]))]
def forward():
    while data := clients[0].recv(65536):
        os.write(to, data)
    plugin.stdin.close()
threading.Thread(target=forward, daemon=True).start()
turn = 0
while data := os.read(back, 65536):
    clients[turn].sendall(data)
    turn = (turn + 1) % len(clients)
plugin.wait()
"""

REST = """
credit_window = {window}
[[plugin]]
id = "source"
kind = "bundle"
entrypoint = ["{python}", "{plugin}", "source"]
"""


class Task(NamedTuple):
    """What is measured: `count` items for each of so many subscribers; `rate` a second for each, 0 without a pace."""

    mode: str
    payload: int
    subscribers: int
    count: int
    rate: int = 0

    @property
    def params(self) -> dict[str, object]:
        """The params of `stream.subscribe`."""
        about = {"count": self.count, "size": self.payload, "after": self.subscribers, "rate": self.rate}
        return {"method": METHOD, "params": about, "mode": self.mode}


class Result(NamedTuple):
    """What came of it: items a second over all subscribers, how many are missing, and microseconds of each."""

    fps: float
    lost: int
    latencies: list[float]


class Subscriber:
    """One connection that takes what comes and acknowledges in quarters of the window."""

    def __init__(self, path: str) -> None:
        self.connection = Connection(path)
        self.stream_id = ""
        self.got = 0
        self.acked = 0
        self.ended = False
        self.tail = b""

    def subscribe(self, task: Task) -> None:
        """Open the stream; items may come with the answer."""
        self.got = self.acked = 0
        self.ended = False
        self.tail = b""
        reply = self.connection.call({"jsonrpc": "2.0", "id": 1, "method": "stream.subscribe", "params": task.params})
        if "result" not in reply:
            raise SystemExit(f"the bench got an error: {reply}")
        self.stream_id = reply["result"]["stream_id"]  # type: ignore[index]  # a bench reads JSON

    def take(self, task: Task, data: bytes, latencies: list[float]) -> None:
        """Count what arrived."""
        now = time.monotonic_ns()
        whole = self.tail + data
        self.got += whole.count(_SEQ)
        if task.rate:
            at = whole.find(_STAMP)
            while at >= 0 and at + 23 <= len(whole):
                latencies.append((now - int(whole[at + 5 : at + 23])) / 1000)
                at = whole.find(_STAMP, at + 23)
            self.tail = whole[max(whole.rfind(_SEQ) + 1, len(whole) - 40) :]
        else:
            self.tail = whole[1 - len(_SEQ) :]
        if task.mode == "reliable" and self.got - self.acked >= WINDOW // 4:
            self.acked = self.got
            params = {"stream_id": self.stream_id, "seq": self.got - 1}
            self.connection.send(frame({"jsonrpc": "2.0", "method": "stream.ack", "params": params}))
        # The plugin's last word is short: it is not in the middle of a long read.
        self.ended = _END in whole[-400:]


def run(path: str, task: Task) -> Result:
    """One measurement through the runner."""
    latencies: list[float] = []
    with ExitStack() as stack:
        subscribers = [Subscriber(path) for _ in range(task.subscribers)]
        poll = select.epoll()
        stack.callback(poll.close)
        by_fd = {}
        for one in subscribers:
            stack.callback(one.connection.close)
            by_fd[one.connection.socket.fileno()] = one
            poll.register(one.connection.socket.fileno(), select.EPOLLIN)
        for one in subscribers[:-1]:
            one.subscribe(task)
        start = time.perf_counter()
        subscribers[-1].subscribe(task)
        going = len(subscribers)
        for one in subscribers:
            # What came in one piece with the answer.
            one.take(task, one.connection.buffer, latencies)
            going -= one.ended
        while going:
            for fd, _ in poll.poll():
                one = by_fd[fd]
                size = one.connection.socket.recv_into(_BUFFER)
                if not size:
                    raise SystemExit("the connection was closed in the middle of the bench")
                one.take(task, bytes(_VIEW[:size]), latencies)
                going -= one.ended
        elapsed = time.perf_counter() - start
    got = sum(one.got for one in subscribers)
    return Result(got / elapsed, task.count * task.subscribers - got, latencies)


def floor_bytes(task: Task) -> int:
    """How many bytes the plugin writes when it is asked directly."""
    data = data_of(task.payload)
    total = 0
    for number in range(1, task.subscribers + 1):
        stream_id = f"s{number}"
        head = head_of(stream_id)
        total += len(answer(number, {"stream_id": stream_id, "mode": "lossy"})) + len(closed(stream_id))
        # Numbers with as many digits make frames of the same length.
        low = 0
        while low < task.count:
            high = min(10 ** len(str(low)), task.count)
            total += (high - low) * len(item(head, low, data))
            low = high
    return total


def floor(directory: Path, task: Task) -> Result:
    """One measurement through the bare relay."""
    path = str(directory / "relay.sock")
    with ExitStack() as stack:
        stack.callback(lambda: Path(path).unlink(missing_ok=True))
        arguments = [sys.executable, "-c", RELAY, path, str(PLUGIN), str(task.subscribers)]
        relay = stack.enter_context(subprocess.Popen(arguments))
        connections = [Connection(path) for _ in range(task.subscribers)]
        poll = select.epoll()
        stack.callback(poll.close)
        sockets = {}
        for one in connections:
            stack.callback(one.close)
            sockets[one.socket.fileno()] = one.socket
            poll.register(one.socket.fileno(), select.EPOLLIN)
        missing = floor_bytes(task)
        requests = [
            frame({"jsonrpc": "2.0", "id": number, "method": "stream.subscribe",
                   "params": {**task.params, "mode": "lossy", "window": WINDOW}})
            for number in range(1, task.subscribers + 1)
        ]  # fmt: skip
        for one in requests[:-1]:
            connections[0].send(one)
        start = time.perf_counter()
        connections[0].send(requests[-1])
        while missing > 0:
            for fd, _ in poll.poll():
                missing -= sockets[fd].recv_into(_BUFFER)
        elapsed = time.perf_counter() - start
        for one in connections:
            one.close()
        relay.wait()
    return Result(task.count * task.subscribers / elapsed, 0, [])


def row(directory: Path, path: str, tasks: list[Task], rounds: int) -> list[dict[str, object]]:
    """Measure tasks that differ in their mode only, and the floor between them."""
    paced = [one._replace(count=max(8, PACE // one.subscribers), rate=max(1, PACE // one.subscribers)) for one in tasks]
    floors: list[float] = []
    results: list[list[Result]] = [[] for _ in tasks]
    for _ in range(rounds):
        floors.append(floor(directory, tasks[0]).fps)
        for task, found in zip(tasks, results, strict=True):
            found.append(run(path, task))
    rows = []
    for task, slow, found in zip(tasks, paced, results, strict=True):
        latencies = run(path, slow).latencies if not task.rate else [x for one in found for x in one.latencies]
        p50, p99 = p50_and_p99(latencies)
        fps, floor_fps = statistics.median(one.fps for one in found), statistics.median(floors)
        rows.append(
            {
                "mode": task.mode,
                "payload": task.payload,
                "subscribers": task.subscribers,
                "paced": task.rate,
                "fps": round(fps),
                "floor_fps": round(floor_fps),
                "ratio": round(floor_fps / fps, 2),
                "lost": sum(one.lost for one in found),
                "p50_us": p50,
                "p99_us": p99,
            }
        )
    return rows


def measure(rounds: int, scale: float) -> dict[str, object]:
    """Run everything; return the report."""
    pinned = pin()
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rest = REST.format(python=sys.executable, plugin=PLUGIN, window=WINDOW)
        socket_path = stack.enter_context(daemon(directory, rest))
        client = Connection(socket_path)
        stack.callback(client.close)
        client.wait_ready()
        run(socket_path, Task("lossy", 640, 1, 2_000))
        for subscribers in SUBSCRIBERS:
            for payload, items in PAYLOADS.items():
                count = max(8, int(items * scale) // subscribers)
                tasks = [Task(mode, payload, subscribers, count) for mode in ("lossy", "reliable")]
                rows += row(directory, socket_path, tasks, rounds)
        rows += row(directory, socket_path, [Task("lossy", 640, 1, int(2 * PACE * max(scale, 0.1)), PACE)], 1)
    return {"rows": rows, "pinned": pinned}


def main() -> None:
    """Print the report."""
    options = arguments(
        __doc__,
        rounds=(3, "how often the figures alternate"),
        scale=(1.0, "how many items, as a part of the usual number"),
    )
    report = measure(options.rounds, options.scale)
    if options.json:
        show(report, as_json=True)
        return
    rows = report["rows"]
    assert isinstance(rows, list)
    print("  ".join(f"{name:>11}" for name in rows[0]))
    for one in rows:
        print("  ".join(f"{value:>11}" for value in one.values()))
    print(f"pinned {report['pinned']}")


if __name__ == "__main__":
    main()
