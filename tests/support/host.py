"""The runner's side of `host.*` between fake plugins: what a plugin asks, and what it is answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import Raw

from support.policy import EVERYTHING_ON
from support.stage import DONE, Person, Stage
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.host.callbacks import HostCallbacks
from utter_runner.host.context import ContextCache
from utter_runner.host.requests import HostRequests
from utter_runner.policy.marks import Mark, lowest
from utter_runner.supervision.fake import FakeInstance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


def fake_plugin(
    name: str,
    answers: Mapping[str, Any] | None = None,
    *,
    methods: Iterable[str] = (),
    streams: Iterable[str] = (),
    provides: Iterable[str] = (),
    requires: Iterable[str] = (),
    kind: str = "action",
) -> FakeInstance:
    """A fake plugin that has shaken hands. It says that it answers `methods` and what is in `answers`."""
    instance = FakeInstance(name, answers, provides=provides, requires=requires)
    instance.describe(methods=(*methods, *(answers or {})), streams=streams, kind=kind)
    return instance


class AskingPeer:
    """A plugin's peer, as whoever answers its requests sees it. A second answer to a request fails the test."""

    def __init__(self, name: str = "asker") -> None:
        self.name = name
        self.closed = False
        self.answers: dict[int, tuple[Any, RpcError | None]] = {}
        self._open: dict[int, Callable[[], None] | None] = {}
        self._changed = trio.Event()
        self._next_id = 0

    @property
    def serving(self) -> int:
        return len(self._open)

    def arrives(self) -> int:
        """A request arrives; return its id."""
        self._next_id += 1
        self._open[self._next_id] = None
        return self._next_id

    def cancels(self, request_id: int) -> None:
        """The plugin sends `$/cancel`."""
        callback = self._open.get(request_id)
        if callback is not None:
            callback()

    def on_cancel(self, request_id: int, callback: Callable[[], None]) -> None:
        if request_id in self._open:
            self._open[request_id] = callback

    def reply(self, request_id: int, result: bytes | Raw) -> None:
        self._answer(request_id, json.loads(bytes(result)), None)

    def reply_object(self, request_id: int, result: object) -> None:
        self._answer(request_id, json.loads(msgspec.json.encode(result)), None)

    def reply_error(self, request_id: int, error: RpcError) -> None:
        self._answer(request_id, None, error)

    def _answer(self, request_id: int, result: Any, error: RpcError | None) -> None:
        del self._open[request_id]
        self.answers[request_id] = (result, error)
        self._changed.set()
        self._changed = trio.Event()

    async def answer(self, request_id: int) -> Any:
        """Wait for the answer to a request: its result, or the error, raised."""
        with trio.fail_after(100):
            while request_id not in self.answers:
                await self._changed.wait()
        result, error = self.answers[request_id]
        if error is not None:
            raise error
        return result


class HostStage(Stage):
    """A gate, and the door for plugins' requests in front of it.

    Args:
        plugins: besides `desktop`, which has the ops of `support.policy.OPS`.
        instead: as in HostRequests.
    """

    def __init__(
        self,
        *plugins: FakeInstance,
        persons: tuple[Person, ...] = (),
        instead: Mapping[str, Callable[..., Awaitable[object]]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*persons, others=plugins, **{"rules": EVERYTHING_ON, "invoke": DONE, **options})
        self.emitted: list[tuple[str, str, Any]] = []
        self.carried: list[tuple[bytes, str, str]] = []
        self.marks: dict[str, Mark] = {}
        self.host = HostCallbacks()
        self.context = ContextCache(self.supervisor)
        self.requests = HostRequests(
            self.supervisor,
            gate=self.gate,
            confirmer=self.confirmer,
            context=self.context,
            emitter=self,
            handles=self,
            instead=instead or {},
            timeout=30.0,
        )
        self.requests.attach(self.host)
        self.peer = AskingPeer()

    def carry(self, message: Raw, sender: str, receiver: str, mark: Mark) -> Mark:
        """Take note of a message that may take handles along; `marks` says what those of its sender have."""
        self.carried.append((bytes(message), sender, receiver))
        return lowest(mark, self.mark_in(message, sender)) if b"handle://" in bytes(message) else "user"

    def mark_in(self, message: bytes | Raw, holder: str) -> Mark:
        """Return the mark of the handles that a plugin holds, if there is one in the message."""
        return self.marks.get(holder, "user") if b"handle://" in bytes(message) else "user"

    def emit(self, *what: Any) -> Any:
        """Take an event (`emit(event)`), or a plugin's item (`emit(instance, method, data)`)."""
        if len(what) == 1:
            super().emit(what[0])
            return None
        instance, method, data = what
        if method not in instance.handshake.streams:
            raise RpcError(ErrorCode.INVALID_PARAMS, f"no stream {method}", {"field": "method"})
        self.emitted.append((instance.id, method, json.loads(bytes(data))))
        return 3

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with super().running() as nursery:
            await nursery.start(self.requests.run)
            yield nursery

    def ask(self, instance: FakeInstance, call: str, /, **params: Any) -> int:
        """A plugin asks something; return the id to wait for."""
        request_id = self.peer.arrives()
        try:
            self.host.on_request(instance, self.peer, request_id, call, Raw(json.dumps(params).encode()))
        except RpcError as error:
            self.peer.reply_error(request_id, error)
        return request_id

    async def asks(self, instance: FakeInstance, call: str, /, **params: Any) -> Any:
        """A plugin asks something; return the result or raise the error."""
        return await self.peer.answer(self.ask(instance, call, **params))
