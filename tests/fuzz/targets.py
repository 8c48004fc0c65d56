"""What reads frames: the codec, the runner's peer, and the reading half of the SDK.

Rules here: each target takes one stream in its pieces, knows from the oracle what has to come of it, and raises
AssertionError where that did not come; whatever else is raised is a failure just as much.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self
from unittest import mock

import utter_sdk
import utter_sdk.calls
import utter_sdk.connection
import utter_sdk.handlers
import utter_sdk.service
from fuzz import oracle
from fuzz.generate import SERVED
from support.rpc_tools import Kind, Recorder, Rig
from utter_protocol.errors import RpcError
from utter_protocol.framing import FramingError, encode_frame
from utter_protocol.methods import ActionResult
from utter_runner.rpc.interface import Limits
from utter_runner.rpc.peer import Peer
from utter_sdk.connection import Connection
from utter_sdk.lanes import Lanes
from utter_sdk.service import Service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Raw

    from utter_protocol.messages import RequestId, StreamItem

# Small, so that bounds are met.
LIMITS = Limits(max_frame=16_384, max_header=512, max_junk=1_024, max_in_flight=8)
_OWN_REQUESTS = 3
_HELLO = encode_frame(
    b'{"jsonrpc":"2.0","id":"hello","method":"protocol.hello",'
    b'"params":{"protocol":"1.0","abi":1,"runner":"fuzz","epoch":1}}'
)


def codec(data: bytes, pieces: list[bytes]) -> oracle.Meaning:
    """The framing does not depend on the pieces, and no message means something else than the document says."""
    whole, parts = oracle.split([data], LIMITS), oracle.split(pieces, LIMITS)
    assert (whole.bodies, whole.junk, whole.framing) == (parts.bodies, parts.junk, parts.framing), "pieces matter"
    oracle.judge(whole)
    return whole


class _Handler(Recorder):
    """Answers requests with all that a handler may do."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[RequestId] = []
        self.answer = self.act

    def act(self, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        if method == "fuzz.later":
            self.kept.append(request_id)
        elif method == "fuzz.error":
            peer.reply_error(request_id, RpcError(7, "asked for", {"n": 1}))
        elif method == "fuzz.raise":
            raise RpcError(8, "raised")
        else:
            peer.reply(request_id, params)
        if method == "fuzz.twice":
            peer.reply(request_id, b"2")


def peer(pieces: list[bytes], meaning: oracle.Meaning, kind: Kind) -> None:
    """A peer with requests of its own answers every request exactly once, and nothing is logged as an error.

    Must be called inside of a trio loop.
    """
    rig = Rig()
    try:
        _Exchange(rig, kind).take(pieces, meaning)
    finally:
        rig.close()


class _Exchange:
    """A peer, and what the far end has got from it."""

    def __init__(self, rig: Rig, kind: Kind) -> None:
        self.rig = rig
        self.handler = _Handler()
        limits = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}
        self.peer, _, self.remote = rig.peer(kind, self.handler, **limits)
        self.answers: Counter[str] = Counter()
        self.goodbyes = 0
        self.replies: Counter[int] = Counter()
        self.items = 0
        self.peer.on_item = self._on_item
        for number in range(_OWN_REQUESTS):
            self.peer.request("fuzz", b"{}", partial(self._on_reply, number))

    def _on_reply(self, number: int, result: Raw | None, error: RpcError | None) -> None:
        assert (result is None) != (error is None)
        self.replies[number] += 1

    def _on_item(self, method: str, item: StreamItem) -> None:
        assert method
        assert item.seq >= 0
        self.items += 1

    def _settle(self) -> None:
        self.rig.settle()
        self._read()

    def _read(self) -> None:
        for message in self.remote.receive():
            if "method" not in message:
                self.answers[json.dumps(message["id"])] += 1
                self.goodbyes += "framing" in (message.get("error", {}).get("data") or {})

    def take(self, pieces: list[bytes], meaning: oracle.Meaning) -> None:
        for piece in pieces:
            rest = memoryview(piece)
            while rest and not self.peer.channel.closed:
                rest = rest[self.remote.write(rest) :]
                self.rig.reactor.turn()
                self._read()
        self._settle()
        # The stream has not ended yet, so nobody knows that it will be cut off.
        broken = bool(meaning.framing) and meaning.framing != "truncated"
        assert self.goodbyes == broken, f"{self.goodbyes} answers to {meaning.framing or 'no'} framing error"
        kept = self.handler.kept
        for request_id in kept:
            self.peer.reply(request_id, b"0")
        self._settle()
        # Where the framing broke, who was still in flight has the end of the connection for an answer.
        got = self.answers + Counter(map(json.dumps, kept if broken else []))
        expected = meaning.answers + Counter({"null": self.goodbyes})
        assert got == expected, f"answered {got - expected} too often and {expected - got} not"
        assert self.items == meaning.verdicts["item of a stream"]
        self.remote.half_close()
        self.rig.settle()
        self.peer.close("the stream is over")
        assert self.replies == Counter(range(_OWN_REQUESTS))
        assert len(self.handler.closed) == 1
        # The one of the last flush stays until its time.
        assert len(self.rig.deadlines) <= 1


