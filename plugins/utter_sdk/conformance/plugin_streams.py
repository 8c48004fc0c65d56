"""Checks: do the plugin's streams begin, count, wait for credit and stop as they should?

Rules here: all streams are looked at at the same time, each through a subscription of its own; one that sends nothing
by itself, because nobody presses a key, is left out where items are needed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from utter_protocol.contracts import METHODS, STREAMS
from utter_protocol.errors import ErrorCode
from utter_protocol.methods import SubscribeResult
from utter_sdk.conformance.lab import Table, decoded, refused, result_of, worked
from utter_sdk.conformance.report import CheckFailed, NotApplicable

if TYPE_CHECKING:
    from utter_protocol.contracts import Mode
    from utter_sdk.conformance.lab import Lab
    from utter_sdk.conformance.link import Link
    from utter_sdk.conformance.wire import Message

STREAM_CHECKS = Table()
_SECTION = "Streams"
_WINDOW = 4
_NOTHING = "No stream sent anything by itself."
_PARAMS: dict[str, dict[str, Any]] = {
    "context.live": {},
    "llm.delta": {"prompt": "Count from one to ten.", "max_tokens": 32},
    "tts.audio": {"text": "This is a test."},
}
"""The streams that begin by themselves, and what they are asked."""


class _Subscription:
    """One stream, as its subscriber sees it."""

    def __init__(self, lab: Lab, link: Link, method: str, mode: Mode | None, window: int = 64) -> None:
        self.method = method
        self._link = link
        self._begin = len(link.messages)
        params: dict[str, Any] = {"method": method, "params": _PARAMS.get(method, {}), "window": window}
        if mode is not None:
            params["mode"] = mode
        request_id = link.request("stream.subscribe", params)
        answer = link.answer(request_id, "stream.subscribe", lab.limits.work)
        self._answered = next(n for n, one in enumerate(link.messages) if one is answer)
        result = decoded(
            worked(answer, f"a subscription of {method}"), SubscribeResult, "the result of stream.subscribe"
        )
        self.id: str = result.stream_id
        self.mode: Mode = result.mode
        if mode is not None and self.mode != mode:
            raise CheckFailed(f"{method} was asked for as {mode}, and is {self.mode}", expected=mode)

    @property
    def items(self) -> list[dict[str, Any]]:
        """The params of the items so far."""
        return [message.params for message in self._mine(self.method, self._begin)]

    @property
    def numbers(self) -> list[Any]:
        """The numbers of the items so far."""
        return [item.get("seq") for item in self.items]

    @property
    def early(self) -> bool:
        """Whether an item came before the answer to `stream.subscribe`."""
        return len(self.items) > len(self._mine(self.method, self._answered))

    @property
    def closed(self) -> bool:
        """Whether the plugin said that the stream is over."""
        return bool(self._mine("stream.closed", self._begin))

    def has(self, count: int) -> bool:
        """Whether that many items have come, or no more will."""
        return len(self.items) >= count or self.closed

    def ack(self, seq: int) -> None:
        """Acknowledge everything up to an item."""
        self._link.notify("stream.ack", {"stream_id": self.id, "seq": seq})

    def stop(self) -> int:
        """Stop it; return the place of the answer among the link's messages."""
        answer = self._link.call("stream.stop", {"stream_id": self.id})
        decoded(result_of(answer, "stream.stop"), dict[str, Any], "the result of stream.stop")
        return next(n for n, one in enumerate(self._link.messages) if one is answer)

    def after(self, place: int) -> int:
        """How many items came behind a place among the link's messages."""
        return len(self._mine(self.method, place))

    def _mine(self, method: str, begin: int) -> list[Message]:
        return [
            message
            for message in self._link.messages[begin:]
            if message.method == method
            and isinstance(message.params, dict)
            and message.params.get("stream_id") == self.id
        ]


def _all(lab: Lab, mode: Mode, window: int = 64) -> list[_Subscription]:
    """Subscribe to every stream, and read until each has begun that begins by itself, and a little longer."""
    link = lab.link()
    opened = [_Subscription(lab, link, name, mode, window) for name in _streams(lab)]
    eager = [one for one in opened if one.method in _PARAMS]
    link.wait(
        lambda: all(one.has(1) for one in eager),
        f"the first item of {', '.join(one.method for one in eager)}",
        lab.limits.work,
    )
    link.quiet()
    return opened


def _streams(lab: Lab) -> list[str]:
    lab.need("stream.subscribe")
    found = [name for name in lab.facts.streams if name not in METHODS]
    if not found:
        raise NotApplicable("It lists no stream that can be subscribed to.")
    return found


@STREAM_CHECKS.enter("stream.methods", "Whoever answers stream.subscribe answers stream.stop.", _SECTION)
def _methods(lab: Lab) -> None:
    lab.need("stream.subscribe")
    if not lab.lists("stream.stop"):
        raise CheckFailed("stream.subscribe is listed, and stream.stop is not", expected="stream.stop in methods")


@STREAM_CHECKS.enter("stream.unknown", "An unknown stream is answered -32601.", _SECTION)
def _unknown(lab: Lab) -> None:
    lab.need("stream.subscribe")
    params = {"method": "conformance.no_such_stream", "params": {}, "mode": "lossy", "window": 64}
    refused(lab.link().call("stream.subscribe", params), "an unknown stream", ErrorCode.METHOD_NOT_FOUND)


