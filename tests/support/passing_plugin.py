"""A plugin on a socket that passes descriptors in both directions. Standard library only.

passing_plugin.py NAME [PERMISSION...]

`store {text}` hands a sealed memfd in and answers the runner's answer. `read {handle}` asks for the blob's descriptor
and answers the text in it. `ring` asks for the audio ring and answers what it finds there. `crowd` sends two
descriptors with one frame.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
import sys
from typing import Any

NAME, PERMISSIONS = sys.argv[1], sys.argv[2:]
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

connection = socket.socket(socket.AF_UNIX)
buffer = b""
arrived: list[int] = []
last_id = 0


def send(message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    socket.send_fds(connection, [b"Content-Length: %d\r\n\r\n%b" % (len(body), body)], fds)


def read() -> dict[str, Any] | None:
    global buffer  # noqa: PLW0603 - one buffer of a small program
    while True:
        head, blank, rest = buffer.partition(b"\r\n\r\n")
        if blank and len(rest) >= int(head.split(b":")[1]):
            size = int(head.split(b":")[1])
            buffer = rest[size:]
            message: dict[str, Any] = json.loads(rest[:size])
            return message
        data, beside, _, _ = connection.recvmsg(65536, socket.CMSG_LEN(16), socket.MSG_CMSG_CLOEXEC)
        for _, _, numbers in beside:
            arrived.extend(array.array("i", numbers))
        if not data:
            return None
        buffer += data


def ask(method: str, params: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
    global last_id  # noqa: PLW0603 - likewise
    last_id += 1
    send({"id": last_id, "method": method, "params": params}, fds)
    while True:
        answer = read()
        if answer is None:
            sys.exit(0)
        if answer.get("id") == last_id and "method" not in answer:
            return answer
        serve(answer)


def memfd(text: str) -> int:
    fd = os.memfd_create("plugin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, text.encode())
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def store(params: dict[str, Any]) -> dict[str, Any]:
    fd = memfd(params["text"])
    answer = ask("handle.create", {"fd": True}, (fd,))
    os.close(fd)
    return answer


def read_blob(params: dict[str, Any]) -> dict[str, Any]:
    answer = ask("fd.pass", {"kind": "handle", "meta": {"handle": params["handle"]}})
    if "error" in answer:
        return answer
    with os.fdopen(arrived.pop(0), "rb") as file:
        return {"result": {"text": file.read().decode(), "left": len(arrived)}}


def ring(_params: dict[str, Any]) -> dict[str, Any]:
    answer = ask("fd.pass", {"kind": "memfd.ring", "meta": {"wake": True}})
    if "error" in answer:
        return answer
    memory, pipe = arrived.pop(0), arrived.pop(0)
    magic = os.pread(memory, 8, 0).decode()
    os.close(memory)
    os.close(pipe)
    return {"result": {"magic": magic, **answer["result"]}}


def crowd(_params: dict[str, Any]) -> dict[str, Any]:
    fds = (memfd("one"), memfd("two"))
    answer = ask("handle.create", {"fd": True}, fds)
    for fd in fds:
        os.close(fd)
    return answer


METHODS = {"store": store, "read": read_blob, "ring": ring, "crowd": crowd}


def serve(message: dict[str, Any]) -> None:
    method, params = message.get("method"), message.get("params", {})
    if method == "protocol.hello":
        plugin = {"name": NAME, "version": "1.0.0", "kind": "perceive"}
        answer: dict[str, Any] = {
            "result": {
                "protocol": "1.0",
                "abi": 1,
                "plugin": plugin,
                "transport": "connect",
                "permissions": PERMISSIONS,
            }
        }
        # Before it is admitted it may do this already.
        send({"id": message["id"], **answer})
        store({"text": "early"})
        return
    if method == "plugin.describe":
        answer = {"result": {"methods": list(METHODS), "streams": []}}
    elif method in METHODS:
        answer = METHODS[method](params)
    else:
        answer = {"result": {}}
    send({"id": message["id"], **{name: answer[name] for name in ("result", "error") if name in answer}})


def main() -> None:
    connection.connect(os.environ["UTTER_PLUGIN_SOCKET"])
    while (message := read()) is not None:
        if "id" in message and "method" in message:
            serve(message)


if __name__ == "__main__":
    main()
