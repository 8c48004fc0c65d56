"""A plugin that misbehaves in the way that its arguments name. Standard library only, so that it starts fast.

hostile_plugin.py NAME [BEHAVIOUR...] [key=value...]

It speaks over stdio, or over its socket with `transport=connect` or `transport=listen`. With `stay` it waits for the
next connection when one has ended, as a plugin does that somebody else starts. `gate=FILE` has it wait for a file
before it connects or listens, and `farewell=FILE` has it make one when its wire has ended. With `relay=child` or
`relay=orphan` another process does the talking: a child without the variables of its parent, or one with them and
without the parent. `more=JSON` is what else it advertises of each of its `ops`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NAME = sys.argv[1]
FLAGS = {word for word in sys.argv[2:] if "=" not in word}
OPTIONS = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
TRANSPORT = OPTIONS.get("transport", "stdio")
# Requests that are answered when the plugin parts, all at once.
KEPT: list[object] = []
SLEEPER = "import time; time.sleep(600)"
PAUSE = 0.01


class Wire:
    """Where frames come from and go to."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        self.connection = connection
        self.input = connection.makefile("rb") if connection else sys.stdin.buffer
        self.output = connection.makefile("wb", 0) if connection else sys.stdout.buffer

    def write(self, data: bytes) -> None:
        self.output.write(data)
        self.output.flush()

    def close(self) -> None:
        if self.connection is not None:
            with suppress(OSError):
                self.input.close()
                self.output.close()
            self.connection.close()


def socket_path() -> str:
    return os.environ.get("UTTER_PLUGIN_SOCKET") or f"{os.environ['XDG_RUNTIME_DIR']}/utter/plugins/{NAME}.sock"


def wait_for_file(path: str) -> None:
    while not Path(path).exists():
        time.sleep(PAUSE)


def dial() -> socket.socket:
    """Connect; one that stays tries again until somebody listens."""
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(socket_path())
        except OSError:
            connection.close()
            if "stay" not in FLAGS:
                raise
            time.sleep(PAUSE)
        else:
            return connection


def listener() -> socket.socket:
    with suppress(FileNotFoundError):
        Path(socket_path()).unlink()
    made = socket.socket(socket.AF_UNIX)
    made.bind(socket_path())
    made.listen()
    return made


def names(key: str) -> list[str]:
    return [one for one in OPTIONS.get(key, "").split(",") if one]


def frame(message: dict[str, object]) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def send(wire: Wire, message: dict[str, object]) -> None:
    wire.write(frame(message))


def hello() -> dict[str, object]:
    return {
        "protocol": OPTIONS.get("protocol", "1.0"),
        "abi": int(OPTIONS.get("abi", "1")),
        "plugin": {"name": NAME, "version": "1.0.0", "kind": OPTIONS.get("kind", "action")},
        "transport": TRANSPORT,
        "provides": names("provides"),
        "requires": names("requires"),
        "permissions": names("permissions"),
    }


def read(wire: Wire) -> dict[str, object] | None:
    length = 0
    while True:
        line = wire.input.readline()
        if not line:
            return None
        if not line.strip():
            break
        length = int(line.split(b":")[1])
    message: dict[str, object] = json.loads(wire.input.read(length))
    return message


def second_connection() -> dict[str, object]:
    """Connect once more, and report what came of it."""
    with socket.socket(socket.AF_UNIX) as another:
        another.connect(socket_path())
        another.settimeout(20)
        return {"received": another.recv(100).decode()}


def answer(wire: Wire, method: str, params: dict[str, object]) -> object:  # noqa: PLR0911 - one for each answer
    if method == "protocol.hello":
        return "nonsense" if "bad-hello" in FLAGS else hello()
    if method == "plugin.describe":
        return {"methods": ["action.capabilities", "action.invoke"] if "ops" in OPTIONS else [], "streams": []}
    if method == "plugin.health":
        return {"status": "degraded" if "unwell" in FLAGS else "ok", "detail": "unwell" if "unwell" in FLAGS else ""}
    if method == "action.capabilities":
        more = json.loads(OPTIONS.get("more", "{}"))
        return {"ops": [{"op": op, "side_effect": "none", **more} for op in names("ops")]}
    if method == "action.invoke":
        return {"ok": True, "detail": json.dumps(params.get("args")), "data": {"args": params.get("args")}}
    if method == "router.plan":
        return {"steps": json.loads(OPTIONS.get("plan", "[]"))}
    if method == "pid":
        return {
            "pid": os.getpid(),
            "environ": dict(os.environ),
            "fds": sorted(one.name for one in Path("/proc/self/fd").iterdir()),
            "kept": len(KEPT),
        }
    if method == "dial again":
        return second_connection()
    if method in MISDEEDS:
        MISDEEDS[method](wire, params)
        return {}
    return {"method": method, "params": params}