@STREAM_CHECKS.enter("stream.unknown-id", "stream.ack and stream.stop of an unknown stream do nothing.", _SECTION)
def _unknown_id(lab: Lab) -> None:
    lab.need("stream.subscribe")
    link = lab.link()
    link.notify("stream.ack", {"stream_id": "conformance", "seq": 7})
    result_of(link.call("stream.stop", {"stream_id": "conformance"}), "stream.stop of an unknown stream")
    link.barrier()


@STREAM_CHECKS.enter(
    "stream.subscribe", "Each stream that is listed can be subscribed to, in both modes and in its own.", _SECTION
)
def _subscribe(lab: Lab) -> None:
    link = lab.link()
    modes: tuple[Mode | None, ...] = ("lossy", "reliable", None)
    for name in _streams(lab):
        opened = [_Subscription(lab, link, name, mode) for mode in modes]
        for stream in opened:
            stream.stop()
        if len({stream.id for stream in opened}) < len(modes):
            raise CheckFailed("two subscriptions have one stream_id", expected="an id of its own for each")
        wanted = STREAMS[name].mode if name in STREAMS else opened[-1].mode
        if opened[-1].mode != wanted:
            raise CheckFailed(f"{name} is {opened[-1].mode} where nothing is asked for", expected=wanted)


@STREAM_CHECKS.enter(
    "stream.items", "Items come after the answer, count from 0, and have the data of their stream.", _SECTION
)
def _items(lab: Lab) -> None:
    opened = _all(lab, "reliable", _WINDOW)
    for stream in opened:
        if stream.early:
            what = f"an item of {stream.method} came before the answer to stream.subscribe"
            raise CheckFailed(what, expected="the answer first")
        if stream.numbers != list(range(len(stream.numbers))):
            raise CheckFailed(f"the items of {stream.method} have the numbers {stream.numbers[:8]}", expected="0, 1, 2")
        for item in stream.items:
            if "data" not in item:
                raise CheckFailed(f"an item of {stream.method} has no data", expected="{stream_id, seq, data}")
            if stream.method in STREAMS:
                decoded(item["data"], STREAMS[stream.method].data, f"data of {stream.method}")
        stream.stop()
    if not any(stream.items for stream in opened):
        raise NotApplicable(_NOTHING)


@STREAM_CHECKS.enter(
    "stream.window", "Without acknowledgement a reliable stream sends no more than its window.", _SECTION
)
def _window(lab: Lab) -> None:
    opened = _all(lab, "reliable", _WINDOW)
    for stream in opened:
        count = len(stream.items)
        stream.stop()
        if count > _WINDOW:
            raise CheckFailed(f"{stream.method} sent {count} items with a window of {_WINDOW}", expected=str(_WINDOW))
    if not any(stream.items for stream in opened):
        raise NotApplicable(_NOTHING)


@STREAM_CHECKS.enter(
    "stream.credit", "An acknowledgement lets a reliable stream go on, and lets as many follow.", _SECTION
)
def _credit(lab: Lab) -> None:
    opened = _all(lab, "reliable", _WINDOW)
    full = [stream for stream in opened if len(stream.items) == _WINDOW and not stream.closed]
    for stream in full:
        stream.ack(_WINDOW - 1)
    link = lab.link()
    for stream in full:
        link.wait(
            lambda stream=stream: stream.has(_WINDOW + 1),  # type: ignore[misc]  # the default only binds it
            f"an item of {stream.method} after stream.ack",
        )
    link.quiet()
    for stream in opened:
        count = len(stream.items)
        stream.stop()
        if count > 2 * _WINDOW:
            what = f"{stream.method} sent {count} items, and {_WINDOW} were acknowledged"
            raise CheckFailed(what, expected=str(2 * _WINDOW))
    if not full:
        raise NotApplicable(f"No stream sent {_WINDOW} items by itself.")


@STREAM_CHECKS.enter(
    "stream.stop", "After the answer to stream.stop no item comes, and a second stop is answered alike.", _SECTION
)
def _stop(lab: Lab) -> None:
    opened = _all(lab, "lossy")
    places = [(stream, stream.stop()) for stream in opened]
    lab.link().quiet()
    for stream, place in places:
        late = stream.after(place)
        if late:
            raise CheckFailed(f"{late} items of {stream.method} came after the answer to stream.stop", expected="none")
        stream.stop()


@STREAM_CHECKS.enter(
    "stream.lossy", "The items of a lossy stream have rising numbers, and need no acknowledgement.", _SECTION
)
def _lossy(lab: Lab) -> None:
    opened = _all(lab, "lossy", _WINDOW)
    for stream in opened:
        stream.stop()
        numbers = stream.numbers
        whole = [one for one in numbers if isinstance(one, int) and one >= 0]
        if whole != numbers or any(two <= one for one, two in pairwise(whole)):
            raise CheckFailed(f"the items of {stream.method} have the numbers {numbers[:8]}", expected="rising numbers")
    if not any(stream.items for stream in opened):
        raise NotApplicable(_NOTHING)
