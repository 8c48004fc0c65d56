"""Checks: does the runner tell messages from what is none, and answer each request exactly once?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.lab import refused
from utter_sdk.conformance.report import CheckFailed, NotApplicable
from utter_sdk.conformance.runner_lab import HARMLESS, Table
from utter_sdk.conformance.wire import INT64, dumps, frame, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.runner_lab import RunnerLab

RUNNER_MESSAGES = Table()
_SECTION = "Messages"
_DEEPEST = 256
_LONGEST_ID = 1024
# A request that takes the runner longer than the moment in which it arrives, and does nothing to the desktop.
_SLOW = "context.snapshot"


@RUNNER_MESSAGES.enter("messages.ids", "Integers of 64 bits and strings are ids, 0 and the empty string too.", _SECTION)
def _ids(lab: RunnerLab) -> None:
    link = lab.link()
    for one in (0, -1, INT64 - 1, -INT64, "", "0", "é\u2028", "i" * _LONGEST_ID):
        lab.settled(link.answer(link.request(HARMLESS, {}, one), HARMLESS))


@RUNNER_MESSAGES.enter("messages.id-types", "A number and a string with the same digits are two ids.", _SECTION)
def _id_types(lab: RunnerLab) -> None:
    link = lab.link()
    link.expect(7, "7")
    link.send(frame(request(7, HARMLESS, {})) + frame(request("7", HARMLESS, {})))
    lab.settled(link.answer("7", HARMLESS))
    lab.settled(link.answer(7, HARMLESS))


def _answered_null(code: int, *bodies: bytes) -> Callable[[RunnerLab], None]:
    def check(lab: RunnerLab) -> None:
        link = lab.link()
        for body in bodies:
            link.expect(None)
            link.body(body)
            refused(link.answer(None, "what is no message"), "what is no message", code)
            lab.ask(link)

    return check


def _with_id(raw: str) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":"runner.status","params":{}}' % raw.encode()


def _nested(depth: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"runner.status","params":{"x":%b}}' % (
        b"[" * (depth - 2) + b"]" * (depth - 2)
    )


_NULL_ANSWERS: tuple[tuple[str, str, int, tuple[bytes, ...]], ...] = (
    (
        "bad-ids",
        "A request whose id is no string or 64-bit integer, or is too long, is answered -32600 with the id null.",
        ErrorCode.INVALID_REQUEST,
        (
            *map(_with_id, ("1.5", "true", "null", "[]", "{}", str(INT64), str(-INT64 - 1))),
            _with_id('"' + "i" * (_LONGEST_ID + 1) + '"'),
        ),
    ),
    (
        "batch",
        "A batch is answered -32600 with the id null, once.",
        ErrorCode.INVALID_REQUEST,
        (b"[]", b"[%b,%b]" % (_with_id("1"), _with_id("2"))),
    ),
    (
        "neither",
        "An object that is neither request nor answer is answered -32600 with the id null.",
        ErrorCode.INVALID_REQUEST,
        (b"{}", b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","params":{}}', b'"text"', b"7", b"null"),
    ),
    (
        "parse-error",
        "What is not JSON is answered -32700 with the id null.",
        ErrorCode.PARSE_ERROR,
        (b"", b"{", b"nonsense", b"{'a':1}", _with_id("1") + b"{}", _with_id("1")[:-2]),
    ),
    (
        "utf-8",
        "What is not UTF-8, or begins with a byte order mark, is answered -32700.",
        ErrorCode.PARSE_ERROR,
        (
            b'{"jsonrpc":"2.0","id":1,"method":"runner.status","params":{"x":"\xff"}}',
            b'{"jsonrpc":"2.0","id":1,"method":"runner.status","params":{"x":"\xed\xa0\x80"}}',
            b"\xef\xbb\xbf" + _with_id("1"),
            _with_id("1").decode().encode("utf-16"),
        ),
    ),
    (
        "numbers",
        "Numbers that JSON does not know are answered -32700.",
        ErrorCode.PARSE_ERROR,
        tuple(
            b'{"jsonrpc":"2.0","id":1,"method":"runner.status","params":{"x":%b}}' % one
            for one in (b"NaN", b"Infinity", b"-Infinity", b"01", b"0x1", b"1.")
        ),
    ),
    (
        "surrogates",
        "Half of a surrogate pair is answered -32700.",
        ErrorCode.PARSE_ERROR,
        (b'{"jsonrpc":"2.0","id":1,"method":"runner.status","params":{"x":"\\ud800"}}',),
    ),
    (
        "too-deep",
        "A body that nests more than 256 levels deep is answered -32700.",
        ErrorCode.PARSE_ERROR,
        # Together they stay below what a runner takes from a client that has not authenticated.
        (_nested(_DEEPEST + 1), _nested(10_000), b"[" * 20_000),
    ),
)
for _name, _title, _code, _bodies in _NULL_ANSWERS:
    RUNNER_MESSAGES.enter(f"messages.{_name}", _title, _SECTION)(_answered_null(_code, *_bodies))


@RUNNER_MESSAGES.enter("messages.deep", "A body that nests 256 levels deep is understood.", _SECTION)
def _deep(lab: RunnerLab) -> None:
    link = lab.link()
    link.expect(1)
    link.body(_nested(_DEEPEST))
    lab.settled(link.answer(1, HARMLESS))


@RUNNER_MESSAGES.enter(
    "messages.bad-envelope",
    "A request with another jsonrpc, a method that is not a string, or params that are no structure is answered -32600 "
    "with its id.",
    _SECTION,
)
def _bad_envelope(lab: RunnerLab) -> None:
    link = lab.link()
    for number, body in enumerate(
        (
            '{"jsonrpc":"1.0","id":ID,"method":"runner.status"}',
            '{"jsonrpc":2.0,"id":ID,"method":"runner.status"}',
            '{"id":ID,"method":"runner.status"}',
            '{"jsonrpc":"2.0","id":ID,"method":7}',
            '{"jsonrpc":"2.0","id":ID,"method":null}',
            '{"jsonrpc":"2.0","id":ID,"method":"runner.status","params":7}',
            '{"jsonrpc":"2.0","id":ID,"method":"runner.status","params":"text"}',
        )
    ):
        request_id = f"envelope-{number}"
        link.expect(request_id)
        link.body(body.replace("ID", f'"{request_id}"').encode())
        refused(link.answer(request_id, "a bad request"), "a bad request", ErrorCode.INVALID_REQUEST)
        lab.ask(link)


@RUNNER_MESSAGES.enter("messages.last-key", "Of duplicate keys the last counts.", _SECTION)
def _last_key(lab: RunnerLab) -> None:
    link = lab.link()
    link.expect("last")
    link.body(b'{"jsonrpc":"2.0","id":"first","id":"last","method":"no.such.method","method":"runner.status"}')
    lab.settled(link.answer("last", HARMLESS))


@RUNNER_MESSAGES.enter("messages.unknown-members", "Members and params that nobody knows are ignored.", "Conventions")
def _unknown_members(lab: RunnerLab) -> None:
    link = lab.link()
    link.expect("more")
    link.body(
        dumps({"jsonrpc": "2.0", "id": "more", "method": HARMLESS, "params": {"unknown": [1]}, "trace": {"a": None}})
    )
    lab.settled(link.answer("more", HARMLESS))


@RUNNER_MESSAGES.enter("messages.no-params", "Absent params are the same as {}.", _SECTION)
def _no_params(lab: RunnerLab) -> None:
    link = lab.link()
    lab.settled(link.call(HARMLESS))


@RUNNER_MESSAGES.enter(
    "messages.unknown-method", "A request with an unknown method is answered -32601.", _SECTION, needs="access"
)
def _unknown_method(lab: RunnerLab) -> None:
    link = lab.link()
    for method in ("conformance.nothing", "", "runner", "runner.status ", "RUNNER.STATUS"):
        refused(link.call(method, {}), f"the method {method!r}", ErrorCode.METHOD_NOT_FOUND)


@RUNNER_MESSAGES.enter(
    "messages.arrays", "A method that takes params answers an array -32602.", _SECTION, needs="access"
)
def _arrays(lab: RunnerLab) -> None:
    link = lab.link()
    for method in ("policy.explain", "runner.invoke", "runner.validate_plugin", "stream.subscribe", "stream.stop"):
        refused(link.call(method, []), f"{method} with an array", ErrorCode.INVALID_PARAMS)


@RUNNER_MESSAGES.enter(
    "messages.notifications", "A notification is never answered, whatever is wrong with it.", _SECTION
)
def _notifications(lab: RunnerLab) -> None:
    link = lab.link()
    link.notify("conformance.nothing", {})
    link.notify(HARMLESS, {})
    link.notify("policy.explain", {"op": 7})
    link.notify("stream.ack", {"stream_id": "none", "seq": 0})
    link.notify("stream.ack", [1])
    link.notify("$/cancel", {"id": 4711})
    link.notify("$/cancel", {})
    link.notify("$/cancel", ["x"])
    link.unanswered("notifications", lambda: lab.ask(link))


@RUNNER_MESSAGES.enter(
    "messages.stray-answers", "An answer that belongs to no request is dropped, and nothing is said.", _SECTION
)
def _stray_answers(lab: RunnerLab) -> None:
    link = lab.link()
    for one in (1, "none", 0):
        link.body(dumps({"jsonrpc": "2.0", "id": one, "result": {}}))
        link.body(dumps({"jsonrpc": "2.0", "id": one, "error": {"code": -32000, "message": "late"}}))
    link.body(dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "yours was no JSON"}}))
    link.unanswered("answers to nothing", lambda: lab.ask(link))


@RUNNER_MESSAGES.enter(
    "messages.wrong-answers", "An answer with both result and error is never answered under its own id.", _SECTION
)
def _wrong_answers(lab: RunnerLab) -> None:
    link = lab.link()
    link.expect(None)
    link.body(dumps({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": "both"}}))
    refused(link.answer(None, "a wrong answer"), "a wrong answer", ErrorCode.INVALID_REQUEST)
    link.unanswered("a wrong answer", lambda: lab.ask(link))


@RUNNER_MESSAGES.enter(
    "messages.pipelined",
    "1,000 requests in one write are answered, each exactly once and under its id.",
    _SECTION,
    needs="access",
)
def _pipelined(lab: RunnerLab) -> None:
    link = lab.link()
    calls: list[tuple[str, Any]] = [("stream.stop", {"stream_id": "none"})] * 1000
    for one in link.requests(calls, "1,000 times stream.stop"):
        answer = link.answer(one, "stream.stop")
        if not lab.facts.access:
            refused(answer, "stream.stop", ErrorCode.NOT_PERMITTED)
        elif answer.result != {}:
            raise CheckFailed("stream.stop for no stream is not answered {}", expected="the result {}")
    link.unanswered("1,000 requests", lambda: lab.ask(link))


@RUNNER_MESSAGES.enter(
    "messages.in-flight",
    "Of more requests than may be in flight each is answered, or refused -32600 with the bound max_in_flight.",
    _SECTION,
    needs="access",
)
def _in_flight(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        for one in link.requests([(_SLOW, {})] * 1500, f"1,500 times {_SLOW}"):
            answer = link.answer(one, _SLOW)
            if answer.code is not None and answer.code != ErrorCode.METHOD_NOT_FOUND:
                refused(answer, _SLOW, ErrorCode.INVALID_REQUEST)
                data = answer.error.get("data") or {}
                if data.get("bound") != "max_in_flight" or not isinstance(data.get("limit"), int):
                    raise CheckFailed(
                        f"the refusal has data {data!r}", expected='data {bound: "max_in_flight", limit: a number}'
                    )
        link.unanswered("1,500 requests", lambda: lab.ask(link))


@RUNNER_MESSAGES.enter(
    "messages.duplicate-id",
    "A second request with the id of one in flight is answered -32600, and the first as usual.",
    _SECTION,
    needs="access",
)
def _duplicate_id(lab: RunnerLab) -> None:
    link = lab.link()
    link.expect("twice", "twice")
    link.send(frame(request("twice", _SLOW, {})) * 2)
    answers = [link.answer("twice", _SLOW) for _ in range(2)]
    link.unanswered("two requests with one id", lambda: lab.ask(link))
    codes = [one.code for one in answers]
    if ErrorCode.METHOD_NOT_FOUND in codes or codes == [None, None]:
        raise NotApplicable(f"{_SLOW} is answered too fast for two of them to be in flight.")
    if sorted(codes, key=str) != [ErrorCode.INVALID_REQUEST, None]:
        raise CheckFailed(f"they were answered {codes}", expected="one result, and the error -32600 once")


@RUNNER_MESSAGES.enter(
    "messages.cancel",
    "A cancelled request is still answered, exactly once: -32002, or as if nothing had happened.",
    "Cancellation and deadlines",
    needs="access",
)
def _cancel(lab: RunnerLab) -> None:
    link = lab.link()
    cancel = frame(dumps({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": "cancelled"}}))
    link.expect("cancelled")
    link.send(frame(request("cancelled", _SLOW, {})) + cancel * 3)
    answer = link.answer("cancelled", _SLOW)
    if answer.code not in (None, ErrorCode.METHOD_NOT_FOUND):
        refused(answer, "a cancelled request", ErrorCode.CANCELLED)
    # It is over: this does nothing.
    link.send(cancel)
    link.unanswered("a cancelled request", lambda: lab.ask(link))


@RUNNER_MESSAGES.enter("messages.cancel-nothing", "Cancelling what is not in flight does nothing.", _SECTION)
def _cancel_nothing(lab: RunnerLab) -> None:
    link = lab.link()
    for one in (0, 1, "none", -1):
        link.notify("$/cancel", {"id": one})
    link.unanswered("cancellations of nothing", lambda: lab.ask(link))
