"""A bundle written from the published page about the protocol alone: standard library, blocking, one thread.

    plugin.py ID TRANSPORT

Rules here: nothing of this repository is imported, and nothing is done that the page does not say; with `connect` it
dials `$XDG_RUNTIME_DIR/utter/plugins/<id>.sock`, with `listen` it listens there.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from itertools import count
from typing import Any, BinaryIO

PLUGIN, TRANSPORT = sys.argv[1:]
HELLO = {
    "protocol": "1.0",
    "abi": 1,
    "plugin": {"name": PLUGIN, "version": "0.1.0", "kind": "bundle"},
    "transport": TRANSPORT,
    "provides": ["router.plan@1", "action.invoke@1", "context.snapshot@1", "experimental/spec@1"],
    "requires": [],
    "permissions": ["network"],
}
OPS = [
    {"op": "note", "side_effect": "local", "needs_confirm": False},
    {"op": "open_url", "side_effect": "external", "needs_confirm": False},
    {"op": "terminal", "side_effect": "destructive", "needs_confirm": True},
]
# What the first word of an utterance stands for: an op and the name of its argument.
WORDS = {"note": ("note", "text"), "open": ("open_url", "url"), "run": ("terminal", "command")}
# A method whose requests are answered when they are cancelled, and those that wait for it.
WAIT = "experimental.wait"
WAITING: set[Any] = set()
# A stream that counts, all at once, right behind the answer to its subscription.
COUNT = "experimental.count"
NUMBERS = count()


def plan(params: dict[str, Any]) -> dict[str, Any]:
    word, _, rest = params["utterance"].partition(" ")
    if word not in WORDS:
        return {"steps": []}
    op, argument = WORDS[word]
    return {"steps": [{"op": op, "args": {argument: rest}, "provenance": "user", "confirm": False}]}


def invoke(params: dict[str, Any]) -> dict[str, Any]:
    return {"ok": True, "detail": f"{params['op']} is done", "data": params}


ANSWERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "protocol.hello": lambda _params: HELLO,
    "plugin.describe": lambda _params: {"methods": [*ANSWERS, WAIT], "streams": [COUNT]},
    "plugin.health": lambda _params: {"status": "ok", "detail": ""},
    "router.plan": plan,
    "action.capabilities": lambda _params: {"ops": OPS},
    "action.invoke": invoke,
    "stream.subscribe": lambda params: {"stream_id": f"count-{next(NUMBERS)}", "mode": params["mode"]},
    "stream.ack": lambda _params: {},
    "stream.stop": lambda _params: {},
    "context.snapshot": lambda _params: {"window": {"app": "org.example.Editor", "title": "Notes"}},
}


def take(message: dict[str, Any], out: BinaryIO) -> None:
    method, params, request_id = message.get("method"), message.get("params", {}), message.get("id")
    if method == "$/cancel" and params["id"] in WAITING:
        WAITING.discard(params["id"])
        send(out, {"id": params["id"], "error": {"code": -32002, "message": "cancelled"}})
    elif "id" not in message or method is None:
        return
    elif method == WAIT:
        WAITING.add(request_id)
    elif method in ANSWERS:
        result = ANSWERS[method](params)
        send(out, {"id": request_id, "result": result})
        if method == "stream.subscribe":
            for seq in range(params["params"]["to"]):
                item = {"stream_id": result["stream_id"], "seq": seq, "data": {"number": seq}}
                send(out, {"method": COUNT, "params": item})
    else:
        send(out, {"id": request_id, "error": {"code": -32601, "message": f"no method {method}"}})


def send(out: BinaryIO, message: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    out.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    out.flush()


def serve(source: BinaryIO, out: BinaryIO) -> None:
    while line := source.readline():
        length = 0
        while line.strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            line = source.readline()
        take(json.loads(source.read(length)), out)


def main() -> None:
    if TRANSPORT == "stdio":
        serve(sys.stdin.buffer, sys.stdout.buffer)
        return
    path = f"{os.environ['XDG_RUNTIME_DIR']}/utter/plugins/{PLUGIN}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ours:
        if TRANSPORT == "connect":
            ours.connect(path)
            connection = ours
        else:
            ours.bind(path)
            ours.listen(1)
            connection, _ = ours.accept()
        with connection, connection.makefile("rb") as source, connection.makefile("wb") as out:
            serve(source, out)


if __name__ == "__main__":
    main()
