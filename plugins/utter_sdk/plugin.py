"""`Plugin`: what an author declares, and `run()`, which serves it.

Rules here: declaring does no I/O; everything declared is fixed when `run()` begins; names that the SDK serves itself
(`protocol.hello`, `plugin.describe`, `plugin.health`, `action.capabilities`, `action.invoke`, `stream.*`) cannot be
declared.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args, overload

from utter_protocol import ABI, PROTOCOL
from utter_protocol.methods import (
    ActionResult,
    CapabilitiesResult,
    DescribeResult,
    HealthResult,
    HelloResult,
    Op,
    PluginInfo,
    PluginKind,
    SideEffect,
)
from utter_sdk.handlers import Cancelled, Handler, encode_action
from utter_sdk.requests import current
from utter_sdk.stdio import log
from utter_sdk.streams import METHODS as _STREAMS
from utter_sdk.streams import Mode, StreamHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from pathlib import Path

    from utter_sdk.connection import Connection
    from utter_sdk.handles import Handles
    from utter_sdk.host import Host
    from utter_sdk.microphone import Microphone
    from utter_sdk.service import Service
    from utter_sdk.subscriptions import Subscription

__all__ = ["Cancelled", "Plugin"]

F = TypeVar("F", bound="Callable[..., Any]")
A = TypeVar("A", bound="Callable[..., ActionResult | str | Coroutine[Any, Any, ActionResult | str]]")
S = TypeVar("S", bound="Callable[[Any, Any], Any]")
Transport = Literal["stdio", "connect", "listen"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,63}")
_BUILT_IN = ("protocol.hello", "plugin.describe", "plugin.health")
_ACTIONS = ("action.capabilities", "action.invoke")
DEFAULT_LANE = "blocking"


class Plugin:
    """A plugin (PROTOCOL.md, "The handshake").

    Args:
        name: the plugin id, `^[a-z0-9][a-z0-9._-]{1,63}$`, as in its manifest.
        version: the plugin's own version.
        kind: one of the protocol's kinds, for example "action" or "bundle".
        provides: capabilities, `name@N`.
        requires: capabilities that others must provide.
        permissions: permission names.
        streams: notifications and streams that it sends by `notify` and `host.emit`, for `plugin.describe`.
        transport: how it meets the runner, as in its manifest: "stdio", "connect" or "listen".

    Raises:
        ValueError: `name`, `kind` or `transport` is none.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str,
        kind: PluginKind,
        provides: Iterable[str] = (),
        requires: Iterable[str] = (),
        permissions: Iterable[str] = (),
        streams: Iterable[str] = (),
        transport: Transport = "stdio",
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a plugin's name must match ^{_NAME.pattern}$, not {name!r}")
        if kind not in get_args(PluginKind):
            raise ValueError(f"a plugin's kind is one of {', '.join(get_args(PluginKind))}, not {kind!r}")
        if transport not in get_args(Transport):
            raise ValueError(f"a plugin's transport is one of {', '.join(get_args(Transport))}, not {transport!r}")
        self.hello = HelloResult(
            protocol=PROTOCOL,
            abi=ABI,
            plugin=PluginInfo(name=name, version=version, kind=kind),
            transport=transport,
            provides=list(provides),
            requires=list(requires),
            permissions=list(permissions),
        )
        self.methods: dict[str, Handler] = {}
        self.notifications: dict[str, Handler] = {}
        self.ops: dict[str, Handler] = {}
        self.streams: dict[str, StreamHandler] = {}
        self.start_hooks: list[Handler] = []
        self.current_health = HealthResult()
        self._op_list: list[Op] = []
        self._announced = list(streams)
        self._host: Host | None = None
        self.served_by: Service | None = None

    @property
    def host(self) -> Host:
        """What may be asked of the runner, from handlers and on_start hooks that are not inline."""
        if self._host is None:
            from utter_sdk.host import Host  # noqa: PLC0415 - only for those who ask

            self._host = Host(self._connection)
        return self._host

    @property
    def handles(self) -> Handles:
        """Large data, by its content; for handlers with `blocking`, whose thread may wait for the runner."""
        from utter_sdk.handles import Handles, PluginAsker  # noqa: PLC0415 - only for those who ask

        return Handles(PluginAsker(self.host))

    def model(self, name: str) -> Path:
        """Where one of the plugin's models is, by its name in the manifest, or the directory that several are in.

        Raises:
            RpcError: it has not been fetched; the text says how.
        """
        from utter_sdk.models import model_path  # noqa: PLC0415 - only for those who have models

        return model_path(self.hello.plugin.name, name, os.environ)

    def method(self, name: str, *, blocking: bool | str = False) -> Callable[[F], F]:
        """Serve a request with the decorated function.

        The function takes nothing or the params, decoded into what its annotation says (a `msgspec.Struct`, or
        `dict`); what it returns is encoded by msgspec, None as `{}`. It runs on the thread that reads frames, so it
        must answer at once; with `blocking=True` on a worker thread that runs such requests one after the other
        (`blocking="name"`: on that lane's own thread); an `async def` runs on one asyncio loop. What it raises is
        answered: `RpcError` as it is, `Cancelled` as -32002, anything else as -32603.

        Raises:
            ValueError: the name is taken.
            TypeError: the function's signature does not fit.
        """

        def declare(function: F) -> F:
            taken = name in self.methods or name in _BUILT_IN
            if taken or (name in _ACTIONS and self.ops) or (name in _STREAMS and self.streams):
                raise ValueError(f"{name} is served already")
            self.methods[name] = Handler(name, function, _lane(blocking))
            return function

        return declare

    def notification(self, name: str) -> Callable[[F], F]:
        """Take a notification with the decorated function.

        The function runs before any frame that came later is looked at (an `async def` is started in order, and may
        still run then). What it raises is logged.

        Raises:
            ValueError: the name is taken.
            TypeError: the function's signature does not fit.
        """

        def declare(function: F) -> F:
            taken = name in self.notifications or name in ("$/cancel", "stream.closed")
            if taken or (name in _STREAMS and self.streams):
                raise ValueError(f"{name} is taken already")
            self.notifications[name] = Handler(name, function, None)
            return function

        return declare

    def action(
        self,
        op: str,
        *,
        side_effect: SideEffect = "external",
        needs_confirm: bool = False,
        schema: dict[str, Any] | None = None,
        description: str = "",
        blocking: bool | str = False,
    ) -> Callable[[A], A]:
        """Serve an op of `action.invoke`, and list it in `action.capabilities`.

        The function takes nothing or the op's `args` (`dict`, or a `msgspec.Struct`), which the runner has checked
        against `schema`; it returns an `ActionResult`, or a sentence for the user, which means success.

        Args:
            op: the op's name; `action.invoke` finds it with or without the prefix `action.`.
            side_effect: "none", "local", "external" or "destructive": how far the effect reaches.
            needs_confirm: ask a person first (the runner may ask in any case).
            schema: JSON Schema of `args`.
            description: one sentence.
            blocking: as in `method`.

        Raises:
            ValueError: the op, or a method `action.*`, is declared already.
            TypeError: the function's signature does not fit.
        """

        def declare(function: A) -> A:
            name = op.removeprefix("action.")
            if name in self.ops:
                raise ValueError(f"the op {name} is declared already")
            if any(method in self.methods for method in _ACTIONS):
                raise ValueError("declare either ops or the methods action.capabilities and action.invoke")
            self.ops[name] = Handler(name, function, _lane(blocking), encode_action)
            self._op_list.append(
                Op(
                    op=op,
                    side_effect=side_effect,
                    needs_confirm=needs_confirm,
                    schema=schema,
                    description=description,
                )
            )
            return function

        return declare

    def stream(self, name: str, *, mode: Mode = "lossy") -> Callable[[S], S]:
        """Offer a stream: the decorated function is called for each subscriber, and sends until it returns.

        The function takes the params of the subscription (`dict`, or a `msgspec.Struct`) and the stream: a plain
        function gets a `Stream` and a thread of its own, an `async def` an `AsyncStream` and runs on the asyncio loop.
        At most 64 run at once. `stream.send` waits while the subscriber of a reliable stream is behind. When the
        function returns, the subscriber is told that the stream is complete; when it raises, why it is not. When the
        subscriber stops, `send` raises `StreamClosed`, host calls raise `Cancelled`, `on_cancel` callbacks are called,
        and an `async def` that waits elsewhere is cancelled.

        Args:
            name: the stream's name, which is the method of its items.
            mode: "lossy" or "reliable", for subscribers who do not say what they want.

        Raises:
            ValueError: the name is taken, or the mode is none.
            TypeError: the function's signature does not fit.
        """
        if mode not in get_args(Mode):
            raise ValueError(f"a stream's mode is lossy or reliable, not {mode!r}")

        def declare(function: S) -> S:
            if name in self.streams:
                raise ValueError(f"the stream {name} is declared already")
            if any(method in self.methods or method in self.notifications for method in _STREAMS):
                raise ValueError("declare either streams or the methods stream.*")
            self.streams[name] = StreamHandler(name, function, mode)
            return function

        return declare

    @overload
    def on_start(self, function: F, /) -> F: ...
    @overload
    def on_start(self, /, *, blocking: bool | str = False) -> Callable[[F], F]: ...
    def on_start(self, function: F | None = None, /, *, blocking: bool | str = False) -> F | Callable[[F], F]:
        """Call the decorated function once, after the answer to `protocol.hello`, with the plugin's settings.

        It takes nothing or the settings (`dict`, or a `msgspec.Struct`). With `blocking=True` it runs on that worker
        lane, before the lane's first request; `plugin.health` and handlers that are not of this lane are answered
        meanwhile, so declare `blocking=True` for handlers that need what it makes, too. If it raises, the plugin is
        "degraded", and every request except the handshake's is answered -32000, with the reason.

        Raises:
            TypeError: the function's signature does not fit.
        """

        def declare(function: F) -> F:
            self.start_hooks.append(Handler("settings", function, _lane(blocking)))
            return function

        return declare if function is None else declare(function)

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification; from any thread, once `protocol.hello` was answered.

        Args:
            method: its name.
            params: an object that msgspec encodes as a JSON object; None sends `{}`.

        Raises:
            RuntimeError: the plugin has not been greeted yet.
            ValueError: it exceeds max_frame.
        """
        self._connection(f"notify({method!r})").notify(method, params)

    def subscribe(
        self,
        method: str,
        params: Any = None,
        *,
        mode: Mode | None = None,
        plugin: str | None = None,
    ) -> Subscription:
        """Subscribe to a stream of the runner or of another plugin.

        It returns at once; a refusal is raised by whoever takes the first item. Close it, or use it in a `with` block.

        Args:
            method: the stream's name.
            params: its parameters, what msgspec encodes as a JSON object; None sends `{}`.
            mode: None leaves it to the stream.
            plugin: whose stream, where several plugins offer it.

        Raises:
            RuntimeError: the plugin has not been greeted yet.
            ValueError: it exceeds max_frame.
        """
        connection = self._connection(f"subscribe({method!r})")
        return connection.subscriptions.subscribe(method, params, mode, plugin)

    def microphone(self) -> Microphone:
        """Open the microphone's audio, as the runner records it; use it in a `with` block.

        The plugin needs the permission `microphone`, and over stdio `host.audio.ringbuffer@1` in the `requires` of its
        manifest. Call it where one may wait: in handlers and on_start hooks with `blocking=True`, in streams, or on a
        thread of your own. It may be opened several times.

        Raises:
            RpcError: -32003, it may not hear the microphone; -32600, too many readers.
            RingError: what came is no audio ring.
            RuntimeError: the plugin has not been greeted yet, or this would wait for itself.
        """
        from utter_sdk.microphone import open_microphone  # noqa: PLC0415 - few plugins hear

        connection = self._connection("microphone()")
        return open_microphone(self, connection, None if self.served_by is None else self.served_by.inherited_ring)

    def log(self, text: str) -> None:
        """Write a line to stderr, which the runner logs under the plugin's id."""
        log(text)

    def health(self, status: Literal["ok", "degraded"], detail: str = "") -> None:
        """Set what `plugin.health` answers from now on; `detail` is one sentence that says what to do.

        A change is announced as `plugin.health_changed`, so that the runner need not wait for its next question.
        """
        changed = HealthResult(status=status, detail=detail)
        announce = changed != self.current_health
        self.current_health = changed
        connection = None if self.served_by is None else self.served_by.connection
        if announce and connection is not None and connection.greeted:
            connection.notify("plugin.health_changed", changed)

    def cancelled(self) -> bool:
        """Whether the caller gave up on the request that the calling handler works on. Then raise `Cancelled`."""
        request = current.get()
        return request is not None and request.cancelled

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the calling handler's request is cancelled, or the process is told to end.

        It runs at once if that has happened, otherwise on the reading thread: it must be quick, such as `child.kill`.
        Without effect in handlers that run inline, which nothing can cancel.
        """
        request = current.get()
        if request is not None and request.connection is not None:
            request.connection.requests.on_cancel(request, callback)

    def describe(self) -> DescribeResult:
        """Return the answer to `plugin.describe`."""
        actions = _ACTIONS if self.ops else ()
        streams = _STREAMS if self.streams else ()
        return DescribeResult(
            methods=[*_BUILT_IN, *self.methods, *actions, *streams],
            streams=[*self.streams, *(name for name in self._announced if name not in self.streams)],
        )

    def capabilities(self) -> CapabilitiesResult:
        """Return the answer to `action.capabilities`."""
        return CapabilitiesResult(ops=list(self._op_list))

    def run(self) -> NoReturn:
        """Serve the runner until it ends the connection or SIGTERM arrives; never returns.

        The transport `stdio` is stdin and stdout. For `connect` and `listen` the socket is UTTER_PLUGIN_SOCKET, else
        `$XDG_RUNTIME_DIR/utter/plugins/<name>.sock`. A plugin that was not started by the runner waits there for a
        runner, and for the next one when that has gone. What a connection carried ends with it; on_start hooks run
        again only if the next runner brings other settings, or if they had failed.

        Exit code 0 after the end, whatever handlers are still doing; `on_cancel` callbacks are called first, `atexit`
        functions are not. A handler that raises `SystemExit` ends the process with its code (125: do not restart).
        Started by hand on a terminal, a `stdio` plugin says what it is and exits with 2.
        """
        from utter_sdk.server import Server, refuse_terminal  # noqa: PLC0415 - those who only test or list do not serve

        refuse_terminal(self)
        self.served_by = server = Server(self)
        server.run()

    def _connection(self, what: str) -> Connection:
        if self.served_by is None:
            raise RuntimeError(f"{what}: the plugin is not running; call it from handlers or on_start")
        return self.served_by.greeted_connection(what)


def _lane(blocking: bool | str) -> str | None:
    if isinstance(blocking, str):
        return blocking
    return DEFAULT_LANE if blocking else None
