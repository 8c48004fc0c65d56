"""Serving a plugin: reads frames, answers the handshake, calls handlers, ends the process.

Rules here: one thread reads and dispatches; a request is answered exactly once; before `protocol.hello` only
`plugin.describe` and `plugin.health` are answered, everything else is -32600; a second hello is answered like the
first and starts nothing again; nothing that a handler does or raises ends the loop, except `SystemExit`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder, FramingError
from utter_protocol.messages import (
    EMPTY_OBJECT,
    InvalidMessage,
    decode_message,
    encode,
    error_body,
    notification_body,
    result_body,
)
from utter_protocol.methods import HealthResult, HelloParams, InvokeParams
from utter_sdk.handlers import Cancelled, Handler, describe, invalid_params, wire_error
from utter_sdk.lanes import Lanes
from utter_sdk.requests import Request, Requests, current
from utter_sdk.stdio import FrameTooLargeError, Wire, log, take_over

if TYPE_CHECKING:
    from utter_protocol.messages import RequestId
    from utter_sdk.plugin import Plugin

_BEFORE_HELLO = frozenset({"protocol.hello", "plugin.describe", "plugin.health"})
_JUNK_SHOWN = 200


class _CancelParams(msgspec.Struct):
    id: int | str


_decode_invoke = msgspec.json.Decoder(InvokeParams).decode
_decode_cancel = msgspec.json.Decoder(_CancelParams).decode


def refuse_terminal(plugin: Plugin) -> None:
    """Exit with 2 and an explanation if stdin is a terminal."""
    if not os.isatty(0):
        return
    log(
        f"{plugin.hello.plugin.name} is a plugin for utter-runner. It speaks JSON-RPC in Content-Length frames on\n"
        "stdin and stdout, so it is not started by hand: name it in a [[plugin]] table of the runner's config,\n"
        "or talk to it in a test through utter_sdk.testing.PluginProcess."
    )
    sys.exit(2)


class Server:
    """Serves one plugin on this process's stdin and stdout."""

    def __init__(self, plugin: Plugin) -> None:
        self.requests = Requests()
        self._plugin = plugin
        self._lanes = Lanes()
        self._wire: Wire | None = None
        self.greeted = False
        self._settings: dict[str, Any] | None = None
        self._start_failed = ""
        self._methods = {
            **plugin.methods,
            "protocol.hello": Handler("protocol.hello", self._hello, None),
            "plugin.describe": Handler("plugin.describe", plugin.describe, None),
            "plugin.health": Handler("plugin.health", self._health, None),
        }
        if plugin.ops:
            self._methods["action.capabilities"] = Handler("action.capabilities", plugin.capabilities, None)

    def run(self) -> NoReturn:
        """Serve until the end of stdin, then end the process."""
        code = 1
        try:
            self._prepare()
            self._wire = take_over()
            self._take_signals()
            code = self._serve(self._wire)
        except SystemExit as stop:
            code = _exit_code(stop)
        except BaseException as error:  # noqa: BLE001 - the process ends here in any case; stderr must say why
            _log_traceback(error)
        self.end(code)

    def end(self, code: int) -> NoReturn:
        """End the process now, from any thread, after the `on_cancel` callbacks."""
        for callback in self.requests.cancel_all():
            with suppress(Exception):
                callback()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # Worker threads may sit in C code for as long as they like, and an orderly exit would wait for some of them.
        os._exit(code)

    def notify(self, method: str, params: Any) -> None:
        """Send a notification; `Plugin.notify` says what it raises."""
        if not self.greeted:
            raise RuntimeError(f"notify({method!r}): protocol.hello has not been answered yet")
        self._send(notification_body(method, EMPTY_OBJECT if params is None else encode(params)))

    def _prepare(self) -> None:
        plugin = self._plugin
        for group in (self._methods.values(), plugin.notifications.values(), plugin.ops.values()):
            for handler in group:
                handler.prepare()
        for hook in plugin.start_hooks:
            hook.prepare()

    def _take_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        # A Python handler runs on the main thread between two bytecodes: too late if that is about to wait in read().
        # What the interpreter writes to the wake-up descriptor arrives whatever the main thread does.
        wake, into = os.pipe()
        os.set_blocking(into, False)
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        ending = {signal.SIGTERM, signal.SIGINT} if _in_terminal_foreground() else {signal.SIGTERM}
        threading.Thread(target=self._watch, args=(wake, ending), name="utter-signals", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not SIG_IGN, which children would inherit.
            signal.signal(number, lambda *_: None)

    def _watch(self, wake: int, ending: set[signal.Signals]) -> None:
        while numbers := os.read(wake, 64):
            if ending.intersection(numbers):
                self.end(0)

    def _serve(self, wire: Wire) -> int:
        decoder = FrameDecoder()
        try:
            while data := wire.read():
                decoder.receive(data)
                while (body := decoder.next_frame()) is not None:
                    self._take(body)
                if junk := decoder.take_junk():
                    log(f"skipped {len(junk)} bytes on stdin that belong to no frame: {junk[:_JUNK_SHOWN]!r}")
            decoder.end()
        except FramingError as error:
            log(f"the runner broke the framing ({error.kind}): {error.message}")
            return 1
        return 0

    def _take(self, body: bytes) -> None:
        try:
            message = decode_message(body)
        except InvalidMessage as invalid:
            self._send(error_body(invalid.id, invalid.error))
            return
        raw = message.params if isinstance(message.params, msgspec.Raw) else EMPTY_OBJECT
        if not isinstance(message.method, str):
            log(f"an answer to a request that was never sent (id {message.id!r})")
        elif isinstance(message.id, int | str):
            self._request(message.id, message.method, raw)
        elif message.method == "$/cancel":
            self._cancel(raw)
        elif self.greeted and message.method in self._plugin.notifications:
            self._notification(self._plugin.notifications[message.method], raw)

    def _request(self, request_id: RequestId, name: str, raw: msgspec.Raw) -> None:
        try:
            self.requests.refuse_duplicate(request_id)
            handler, arguments = self._find(name, raw)
            request = None if _is_inline(handler) else self.requests.add(request_id)
        except RpcError as error:
            self._send(error_body(request_id, error))
            return
        if request is None:
            self._send_answer(request_id, self._call(request_id, handler, arguments))
        elif handler.is_async:
            self._lanes.spawn(self._work_async(request, handler, arguments))
        else:
            self._lanes.run(handler.lane or "", partial(self._work, request, handler, arguments))
        if not self.greeted and self._settings is not None:
            self.greeted = True
            self._start(self._settings)

    def _find(self, name: str, raw: msgspec.Raw) -> tuple[Handler, tuple[Any, ...]]:
        if name not in _BEFORE_HELLO:
            if not self.greeted:
                raise RpcError(ErrorCode.INVALID_REQUEST, f"{name}: protocol.hello comes first")
            if self._start_failed:
                raise RpcError(ErrorCode.PLUGIN_FAILED, self._start_failed)
        if name == "action.invoke" and self._plugin.ops:
            return self._find_op(raw)
        handler = self._methods.get(name)
        if handler is None:
            raise RpcError(
                ErrorCode.METHOD_NOT_FOUND,
                f"{self._plugin.hello.plugin.name} has no method {name}",
                {"method": name},
            )
        return handler, handler.decode(raw)

    def _find_op(self, raw: msgspec.Raw) -> tuple[Handler, tuple[Any, ...]]:
        try:
            params = _decode_invoke(raw)
        except msgspec.ValidationError as error:
            raise invalid_params("action.invoke", error) from None
        handler = self._plugin.ops.get(params.op.removeprefix("action."))
        if handler is None:
            raise RpcError(
                ErrorCode.INVALID_PARAMS,
                f"action.invoke: {self._plugin.hello.plugin.name} has no op {params.op!r} (in op)",
                {"field": "op"},
            )
        return handler, handler.convert(params.args, "args")

    def _hello(self, params: HelloParams) -> dict[str, Any]:
        if self._settings is None:
            self._settings = params.settings
        # Every member on the wire, defaults too: the answer is what a person reads first when a handshake fails.
        return msgspec.structs.asdict(self._plugin.hello)

    def _health(self) -> HealthResult:
        if self._start_failed:
            return HealthResult(status="degraded", detail=self._start_failed)
        return self._plugin.current_health

    def _start(self, settings: dict[str, Any]) -> None:
        for hook in self._plugin.start_hooks:
            if hook.is_async:
                self._lanes.spawn(self._run_hook_async(hook, settings))
            elif hook.lane is not None:
                self._lanes.run(hook.lane, partial(self._run_hook, hook, settings))
            else:
                self._run_hook(hook, settings)

    def _run_hook(self, hook: Handler, settings: dict[str, Any]) -> None:
        try:
            hook.function(*hook.convert(settings, ""))
        except SystemExit as stop:
            self.end(_exit_code(stop))
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            self._fail_start(error)

    async def _run_hook_async(self, hook: Handler, settings: dict[str, Any]) -> None:
        try:
            await hook.function(*hook.convert(settings, ""))
        except SystemExit as stop:
            self.end(_exit_code(stop))
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            self._fail_start(error)

    def _fail_start(self, error: BaseException) -> None:
        why = error.message if isinstance(error, RpcError) else describe(error)
        self._start_failed = f"{self._plugin.hello.plugin.name} could not start: {why}"
        log(self._start_failed)
        if not isinstance(error, RpcError):
            _log_traceback(error)

    def _notification(self, handler: Handler, raw: msgspec.Raw) -> None:
        try:
            arguments = handler.decode(raw)
            if handler.is_async:
                self._lanes.spawn(self._notified(handler, arguments))
            else:
                handler.function(*arguments)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            _log_failure(handler, error)

    async def _notified(self, handler: Handler, arguments: tuple[Any, ...]) -> None:
        try:
            await handler.function(*arguments)
        except SystemExit as stop:
            self.end(_exit_code(stop))
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
            self._send(error_body(request_id, wire_error(Cancelled())))
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
                _log_traceback(error)

    def _work(self, request: Request, handler: Handler, arguments: tuple[Any, ...]) -> None:
        if not self.requests.start(request):
            return
        token = current.set(request)
        try:
            body = self._call(request.id, handler, arguments)
        except SystemExit as stop:
            self.end(_exit_code(stop))
        finally:
            current.reset(token)
        self.requests.finish(request)
        self._send_answer(request.id, body)

    async def _work_async(self, request: Request, handler: Handler, arguments: tuple[Any, ...]) -> None:
        import asyncio  # noqa: PLC0415 - loaded already by whoever runs this

        if not self.requests.start(request):
            return
        current.set(request)
        task = asyncio.current_task()
        if task is not None:
            self.requests.on_cancel(request, partial(task.get_loop().call_soon_threadsafe, task.cancel))
        try:
            body = result_body(request.id, handler.encode(await handler.function(*arguments)))
        except SystemExit as stop:
            self.end(_exit_code(stop))
        except asyncio.CancelledError:
            body = error_body(request.id, wire_error(Cancelled()))
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            body = _failure(request.id, error)
        self.requests.finish(request)
        self._send_answer(request.id, body)

    def _call(self, request_id: RequestId, handler: Handler, arguments: tuple[Any, ...]) -> bytes:
        """Return the answer's body; raises only `SystemExit`."""
        try:
            return result_body(request_id, handler.encode(handler.function(*arguments)))
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin's code may raise anything
            return _failure(request_id, error)

    def _send_answer(self, request_id: RequestId, body: bytes) -> None:
        try:
            self._send(body)
        except FrameTooLargeError as error:
            refusal = RpcError(ErrorCode.TOO_LARGE_INLINE, f"the answer is too large: {error}", {"bound": "max_frame"})
            self._send(error_body(request_id, refusal))

    def _send(self, body: bytes) -> None:
        if self._wire is None:
            raise RuntimeError("the plugin is not running")
        try:
            self._wire.send(body)
        except OSError:
            # Nobody reads any more: the same as the end of stdin.
            self.end(0)


def _is_inline(handler: Handler) -> bool:
    return handler.lane is None and not handler.is_async


def _failure(request_id: RequestId, error: BaseException) -> bytes:
    answer = wire_error(error)
    if answer.code == ErrorCode.INTERNAL_ERROR and answer is not error:
        _log_traceback(error)
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
        _log_traceback(error)


def _log_traceback(error: BaseException) -> None:
    import traceback  # noqa: PLC0415 - a plugin that makes no mistake does not pay for the import

    log("".join(traceback.format_exception(error)))


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    log(str(stop.code))
    return 1


def _in_terminal_foreground() -> bool:
    """Whether Ctrl-C on this process's terminal means this process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
