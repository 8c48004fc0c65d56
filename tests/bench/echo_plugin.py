"""The plugin of the benches: blocking, no library but json, as little work per request as Python allows."""

from __future__ import annotations

import json
import os
import sys

NAME = sys.argv[1] if len(sys.argv) > 1 else "echo"
ANSWERS = {
    "protocol.hello": {
        "protocol": "1.0",
        "abi": 1,
        "plugin": {"name": NAME, "version": "1.0.0", "kind": "action"},
        "transport": "stdio",
        "provides": [f"experimental/{NAME}@1"],
        "requires": [],
        "permissions": [],
    },
    "plugin.describe": {"methods": ["echo.get", "action.capabilities", "action.invoke"], "streams": []},
    "plugin.health": {"status": "ok", "detail": ""},
    "action.capabilities": {
        "ops": [
            {
                "op": f"{NAME}.run",
                "side_effect": "none",
                "schema": {
                    "type": "object",
                    "properties": {"n": {"type": "integer"}},
                    "required": ["n"],
                    "additionalProperties": False,
                },
            }
        ]
    },
    "action.invoke": {"ok": True, "detail": "done"},
    "echo.get": {"ok": True, "value": "x" * 64},
}
ENCODED = {method: json.dumps(answer).encode() for method, answer in ANSWERS.items()}


def main() -> None:
    """Answer until end of file."""
    buffer = b""
    while True:
        data = os.read(0, 65536)
        if not data:
            return
        buffer += data
        out = []
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                break
            size = int(buffer[16:end])
            if len(buffer) < end + 4 + size:
                break
            message = json.loads(buffer[end + 4 : end + 4 + size])
            buffer = buffer[end + 4 + size :]
            if "id" not in message:
                continue
            body = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], ENCODED[message["method"]])
            out.append(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        if out:
            os.write(1, b"".join(out))


if __name__ == "__main__":
    main()
