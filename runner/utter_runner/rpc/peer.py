"""A JSON-RPC 2.0 peer whose core is synchronous: callbacks in, callbacks out, no task per request.

Rules here: every request that was sent gets exactly one call of its `on_reply`, whatever dies first; every request that
arrived gets exactly one answer; only this file knows which ids are in flight. `params` and `result` pass through
unparsed. A peer handles at most 64 KiB or 64 messages per turn of the loop. Bounds are answered with errors that name
them (PROTOCOL.md, "Bounds").
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import outcome
import trio
from msgspec import UNSET, Raw

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder, FramingError, encode_frame
from utter_protocol.messages import (
    EMPTY_OBJECT,
    InvalidMessage,
    Message,
    RequestId,
    StreamItem,
    decode_error,
    decode_item_message,
    decode_message,
    encode,
    notification_body,
    request_body,
    result_body,
)
from utter_runner.rpc.channel import Channel
from utter_runner.rpc.complaints import Complaints
from utter_runner.rpc.descriptors import Arrivals, close_all
from utter_runner.rpc.interface import (
    TIMEOUT_CAP,
    Handler,
    Limits,
    OnReply,
    bound_error,
    error_answer,
    guarded,
    internal_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from utter_runner.rpc.deadlines import Deadline, Deadlines
    from utter_runner.rpc.rate import Meter
    from utter_runner.rpc.reactor import Reactor

logger = logging.getLogger(__name__)

MESSAGES_PER_TURN = 64
FLUSH_SECONDS = 5.0

_null = Raw(b"null")


class _Outgoing(NamedTuple):
    on_reply: OnReply
    deadline: Deadline | None


class Peer:
    """One end of a connection.

    Args:
        reactor: reports readiness and batches writes.
        deadlines: the heap for time-outs of requests that this end sends.
        read_fd: descriptor to read from; becomes the peer's.
        write_fd: descriptor to write to, possibly the same; becomes the peer's.
        handler: who answers what arrives.
        name: for messages and logs.
        limits: bounds.
        log_fields: `extra` of log records about it (`config/log_fields.py`).
    """

    def __init__(
        self,
        reactor: Reactor,
        deadlines: Deadlines,
        read_fd: int,
        write_fd: int,
        handler: Handler,
        *,
        name: str,
        limits: Limits | None = None,
        log_fields: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self.log_fields = log_fields
        self.limits = limits or Limits()
        self._reactor = reactor
        self._deadlines = deadlines
        self._handler = handler
        self._decoder = FrameDecoder(self.limits.max_frame, self.limits.max_header, self.limits.max_junk)
        self._next_id = count(1).__next__
        self._outgoing: dict[RequestId, _Outgoing] = {}
        self._incoming: dict[RequestId, Callable[[], None] | None] = {}
        self._closed = False
        self._read_ended = False
        self._behind = False
        self._end_reason = "end of file"
        self.on_item: Callable[[str, StreamItem], object] | None = None
        """Takes a stream's items, which are many, instead of `Handler.on_notification`; it may miss some that are
        written in an unusual way."""
        self.meter: Meter | None = None
        """Bounds how much the other side may send; None for no bound."""
        self._received = 0
        self._metered = 0
        self._arrivals: Arrivals | None = None
        self.late_replies = 0
        self.junk_bytes = 0
        self.complaints = Complaints()
        """Where to say in the log what the other side does wrong."""
        self.channel = Channel(
            reactor,
            read_fd,
            write_fd,
            on_data=self._on_data,
            on_end=self._on_end,
            on_broken=self._on_broken,
            on_parcel=self._on_parcel,
        )

    # ---- requests of this end

    @property
    def closed(self) -> bool:
        """Whether the peer is gone; requests are then answered with -32000 at once."""
        return self._closed

    @property
    def in_flight(self) -> int:
        """How many requests of this end wait for an answer."""
        return len(self._outgoing)

    @property
    def serving(self) -> int:
        """How many requests of the other end wait for an answer."""
        return len(self._incoming)

    def waits_for(self, request_id: RequestId) -> bool:
        """Whether a request of this end is in flight."""
        return request_id in self._outgoing

    def request(
        self, method: str, params: bytes | Raw, on_reply: OnReply, *, timeout: float = TIMEOUT_CAP
    ) -> RequestId:
        """Send a request; `on_reply` is called exactly once, possibly before this returns when it cannot be sent.

        Args:
            method: the method's name.
            params: a JSON object or array, already encoded.
            on_reply: called with (result, None) or (None, error); -32001 when `timeout` seconds pass, -32000 when the
                other side is gone, -32002 after `cancel`.
            timeout: seconds, at most 60.
        """
        request_id = self._next_id()
        body = request_body(request_id, method, params)
        refusal = self._refusal(len(body))
        if refusal is not None:
            guarded(on_reply, None, refusal)
            return request_id
        at = trio.current_time() + min(timeout, TIMEOUT_CAP)
        deadline = self._deadlines.add(at, partial(self._on_timeout, request_id, timeout))
        self._outgoing[request_id] = _Outgoing(on_reply, deadline)
        self.channel.write(encode_frame(body))
        return request_id

    def cancel(self, request_id: RequestId) -> None:
        """Give up a request of this end: `$/cancel` is sent and `on_reply` gets -32002. Harmless when it has ended."""
        pending = self._take(request_id)
        if pending is not None:
            self._send_cancel(request_id)
            guarded(pending.on_reply, None, RpcError(ErrorCode.CANCELLED, "the request was cancelled"))

    async def call(self, method: str, params: object = None, *, timeout: float = TIMEOUT_CAP) -> Raw:
        """Send a request and wait for its result; cancelling the wait sends `$/cancel`.

        Args:
            method: the method's name.
            params: what msgspec encodes to a JSON object; None is `{}`.
            timeout: seconds, at most 60.

        Raises:
            RpcError: the error that was answered, or as in `request`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()
        answer: list[outcome.Outcome[Raw]] = []
        waiting = False

        def on_reply(result: Raw | None, error: RpcError | None) -> None:
            value: outcome.Outcome[Raw] = outcome.Error(error) if error else outcome.Value(result or _null)
            if waiting:
                trio.lowlevel.reschedule(task, value)
            else:
                answer.append(value)

        raw = EMPTY_OBJECT if params is None else encode(params)
        request_id = self.request(method, raw, on_reply, timeout=timeout)
        if answer:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return answer[0].unwrap()

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            if self._take(request_id) is not None:
                self._send_cancel(request_id)
            return trio.lowlevel.Abort.SUCCEEDED

        waiting = True
        result: Raw = await trio.lowlevel.wait_task_rescheduled(abort)
        return result

    def notify(self, method: str, params: bytes | Raw = EMPTY_OBJECT) -> bool:
        """Send a notification; False when it was dropped: the peer is gone, its queue is full, or it is too large."""
        if self._closed or self.channel.broken or self.channel.queued > self.limits.max_queued_bytes:
            return False
        body = notification_body(method, params)
        if len(body) > self.limits.max_frame:
            logger.warning(
                "a notification %s of %d bytes is too large for %s", method, len(body), self.name, extra=self.log_fields
            )
            return False
        self.channel.write(encode_frame(body))
        return True

    def _refusal(self, size: int) -> RpcError | None:
        limits = self.limits
        if self._closed or self._read_ended or self.channel.broken:
            return RpcError(ErrorCode.PLUGIN_FAILED, f"{self.name} is not running")
        if len(self._outgoing) >= limits.max_in_flight:
            return bound_error(self.name, "max_in_flight", limits.max_in_flight)
        if self.channel.queued > limits.max_queued_bytes:
            return bound_error(self.name, "max_queued_bytes", limits.max_queued_bytes)
        if size > limits.max_frame:
            return bound_error(self.name, "max_frame", limits.max_frame)
        return None

    def _take(self, request_id: RequestId) -> _Outgoing | None:
        pending = self._outgoing.pop(request_id, None)
        if pending is not None and pending.deadline is not None:
            pending.deadline.cancel()
        return pending

    def _send_cancel(self, request_id: RequestId) -> None:
        self.notify("$/cancel", encode({"id": request_id}))

    def _on_timeout(self, request_id: RequestId, timeout: float) -> None:
        pending = self._outgoing.pop(request_id, None)
        if pending is None:
            return
        self._send_cancel(request_id)
        milliseconds = round(min(timeout, TIMEOUT_CAP) * 1000)
        pending.on_reply(
            None,
            RpcError(
                ErrorCode.TIMED_OUT,
                f"{self.name} did not answer within {milliseconds} ms",
                {"timeout_ms": milliseconds},
            ),
        )

    # ---- requests of the other end

    def on_cancel(self, request_id: RequestId, callback: Callable[[], None]) -> None:
        """Call `callback` once when the other side cancels its request, or is gone, before it was answered.

        It is called now when the cancellation has arrived already.
        """
        if request_id not in self._incoming:
            return
        if self._incoming[request_id] is _withdrawn:
            guarded(callback)
        else:
            self._incoming[request_id] = callback

    def reply(self, request_id: RequestId, result: bytes | Raw) -> None:
        """Answer a request with JSON that is encoded already. A second answer to the same request is dropped."""
        if self._answered(request_id):
            body = result_body(request_id, result)
            if len(body) > self.limits.max_frame:
                body = self._error_answer(request_id, bound_error(self.name, "max_frame", self.limits.max_frame))
            self._send(body)

    def reply_with(self, request_id: RequestId, result: bytes | Raw, fds: Sequence[int]) -> None:
        """Answer as `reply` does, with descriptors that ride on the answer; they become the peer's.

        Of a second answer to the same request they are closed.
        """
        if not self._answered(request_id):
            close_all(fds)
            return
        crowded = RpcError(ErrorCode.PLUGIN_FAILED, "too many descriptors are on their way", {"reason": "ETOOMANYREFS"})
        self._send(result_body(request_id, result), fds, self._error_answer(request_id, crowded))

    @property
    def descriptors_waiting(self) -> bool:
        """Whether a descriptor has arrived that the request which is being handled may take."""
        return self._arrivals is not None and bool(self._arrivals)

    def take_descriptor(self) -> int | None:
        """Return the descriptor that rides on the request which is being handled; None if there is none.

        It becomes the caller's. To be called before the handler returns, once for each descriptor that it announces.
        """
        return None if self._arrivals is None else self._arrivals.take()

    def reply_object(self, request_id: RequestId, result: object) -> None:
        """Answer a request with what msgspec encodes; what it cannot encode is answered as -32603 and logged."""
        try:
            encoded = encode(result)
        except Exception as error:
            logger.exception("the answer to a request of %s is no JSON", self.name, extra=self.log_fields)
            self.reply_error(request_id, internal_error(error))
        else:
            self.reply(request_id, encoded)

    def reply_error(self, request_id: RequestId, error: RpcError) -> None:
        """Answer a request with an error. A second answer to the same request is dropped."""
        if self._answered(request_id):
            self._send(self._error_answer(request_id, error))

    def _error_answer(self, request_id: RequestId | None, error: RpcError) -> bytes:
        return error_answer(self.name, request_id, error, self.limits.max_frame)

    def _answered(self, request_id: RequestId) -> bool:
        try:
            del self._incoming[request_id]
        except KeyError:
            return False
        return not self._closed

    def _send(self, body: bytes, fds: Sequence[int] = (), instead: bytes = b"") -> None:
        if fds:
            self.channel.write_parcel(encode_frame(body), fds, encode_frame(instead))
        else:
            self.channel.write(encode_frame(body))
        if self.channel.queued > self.limits.max_queued_bytes:
            self.close(f"it reads too slowly: max_queued_bytes ({self.limits.max_queued_bytes}) exceeded")
        elif self._read_ended and not self._incoming:
            self.close("end of file", flush=True)

    # ---- receiving

    def _on_data(self, data: bytes) -> None:
        self._received += len(data)
        self._decoder.receive(data)
        self._work()

    def _on_parcel(self, data: bytes, fds: list[int], truncated: bool) -> None:
        if self._arrivals is None:
            self._arrivals = Arrivals()
        error = self._arrivals.arrive(fds, self._received + len(data), truncated=truncated)
        if error is not None:
            self._refuse(error)
        else:
            self._on_data(data)

    def _work(self) -> None:
        """Handle up to one turn's share of the messages that have arrived."""
        next_frame = self._decoder.next_frame
        try:
            for handled in range(MESSAGES_PER_TURN):
                body = next_frame()
                if body is None:
                    self._report_junk()
                    if (
                        self._arrivals is not None
                        and not self._decoder.inside_body
                        and self._is_surplus(self._arrivals)
                    ) or (self.meter is not None and self._must_wait(self.meter, handled)):
                        return
                    if self._behind:
                        self._behind = False
                        self.channel.pause(paused=False)
                    return
                self._on_frame(body)
                if self._closed:
                    return
                if self._arrivals is not None and self._is_surplus(self._arrivals):
                    return
        except FramingError as error:
            self._fail(error)
            return
        self._report_junk()
        if self.meter is None or not self._must_wait(self.meter, MESSAGES_PER_TURN):
            # More may be buffered: take it in the next turn and read nothing on top of it.
            self._behind = True
            self.channel.pause(paused=True)
            self._reactor.again(self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._work()

    def _must_wait(self, meter: Meter, messages: int) -> bool:
        """Charge what came in this turn; whether nothing more is read for now, or ever."""
        size, self._metered = self._received - self._metered, self._received
        try:
            seconds = meter.spend(messages, size)
        except RpcError as error:
            self._refuse(error)
            return True
        if seconds <= 0:
            return False
        self._behind = True
        self.channel.pause(paused=True)
        self._deadlines.add(trio.current_time() + seconds, self._resume)
        return True

    def _fail(self, error: FramingError) -> None:
        """Say what is wrong with the framing, and go."""
        self._report_junk()
        self._refuse(RpcError(ErrorCode.INVALID_REQUEST, error.message, {"framing": error.kind}))

    def _refuse(self, error: RpcError) -> None:
        """Say what is wrong with what arrived, and go."""
        self.channel.write(encode_frame(self._error_answer(None, error)))
        self.close(error.message, flush=True)

    def _is_surplus(self, arrivals: Arrivals) -> bool:
        """End the connection if a descriptor is left that none of the messages took which it came with."""
        error = arrivals.surplus(self._received - self._decoder.buffered)
        if error is not None:
            self._refuse(error)
        elif not arrivals:
            self._arrivals = None
        return error is not None

    def _report_junk(self) -> None:
        junk = self._decoder.take_junk()
        if junk.strip():
            self.junk_bytes += len(junk)
            guarded(self._handler.on_junk, self, junk)

    def _on_frame(self, body: bytes) -> None:
        if self.on_item is not None:
            item = decode_item_message(body)
            if item is not None:
                try:
                    self.on_item(item.method, item.params)
                except Exception:
                    logger.exception("an item of %s from %s failed", item.method, self.name, extra=self.log_fields)
                return
        try:
            message = decode_message(body)
        except InvalidMessage as invalid:
            self._on_invalid(invalid)
            return
        if message.method is UNSET:
            self._on_answer(message)
        elif message.id is UNSET:
            self._on_notification(message.method, message.params or EMPTY_OBJECT)
        elif message.id is not None:
            self._on_request(message.id, message.method, message.params or EMPTY_OBJECT)

    def _on_invalid(self, invalid: InvalidMessage) -> None:
        if invalid.answers is not None:
            pending = self._take(invalid.answers)
            if pending is None:
                self.late_replies += 1
            else:
                why = RpcError(ErrorCode.INTERNAL_ERROR, f"{self.name} answered what is {invalid.error.message}")
                guarded(pending.on_reply, None, why)
        self._send(self._error_answer(invalid.id, invalid.error))

    def _on_answer(self, message: Message) -> None:
        request_id = message.id
        pending = None if request_id is UNSET or request_id is None else self._take(request_id)
        if pending is None:
            self.late_replies += 1
            if message.error is not UNSET and request_id is None:
                self.complaints.warn(
                    logger, "%s reports: %s", self.name, decode_error(message.error), extra=self.log_fields
                )
            return
        try:
            if message.error is not UNSET:
                pending.on_reply(None, decode_error(message.error))
            elif message.result is not UNSET:
                pending.on_reply(message.result, None)
        except Exception:
            logger.exception("the callback of a request to %s failed", self.name, extra=self.log_fields)

    def _on_notification(self, method: str, params: Raw) -> None:
        if method == "$/cancel":
            self._on_cancel(params)
            return
        try:
            self._handler.on_notification(self, method, params)
        except RpcError as error:
            self.complaints.warn(logger, "notification %s of %s: %s", method, self.name, error, extra=self.log_fields)
        except Exception:
            logger.exception("notification %s of %s failed", method, self.name, extra=self.log_fields)

    def _on_cancel(self, params: Raw) -> None:
        try:
            request_id = msgspec.json.decode(params, type=_CancelParams).id
        except msgspec.MsgspecError:
            return
        if request_id in self._incoming:
            callback = self._incoming[request_id]
            self._incoming[request_id] = _withdrawn
            if callback is not None:
                guarded(callback)

    def _on_request(self, request_id: RequestId, method: str, params: Raw) -> None:
        if request_id in self._incoming:
            error = RpcError(ErrorCode.INVALID_REQUEST, "a request with this id is in flight", {"id": request_id})
            self._let_go()
            self._send(self._error_answer(request_id, error))
            return
        if len(self._incoming) >= self.limits.max_in_flight:
            error = bound_error(self.name, "max_in_flight", self.limits.max_in_flight)
            self._let_go()
            self._send(self._error_answer(request_id, error))
            return
        self._incoming[request_id] = None
        try:
            self._handler.on_request(self, request_id, method, params)
        except RpcError as refused:
            if refused.code == ErrorCode.INVALID_REQUEST:
                self._let_go()
            self.reply_error(request_id, refused)
        except Exception as failed:
            logger.exception("request %s of %s failed", method, self.name, extra=self.log_fields)
            self.reply_error(request_id, internal_error(failed))

    def _let_go(self) -> None:
        """Close what rides on a request that is refused for a bound, before anybody could take it."""
        if self._arrivals is not None:
            self._arrivals.surplus(self._received - self._decoder.buffered)

    # ---- the end

    def _on_end(self, gone: bool) -> None:
        # A peer that is behind with its messages does not read, so what the decoder still holds is incomplete.
        self._read_ended = True
        try:
            self._decoder.end()
        except FramingError as error:
            if gone:
                self._report_junk()
                self.close(error.message)
            else:
                self._fail(error)
            return
        self._report_junk()
        if gone or not self._incoming:
            self.close(self._end_reason, flush=not gone)
        else:
            self._fail_outgoing(self._end_reason)

    def _on_broken(self) -> None:
        self._end_reason = "the other side closed the connection"
        if self._read_ended or self._closed:
            self.close(self._end_reason)
        else:
            # What it had sent before it went still counts: answers to requests that are in flight.
            self.channel.read_rest()

    async def finish(self, reason: str) -> None:
        """Handle what the other side, which is known to be gone, had sent; then close."""
        self._end_reason = reason
        self.channel.read_rest()
        if self._read_ended:
            self.close(reason)
        while not self._closed:
            await trio.lowlevel.checkpoint()
            self._reactor.turn()

    def close(self, reason: str, *, flush: bool = False) -> None:
        """End the connection: requests in flight are answered with -32000, those of the other end are cancelled.

        Args:
            reason: for the handler and for errors, one phrase.
            flush: let what is queued leave first, for at most 5 seconds; closing again without it drops the rest.
        """
        if self._closed:
            if not flush:
                self.channel.close()
            return
        self._closed = True
        if self._arrivals is not None:
            self._arrivals.close()
        self.channel.close(flush=flush)
        if not self.channel.closed:
            # Somebody who does not read what is still queued may not keep the descriptors.
            self._deadlines.add(trio.current_time() + FLUSH_SECONDS, self.channel.close)
        self._fail_outgoing(reason)
        incoming, self._incoming = self._incoming, {}
        for callback in incoming.values():
            if callback is not None:
                guarded(callback)
        guarded(self._handler.on_closed, self, reason)

    def _fail_outgoing(self, reason: str) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for pending in outgoing.values():
            if pending.deadline is not None:
                pending.deadline.cancel()
            # Each gets an error of its own: tasks that raise it add their tracebacks.
            why = RpcError(ErrorCode.PLUGIN_FAILED, f"{self.name} went away: {reason}", {"reason": reason})
            guarded(pending.on_reply, None, why)


class _CancelParams(msgspec.Struct):
    id: int | str


def _withdrawn() -> None:
    """Stand for the callback of a request that was cancelled."""
