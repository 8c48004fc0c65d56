"""Requests of the plugin to the runner: which are in flight, who waits for them, and that each ends once.

Rules here: an answer is taken on the reading thread and decoded by whoever asked; `Calls.changed` guards what a call
knows; a call that was given up stays known until its answer comes, so that the answer is no surprise; nothing here
waits on the reading thread or on an asyncio loop's thread, where it would wait for itself.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import decode_error, encode, notification_body, request_body
from utter_sdk.handlers import Cancelled
from utter_sdk.received import Received, close_all
from utter_sdk.stdio import log

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Sequence

    from utter_protocol.messages import Message, RequestId
    from utter_sdk.lanes import Lanes
    from utter_sdk.requests import Request, Requests

T = TypeVar("T")


class Send(Protocol):
    """Sends a message's body, with descriptors that stay the caller's; raises `ValueError` before anything is sent."""

    def __call__(self, body: bytes, fds: Sequence[int] = (), /) -> None:
        """Send."""


OnAnswer: TypeAlias = "Callable[[msgspec.Raw | None, RpcError | None], None]"

MAX_GIVEN_UP = 1024
"""How many calls that were given up are remembered; the answer to an older one is logged as unknown."""


class HostCall(Generic[T]):
    """A request to the runner that has been sent: await it in an `async def`, or take its `result` on a worker thread.

    Attributes:
        method: what was asked.
    """

    def __init__(self, calls: Calls, call_id: int, method: str, decode: Callable[[msgspec.Raw], T]) -> None:
        self.id = call_id
        self.method = method
        self.request: Request | None = None
        self.wanted_fds = 0
        self.on_answer: OnAnswer | None = None
        self.quiet = False
        self.sent = False
        self.done = False
        self._calls = calls
        self._decode = decode
        self._raw: msgspec.Raw | None = None
        self._error: Exception | None = None
        self._value: T | None = None
        self._fds: list[int] = []
        self._looked = False
        self._wakers: list[Callable[[], None]] = []

    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer and return it.

        Args:
            timeout: seconds; None waits for as long as it takes, which the runner's deadline bounds. A call that is
                not answered in time is not cancelled by that.

        Raises:
            RpcError: what the runner answered; -32000 if it went away.
            Cancelled: the handler that asked, or this call, was cancelled.
            TimeoutError: no answer within `timeout` seconds.
            RuntimeError: it was called where it would wait for itself.
        """
        calls = self._calls
        calls.refuse_loop(self.method)
        with calls.changed:
            if not self.done:
                calls.refuse_to_wait(self.method)
                if not calls.lanes.wait(calls.changed, self._is_done, timeout):
                    raise TimeoutError(f"{self.method} was not answered within {timeout:g} s")
        return self._take()

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait_async().__await__()

    def cancel(self) -> None:
        """Send `$/cancel` and wait no longer: `result` raises `Cancelled`. Nothing if the answer is there."""
        self._calls.give_up(self)

    async def _wait_async(self) -> T:
        import asyncio  # noqa: PLC0415 - loaded already by whoever runs this

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._calls.changed:
            if not self.done:
                self._wakers.append(waker(loop, waiter))
        if not self.done:
            try:
                await waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._take()

    def _is_done(self) -> bool:
        return self.done

    def _take(self) -> T:
        self._looked = True
        if self._error is not None:
            raise self._error
        if self._raw is not None:
            try:
                self._value = self._decode(self._raw)
            except msgspec.ValidationError as error:
                raise RpcError(
                    ErrorCode.PLUGIN_FAILED, f"{self.method}: the answer does not fit: {error}", {"method": self.method}
                ) from None
            if isinstance(self._value, Received):
                self._value.fds, self._fds = self._fds, []
            self._raw = None
        return cast("T", self._value)

    def settle(
        self, raw: msgspec.Raw | None, error: Exception | None, fds: Sequence[int] = ()
    ) -> list[Callable[[], None]]:
        """Take note of how it ended, with `Calls.changed` held; return whom to wake."""
        self._raw, self._error, self._fds, self.done = raw, error, list(fds), True
        wakers, self._wakers = self._wakers, []
        return wakers

    def __del__(self) -> None:
        close_all(self._fds)
        if isinstance(self._error, RpcError) and not (self._looked or self.quiet):
            log(f"{self.method} failed, and nobody looked at its answer: {self._error}")