class _Ended(BaseException):
    """The plugin would end its process."""


class _Service(Service):
    def end(self, code: int) -> NoReturn:
        raise _Ended(code)

    def broken(self, connection: Connection) -> NoReturn:
        raise _Ended(f"broken: {connection}")


class _Wire:
    """The pieces of a stream for a plugin, and what it sends."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.sent: list[bytes] = []
        self._pieces = deque(pieces)

    def read(self) -> bytes:
        return self._pieces.popleft() if self._pieces else b""

    def send(self, body: bytes, fds: Sequence[int] = (), /) -> None:
        assert not fds
        self.sent.append(body)

    def take(self, count: int, /) -> list[int]:
        assert count >= 0
        return []

    def close_surplus(self, unhandled: int, /) -> bool:
        return unhandled < 0


def _plugin() -> utter_sdk.Plugin:
    plugin = utter_sdk.Plugin("fuzz", version="1.0.0", kind="bundle")

    def echo(params: dict[str, Any]) -> dict[str, Any]:
        return params

    def error(params: dict[str, Any]) -> dict[str, Any]:
        raise RpcError(7, "asked for", {"n": len(params)})

    for name in SERVED:
        plugin.method(name)(error if name in ("fuzz.error", "fuzz.raise") else echo)

    @plugin.action("fuzz", side_effect="none")
    def fuzz(args: dict[str, Any]) -> ActionResult:
        return ActionResult(ok=bool(args))

    @plugin.notification("fuzz.echo")
    def note(params: dict[str, Any]) -> None:
        raise RpcError(9, f"noted {len(params)}")

    return plugin


class SdkTarget:
    """A plugin of the SDK whose handlers answer at once; a context manager that keeps its log to itself."""

    def __init__(self) -> None:
        self._service = _Service(_plugin(), Lanes())
        self._service.prepare()
        self._patches = ExitStack()
        self.tracebacks: list[BaseException] = []

    def __enter__(self) -> Self:
        modules = (utter_sdk.calls, utter_sdk.connection, utter_sdk.handlers, utter_sdk.service)
        for module in modules:
            for name, stand_in in (("log", lambda _text: None), ("log_traceback", self.tracebacks.append)):
                if hasattr(module, name):
                    self._patches.enter_context(mock.patch.object(module, name, stand_in))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def take(self, pieces: list[bytes]) -> None:
        """Every request is answered exactly once, and no handler of the SDK's own fails."""
        data = b"".join(pieces)
        # The SDK has the bounds of the protocol, not ours.
        meaning = oracle.split([data], Limits())
        oracle.judge(meaning)
        wire = _Wire([_HELLO, *pieces])
        connection = Connection(self._service, wire)
        self._service.connection = connection
        framing = ""
        try:
            connection.serve()
        except FramingError as error:
            framing = error.kind
        assert framing == meaning.framing, f"framing is {framing or 'in order'}, not {meaning.framing or 'in order'}"
        connection.end("the stream is over")
        answers: Counter[str] = Counter()
        for body in wire.sent:
            message = json.loads(body)
            assert message["jsonrpc"] == "2.0"
            assert ("result" in message) != ("error" in message)
            answers[json.dumps(message["id"])] += 1
        expected = meaning.answers + Counter({'"hello"': 1})
        assert answers == expected, f"answered {answers - expected} too often and {expected - answers} not"
        assert not self.tracebacks, repr(self.tracebacks[0])
