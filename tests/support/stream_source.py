"""A plugin with streams, as somebody would write it from the protocol's text alone. Standard library only.

stream_source.py NAME [BEHAVIOUR...] [key=value...]

Streams, all of them of this plugin's own:
    tick {count, early}  `count` items `{n}` and the end; `early` sends them in one write with the answer
    flow {}              items `{n}` without end, as long as there is credit or the stream is lossy
    hold {}              nothing, until it is told to by a request `do {what, ...}`
`do` sends what nobody should send: {what: "overrun"|"disorder"|"repeat"|"unknown"|"close"|"die", ...}.
`seen` answers what came in, without audio. Behaviours: `emit` answers no `stream.*`, so that its streams are fed by
host.emit; `refuse` refuses every subscription; `ear` is a recogniser that hears "lights on", and `final` one that says
so by itself and does not answer `stt.finish`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any

NAME = sys.argv[1]
FLAGS = {word for word in sys.argv[2:] if "=" not in word}
OPTIONS = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
CHUNK = 65536


def names(key: str) -> list[str]:
    return [one for one in OPTIONS.get(key, "").split(",") if one]


def frame(message: dict[str, Any]) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


class Stream:
    """One subscription."""

    def __init__(self, method: str, stream_id: str, params: dict[str, Any], mode: str, window: int) -> None:
        self.method = method
        self.id = stream_id
        self.mode = mode
        self.window = window
        self.limit = window
        self.seq = 0
        self.count = params.get("count", 1 << 60) if method != "hold" else 0
        self.padding = "x" * params.get("size", 0)
        self.params = params

    def item(self, seq: int | None = None) -> bytes:
        if seq is None:
            seq, self.seq = self.seq, self.seq + 1
        data = {"n": seq, "padding": self.padding} if self.padding else {"n": seq}
        return frame({"method": self.method, "params": {"stream_id": self.id, "seq": seq, "data": data}})

    @property
    def may_send(self) -> bool:
        return self.seq < self.count and (self.mode == "lossy" or self.seq < self.limit)

    def closed(self, reason: str) -> bytes:
        return frame({"method": "stream.closed", "params": {"stream_id": self.id, "reason": reason}})


class Source:
    """What the plugin knows."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.seen: list[list[Any]] = []
        self.made = 0
        self.asked = 0

    def handle(self, message: dict[str, Any]) -> bytes:
        method, params = message.get("method", ""), message.get("params") or {}
        if not method:
            self.seen.append(["answer", message.get("result", message.get("error"))])
            return b""
        if method != "stt.feed" and not method.startswith(("plugin.", "protocol.")) and method not in {"do", "seen"}:
            self.seen.append([method, params])
        if "id" not in message:
            if method == "stream.ack" and params["stream_id"] in self.streams:
                stream = self.streams[params["stream_id"]]
                stream.limit = params["seq"] + 1 + stream.window
            return b""
        if method == "stream.subscribe":
            return self.subscribe(message["id"], params)
        if method == "stt.finish" and "final" in FLAGS:
            heard = {"session": params["session"], "text": "lights on", "confidence": 0.5}
            partial = frame({"method": "stt.partial", "params": {"session": params["session"], "text": "lights"}})
            return partial + frame({"method": "stt.final", "params": heard})
        return frame({"id": message["id"], "result": self.answer(method, params)})

    def subscribe(self, request_id: int, params: dict[str, Any]) -> bytes:
        if "refuse" in FLAGS:
            error = {"code": -32602, "message": "not this one", "data": {"field": "method"}}
            return frame({"id": request_id, "error": error})
        self.made += 1
        mode = params.get("mode", "lossy")
        stream = Stream(params["method"], f"up-{self.made}", params["params"], mode, params["window"])
        self.streams[stream.id] = stream
        out = frame({"id": request_id, "result": {"stream_id": stream.id, "mode": mode}})
        while stream.params.get("early") and stream.may_send:
            out += stream.item()
        return out

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        if method == "protocol.hello":
            return {
                "protocol": "1.0",
                "abi": 1,
                "plugin": {"name": NAME, "version": "1.0.0", "kind": OPTIONS.get("kind", "bundle")},
                "provides": names("provides"),
                "requires": names("requires"),
            }
        if method == "plugin.describe":
            streams = [*names("streams"), "tick", "flow", "hold"]
            asked = [] if "emit" in FLAGS else ["stream.subscribe", "stream.ack", "stream.stop"]
            stt = ["stt.start", "stt.finish", "stt.cancel"] if FLAGS & {"ear", "final"} else []
            return {"methods": [*asked, *stt, "do", "seen"], "streams": streams}
        if method == "stream.stop":
            self.streams.pop(params["stream_id"], None)
            return {}
        if method == "seen":
            return {"seen": self.seen, "open": sorted(self.streams)}
        if method == "stt.finish":
            return {"text": "lights on", "confidence": 0.25}
        if method == "do":
            write(self.do(params))
        return {"status": "ok"} if method == "plugin.health" else {}

    def do(self, params: dict[str, Any]) -> bytes:  # noqa: PLR0911 - one branch per misbehaviour
        what = params["what"]
        stream = self.streams.get(params.get("stream_id", ""), next(iter(self.streams.values()), None))
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "ask":
            self.asked += 1
            return frame({"id": f"a{self.asked}", "method": params["method"], "params": params["params"]})
        if what == "notify":
            return frame({"method": params["method"], "params": params["params"]})
        if what == "unknown":
            lost = Stream("tick", params["stream_id"], {}, "lossy", 1)
            return b"".join(lost.item(seq) for seq in range(params["count"]))
        assert stream is not None
        if what == "send":
            return b"".join(stream.item() for _ in range(params["count"]))
        if what == "overrun":
            return b"".join(stream.item() for _ in range(stream.limit + 1 - stream.seq))
        if what == "disorder":
            return stream.item() + stream.item(stream.seq + 1)
        if what == "repeat":
            return stream.item() + stream.item(stream.seq - 1)
        del self.streams[stream.id]
        return stream.closed(params.get("reason", "end"))

    def produce(self) -> bytes:
        """A few items of every stream that may send."""
        out = b""
        for stream in list(self.streams.values()):
            for _ in range(16):
                if stream.may_send:
                    out += stream.item()
            if stream.method == "tick" and stream.seq == stream.count:
                out += stream.closed("end")
                del self.streams[stream.id]
        return out


def main() -> None:
    source, buffer, out = Source(), b"", b""
    while True:
        if not out or select.select([0], [], [], 0)[0]:
            data = os.read(0, CHUNK)
            if not data:
                return
            buffer += data
            while (end := buffer.find(b"\r\n\r\n")) >= 0:
                size = end + 4 + int(buffer[16:end])
                if len(buffer) < size:
                    break
                message = json.loads(buffer[end + 4 : size])
                buffer = buffer[size:]
                write(source.handle(message))
        out = source.produce()
        write(out)


if __name__ == "__main__":
    main()
