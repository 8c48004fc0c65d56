"""One connection to the runner: takes its messages, answers its requests, and knows what is open on it.

Rules here: one thread reads and dispatches; a request is answered exactly once; before `protocol.hello` only
`plugin.describe` and `plugin.health` are answered, everything else is -32600; a second hello is answered like the
first and starts nothing again; nothing that a handler does or raises ends the connection, except `SystemExit`.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder
from utter_protocol.messages import (
    EMPTY_OBJECT,
    InvalidMessage,
    decode_message,
    encode,
    error_body,
    notification_body,
    result_body,
)
from utter_protocol.methods import HelloParams, InvokeParams
from utter_sdk.calls import Calls
from utter_sdk.handlers import Cancelled, Handler, invalid_params, log_traceback, wire_error
from utter_sdk.requests import Request, Requests, current
from utter_sdk.stdio import FrameTooLargeError, log
from utter_sdk.streams import METHODS, OpenStreams
from utter_sdk.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from utter_protocol.framing import FramingError
    from utter_protocol.messages import Message, RequestId
    from utter_sdk.service import Service

_BEFORE_HELLO = frozenset({"protocol.hello", "plugin.describe", "plugin.health"})
_JUNK_SHOWN = 200


class _CancelParams(msgspec.Struct):
    id: int | str


_decode_invoke = msgspec.json.Decoder(InvokeParams).decode
_decode_cancel = msgspec.json.Decoder(_CancelParams).decode


class Wire(Protocol):
    """What carries frames: `stdio.Wire`, `sockets.SocketWire`, or a test. Only `send` is for any thread."""

    def read(self) -> bytes:
        """Wait for bytes; empty at the end."""

    def send(self, body: bytes, fds: Sequence[int] = (), /) -> None:
        """Send one frame, whole, with descriptors that stay the caller's."""

    def take(self, count: int, /) -> list[int]:
        """Return up to `count` descriptors that came with the frame that is being handled."""

    def close_surplus(self, unhandled: int, /) -> bool:
        """Close descriptors that no frame took, while `unhandled` bytes wait; return whether there were any."""


