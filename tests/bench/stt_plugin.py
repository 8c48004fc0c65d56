"""The recogniser of the bench of key release: standard library only; what it hears is when it was asked.

stt_plugin.py

The transcript of an utterance is `NANOSECONDS FRAMES`: CLOCK_MONOTONIC when the bytes of `stt.finish` had been read,
and how many frames of audio came before it. `bench.stamp` answers the same clock, for the bare way here.
"""

from __future__ import annotations

import json
import os
import time

FRAME_BASE64 = 16 / 3
"""Characters of base64 that one frame of float32 takes."""
ANSWERS: dict[str, object] = {
    "protocol.hello": {
        "protocol": "1.0",
        "abi": 1,
        "plugin": {"name": "stamp", "version": "1.0.0", "kind": "stt"},
        "transport": "stdio",
        "provides": ["stt.transcribe@1"],
        "requires": [],
        "permissions": [],
    },
    "plugin.describe": {"methods": ["stt.start", "stt.finish", "stt.cancel", "bench.stamp"], "streams": []},
    "plugin.health": {"status": "ok", "detail": ""},
    "stt.start": {},
    "stt.cancel": {},
}


def main() -> None:
    """Answer until end of file."""
    buffer = b""
    frames = 0
    while data := os.read(0, 1 << 20):
        now = time.monotonic_ns()
        buffer += data
        out = []
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            size = end + 4 + int(buffer[16:end])
            if len(buffer) < size:
                break
            message = json.loads(buffer[end + 4 : size])
            buffer = buffer[size:]
            method = message["method"]
            if method == "stt.start":
                frames = 0
            elif method == "stt.feed":
                text = message["params"]["data_b64"]
                frames += int(len(text.rstrip("=")) / FRAME_BASE64)
            if "id" not in message:
                continue
            result = ANSWERS.get(method)
            if method == "stt.finish":
                result = {"text": f"{now} {frames}"}
            elif method == "bench.stamp":
                result = {"at": now}
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            out.append(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        if out:
            os.write(1, b"".join(out))


if __name__ == "__main__":
    main()
