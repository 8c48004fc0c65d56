"""Checks: does the runner keep the rules of streams, with the one that every runner has?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.lab import decoded, refused, result_of
from utter_sdk.conformance.report import CheckFailed
from utter_sdk.conformance.runner_lab import Table
from utter_sdk.conformance.runner_shapes import Item, Status, Subscribed

if TYPE_CHECKING:
    from utter_sdk.conformance.runner_lab import RunnerLab
    from utter_sdk.conformance.runner_link import RunnerLink

RUNNER_STREAMS = Table()
_SECTION = "Streams"
_EVENTS = "runner.events"
_SUBSCRIBE, _ACK, _STOP = "stream.subscribe", "stream.ack", "stream.stop"
_MOST = 64
_SHORTEST_ID = 16


def _subscribe(link: RunnerLink, **more: Any) -> Subscribed:
    answer = link.call(_SUBSCRIBE, {"method": _EVENTS, **more})
    found: Subscribed = decoded(result_of(answer, _SUBSCRIBE), Subscribed, _SUBSCRIBE)
    return found


def _item(link: RunnerLink, stream: Subscribed) -> Item:
    found: Item = decoded(link.take(_EVENTS, stream.stream_id).params, Item, "an item")
    return found


def _empty(link: RunnerLink, method: str, params: dict[str, Any]) -> None:
    result = result_of(link.call(method, params), method)
    if result != {}:
        raise CheckFailed(f"{method} was answered {result!r}", expected="the result {}")


@RUNNER_STREAMS.enter(
    "streams.state-first",
    "The first item of runner.events comes after the answer, has the number 0, and is the whole state.",
    "Events",
    needs="access",
)
def _state_first(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        request_id = link.request(_SUBSCRIBE, {"method": _EVENTS})
        link.wait(lambda: bool(link.heard), "an item of runner.events")
        lines = [text for how, text in link.transcript if how == "<"]
        first = next(number for number, line in enumerate(lines) if '"seq"' in line)
        stream = decoded(result_of(link.answer(request_id, _SUBSCRIBE), _SUBSCRIBE), Subscribed, _SUBSCRIBE)
        if first == 0 or not any(stream.stream_id in line for line in lines[:first]):
            raise CheckFailed("an item came before the answer", expected="the answer first")
        item = _item(link, stream)
        if item.seq != 0 or not isinstance(item.data, dict) or item.data.get("event") != "state":
            raise CheckFailed(f"the first item is number {item.seq} and not the state", expected="seq 0, event state")
        decoded(item.data.get("status"), Status, "the status of the first item")


@RUNNER_STREAMS.enter("streams.modes", "runner.events is lossy unless reliable is asked for.", _SECTION, needs="access")
def _modes(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        for asked, mode in (
            ({}, "lossy"),
            ({"mode": "lossy"}, "lossy"),
            ({"mode": "reliable", "params": {}}, "reliable"),
        ):
            stream = _subscribe(link, **asked)
            if stream.mode != mode:
                raise CheckFailed(f"the mode is {stream.mode}", expected=mode)
            if _item(link, stream).seq != 0:
                raise CheckFailed("the first item is not number 0", expected="seq 0")


@RUNNER_STREAMS.enter("streams.ids", "The ids of streams cannot be guessed.", _SECTION, needs="access")
def _ids(lab: RunnerLab) -> None:
    with lab.fresh() as link, lab.fresh() as other:
        ids = [_subscribe(one).stream_id for one in (link, link, other, other)]
    if len(set(ids)) != len(ids) or min(map(len, ids)) < _SHORTEST_ID:
        raise CheckFailed(f"the ids are {ids}", expected=f"different ids of at least {_SHORTEST_ID} characters")


@RUNNER_STREAMS.enter("streams.unknown", "An unknown stream is answered -32601.", _SECTION, needs="access")
def _unknown(lab: RunnerLab) -> None:
    link = lab.link()
    for method in ("conformance.nothing", "", "runner.status"):
        refused(link.call(_SUBSCRIBE, {"method": method}), f"the stream {method!r}", ErrorCode.METHOD_NOT_FOUND)


@RUNNER_STREAMS.enter(
    "streams.invalid", "Params of streams that do not fit are answered -32602.", _SECTION, needs="access"
)
def _invalid(lab: RunnerLab) -> None:
    link = lab.link()
    for method, params in (
        (_SUBSCRIBE, {}),
        (_SUBSCRIBE, {"method": 7}),
        (_SUBSCRIBE, {"method": _EVENTS, "mode": "sometimes"}),
        (_SUBSCRIBE, {"method": _EVENTS, "params": 7}),
        (_ACK, {"stream_id": "none"}),
        (_ACK, {"stream_id": "none", "seq": "0"}),
        (_STOP, {}),
    ):
        refused(link.call(method, params), f"{method} {params}", ErrorCode.INVALID_PARAMS)


@RUNNER_STREAMS.enter(
    "streams.ack",
    "Acknowledgements are answered {} as requests and never as notifications, whatever they acknowledge.",
    _SECTION,
    needs="access",
)
def _ack(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        stream = _subscribe(link, mode="reliable")
        _item(link, stream)
        for seq in (0, 0, 4711):
            link.notify(_ACK, {"stream_id": stream.stream_id, "seq": seq})
            _empty(link, _ACK, {"stream_id": stream.stream_id, "seq": seq})
        _empty(link, _ACK, {"stream_id": "none", "seq": 0})
        link.notify(_ACK, {"stream_id": "none", "seq": 0})
        link.unanswered("acknowledgements", lambda: lab.ask(link))


@RUNNER_STREAMS.enter(
    "streams.stop", "Stopping is answered {} as often as it is asked, for no stream too.", _SECTION, needs="access"
)
def _stop(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        stream = _subscribe(link)
        for _ in range(2):
            _empty(link, _STOP, {"stream_id": stream.stream_id})
        _empty(link, _STOP, {"stream_id": "none"})
        _empty(link, _ACK, {"stream_id": stream.stream_id, "seq": 0})


@RUNNER_STREAMS.enter(
    "streams.foreign",
    "The id of another connection's stream is like one that does not exist.",
    _SECTION,
    needs="access",
)
def _foreign(lab: RunnerLab) -> None:
    with lab.fresh() as link, lab.fresh() as other:
        streams = [_subscribe(link) for _ in range(_MOST)]
        _empty(other, _STOP, {"stream_id": streams[0].stream_id})
        _empty(other, _ACK, {"stream_id": streams[0].stream_id, "seq": 0})
        if link.call(_SUBSCRIBE, {"method": _EVENTS}).code is None:
            raise CheckFailed("another connection has stopped the stream: there is room again", expected="no effect")


@RUNNER_STREAMS.enter(
    "streams.bound",
    "A connection has at most 64 streams: one more is -32600 with the bound; a stopped one makes room.",
    _SECTION,
    needs="access",
)
def _bound(lab: RunnerLab) -> None:
    with lab.fresh() as link, lab.fresh() as other:
        streams = [_subscribe(link) for _ in range(_MOST)]
        answer = link.call(_SUBSCRIBE, {"method": _EVENTS})
        refused(answer, "one stream more", ErrorCode.INVALID_REQUEST)
        data = answer.error.get("data") or {}
        if not isinstance(data.get("bound"), str) or data.get("limit") != _MOST:
            raise CheckFailed(f"the refusal has data {data!r}", expected=f"data {{bound, limit: {_MOST}}}")
        # The others' streams are their own.
        _subscribe(other)
        _empty(link, _STOP, {"stream_id": streams[0].stream_id})
        _subscribe(link)


@RUNNER_STREAMS.enter(
    "streams.input",
    "Streams that begin with input. are not for clients: -32003.",
    _SECTION,
    level="should",
    needs="access",
)
def _input(lab: RunnerLab) -> None:
    refused(lab.link().call(_SUBSCRIBE, {"method": "input.keys"}), "input.keys", ErrorCode.NOT_PERMITTED)