def spam(wire: Wire, params: dict[str, object]) -> None:
    for number in range(int(str(params["count"]))):
        send(wire, {"method": "plugin.noise", "params": {"number": number}})


def part(wire: Wire) -> None:
    wire.write(b"".join(frame({"id": one, "result": "x" * 100}) for one in KEPT))
    os._exit(0)


def write_stderr(_wire: Wire, _params: dict[str, object]) -> None:
    os.write(2, b"\xff\xfe binary \x1b[31m " * 200_000)
    os.write(2, b"\nlast words\n")


def hang_up(wire: Wire, _params: dict[str, object]) -> None:
    if wire.connection is None:
        os.close(wire.output.fileno())
    else:
        wire.connection.shutdown(socket.SHUT_RDWR)


def half_close(wire: Wire, _params: dict[str, object]) -> None:
    if wire.connection is None:
        os.close(wire.output.fileno())
    else:
        wire.connection.shutdown(socket.SHUT_WR)


MISDEEDS: dict[str, Callable[[Wire, dict[str, object]], object]] = {
    "junk": lambda wire, _: wire.write(b"a stray print\x1b[0m\n"),
    "flood": lambda wire, _: wire.write(b"x" * (1 << 20)),
    "spam": spam,
    "print": lambda _wire, _: os.write(1, b"a stray print\x1b[0m\n"),
    "stderr": write_stderr,
    "hang up": hang_up,
    "half close": half_close,
    "part": lambda wire, _: part(wire),
    "exit": lambda _, params: os._exit(int(str(params.get("code", 0)))),
    "kill": lambda _wire, _: os.kill(os.getpid(), signal.SIGKILL),
}


def children() -> None:
    if "grandchild" in FLAGS:
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.DEVNULL)
    if "runaway" in FLAGS:
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.DEVNULL, start_new_session=True)


def serve(wire: Wire) -> None:
    """Answer until the wire ends."""
    while True:
        message = read(wire)
        if message is None:
            if "part-at-eof" in FLAGS:
                part(wire)
            return
        method = str(message.get("method"))
        if method in names("hang"):
            KEPT.append(message.get("id"))
            continue
        if "id" in message:
            params = dict(message.get("params") or {})  # type: ignore[call-overload]  # JSON
            send(wire, {"id": message["id"], "result": answer(wire, method, params)})


def serve_on_socket() -> None:
    if "gate" in OPTIONS:
        wait_for_file(OPTIONS["gate"])
    with listener() if TRANSPORT == "listen" else nullcontext() as door:
        while True:
            wire = Wire(door.accept()[0] if door else dial())
            with suppress(OSError):
                serve(wire)
            wire.close()
            if "stay" not in FLAGS:
                return
            time.sleep(PAUSE)


def relay() -> None:
    """Have another process do the talking, and wait until stdin ends."""
    argv = [sys.executable, "-S", "-E", *[word for word in sys.argv if not word.startswith("relay=")]]
    if OPTIONS["relay"] == "child":
        env = {name: value for name, value in os.environ.items() if name != "UTTER_INSTANCE"}
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=env, start_new_session=True)
    else:
        # Its parent ends at once, so that it descends from nobody here.
        subprocess.run([sys.executable, "-S", "-c", ORPHAN, *argv], stdin=subprocess.DEVNULL, check=True)
    sys.stdin.buffer.read()


ORPHAN = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"


def main() -> None:
    if "exit-at-once" in FLAGS:
        os.write(2, b"this plugin cannot start\n")
        sys.exit(int(OPTIONS.get("code", "1")))
    if "ignore-term" in FLAGS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children()
    if "relay" in OPTIONS:
        relay()
    elif TRANSPORT == "stdio":
        serve(Wire())
    else:
        serve_on_socket()
    if "farewell" in OPTIONS:
        Path(OPTIONS["farewell"]).touch()
    while "ignore-eof" in FLAGS:
        time.sleep(1)


if __name__ == "__main__":
    main()