class Calls:
    """The calls of one connection.

    Args:
        send: puts a message's body on the wire, with descriptors.
        lanes: where to wait.
        requests: the runner's requests on this connection, in whose stead calls are made.
    """

    def __init__(self, send: Send, lanes: Lanes, requests: Requests) -> None:
        self.send = send
        self.lanes = lanes
        self.changed = threading.Condition()
        self.reader = 0
        """The thread that answers arrive on."""
        self._requests = requests
        self._next_id = 0
        self._open: dict[int, HostCall[Any]] = {}
        self._given_up: dict[int, HostCall[Any]] = {}
        self._ended = ""

    def start(
        self,
        method: str,
        params: Any,
        decode: Callable[[msgspec.Raw], T],
        *,
        request: Request | None = None,
        fds: Sequence[int] = (),
        wanted_fds: int = 0,
        quiet: bool = False,
        on_answer: OnAnswer | None = None,
    ) -> HostCall[T]:
        """Send a request.

        Args:
            method: its name.
            params: what msgspec encodes as a JSON object.
            decode: turns the result's JSON into what the call returns; `msgspec.ValidationError` becomes -32000.
            request: what is being worked on: cancelling it cancels the call.
            fds: descriptors that ride on the request; they stay the caller's.
            wanted_fds: how many descriptors come with a result.
            quiet: whether it is nothing to log when the call fails and nobody looks at its answer.
            on_answer: called on the reading thread with the result or the error, before any message that came later
                is looked at, also when the call was given up.

        Raises:
            ValueError: it exceeds max_frame, or descriptors cannot be sent here.
        """
        body_params = encode(params)
        with self.changed:
            self._next_id += 1
            call = HostCall(self, self._next_id, method, decode)
            call.wanted_fds = wanted_fds
            call.quiet = quiet
            call.on_answer = on_answer
            self._open[call.id] = call
            ended = self._ended
        if ended:
            self._fail(call, RpcError(ErrorCode.PLUGIN_FAILED, f"{method}: {ended}"))
            return call
        if request is not None:
            call.request = request
            if not self._requests.attach(request, call, call.cancel):
                self._close(call, Cancelled())
                return call
        try:
            self.send(request_body(call.id, method, body_params), fds)
        except ValueError as error:
            self._close(call, error)
            raise
        with self.changed:
            call.sent = True
            withdrawn = call.id in self._given_up
        if withdrawn:
            self._send_cancel(call)
        return call

    def answer(self, message: Message, take: Callable[[int], list[int]]) -> bool:
        """Take an answer.

        Args:
            message: the answer.
            take: returns as many descriptors as came with it, up to a number.

        Returns:
            Whether it belongs to a call.
        """
        call_id = message.id
        if not isinstance(call_id, int):
            return False
        with self.changed:
            call = self._open.get(call_id) or self._given_up.pop(call_id, None)
        if call is None:
            return False
        raw = message.result if isinstance(message.result, msgspec.Raw) else None
        error = decode_error(message.error) if isinstance(message.error, msgspec.Raw) else None
        fds = take(call.wanted_fds) if call.wanted_fds and error is None else []
        if error is None and len(fds) < call.wanted_fds:
            close_all(fds)
            fds = []
            due = "no descriptor" if call.wanted_fds == 1 else f"fewer than {call.wanted_fds} descriptors"
            error = RpcError(ErrorCode.PLUGIN_FAILED, f"{call.method}: {due} came with the answer")
        if call.on_answer is not None:
            call.on_answer(raw, error)
        if not self._close(call, error, raw, fds):
            close_all(fds)
        return True

    def malformed(self, call_id: RequestId | None, error: RpcError) -> None:
        """Take what was meant to be an answer and is none."""
        with self.changed:
            call = self._open.get(call_id) if isinstance(call_id, int) else None
        if call is not None:
            self._fail(call, RpcError(ErrorCode.PLUGIN_FAILED, f"{call.method}: {error.message}"))

    def give_up(self, call: HostCall[Any]) -> None:
        """End a call with `Cancelled`, and tell the runner; nothing if it has ended."""
        with self.changed:
            if not self._close(call, Cancelled()):
                return
            self._given_up[call.id] = call
            if len(self._given_up) > MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
            # One that is being sent right now is withdrawn by whoever sends it, or else the runner heard of the
            # cancellation first.
            sent = call.sent
        if sent:
            self._send_cancel(call)

    def end(self, reason: str) -> None:
        """Fail what is open and what comes later: there is no runner any more."""
        with self.changed:
            self._ended = reason
            calls = list(self._open.values())
            self._given_up.clear()
        for call in calls:
            self._fail(call, RpcError(ErrorCode.PLUGIN_FAILED, f"{call.method}: {reason}"))

    def refuse_loop(self, what: str) -> None:
        """Check that this thread runs no asyncio loop, whether or not it would have to wait.

        Raises:
            RuntimeError: says what to do instead.
        """
        if "asyncio" in sys.modules and _on_a_loop():
            raise RuntimeError(f"{what}: this would hold up the asyncio loop; in an `async def` handler use await")

    def refuse_to_wait(self, what: str) -> None:
        """Check that this thread may wait for the runner.

        Raises:
            RuntimeError: says what to do instead.
        """
        self.refuse_loop(what)
        if threading.get_ident() == self.reader:
            raise RuntimeError(
                f"{what}: the answer arrives on this thread, which would wait for itself; "
                "declare the handler with blocking=True, or as `async def`"
            )

    def _fail(self, call: HostCall[Any], error: RpcError) -> None:
        if call.on_answer is not None:
            call.on_answer(None, error)
        self._close(call, error)

    def _send_cancel(self, call: HostCall[Any]) -> None:
        self.send(notification_body("$/cancel", b'{"id":%d}' % call.id))

    def _close(
        self, call: HostCall[Any], error: Exception | None, raw: msgspec.Raw | None = None, fds: Sequence[int] = ()
    ) -> bool:
        with self.changed:
            was_open = self._open.pop(call.id, None) is not None
            wakers = call.settle(raw, error, fds) if was_open else []
            self.changed.notify_all()
        if was_open and call.request is not None:
            self._requests.detach(call.request, call)
        for wake in wakers:
            wake()
        return was_open


def _on_a_loop() -> bool:
    import asyncio  # noqa: PLC0415 - only asked when it is loaded

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def decode_nothing(_raw: msgspec.Raw) -> None:
    """The answer to a request whose result says nothing."""


def waker(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> Callable[[], None]:
    """Return what wakes `waiter` on its loop, from any thread, however late."""

    def set_result() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(set_result)
        except RuntimeError:
            # The loop has been closed; nobody waits there any more.
            return

    return wake
