"""From exec of the daemon to "ready" with 20 stdio plugins, beside spawning the same 20 processes side by side.

The floor is a bare script that starts the same programs, greets each with `protocol.hello`, waits for all answers and
says so; both are measured from exec to that line. Rounds of both alternate. Also: memory without and with plugins,
and how often the idle runner wakes with the microphone closed (voluntary context switches of its process).

    python tests/bench/startup.py [--json] [--plugins 20] [--rounds 5] [--idle 20]
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from common import DAEMON, HEAD, NO_AUDIO, arguments, show

if TYPE_CHECKING:
    from collections.abc import Iterator

SDK_PLUGIN = """
from utter_sdk import Plugin
import sys

plugin = Plugin(sys.argv[1], version="1.0.0", kind="context", provides=[f"experimental/{sys.argv[1]}@1"])


@plugin.method("context.get")
def get(params: dict) -> dict:
    return {}


plugin.run()
"""

ENTRY = """
[[plugin]]
id = "{name}"
entrypoint = ["{python}", "{plugin}", "{name}"]
"""
# Where byte code may not be written, every process compiles its modules anew, and the bench would measure that.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FLOOR = """
import os, selectors, subprocess, sys
body = (b'{"jsonrpc":"2.0","id":1,"method":"protocol.hello",'
        b'"params":{"protocol":"1.0","abi":1,"runner":"bench","epoch":1}}')
hello = b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body)
processes = [
    subprocess.Popen([sys.executable, sys.argv[1], name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                     start_new_session=True)
    for name in sys.argv[2:]
]
selector = selectors.DefaultSelector()
for process in processes:
    process.stdin.write(hello)
    selector.register(process.stdout, selectors.EVENT_READ)
waiting = len(processes)
while waiting:
    for key, _ in selector.select():
        if b'"result"' in os.read(key.fd, 65536):
            selector.unregister(key.fileobj)
            waiting -= 1
print("ready", flush=True)
for process in processes:
    process.communicate()
"""


def names(count: int) -> list[str]:
    """The plugins' ids."""
    return [f"plugin{number:02}" for number in range(count)]


def floor(plugin: Path, count: int) -> float:
    """Milliseconds until a bare script has started `count` processes side by side and all have answered."""
    start = time.perf_counter()
    command = [sys.executable, "-c", FLOOR, str(plugin), *names(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("the floor failed")
        return (time.perf_counter() - start) * 1000


@contextmanager
def runner(directory: Path, plugin: Path, count: int) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A running daemon, and the milliseconds from exec to ready."""
    config = directory / "runner.toml"
    entries = [ENTRY.format(name=name, python=sys.executable, plugin=plugin) for name in names(count)]
    config.write_text(HEAD.format(level="info", socket=directory / "runner.sock", audio=NO_AUDIO) + "".join(entries))
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *DAEMON, "--config", str(config)],
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if b": ready on " in line:
            break
    elapsed = (time.perf_counter() - start) * 1000
    if not lines or f"with {count} of {count} plugins\n".encode() not in lines[-1]:
        process.kill()
        raise SystemExit(b"".join(lines).decode())
    try:
        yield process, elapsed
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def status(pid: int, field: str) -> int:
    """A number of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/{pid}/status has no {field}")


def threads_switches(pid: int) -> int:
    """Voluntary context switches of all threads: how often something woke the process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total


def measure(count: int, rounds: int, idle: float) -> dict[str, object]:
    """Run everything; return the report."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plugin = directory / "sdk_plugin.py"
        plugin.write_text(SDK_PLUGIN)
        floors, readies = [], []
        floor(plugin, count)
        with runner(directory, plugin, 0) as (process, _):
            rss_0 = status(process.pid, "VmRSS")
        for _ in range(rounds):
            floors.append(floor(plugin, count))
            with runner(directory, plugin, count) as (_, elapsed):
                readies.append(elapsed)
        with runner(directory, plugin, count) as (process, _):
            rss_20 = status(process.pid, "VmRSS")
            # Start-up leaves work of its own; what counts is the state after it.
            time.sleep(2)
            before = threads_switches(process.pid)
            time.sleep(idle)
            wakeups = (threads_switches(process.pid) - before) / idle
    ready_ms, floor_ms = statistics.median(readies), statistics.median(floors)
    return {
        "plugins": count,
        "ready_ms": round(ready_ms, 1),
        "floor_ms": round(floor_ms, 1),
        "ratio": round(ready_ms / floor_ms, 2),
        "rss_mib_0": round(rss_0 / 1024, 1),
        "rss_mib_20": round(rss_20 / 1024, 1),
        "idle_wakeups_per_s": round(wakeups, 2),
    }


def main() -> None:
    """Print the report."""
    options = arguments(
        __doc__,
        plugins=(20, "how many"),
        rounds=(5, "how often both alternate"),
        idle=(20.0, "seconds to watch the idle runner"),
    )
    show(measure(options.plugins, options.rounds, options.idle), as_json=options.json)


if __name__ == "__main__":
    main()
