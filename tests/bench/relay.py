"""Client -> runner -> stdio plugin and back, beside a bare blocking relay to the same plugin, in one run.

Everything runs pinned to one CPU where the system allows it, so that the figures are work and not luck of placement.
The floor is a process that reads a frame from one descriptor and writes it to another, and nothing else: no ids, no
deadlines, no policy. Rounds of both alternate, so that what disturbs the machine disturbs both.

    python tests/bench/relay.py [--json] [--seconds 2] [--rounds 3]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from common import Connection, arguments, daemon, frame, p50_and_p99, pin, show

HERE = Path(__file__).parent
PLUGIN = HERE / "echo_plugin.py"
DEPTHS = (1, 8, 32, 128)
CYCLE = 4096

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

ENTRY = """
[[plugin]]
id = "echo"
kind = "action"
entrypoint = ["{python}", "{plugin}", "echo"]
"""


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
    pinned = pin()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        relay_path = str(directory / "relay.sock")
        relay = stack.enter_context(subprocess.Popen([sys.executable, "-c", RELAY, relay_path, str(PLUGIN)]))
        stack.callback(relay.terminate)
        path = stack.enter_context(daemon(directory, ENTRY.format(python=sys.executable, plugin=PLUGIN)))
        floor = Connection(relay_path)
        stack.callback(floor.close)
        client = Connection(path)
        stack.callback(client.close)
        client.wait_ready()
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
    p50, p99 = p50_and_p99(invokes)
    return {
        "floor_p50_us": round(floor_p50, 1),
        "p50_us": p50,
        "p99_us": p99,
        "ratio": round(statistics.median(invokes) / floor_p50, 2),
        "action_p50_us": round(statistics.median(actions), 1),
        "action_ratio": round(statistics.median(actions) / floor_p50, 2),
        "rps": {depth: round(statistics.median(values)) for depth, values in rps.items()},
        "floor_rps_1": round(1e6 / statistics.fmean(floors)),
        "pinned": pinned,
    }


def main() -> None:
    """Print the report."""
    options = arguments(__doc__, seconds=(3.0, "per figure"), rounds=(3, "how often the figures alternate"))
    show(measure(options.seconds, options.rounds), as_json=options.json)


if __name__ == "__main__":
    main()
