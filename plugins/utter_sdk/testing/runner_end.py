"""The runner's end of a connection to a plugin, as a test drives it.

Rules here: what arrives is sorted with `_changed` held; a request of the plugin is answered by the function that the
test handed in, kept for the test, or refused, never ignored; what such a function raises by mistake is raised again in
the test.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from utter_protocol import ABI, PROTOCOL
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import (
    Message,
    decode_error,
    encode,
    error_body,
    notification_body,
    request_body,
    result_body,
)
from utter_protocol.methods import (
    DescribeResult,
    HealthResult,
    HelloParams,
    HelloResult,
    StreamClosedParams,
    StreamData,
    SubscribeResult,
)
from utter_sdk.received import close_all
from utter_sdk.testing.parts import Asked, Mode, OfferedStream, Passing, Pending, PluginStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from utter_protocol.messages import RequestId

T = TypeVar("T")


class _CancelParams(msgspec.Struct):
    id: int | str


class RunnerEnd:
    """What `PluginProcess` and `PluginHarness` have in common.

    Attributes:
        hello: answer to `protocol.hello`, after the handshake.
        description: answer to `plugin.describe`, after the handshake.
        health: answer to `plugin.health` during the handshake.
        descriptors: what the plugin has sent with its messages, oldest first; what the test does not take out is closed
            at the end.
    """

    hello: HelloResult
    description: DescribeResult
    health: HealthResult

    def __init__(self, settings: Mapping[str, Any] | None) -> None:
        self._settings = dict(settings or {})
        self.descriptors: list[int] = []
        self._changed = threading.Condition()
        self._next_id = 0
        self._open: set[int] = set()
        self._answers: dict[int, Message] = {}
        self._notifications: deque[Message] = deque()
        self._unmatched: deque[Message] = deque()
        self._streams: dict[str, PluginStream] = {}
        self._host: dict[str, Callable[[Any], Any] | None] = {}
        self._asked: deque[Asked] = deque()
        self._kept: dict[RequestId, Asked] = {}
        self._offers: dict[str, OfferedStream] = {}
        self._mistake: BaseException | None = None

    def shake_hands(self, settings: Mapping[str, Any] | None = None, epoch: int = 1) -> None:
        """Send protocol.hello, plugin.describe and plugin.health, as the runner does; `settings` are new ones."""
        if settings is not None:
            self._settings = dict(settings)
        greeting = HelloParams(
            protocol=PROTOCOL, abi=ABI, runner="utter_sdk.testing", epoch=epoch, settings=self._settings
        )
        self.hello = self._typed("protocol.hello", greeting, HelloResult)
        self.description = self._typed("plugin.describe", {}, DescribeResult)
        self.health = self._typed("plugin.health", {}, HealthResult)

    def call(self, method: str, params: Any = None, timeout: float | None = None) -> Any:
        """Send a request and return its result; raises as `Pending.result`."""
        return self.send(method, params).result(timeout)

    def send(self, method: str, params: Any = None) -> Pending:
        """Send a request without waiting for the answer."""
        with self._changed:
            self._next_id += 1
            self._open.add(self._next_id)
            pending = Pending(self, self._next_id, method)
        self.send_body(request_body(pending.id, method, encode({} if params is None else params)))
        return pending

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.send_body(notification_body(method, encode({} if params is None else params)))

    def notification(self, method: str, timeout: float | None = None) -> Any:
        """Wait for the plugin's next notification `method` and return its params; others stay queued."""

        def find() -> Message | None:
            for message in self._notifications:
                if message.method == method:
                    self._notifications.remove(message)
                    return message
            return None

        message = self.wait_for(find, timeout, f"a notification {method}")
        return msgspec.json.decode(message.params) if isinstance(message.params, msgspec.Raw) else None

    def unmatched(self, timeout: float | None = None) -> Message:
        """Wait for an answer that no request of `send` waits for: one with `id: null`, or a second one to a request."""

        def find() -> Message | None:
            return self._unmatched.popleft() if self._unmatched else None

        return self.wait_for(find, timeout, "an answer to no request")

    def subscribe(
        self,
        method: str,
        params: Any = None,
        *,
        mode: Mode | None = None,
        window: int = 64,
        acks: bool = True,
        timeout: float | None = None,
    ) -> PluginStream:
        """Open a stream of the plugin's, as the runner does for a subscriber; raises as `call`.

        Args:
            method: the stream's name.
            params: its parameters.
            mode: None: the stream's own.
            window: the credit of a reliable stream, in items.
            acks: whether items of a reliable stream are acknowledged as the test takes them.
            timeout: seconds until the plugin has answered.
        """
        asked = {"method": method, "params": {} if params is None else params, "mode": mode, "window": window}
        opened = msgspec.convert(self.call("stream.subscribe", asked, timeout), SubscribeResult)
        stream = PluginStream(self, method, opened, acks=acks)
        with self._changed:
            self._streams[stream.stream_id] = stream
            # Items may have arrived before the stream was known here.
            early, self._notifications = self._notifications, deque()
            for message in early:
                self._sort_notification(message)
        return stream

    def on_host(self, method: str, handler: Callable[[Any], Any]) -> None:
        """Answer the plugin's requests `method` with `handler(params)`, which must not wait.

        What it returns is the result (None is `{}`; `Passing` adds descriptors), an `RpcError` that it raises the
        answer. Any other exception is answered -32603, and raised in the test's next wait.
        """
        self._host[method] = handler

    def hold_host(self, method: str) -> None:
        """Keep the plugin's requests `method` for `asked`."""
        self._host[method] = None

    def asked(self, method: str, timeout: float | None = None) -> Asked:
        """Wait for the plugin's next request `method`, which `hold_host` has kept."""

        def find() -> Asked | None:
            for asked in self._asked:
                if asked.method == method:
                    self._asked.remove(asked)
                    return asked
            return None

        return self.wait_for(find, timeout, f"a request {method} of the plugin's")

    def offer(self, method: str, mode: Mode = "lossy") -> OfferedStream:
        """Let the plugin subscribe to the stream `method`; `mode` is what it gets if it asks for none."""
        stream = self._offers[method] = OfferedStream(self, method, mode)
        return stream

    def close_descriptors(self) -> None:
        """Close what the plugin has sent and the test has not taken."""
        fds, self.descriptors = self.descriptors, []
        close_all(fds)

    def wait_answer(self, pending: Pending, timeout: float | None) -> Any:
        """Raises and returns as `Pending.result`."""
        message = self.wait_for(lambda: self._answers.pop(pending.id, None), timeout, f"the answer to {pending.method}")
        if isinstance(message.error, msgspec.Raw):
            raise decode_error(message.error)
        return msgspec.json.decode(message.result) if isinstance(message.result, msgspec.Raw) else None

    def send_body(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message's body to the plugin, and descriptors with it."""
        raise NotImplementedError

    def wait_for(self, find: Callable[[], T | None], timeout: float | None, what: str) -> T:
        """Wait until `find` returns something.

        Raises:
            TimeoutError: it did not, within `timeout` seconds; names `what`.
            PluginDiedError: it never will.
        """
        raise NotImplementedError

    def _sort(self, message: Message) -> None:
        """Put away a message that arrived, with `_changed` held."""
        if not isinstance(message.method, str):
            if message.id in self._open and isinstance(message.id, int):
                self._open.discard(message.id)
                self._answers[message.id] = message
            else:
                self._unmatched.append(message)
        elif isinstance(message.id, int | str):
            self._sort_request(message.id, message.method, message.params)
        else:
            self._sort_notification(message)

    def _sort_notification(self, message: Message) -> None:
        params = msgspec.json.decode(message.params) if isinstance(message.params, msgspec.Raw) else {}
        try:
            if message.method == "$/cancel":
                asked = self._kept.get(msgspec.convert(params, _CancelParams).id)
                if asked is not None:
                    asked.cancelled = True
            elif message.method == "stream.ack":
                self._tell_offers("stream.ack", params)
            elif message.method == "stream.closed":
                closed = msgspec.convert(params, StreamClosedParams)
                self._streams[closed.stream_id].reason = closed.reason
            else:
                item = msgspec.convert(params, StreamData)
                self._streams[item.stream_id].items.append(item)
        except (msgspec.ValidationError, KeyError):
            self._notifications.append(message)

    def _sort_request(self, request_id: RequestId, method: str, raw: Any) -> None:
        params = msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else {}
        if method in self._host and self._host[method] is None:
            asked = self._kept[request_id] = Asked(self, request_id, method, params)
            self._asked.append(asked)
            return
        try:
            answer = self._serve(method, params)
            passing = answer if isinstance(answer, Passing) else Passing(answer, ())
            body = result_body(request_id, encode({} if passing.result is None else passing.result))
        except RpcError as error:
            self._reply(error_body(request_id, error))
        except Exception as error:  # noqa: BLE001 - a test's function may raise anything; the test hears of it
            self._mistake = self._mistake or error
            self._reply(error_body(request_id, RpcError(ErrorCode.INTERNAL_ERROR, f"{type(error).__name__}: {error}")))
        else:
            self._reply(body, passing.fds)

    def _serve(self, method: str, params: dict[str, Any]) -> Any:
        if method == "stream.subscribe" and params.get("method") in self._offers:
            return self._offers[params["method"]].opened(params)
        handler = self._host.get(method)
        if handler is not None:
            return handler(params)
        if method in ("stream.stop", "stream.ack") and self._offers:
            return self._tell_offers(method, params)
        raise RpcError(ErrorCode.METHOD_NOT_FOUND, f"{method}: the test serves no such request; see on_host")

    def _reply(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send an answer from within `_sort`."""
        raise NotImplementedError

    def _tell_offers(self, method: str, params: dict[str, Any]) -> None:
        for offer in self._offers.values():
            offer.take(method, params)

    def _raise_mistake(self) -> None:
        if self._mistake is not None:
            mistake, self._mistake = self._mistake, None
            raise mistake

    def _typed(self, method: str, params: Any, wanted: type[T]) -> T:
        return msgspec.convert(self.call(method, params), wanted)
