"""Checks: does the plugin answer every request once, nothing else, and survive what is no message?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.friendly import CASES
from utter_sdk.conformance.lab import Table, refused, result_of
from utter_sdk.conformance.report import CheckFailed
from utter_sdk.conformance.wire import INT64, MAX_IN_FLIGHT, dumps, frame, notification, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.lab import Lab
    from utter_sdk.conformance.link import Link

MESSAGES = Table()
_SECTION = "Messages"
_HEALTH = "plugin.health"
_UNKNOWN = "conformance.there_is_no_such_method"


def _answers_with(link: Link, *ids: Any) -> None:
    for one in ids:
        _answers_with_one(link, one)


def _answers_with_one(link: Link, request_id: Any) -> None:
    before = link.strangers
    link.request(_HEALTH, {}, request_id)
    link.wait(lambda: link.answered(request_id) or link.strangers > before, f"an answer to the id {request_id!r}")
    if not link.answered(request_id):
        raise CheckFailed("the answer has another id", expected=f"the id {request_id!r}")
    result_of(link.answer(request_id, _HEALTH), _HEALTH)


@MESSAGES.enter(
    "messages.ids", "Ids are numbers or strings, 0 and the empty string among them, and come back unchanged.", _SECTION
)
def _ids(lab: Lab) -> None:
    _answers_with(lab.link(), 0, -1, 2**31, 2**53 - 1, "", "7", "a b", "ünï€😀", 'a"b\\c\n\t\u0001', "x" * 1024)


@MESSAGES.enter("messages.ids-64bit", "Ids at the ends of 64 bits come back unchanged.", _SECTION, level="should")
def _ids_64bit(lab: Lab) -> None:
    _answers_with(lab.link(), INT64 - 1, -INT64, 2**53 + 1)


@MESSAGES.enter("messages.id-again", "An id may be used again once its request was answered.", _SECTION)
def _id_again(lab: Lab) -> None:
    _answers_with(lab.link(), "again", "again", "again")


@MESSAGES.enter(
    "messages.id-in-flight",
    "Two requests with one id get two answers, the second -32600 while the first is open.",
    _SECTION,
)
def _id_in_flight(lab: Lab) -> None:
    link = lab.link()
    link.expect("twice", "twice")
    link.send(frame(request("twice", _HEALTH, {})) * 2)
    answers = [link.answer("twice", _HEALTH), link.answer("twice", _HEALTH)]
    link.barrier()
    for answer in answers:
        if answer.code is not None:
            refused(answer, "the second request with an id in flight", ErrorCode.INVALID_REQUEST)
    if all(answer.code is not None for answer in answers):
        raise CheckFailed("both requests were refused", expected="an answer to the first")


@MESSAGES.enter(
    "messages.id-null",
    "An id in a request that is null, a fraction, a boolean or an array is answered -32600.",
    _SECTION,
    level="should",
)
def _id_null(lab: Lab) -> None:
    link = lab.link()
    for bad in (None, 1.5, True, [1], {"a": 1}):
        link.allow(None)
        link.forget(None)
        link.body(request(bad, _HEALTH, {}))
        refused(link.answer(None, f"a request with the id {bad!r}"), f"the id {bad!r}", ErrorCode.INVALID_REQUEST)


@MESSAGES.enter(
    "messages.whitespace", "JSON may have spaces, line breaks and escapes wherever JSON allows them.", _SECTION
)
def _whitespace(lab: Lab) -> None:
    link = lab.link()
    link.expect("😀/")
    link.body(
        b' \r\n{ "params"\t: { } ,\n"method" : "plugin.\\u0068ealth",\r\n'
        b' "jsonrpc":"2.0" , "id" : "\\ud83d\\ude00\\/" }\n '
    )
    result_of(link.answer("😀/", _HEALTH), _HEALTH)


@MESSAGES.enter("messages.params-absent", "Absent params count as an empty object.", _SECTION)
def _params_absent(lab: Lab) -> None:
    link = lab.link()
    for method in (_HEALTH, "plugin.describe"):
        result_of(link.call(method), f"{method} without params")


@MESSAGES.enter(
    "messages.unknown-fields", "Fields that it does not know are ignored, in messages and in params.", "Conventions"
)
def _unknown_fields(lab: Lab) -> None:
    link = lab.link()
    more = {"x_conformance": {"deep": [1, None, True, "\u2028"]}}
    for method in (_HEALTH, "plugin.describe"):
        result_of(link.call(method, more), f"{method} with an unknown field in its params")
    link.expect("more")
    link.body(dumps({"jsonrpc": "2.0", "id": "more", "method": _HEALTH, "params": {}, "x_conformance": more}))
    result_of(link.answer("more", _HEALTH), f"{_HEALTH} in a message with an unknown field")
    for method in ("router.plan", "router.hints", "knowledge.catalog", "action.capabilities"):
        if lab.lists(method):
            answer = link.call(method, {**CASES[method].params, **more})
            if answer.code == ErrorCode.INVALID_PARAMS:
                result_of(answer, f"{method} with an unknown field in its params")


@MESSAGES.enter("messages.params-array", "Params that are an array are answered -32602.", _SECTION, level="should")
def _params_array(lab: Lab) -> None:
    link = lab.link()
    method = _with_params(lab)
    refused(link.call(method, []), f"{method} with params []", ErrorCode.INVALID_PARAMS)


@MESSAGES.enter(
    "messages.params-missing", "A field of params that is missing is answered -32602.", "Errors", level="should"
)
def _params_missing(lab: Lab) -> None:
    link = lab.link()
    method = _with_params(lab)
    refused(link.call(method, {}), f"{method} without its fields", ErrorCode.INVALID_PARAMS)


def _with_params(lab: Lab) -> str:
    """A method that has a field which must be there; all plugins have one, but asking it twice is less usual."""
    for method, case in CASES.items():
        if case.required and lab.lists(method):
            return method
    return "protocol.hello"


@MESSAGES.enter(
    "messages.params-no-object", "Params that are neither object nor array are refused.", _SECTION, level="should"
)
def _params_no_object(lab: Lab) -> None:
    link = lab.link()
    for params in (7, "text", None):
        link.allow(None)
        link.forget(None)
        request_id = link.request(_HEALTH, params)
        link.barrier()
        if not (link.answered(request_id) or link.answered(None)):
            raise CheckFailed(f"a request with params {params!r} is not answered", expected="an error")
        answer = link.take(request_id) or link.take(None)
        if answer is not None:
            refused(answer, f"params {params!r}", ErrorCode.INVALID_PARAMS, ErrorCode.INVALID_REQUEST)


@MESSAGES.enter("messages.unknown-method", "A request with an unknown method is answered -32601.", _SECTION)
def _unknown_method(lab: Lab) -> None:
    link = lab.link()
    for method in (_UNKNOWN, "plugin.there_is_no_such_method", "toString", "", "ünï€"):
        refused(link.call(method, {}), f"the unknown method {method!r}", ErrorCode.METHOD_NOT_FOUND)


@MESSAGES.enter(
    "messages.notifications", "Notifications are never answered, with a known method or an unknown one.", _SECTION
)
def _notifications(lab: Lab) -> None:
    link = lab.link()
    before = len(link.messages)
    link.notify(_UNKNOWN, {"a": 1})
    link.notify(_HEALTH, {})
    link.notify(_UNKNOWN)
    link.body(notification("$/conformance", {}))
    link.notify(_UNKNOWN, [1])
    link.unanswered(before, "a notification")


@MESSAGES.enter("messages.unknown-answers", "Answers to requests that it never sent are dropped.", _SECTION)
def _unknown_answers(lab: Lab) -> None:
    link = lab.link()
    before = len(link.messages)
    link.body(dumps({"jsonrpc": "2.0", "id": 987654, "result": {}}))
    link.body(dumps({"jsonrpc": "2.0", "id": "invented", "error": {"code": -32000, "message": "no"}}))
    link.body(dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no"}}))
    link.unanswered(before, "an answer")


@MESSAGES.enter("messages.burst", "Several hundred requests at once are all answered, each once.", _SECTION, alone=True)
def _burst(lab: Lab) -> None:
    with lab.fresh() as link:
        methods = (_HEALTH, "plugin.describe", _UNKNOWN)
        calls: list[tuple[str, Any]] = [(methods[number % 3], {}) for number in range(MAX_IN_FLIGHT // 2)]
        for one in link.requests(calls, f"{len(calls)} requests of {', '.join(methods)}"):
            link.answer(one)
        link.barrier()


# ---- What is no message

_NO_JSON: tuple[tuple[str, str, bytes], ...] = (
    ("not-json", "A body that is not JSON", b"{"),
    (
        "trailing",
        "A body with something after its JSON text",
        b'{"jsonrpc":"2.0","id":"x","method":"plugin.health"} {}',
    ),
    (
        "not-utf8",
        "A body that is not UTF-8",
        b'{"jsonrpc":"2.0","id":"x","method":"plugin.health","params":{"a":"\xff\xc0"}}',
    ),
    (
        "bom",
        "A body that begins with a byte order mark",
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":"x","method":"plugin.health"}',
    ),
    ("nan", "A body with NaN", b'{"jsonrpc":"2.0","id":"x","method":"plugin.health","params":{"a":NaN}}'),
    (
        "deep",
        "A body that nests more than 256 levels deep",
        b'{"jsonrpc":"2.0","id":"x","method":"plugin.health","params":{"a":' + b"[" * 300 + b"]" * 300 + b"}}",
    ),
)
_NO_MESSAGE: tuple[tuple[str, str, bytes], ...] = (
    ("batch", "A batch", b'[{"jsonrpc":"2.0","id":"x","method":"plugin.health"}]'),
    ("no-object", "A body that is JSON and no object", b'"plugin.health"'),
    ("no-version", 'A message whose jsonrpc is not "2.0"', b'{"jsonrpc":"1.0","id":"x","method":"plugin.health"}'),
    ("method-number", "A message whose method is not a string", b'{"jsonrpc":"2.0","id":"x","method":7}'),
    ("neither", "An object that is neither request nor answer", b'{"jsonrpc":"2.0","id":"x"}'),
)


def _survives(lab: Lab, body: bytes) -> None:
    link = lab.link()
    link.allow(None, "x")
    link.body(body)
    link.barrier()


def _answered(lab: Lab, body: bytes, code: int, what: str) -> None:
    link = lab.link()
    link.allow(None, "x")
    link.forget(None, "x")
    link.body(body)
    link.barrier()
    answer = link.take(None) or (link.take("x") if code == ErrorCode.INVALID_REQUEST else None)
    if answer is None:
        found = link.take("x")
        came = "is not answered with the id null" if found else "is not answered"
        raise CheckFailed(f"{what} {came}", expected=f"the error {code}")
    refused(answer, what, code)


@MESSAGES.enter("messages.goes-on", "It goes on after bodies that are no messages.", _SECTION)
def _goes_on(lab: Lab) -> None:
    for _, _, body in (*_NO_JSON, *_NO_MESSAGE):
        _survives(lab, body)
    _survives(lab, b"[" * 100_000)


def _refused_as(code: int, body: bytes, what: str) -> Callable[[Lab], None]:
    return lambda lab: _answered(lab, body, code, what.lower())


for _name, _what, _body in _NO_JSON:
    MESSAGES.enter(
        f"messages.{_name}",
        f"{_what} is answered -32700 with the id null.",
        _SECTION,
        level="must" if _name == "not-json" else "should",
    )(_refused_as(ErrorCode.PARSE_ERROR, _body, _what))
for _name, _what, _body in _NO_MESSAGE:
    MESSAGES.enter(f"messages.{_name}", f"{_what} is answered -32600.", _SECTION, level="should")(
        _refused_as(ErrorCode.INVALID_REQUEST, _body, _what)
    )


@MESSAGES.enter("messages.depth", "A body that nests 256 levels deep is understood.", "Bounds", level="should")
def _depth(lab: Lab) -> None:
    link = lab.link()
    request_id = link.next_id()
    link.expect(request_id)
    # The message and its params are two levels.
    value = b"[" * 254 + b"]" * 254
    link.body(b'{"jsonrpc":"2.0","id":%d,"method":"plugin.health","params":{"a":%b}}' % (request_id, value))
    result_of(link.answer(request_id, _HEALTH), "plugin.health with 256 levels")


@MESSAGES.enter("messages.duplicate-keys", "Of duplicate keys the last counts.", _SECTION, level="should")
def _duplicate_keys(lab: Lab) -> None:
    link = lab.link()
    request_id = link.next_id()
    link.expect(request_id)
    link.allow("first")
    twice = b'"id":"first","id":%d,"method":"%b","method":"plugin.health"' % (request_id, _UNKNOWN.encode())
    link.body(b'{"jsonrpc":"2.0",%b,"params":{}}' % twice)
    result_of(link.answer(request_id, "a request with duplicate keys"), "the last method of two")


@MESSAGES.enter(
    "messages.long-id", "A string id of more than 1024 characters is answered -32600.", "Bounds", level="should"
)
def _long_id(lab: Lab) -> None:
    link = lab.link()
    long = "x" * 1025
    link.allow(None, long)
    link.forget(None)
    link.body(request(long, _HEALTH, {}))
    link.barrier()
    answer = link.take(None)
    if answer is None:
        raise CheckFailed("an id of 1025 characters is taken", expected="the error -32600 with the id null")
    refused(answer, "an id of 1025 characters", ErrorCode.INVALID_REQUEST)


# ---- Cancellation


@MESSAGES.enter(
    "cancel.unknown",
    "$/cancel of an id that is unknown, answered, or no id, does nothing.",
    "Cancellation and deadlines",
)
def _cancel_unknown(lab: Lab) -> None:
    link = lab.link()
    answered = link.next_id()
    link.request(_HEALTH, {}, answered)
    link.answer(answered, _HEALTH)
    before = len(link.messages)
    for params in ({"id": answered}, {"id": 4711}, {"id": "nobody"}, {"id": None}, {"id": [1]}, {}, [1]):
        link.notify("$/cancel", params)
    link.body(notification("$/cancel"))
    link.unanswered(before, "a cancellation")


@MESSAGES.enter(
    "cancel.running",
    "A request that is cancelled is answered once, -32002 or as if nothing had happened.",
    "Cancellation and deadlines",
    alone=True,
)
def _cancel_running(lab: Lab) -> None:
    calls = [(name, case.params) for name, case in CASES.items() if case.safe and lab.lists(name)]
    with lab.fresh() as link:
        for method, params in calls or [(_HEALTH, {})]:
            ids = [link.next_id() for _ in range(3)]
            link.expect(*ids)
            data = b""
            for one in ids:
                data += frame(request(one, method, params)) + frame(notification("$/cancel", {"id": one}))
            link.send(data, f"three times {method} and $/cancel of it, in one write")
            for one in ids:
                link.answer(one, method, lab.limits.work)
            link.barrier()
            if any(map(link.answered, ids)):
                raise CheckFailed(f"a cancelled {method} was answered twice", expected="one answer")
