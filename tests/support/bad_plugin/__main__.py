"""A plugin of every kind that keeps to PROTOCOL.md, and departs from it in the ways that its arguments name.

python -I -S bad_plugin [DEFECT...] [transport=connect|listen]

Rules here: standard library only, and nothing of the SDK, so that the kit is tested against an implementation of its
own; without a defect every check holds.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from typing import Any

import ear
from answers import ITEMS, Answers, RpcError
from wire import WITH, Frames, FramingError, Wire

TICK_S = 0.002
TIRED = 400
DEEPEST = 100 if "shallow" in WITH else 256
LONGEST_ID = 1024
SENT_ONCE_GREETED: dict[str, dict[str, Any]] = {
    "bad-announcement": {"method": "plugin.health_changed", "params": {"status": "fine"}},
    "bad-request": {"id": 1, "method": "host.confirm", "params": {"question": "?"}},
    "asks": {"id": 1, "method": "host.confirm", "params": {"text": "?"}},
    "announces": {"method": "plugin.health_changed", "params": {"status": "ok", "detail": ""}},
    "odd-notification": {"method": 5},
}


class Plugin:
    """Bytes to messages, and messages to answers."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.answers = Answers(wire.transport)
        self.served = self.asked = 0
        self.seen: list[Any] = []
        self.just_now: list[Any] = []

    def serve(self) -> int:
        """Until the end of the input."""
        start()
        frames = Frames()
        if "speaks-first" in WITH:
            self.wire.send(SENT_ONCE_GREETED["announces"])
        while True:
            if not select.select([self.wire.read_fd], [], [], TICK_S if self.answers.streams else None)[0]:
                self.tick()
                continue
            data = os.read(self.wire.read_fd, 65536)
            if not data:
                return self.end()
            try:
                bodies = frames.feed(data)
            except FramingError as error:
                if "goes-on" in WITH:
                    frames = Frames()
                    continue
                if "silent-framing" not in WITH:
                    named = {"framing": str(error)}
                    self.wire.send({"id": None, "error": {"code": -32600, "message": "framing", "data": named}})
                return 1
            self.just_now.clear()
            if "overrun-crashes" in WITH and ear.overrun():
                return 1
            self.take_all(bodies)
            self.tick()

    def take_all(self, bodies: list[bytes]) -> None:
        """Read what has come to its end."""
        for body in bodies:
            self.take(body)
        if not bodies and "asks-inside-frames" in WITH and self.answers.greeted:
            self.asked += 1
            self.wire.send({**SENT_ONCE_GREETED["asks"], "id": f"inside-{self.asked}"})

    def end(self) -> int:
        """What it does when its input has ended."""
        if "bye" in WITH:
            self.wire.send({"id": "bye", "result": {}})
        if "ignores-eof" in WITH:
            time.sleep(60)
        if "hears-on" in WITH:
            ear.hear_on()
        return 3 if "bad-exit" in WITH else 0

    def take(self, body: bytes) -> None:
        """Read a body."""
        if not body and "quits-empty" in WITH:
            sys.exit(1)
        try:
            check(body)
            message = json.loads(body.decode(), parse_constant=constant, object_pairs_hook=pairs)
        except ValueError as error:
            if "crashes" in WITH:
                raise
            if "silent-parse" not in WITH:
                self.wire.send({"id": None, "error": {"code": -32700, "message": str(error)}})
            return
        for one in message if "batches" in WITH and isinstance(message, list) else [message]:
            self.judge(one)

    def judge(self, message: Any) -> None:
        """Tell requests, notifications and answers apart, and refuse the rest."""
        if not isinstance(message, dict):
            self.refuse(None, "no object")
            return
        request_id, method = message.get("id"), message.get("method")
        known = is_id(request_id) or ("any-id" in WITH and "id" in message)
        if message.get("jsonrpc") != "2.0" and "any-version" not in WITH:
            self.refuse(request_id if known else None, "jsonrpc")
        elif "method" not in message and ("result" in message or "error" in message):
            if "answers-answers" in WITH:
                self.refuse(request_id, "an answer")
        elif not isinstance(method, str) or ("id" in message and not known):
            self.refuse(request_id if known else None, "no message")
        elif "id" not in message:
            self.notification(method, message.get("params", {}))
        else:
            absent: Any = None if "needs-params" in WITH else {}
            self.request(request_id, method, message.get("params", absent))

    def refuse(self, request_id: Any, why: str) -> None:
        """Answer what is no message."""
        code = -32700 if "one-code" in WITH else -32600
        self.wire.send({"id": request_id, "error": {"code": code, "message": why}})

    def notification(self, method: str, params: Any) -> None:
        """Take a notification."""
        if "answers-notifications" in WITH:
            self.wire.send({"id": None, "error": {"code": -32601, "message": method}})
        if "quits-notifications" in WITH and method not in ("$/cancel", "stt.feed", "stream.ack"):
            sys.exit(1)
        if method == "stream.ack" and isinstance(params, dict):
            self.answers.ack(**params)
        if method == "$/cancel" and "cancel-answers" in WITH and isinstance(params, dict):
            self.wire.send({"id": params.get("id"), "error": {"code": -32002, "message": "cancelled"}})
        if method == "$/cancel" and "cancel-crashes" in WITH:
            params["id"] + 0

    def request(self, request_id: Any, method: str, params: Any) -> None:
        """Answer a request."""
        if self.ignores(request_id):
            return
        if "ids-once" in WITH and request_id == "again" and request_id in self.seen:
            self.refuse(request_id, "an id of before")
            return
        self.seen.append(request_id)
        answer: dict[str, Any] = {"id": given_back(request_id)}
        before = len(self.answers.streams)
        try:
            answer["result"] = self.answers.to(method, params)
        except RpcError as error:
            answer["error"] = error.body
        if "both" in WITH:
            answer["error"] = None
        if "items-first" in WITH and len(self.answers.streams) > before:
            self.tick()
        self.wire.send(answer)
        if "twice" in WITH and method == "plugin.describe":
            self.wire.send(answer)
        if method == "protocol.hello":
            self.answers.greeted = True
            for defect in SENT_ONCE_GREETED.keys() & WITH:
                self.wire.send(SENT_ONCE_GREETED[defect])

    def ignores(self, request_id: Any) -> bool:
        """Whether a request gets no answer."""
        self.served += 1
        twice = request_id in self.just_now
        self.just_now.append(request_id)
        return (
            ("drops-duplicates" in WITH and twice)
            or ("tires" in WITH and self.served > TIRED)
            or ("no-zero" in WITH and request_id == 0)
        )

    def tick(self) -> None:
        """Send an item of each stream that may send."""
        for stream in list(self.answers.streams.values()):
            while stream.name in ITEMS and stream.may_send:
                self.wire.send({"method": stream.name, "params": stream.next_item()})
                if stream.mode == "lossy" or stream.sent % 16 == 0:
                    break