class Connection:
    """One connection of one plugin.

    Args:
        service: the plugin as it is served.
        wire: where the frames go.
    """

    def __init__(self, service: Service, wire: Wire) -> None:
        self.plugin = service.plugin
        self.lanes = service.lanes
        self.requests = Requests(self)
        self.calls = Calls(self.send, service.lanes, self.requests)
        self.greeted = False
        self.after_answer: Callable[[], None] | None = None
        """Set by a handler of the SDK's own: what happens once the answer has been sent."""
        self._service = service
        self._wire = wire
        self._ended = False
        self.subscriptions = Subscriptions(self)
        self._streams = OpenStreams(self, self.plugin.streams)
        self._methods = {
            **service.methods,
            "protocol.hello": Handler("protocol.hello", self._hello, None),
            "plugin.health": Handler("plugin.health", service.health, None),
        }
        for name in ("protocol.hello", "plugin.health"):
            self._methods[name].prepare()
        if self.plugin.streams:
            self._add_streams(self._streams)

    def serve(self) -> None:
        """Read until the wire ends.

        Raises:
            FramingError: the runner broke the framing.
            OSError: the wire broke.
        """
        self.calls.reader = threading.get_ident()
        decoder = FrameDecoder()
        wire = self._wire
        while data := wire.read():
            decoder.receive(data)
            while (body := decoder.next_frame()) is not None:
                self.take(body)
            if junk := decoder.take_junk():
                log(f"skipped {len(junk)} bytes from the runner that belong to no frame: {junk[:_JUNK_SHOWN]!r}")
            self.close_surplus(decoder.buffered)
        decoder.end()

    def end(self, reason: str) -> None:
        """End what is open, because the runner is gone; `reason` is what waiting handlers are told."""
        self._ended = True
        self.greeted = False
        self.call_back(self.requests.cancel_all(waits=True))
        self._streams.end(reason)
        self.subscriptions.end(reason)
        self.calls.end(reason)

    def leave(self, stop: SystemExit) -> NoReturn:
        """End the process, because a handler raised `SystemExit`."""
        self._service.end(exit_code(stop))

    def send(self, body: bytes, fds: Sequence[int] = (), /) -> None:
        """Send a message; from any thread. Nothing when the connection has ended.

        Raises:
            ValueError: before anything is sent: it exceeds max_frame, or descriptors cannot be sent here.
        """
        if self._ended:
            return
        try:
            self._wire.send(body, fds)
        except OSError:
            self._service.broken(self)

    def refuse(self, broken: FramingError) -> None:
        """Answer a framing error, the last thing that is sent; the end inside a frame is none to answer."""
        if broken.kind == "truncated":
            return
        error = RpcError(ErrorCode.INVALID_REQUEST, broken.message, {"framing": broken.kind})
        self.send(error_body(None, error))

    def take(self, body: bytes) -> None:
        """Take a frame's body."""
        try:
            message = decode_message(body)
        except InvalidMessage as invalid:
            self.calls.malformed(invalid.answers, invalid.error)
            self.send(error_body(invalid.id, invalid.error))
            return
        if not isinstance(message.method, str):
            self._answer(message)
            return
        raw = message.params if isinstance(message.params, msgspec.Raw) else EMPTY_OBJECT
        if isinstance(message.id, int | str):
            self._request(message.id, message.method, raw)
        else:
            self._notification(message.method, raw)

    def call_back(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Call what was to be called when a request is cancelled."""
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
                log_traceback(error)

    def close_surplus(self, unhandled: int) -> None:
        """Close descriptors that came with messages that announced none, while `unhandled` received bytes wait."""
        if self._wire.close_surplus(unhandled):
            log("closed descriptors that came from the runner although nothing asked for them")

    def _add_streams(self, streams: OpenStreams) -> None:
        functions: tuple[Callable[..., object], ...] = (streams.subscribe, streams.acknowledge, streams.stop)
        for name, function in zip(METHODS, functions, strict=True):
            self._methods[name] = Handler(name, function, None)
            self._methods[name].prepare()

    def _answer(self, message: Message) -> None:
        if not self.calls.answer(message, self._wire.take):
            log(f"an answer to a request that was never sent (id {message.id!r})")

    def _request(self, request_id: RequestId, name: str, raw: msgspec.Raw) -> None:
        try:
            self.requests.refuse_duplicate(request_id)
            handler, arguments = self._find(name, raw)
            inline = handler.lane is None and not handler.is_async
            request = Request(request_id, self) if inline else self.requests.add(request_id)
        except RpcError as error:
            self.send(error_body(request_id, error))
            return
        if inline:
            self._send_answer(request_id, self._call(request, request_id, handler, arguments))
        elif handler.is_async:
            self.lanes.spawn(self._work_async(request, request_id, handler, arguments))
        else:
            self.lanes.run(handler.lane or "", partial(self._work, request, request_id, handler, arguments))
        if self.after_answer is not None:
            after, self.after_answer = self.after_answer, None
            after()

    def _find(self, name: str, raw: msgspec.Raw) -> tuple[Handler, tuple[Any, ...]]:
        if name not in _BEFORE_HELLO:
            if not self.greeted:
                raise RpcError(ErrorCode.INVALID_REQUEST, f"{name}: protocol.hello comes first")
            if self._service.start_failed:
                raise RpcError(ErrorCode.PLUGIN_FAILED, self._service.start_failed)
        if name == "action.invoke" and self.plugin.ops:
            return self._find_op(raw)
        handler = self._methods.get(name)
        if handler is None:
            raise RpcError(
                ErrorCode.METHOD_NOT_FOUND,
                f"{self.plugin.hello.plugin.name} has no method {name}",
                {"method": name},
            )
        return handler, handler.decode(raw)

    def _find_op(self, raw: msgspec.Raw) -> tuple[Handler, tuple[Any, ...]]:
        try:
            params = _decode_invoke(raw)
        except msgspec.ValidationError as error:
            raise invalid_params("action.invoke", error) from None
        handler = self.plugin.ops.get(params.op.removeprefix("action."))
        if handler is None:
            raise RpcError(
                ErrorCode.INVALID_PARAMS,
                f"action.invoke: {self.plugin.hello.plugin.name} has no op {params.op!r} (in op)",
                {"field": "op"},
            )
        return handler, handler.convert(params.args, "args")

    def _hello(self, params: HelloParams) -> dict[str, Any]:
        if not self.greeted:
            self.after_answer = partial(self._greeted, params.settings)
        # Every member on the wire, defaults too: the answer is what a person reads first when a handshake fails.
        return msgspec.structs.asdict(self.plugin.hello)

    def _greeted(self, settings: dict[str, Any]) -> None:
        self.greeted = True
        self._service.start(settings)

    def _notification(self, name: str, raw: msgspec.Raw) -> None:
        if name == "$/cancel":
            self._cancel(raw)
        elif not self.greeted:
            return
        elif name == "stream.closed":
            self.subscriptions.take_closed(raw)
        elif self.subscriptions.take(raw):
            return
        elif name in self.plugin.notifications:
            self._notify_handler(self.plugin.notifications[name], raw)
        elif name in ("stream.ack", "stream.stop") and name in self._methods:
            self._notify_handler(self._methods[name], raw)

    def _notify_handler(self, handler: Handler, raw: msgspec.Raw) -> None:
        try:
            arguments = handler.decode(raw)
            if handler.is_async:
                self.lanes.spawn(self._notified(handler, arguments))
            else:
                handler.function(*arguments)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            _log_failure(handler, error)

    async def _notified(self, handler: Handler, arguments: tuple[Any, ...]) -> None:
        try:
            await handler.function(*arguments)
        except SystemExit as stop:
            self.leave(stop)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            _log_failure(handler, error)

    def _cancel(self, raw: msgspec.Raw) -> None:
        try:
            request_id = _decode_cancel(raw).id
        except msgspec.ValidationError as error:
            log(f"$/cancel: {error}")
            return
        waiting, callbacks = self.requests.cancel(request_id)
        if waiting:
            self.send(error_body(request_id, wire_error(Cancelled())))
        self.call_back(callbacks)

    def _work(self, request: Request, request_id: RequestId, handler: Handler, arguments: tuple[Any, ...]) -> None:
        if not self.requests.start(request):
            return
        try:
            body = self._call(request, request_id, handler, arguments)
        except SystemExit as stop:
            self.leave(stop)
        self.requests.finish(request)
        self._send_answer(request_id, body)

    async def _work_async(
        self, request: Request, request_id: RequestId, handler: Handler, arguments: tuple[Any, ...]
    ) -> None:
        import asyncio  # noqa: PLC0415 - loaded already by whoever runs this

        if not self.requests.start(request):
            return
        current.set(request)
        task = asyncio.current_task()
        if task is not None:
            self.requests.on_cancel(request, partial(task.get_loop().call_soon_threadsafe, task.cancel))
        try:
            body = result_body(request_id, handler.encode(await handler.function(*arguments)))
        except SystemExit as stop:
            self.leave(stop)
        except asyncio.CancelledError:
            body = error_body(request_id, wire_error(Cancelled()))
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            body = _failure(request_id, error)
        self.requests.finish(request)
        self._send_answer(request_id, body)

    def _call(self, request: Request, request_id: RequestId, handler: Handler, arguments: tuple[Any, ...]) -> bytes:
        """Return the answer's body; raises only `SystemExit`."""
        token = current.set(request)
        try:
            return result_body(request_id, handler.encode(handler.function(*arguments)))
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            return _failure(request_id, error)
        finally:
            request.finished = True
            current.reset(token)

    def _send_answer(self, request_id: RequestId, body: bytes) -> None:
        try:
            self.send(body)
        except FrameTooLargeError as error:
            refusal = RpcError(ErrorCode.TOO_LARGE_INLINE, f"the answer is too large: {error}", {"bound": "max_frame"})
            self.send(error_body(request_id, refusal))

    def notify(self, method: str, params: Any) -> None:
        """Send a notification; `Plugin.notify` says what it raises."""
        self.send(notification_body(method, EMPTY_OBJECT if params is None else encode(params)))


def _failure(request_id: RequestId, error: BaseException) -> bytes:
    answer = wire_error(error)
    if answer.code == ErrorCode.INTERNAL_ERROR and answer is not error:
        log_traceback(error)
    try:
        return error_body(request_id, answer)
    except (TypeError, ValueError) as why:
        # The plugin put something into its RpcError that is no JSON.
        return error_body(request_id, wire_error(TypeError(f"an RpcError that is no JSON: {why}")))


def _log_failure(handler: Handler, error: Exception) -> None:
    if isinstance(error, RpcError):
        log(f"notification {error.message}")
    else:
        log(f"notification {handler.name}:")
        log_traceback(error)


def exit_code(stop: SystemExit) -> int:
    """The process's exit code for a `SystemExit`; a text is logged."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    log(str(stop.code))
    return 1
