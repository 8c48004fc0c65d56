"""A plugin that misbehaves in the way that its arguments name. Standard library only, so that it starts fast.

hostile_plugin.py NAME [BEHAVIOUR...] [key=value...]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NAME = sys.argv[1]
FLAGS = {word for word in sys.argv[2:] if "=" not in word}
OPTIONS = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
OUT = sys.stdout.buffer
# Requests that are answered when the plugin parts, all at once.
KEPT: list[object] = []
SLEEPER = "import time; time.sleep(600)"


def names(key: str) -> list[str]:
    return [one for one in OPTIONS.get(key, "").split(",") if one]


def frame(message: dict[str, object]) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def send(message: dict[str, object]) -> None:
    OUT.write(frame(message))
    OUT.flush()


def hello() -> dict[str, object]:
    return {
        "protocol": OPTIONS.get("protocol", "1.0"),
        "abi": int(OPTIONS.get("abi", "1")),
        "plugin": {"name": NAME, "version": "1.0.0", "kind": OPTIONS.get("kind", "action")},
        "transport": "stdio",
        "provides": names("provides"),
        "requires": names("requires"),
        "permissions": names("permissions"),
    }


def read() -> dict[str, object] | None:
    length = 0
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return None
        if not line.strip():
            break
        length = int(line.split(b":")[1])
    message: dict[str, object] = json.loads(sys.stdin.buffer.read(length))
    return message


def answer(method: str, params: dict[str, object]) -> object:  # noqa: C901, PLR0911, PLR0912 - one branch per misbehaviour
    if method == "protocol.hello":
        return "nonsense" if "bad-hello" in FLAGS else hello()
    if method == "plugin.describe":
        return {"methods": ["action.capabilities", "action.invoke"] if "ops" in OPTIONS else [], "streams": []}
    if method == "plugin.health":
        return {"status": "degraded" if "unwell" in FLAGS else "ok", "detail": "unwell" if "unwell" in FLAGS else ""}
    if method == "action.capabilities":
        return {"ops": [{"op": op, "side_effect": "none"} for op in names("ops")]}
    if method == "action.invoke":
        return {"ok": True, "detail": json.dumps(params.get("args")), "data": {"args": params.get("args")}}
    if method == "router.plan":
        return {"steps": json.loads(OPTIONS.get("plan", "[]"))}
    if method == "junk":
        OUT.write(b"a stray print\x1b[0m\n")
        return {}
    if method == "flood":
        OUT.write(b"x" * (1 << 20))
        OUT.flush()
        return {}
    if method == "stderr":
        os.write(2, b"\xff\xfe binary \x1b[31m " * 200_000)
        os.write(2, b"\nlast words\n")
        return {}
    if method == "part":
        part()
    if method == "exit":
        os._exit(int(str(params.get("code", 0))))
    if method == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if method == "pid":
        return {
            "pid": os.getpid(),
            "environ": dict(os.environ),
            "fds": sorted(one.name for one in Path("/proc/self/fd").iterdir()),
        }
    return {"method": method, "params": params}


def part() -> None:
    OUT.write(b"".join(frame({"id": one, "result": "x" * 100}) for one in KEPT))
    OUT.flush()
    os._exit(0)


def children() -> None:
    if "grandchild" in FLAGS:
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.DEVNULL)
    if "runaway" in FLAGS:
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.DEVNULL, start_new_session=True)


def main() -> None:
    if "exit-at-once" in FLAGS:
        os.write(2, b"this plugin cannot start\n")
        sys.exit(int(OPTIONS.get("code", "1")))
    if "ignore-term" in FLAGS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children()
    while True:
        message = read()
        if message is None:
            break
        method = str(message.get("method"))
        if method in names("hang"):
            KEPT.append(message.get("id"))
            continue
        if "id" in message:
            send({"id": message["id"], "result": answer(method, dict(message.get("params") or {}))})  # type: ignore[call-overload]  # JSON
    if "part-at-eof" in FLAGS:
        part()
    while "ignore-eof" in FLAGS:
        time.sleep(1)


if __name__ == "__main__":
    main()