def start() -> None:
    """What some do before they read anything."""
    if "ignores-eof" in WITH or "needs-kill" in WITH:
        import signal  # noqa: PLC0415 - it starts very often, and each import counts

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "leaves" in WITH:
        import subprocess  # noqa: PLC0415 - see above

        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True, stdout=2)


def check(body: bytes) -> None:
    """Refuse what `json` would take: a byte order mark, and what nests too deep."""
    if body.startswith(b"\xef\xbb\xbf"):
        raise ValueError("a byte order mark")
    if "compact" in WITH and not body.startswith(b'{"'):
        raise ValueError("it does not begin as usual")
    depth = 0
    for bracket in re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^][{}"]+', b"", body):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST and "crashes" not in WITH:
            raise ValueError("too deep")


def constant(name: str) -> float:
    """What stands for NaN and Infinity."""
    if "nan" in WITH:
        return 0.0
    raise ValueError(name)


def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object out of its members."""
    return dict(members[::-1] if "first-key" in WITH else members)


def is_id(value: Any) -> bool:
    """Whether a value is an id."""
    if isinstance(value, str):
        return len(value) <= LONGEST_ID
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def given_back(request_id: Any) -> Any:
    """The id as the answer has it."""
    if "string-ids" in WITH:
        return str(request_id)
    if "float-ids" in WITH and isinstance(request_id, int):
        rounded = int(float(request_id))
        return rounded if is_id(rounded) else 0
    return request_id


def main() -> None:
    """Serve, and end without the interpreter's own farewell."""
    if "dies" in WITH:
        os.write(2, b"this plugin cannot start\n")
        sys.exit(1)
    try:
        code = Plugin(Wire()).serve()
    except BrokenPipeError:
        code = 0
    os._exit(code)


if __name__ == "__main__":
    main()
