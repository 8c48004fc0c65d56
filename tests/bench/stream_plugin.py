"""The source of the streams' bench: standard library only, as little work per item as Python allows.

stream_plugin.py NAME

The stream `bench.items {count, size, after, rate}` sends `count` items of `size` bytes and closes. Items begin when
`after` streams are open, so that all begin together, and go round all streams in turn; `rate` is items per second of
one stream, 0 as fast as the other side reads. A reliable stream keeps to its credit.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

NAME = sys.argv[1] if len(sys.argv) > 1 else "source"
METHOD = "bench.items"
ANSWERS = {
    "protocol.hello": {
        "protocol": "1.0",
        "abi": 1,
        "plugin": {"name": NAME, "version": "1.0.0", "kind": "bundle"},
        "transport": "stdio",
        "provides": [f"experimental/{NAME}@1"],
        "requires": [],
        "permissions": [],
    },
    "plugin.describe": {"methods": ["stream.subscribe", "stream.ack", "stream.stop"], "streams": [METHOD]},
    "plugin.health": {"status": "ok", "detail": ""},
    "stream.stop": {},
}
CHUNK = 65536


def frame(body: bytes) -> bytes:
    """One message as a frame."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def answer(request_id: int, result: object) -> bytes:
    """An answer as a frame."""
    return frame(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request_id, json.dumps(result).encode()))


def item(head: bytes, seq: int, data: bytes) -> bytes:
    """An item as a frame; `head` is the message up to its seq."""
    number = b"%d" % seq
    return b'Content-Length: %d\r\n\r\n%b%b,"data":%b}}' % (
        len(head) + len(number) + len(data) + 10,
        head,
        number,
        data,
    )


def head_of(stream_id: str) -> bytes:
    """The message of a stream's items up to their seq."""
    return b'{"jsonrpc":"2.0","method":"%b","params":{"stream_id":"%b","seq":' % (METHOD.encode(), stream_id.encode())


def data_of(size: int, stamp: int = 0) -> bytes:
    """An item's data: when it was sent, in nanoseconds, and so many bytes."""
    return b'{"t":%019d,"data_b64":"%b"}' % (10**18 + stamp, b"A" * size)


def closed(stream_id: str) -> bytes:
    """The end of a stream as a frame."""
    params = json.dumps({"stream_id": stream_id, "reason": "end"}).encode()
    return frame(b'{"jsonrpc":"2.0","method":"stream.closed","params":%b}' % params)


class Stream:
    """One subscription."""

    def __init__(self, stream_id: str, params: dict[str, int], mode: str, window: int) -> None:
        self.id = stream_id
        self.head = head_of(stream_id)
        self.data = data_of(params["size"])
        self.size = params["size"]
        self.count = params["count"]
        self.pause = 1_000_000_000 // params["rate"] if params["rate"] else 0
        self.seq = 0
        self.window = window if mode == "reliable" else 1 << 60
        self.limit = self.window
        self.due = 0


class Source:
    """All of them."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.after = 1
        self.buffer = b""
        self.made = 0

    def take(self, data: bytes) -> bytes:
        """Handle what arrived; return the answers."""
        self.buffer += data
        out = []
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            size = end + 4 + int(self.buffer[16:end])
            if len(self.buffer) < size:
                break
            message = json.loads(self.buffer[end + 4 : size])
            self.buffer = self.buffer[size:]
            out.append(self.handle(message))
        return b"".join(out)

    def handle(self, message: dict[str, object]) -> bytes:
        """Handle one message."""
        method, params = message["method"], message.get("params")
        if not isinstance(params, dict):
            params = {}
        if method == "stream.subscribe":
            self.made += 1
            stream = Stream(f"s{self.made}", params["params"], params["mode"], params["window"])
            stream.due = time.monotonic_ns()
            self.streams[stream.id] = stream
            self.after = params["params"]["after"]
            return answer(message["id"], {"stream_id": stream.id, "mode": params["mode"]})  # type: ignore[arg-type]  # JSON
        stream_id = params.get("stream_id", "")
        if method == "stream.ack" and stream_id in self.streams:
            self.streams[stream_id].limit = params["seq"] + 1 + self.streams[stream_id].window
        elif method == "stream.stop":
            self.streams.pop(stream_id, None)
        return answer(message["id"], ANSWERS[str(method)]) if "id" in message else b""  # type: ignore[arg-type]  # JSON

    def produce(self) -> list[bytes]:
        """Return up to one chunk of items, one of each stream in turn."""
        out: list[bytes] = []
        size = 0
        if len(self.streams) < self.after:
            return out
        while size < CHUNK:
            before = size
            for stream in list(self.streams.values()):
                seq = stream.seq
                if seq >= stream.limit:
                    continue
                data = stream.data
                if stream.pause:
                    now = time.monotonic_ns()
                    if now < stream.due:
                        continue
                    stream.due += stream.pause
                    data = data_of(stream.size, now)
                stream.seq = seq + 1
                one = item(stream.head, seq, data)
                size += len(one)
                out.append(one)
                if stream.seq == stream.count:
                    out.append(closed(stream.id))
                    self.after = 0
                    del self.streams[stream.id]
            if size == before:
                break
        return out

    def patience(self) -> float | None:
        """Seconds until a paced stream has something to send; None: until something arrives."""
        due = [stream.due for stream in self.streams.values() if stream.pause and stream.seq < stream.limit]
        if len(self.streams) < self.after or not due:
            return None
        return max(0.0, (min(due) - time.monotonic_ns()) / 1e9)


def write(data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main() -> None:
    """Serve until end of file."""
    source = Source()
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    idle = True
    while True:
        patience = source.patience() if idle else 0
        if poll.poll(None if patience is None else patience * 1000):
            data = os.read(0, CHUNK)
            if not data:
                return
            write(source.take(data))
        out = source.produce()
        idle = not out
        if out:
            write(b"".join(out))


if __name__ == "__main__":
    main()
