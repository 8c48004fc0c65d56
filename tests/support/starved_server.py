"""A server whose process has few descriptors, and clients that want more of them. Writes what happened as JSON.

starved_server.py DIRECTORY
"""

from __future__ import annotations

import json
import logging
import resource
import socket
import sys
from pathlib import Path

import trio

from support.clients import House
from utter_protocol.framing import encode_frame

STATUS = encode_frame(b'{"jsonrpc":"2.0","id":1,"method":"runner.status"}')
CLIENTS = 20
ROOM = 6


class Errors(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def limit_descriptors(most: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def used() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def knocking() -> socket.socket:
    """A socket that can connect."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(0)
    return connection


def answered(connections: list[socket.socket]) -> int:
    """How many of the connections have been answered."""
    count = 0
    for connection in connections:
        try:
            count += b'"result"' in connection.recv(65536)
        except BlockingIOError:
            continue
    return count


class Watch:
    """Counts the loop's turns, and tells when a client was admitted."""

    def __init__(self, made: House) -> None:
        self.turns = 0
        self._made = made
        self._turn, self._admit = made.reactor.turn, made.server._admit
        self._admitted = trio.Event()
        made.reactor.turn = self.turn
        made.server._admit = self.admit

    def turn(self) -> None:
        self.turns += 1
        self._turn()

    def admit(self, connection: socket.socket) -> None:
        self._admit(connection)
        self._admitted.set()
        self._admitted = trio.Event()

    async def until(self, count: int) -> None:
        """Wait until so many clients are connected."""
        with trio.fail_after(10):
            while self._made.server.count < count:
                await self._admitted.wait()


async def starve(made: House, clients: list[socket.socket]) -> dict[str, object]:
    """More clients than descriptors, then some leave, then there are descriptors for all."""
    watch = Watch(made)
    numbers = used()
    limit = max(numbers) + 1 + ROOM
    limit_descriptors(limit)
    for connection in clients:
        connection.connect(str(made.endpoint.path))
        connection.send(STATUS)
    await trio.sleep(0.7)
    report: dict[str, object] = {
        "admitted": made.server.count,
        "free": limit - len(numbers) + 1,
        "turns": watch.turns,
        "answered": answered(clients),
    }
    for connection in clients[:3]:
        connection.close()
    del clients[:3]
    limit_descriptors(limit + 100)
    await watch.until(len(clients))
    return {**report, "in_the_end": made.server.count}


async def stop_while_paused(made: House) -> int:
    """Stop the server while it waits for descriptors; return how many clients it has taken after that."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit_descriptors(3)
    made.server._accept(0)
    limit_descriptors(most)
    made.server.stop()
    with knocking() as late:
        late.connect(str(made.endpoint.path))
        late.send(STATUS)
        await trio.sleep(0.5)
        return made.server.count


async def main() -> dict[str, object]:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    made = House(Path(sys.argv[1]))
    clients = [knocking() for _ in range(CLIENTS)]
    async with made.serving():
        report = await starve(made, clients)
        for connection in clients:
            connection.close()
        report["after_stop"] = await stop_while_paused(made)
    return {**report, "log": sorted(set(errors.lines))}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(trio.run(main)))
