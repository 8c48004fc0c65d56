"""Blobs through the runner and descriptors out of it, beside plain memory copies and a plain sendmsg, in one run.

`store` is what a client does to get data in and out again, and to let it go: up to 64 KiB inside of messages, above
as a sealed memfd that is handed in and a descriptor that is passed back and read. Its floor copies the same bytes twice
in memory. `pass` asks for the descriptor of a blob that is there; its floor is a process that answers one byte with a
descriptor. Rounds of all alternate, pinned to one CPU where the system allows it.

`ring` is the microphone's audio: see ring.py for how it is measured. `ring_block_us` is the writer's processor time for
one block of 10 ms while so many readers wait for it, and `ring_ratio` how many times that of copying it into shared
memory and writing to one eventfd for each reader; `ring_writer_percent` and `ring_readers_percent` are the shares of
one processor that an hour of capture takes in the writer and in all readers together. `base64_*` is the same for the
same audio in `stt.feed` over sockets, and `*_to_base64` the ring's share in terms of that.

    python tests/bench/dataplane.py [--json] [--seconds 1] [--rounds 3] [--minutes 60]
"""

from __future__ import annotations

import array
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import ring
from common import arguments, daemon, patiently, pin, show

from utter_protocol.blobs import MAX_INLINE
from utter_sdk.client import Client, RunnerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}

REST = """
handle_root = "{directory}/handles"
"""

GIVER = """
import os, socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
fd = os.open(sys.argv[2], os.O_RDONLY)
while connection.recv(1):
    socket.send_fds(connection, [b"x"], [fd])
"""


class Runner:
    """What a client does to the runner."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._number = 0

    def store(self, size: int) -> Callable[[], None]:
        """Return what stores `size` bytes that the runner has not seen yet, and reads them back."""
        data = bytearray(os.urandom(1 << 12)) * (size >> 12)
        handles, inline = self._client.handles, size <= MAX_INLINE

        def act() -> None:
            self._number += 1
            data[:8] = self._number.to_bytes(8, "little")
            handle = handles.create(data).handle
            if inline:
                if len(handles.read(handle)) != size:
                    raise SystemExit("the bench got other data than it stored")
            else:
                with handles.open(handle) as file:
                    if file.readinto(data) != size:
                        raise SystemExit("the bench got other data than it stored")
            handles.release(handle)

        return act

    def hand_over(self, size: int) -> Callable[[], None]:
        """Return what asks for the descriptor of a blob of `size` bytes."""
        self._number += 1
        handle = self._client.handles.create(self._number.to_bytes(8, "little") + bytes(size - 8)).handle
        meta = {"handle": handle}
        return lambda: self._client.fd_pass("handle", meta).close()


def copies(size: int) -> Callable[[], None]:
    """Return what copies `size` bytes twice."""
    source, target = bytearray(os.urandom(1 << 12)) * (size >> 12), bytearray(size)
    from_, to = memoryview(source), memoryview(target)

    def act() -> None:
        to[:] = from_
        from_[:] = to

    return act


def taking(connection: socket.socket) -> Callable[[], None]:
    """Return what asks the other process for a descriptor."""
    room = socket.CMSG_LEN(array.array("i").itemsize)

    def act() -> None:
        connection.send(b"?")
        _, beside, _, _ = connection.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        os.close(array.array("i", beside[0][2])[0])

    return act


def times(act: Callable[[], None], seconds: float) -> list[float]:
    """Do something for a while, at least once; return how many seconds each took."""
    found = []
    clock = time.perf_counter
    end = clock() + seconds
    while not found or clock() < end:
        start = clock()
        act()
        found.append(clock() - start)
    return found


def measure(seconds: float, rounds: int) -> dict[str, object]:
    """Run everything that has to do with blobs; return the report."""
    report: dict[str, object] = {}
    with ExitStack() as stack:
        # Where handles are kept by default is memory, too.
        shared = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a private directory in it
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared)))
        path = stack.enter_context(daemon(directory, REST.format(directory=directory)))
        near, far = socket.socketpair()
        stack.enter_context(near)
        argv = [sys.executable, "-c", GIVER, str(far.fileno()), __file__]
        giver = stack.enter_context(subprocess.Popen(argv, pass_fds=[far.fileno()]))
        stack.callback(giver.terminate)
        far.close()
        client = stack.enter_context(patiently(lambda: Client.connect(path), RunnerUnavailable))
        bench, floor = Runner(client), taking(near)
        share = seconds / rounds
        for name, size in SIZES.items():
            acts = {"store": bench.store(size), "memcpy": copies(size), "pass": bench.hand_over(size), "sendmsg": floor}
            found: dict[str, list[float]] = {key: [] for key in acts}
            for act in acts.values():
                act()
            for _ in range(rounds):
                for key, act in acts.items():
                    found[key] += times(act, share)
            middle = {key: statistics.median(values) for key, values in found.items()}
            report[name] = {
                **{f"{key}_per_s": round(1 / value, 1) for key, value in middle.items()},
                "store_ratio": round(middle["store"] / middle["memcpy"], 1),
                "pass_ratio": round(middle["pass"] / middle["sendmsg"], 1),
            }
    return report


def main() -> None:
    """Print the report."""
    options = arguments(
        __doc__,
        seconds=(1.0, "per figure"),
        rounds=(3, "how often the figures alternate"),
        minutes=(60.0, "of audio through the ring"),
    )
    report: dict[str, object] = {"pinned": pin()}
    report |= measure(options.seconds, options.rounds)
    report["ring"] = ring.measure(options.minutes, options.rounds)
    show(report, as_json=options.json)


if __name__ == "__main__":
    main()
