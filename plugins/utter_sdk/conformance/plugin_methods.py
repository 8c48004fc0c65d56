"""Checks: does the plugin answer what it lists, and only that, with results of the right shape?"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from utter_protocol.contracts import METHODS, STREAMS, methods_of
from utter_protocol.errors import ErrorCode
from utter_protocol.methods import ActionResult, CapabilitiesResult, HealthResult, SttStartResult, Transcript
from utter_sdk.conformance.friendly import CASES, HANDSHAKE, REQUESTS
from utter_sdk.conformance.lab import Table, decoded, refused, result_of, worked
from utter_sdk.conformance.report import CheckFailed, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.lab import Lab
    from utter_sdk.conformance.link import Link
    from utter_sdk.conformance.wire import Message

METHOD_CHECKS = Table()
_STREAM_METHODS = ("stream.subscribe", "stream.ack", "stream.stop")
_SILENCE = base64.b64encode(bytes(1280)).decode()
_PIECES = 25
_OP_PREFIX = "action."
_MAY_OFFER = ("llm.delta", "tts.audio")
_SOURCES = ("window", "workspace", "outputs", "clipboard")


def _all_at_once(link: Link, calls: list[tuple[str, dict[str, Any]]], seconds: float) -> list[Message]:
    """Ask everything in one write; the answers in the order of the calls."""
    ids = link.requests(calls)
    return [link.answer(one, method, seconds) for one, (method, _) in zip(ids, calls, strict=True)]


@METHOD_CHECKS.enter(
    "describe.listed",
    "Every method that plugin.describe lists is answered otherwise than -32601.",
    "plugin.describe",
    alone=True,
)
def _listed(lab: Lab) -> None:
    calls = [(name, CASES[name].params) for name in lab.facts.methods if name in CASES]
    calls += [(name, {}) for name in HANDSHAKE[1:] if lab.lists(name)]
    if lab.loud:
        own = [name for name in lab.facts.methods if name not in METHODS and name not in _STREAM_METHODS]
        calls += [(name, {}) for name in own]
    with lab.fresh() as link:
        answers = _all_at_once(link, calls, lab.limits.work)
    missing = [
        name for (name, _), answer in zip(calls, answers, strict=True) if answer.code == ErrorCode.METHOD_NOT_FOUND
    ]
    if missing:
        raise CheckFailed(f"{missing[0]} is listed, and answered -32601", expected="a result, or another error")


@METHOD_CHECKS.enter(
    "describe.unlisted",
    "Methods of the protocol that plugin.describe does not list are answered -32601.",
    "plugin.describe",
)
def _unlisted(lab: Lab) -> None:
    calls = [(name, CASES[name].params) for name in REQUESTS if name in CASES and not lab.lists(name)]
    if not lab.lists("stream.subscribe"):
        calls.append(("stream.subscribe", {"method": "conformance.no_such_stream", "window": 64}))
    answers = _all_at_once(lab.link(), calls, lab.limits.answer)
    for (name, _), answer in zip(calls, answers, strict=True):
        refused(answer, f"{name}, which is not listed,", ErrorCode.METHOD_NOT_FOUND)


@METHOD_CHECKS.enter("describe.provided", "Every method of a capability that it provides is listed.", "Capabilities")
def _provided(lab: Lab) -> None:
    for capability in lab.facts.provides:
        for method in sorted(methods_of(capability)):
            if not lab.lists(method):
                raise CheckFailed(
                    f"it provides {capability} and does not list {method}", expected=f"{method} in methods"
                )
        streams = [one.name for one in STREAMS.values() if one.capability == capability and one.name not in _MAY_OFFER]
        for stream in streams:
            if stream not in lab.facts.streams:
                raise CheckFailed(
                    f"it provides {capability} and does not list {stream}", expected=f"{stream} in streams"
                )


@METHOD_CHECKS.enter("describe.ops", "Every op of a capability that it provides is offered.", "Capabilities")
def _ops_provided(lab: Lab) -> None:
    wanted = {
        one: one.removeprefix(_OP_PREFIX).partition("@")[0]
        for one in lab.facts.provides
        if one.startswith(_OP_PREFIX) and not methods_of(one)
    }
    if not wanted:
        raise NotApplicable("It provides no single op.")
    offered = (
        {op.op.removeprefix(_OP_PREFIX) for op in _capabilities(lab).ops} if lab.lists("action.capabilities") else set()
    )
    for capability, op in wanted.items():
        if op not in offered:
            raise CheckFailed(f"it provides {capability} and does not offer {op}", expected=f"{op} among its ops")


def _capabilities(lab: Lab) -> CapabilitiesResult:
    answer = lab.link().call("action.capabilities", {})
    found = decoded(result_of(answer, "action.capabilities"), CapabilitiesResult, "the result of action.capabilities")
    assert isinstance(found, CapabilitiesResult)  # noqa: S101 - for the type checker
    return found


# ---- One check for each method whose result can be looked at by itself


def _method(name: str) -> Callable[[Lab], None]:
    def check(lab: Lab) -> None:
        lab.need(name)
        case = CASES[name]
        for params in (case.params, case.loud) if lab.loud and case.loud else (case.params,):
            link = lab.link()
            answer = link.answer(link.request(name, params), name, lab.limits.work)
            result = decoded(worked(answer, name), METHODS[name].result, f"the result of {name}")
            problem = case.judge(result, params)
            if problem:
                raise CheckFailed(problem, expected="a result as the section describes it")

    return check


_ALONE = ("stt.start", "stt.finish", "stt.cancel", "action.invoke", "input.inject", "media.hold")
for _name, _case in CASES.items():
    if _name not in _ALONE:
        METHOD_CHECKS.enter(f"method.{_name}", f"{_name} answers a friendly request as described.", _case.section)(
            _method(_name)
        )


@METHOD_CHECKS.enter(
    "method.context.snapshot-all",
    "context.snapshot without sources answers all fields.",
    CASES["context.snapshot"].section,
)
def _snapshot_all(lab: Lab) -> None:
    lab.need("context.snapshot")
    link = lab.link()
    named = worked(link.call("context.snapshot", {"sources": list(_SOURCES)}), "context.snapshot")
    whole = worked(link.call("context.snapshot", {}), "context.snapshot without sources")
    some = decoded(named, dict[str, Any], "the result of context.snapshot")
    missing = some.keys() - decoded(whole, dict[str, Any], "the result without sources").keys()
    if missing:
        raise CheckFailed(f"{min(missing)!r} comes when it is named, and not when nothing is", expected="all fields")


@METHOD_CHECKS.enter(
    "method.llm.choose-none", "llm.choose without candidates chooses none.", CASES["llm.choose"].section
)
def _choose_none(lab: Lab) -> None:
    lab.need("llm.choose")
    answer = lab.link().call("llm.choose", {"utterance": "play that song again", "context": {}, "candidates": []})
    if answer.code == ErrorCode.INVALID_PARAMS:
        return
    result = worked(answer, "llm.choose without candidates")
    if not isinstance(result, dict) or result.get("choice_id") is not None:
        raise CheckFailed("it chose where there was nothing to choose from", expected="choice_id null, or -32602")


@METHOD_CHECKS.enter(
    "method.action.invoke",
    "action.invoke of an op that is not offered is answered -32602, or ok: false.",
    "action.invoke",
)
def _invoke(lab: Lab) -> None:
    lab.need("action.invoke")
    link = lab.link()
    answer = link.call("action.invoke", CASES["action.invoke"].params)
    if answer.code is not None:
        refused(answer, "an op that is not offered", ErrorCode.INVALID_PARAMS)
    elif decoded(answer.result, ActionResult, "the result of action.invoke").ok:
        raise CheckFailed("it carried out an op that it does not offer", expected="-32602, or ok: false")
    if lab.loud:
        _invoke_offered(lab, link)


def _invoke_offered(lab: Lab, link: Link) -> None:
    """Carry out every op whose arguments can be made up from its schema."""
    for op in _capabilities(lab).ops:
        args = made_up(op.schema) if op.schema is not None else {}
        if not isinstance(args, dict):
            continue
        what = f"action.invoke of {op.op}"
        params = {"op": op.op, "args": args, "provenance": "user"}
        answer = link.answer(link.request("action.invoke", params), what, lab.limits.work)
        if answer.code is None:
            decoded(answer.result, ActionResult, f"the result of {what}")
        else:
            refused(answer, what, ErrorCode.INVALID_PARAMS, ErrorCode.PLUGIN_FAILED)


def made_up(schema: dict[str, Any]) -> Any:
    """A value that fits a simple JSON Schema, or None when it takes more than its own words to find one."""
    for word in ("default", "const"):
        if word in schema:
            return schema[word]
    for word in ("examples", "enum"):
        if schema.get(word):
            return schema[word][0]
    kind = schema.get("type")
    if kind == "object":
        required = schema.get("required", [])
        members = {name: made_up(schema.get("properties", {}).get(name, {})) for name in required}
        return None if None in members.values() else members
    if kind == "string":
        return None if "pattern" in schema or "format" in schema else "x" * max(1, schema.get("minLength", 1))
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("maximum", 1))
    return {"boolean": False, "array": [] if not schema.get("minItems") else None}.get(str(kind))


@METHOD_CHECKS.enter(
    "method.input.inject",
    "input.inject without text and keys, and with both, is answered -32602.",
    CASES["input.inject"].section,
)
def _inject(lab: Lab) -> None:
    lab.need("input.inject")
    link = lab.link()
    refused(link.call("input.inject", {}), "input.inject with nothing", ErrorCode.INVALID_PARAMS)
    if lab.loud:
        worked(link.call("input.inject", CASES["input.inject"].loud), "input.inject of the key Shift")


@METHOD_CHECKS.enter(
    "method.media.hold",
    "media.hold without a session is answered -32602; what it pauses plays again after the last release.",
    CASES["media.hold"].section,
)
def _hold(lab: Lab) -> None:
    lab.need("media.hold", "media.release")
    link = lab.link()
    refused(link.call("media.hold", {}), "media.hold without a session", ErrorCode.INVALID_PARAMS)
    if not lab.loud:
        return
    first, second = {"session": "conformance"}, {"session": "conformance-second"}

    def ask(method: str, params: dict[str, Any]) -> Any:
        answer = link.answer(link.request(method, params), method, lab.limits.work)
        return decoded(worked(answer, method), METHODS[method].result, f"the result of {method}")

    held = [*ask("media.hold", first).held, *ask("media.hold", second).held]
    if early := ask("media.release", first).resumed:
        raise CheckFailed(f"{early[0]} was resumed while another session holds", expected="nobody before the last")
    strange = [name for name in ask("media.release", second).resumed if name not in held]
    if strange:
        raise CheckFailed(f"{strange[0]} was resumed and had not been paused", expected="only what it has paused")
    if again := ask("media.release", second).resumed:
        raise CheckFailed(f"{again[0]} was resumed by a second release", expected="no players")


# ---- stt


def _feed(link: Link, session: str) -> None:
    for seq in range(_PIECES):
        link.notify("stt.feed", {"session": session, "seq": seq, "data_b64": _SILENCE})


@METHOD_CHECKS.enter(
    "method.stt.start",
    "stt.start says whether the plugin reads the audio ring, which takes the permission microphone.",
    CASES["stt.start"].section,
)
def _start(lab: Lab) -> None:
    lab.need("stt.start", "stt.cancel")
    link = lab.link()
    started = worked(link.call("stt.start", CASES["stt.start"].params), "stt.start")
    reads_ring = decoded(started, SttStartResult, "the result of stt.start").ring
    result_of(link.call("stt.cancel", {"session": "conformance"}), "stt.cancel")
    if reads_ring and "microphone" not in lab.facts.permissions:
        raise CheckFailed(
            "it says that it reads the ring, and does not ask for the permission microphone",
            expected="ring: false, or the permission microphone",
        )


@METHOD_CHECKS.enter(
    "method.stt.session",
    "A session of half a second of silence in messages is transcribed, also by a plugin that reads the ring.",
    CASES["stt.start"].section,
)
def _session(lab: Lab) -> None:
    lab.need("stt.start", "stt.finish")
    link = lab.link()
    worked(
        link.call("stt.start", {**CASES["stt.start"].params, "hints": ["open youtube"], "language": "en"}), "stt.start"
    )
    _feed(link, "conformance")
    answer = link.answer(link.request("stt.finish", {"session": "conformance"}), "stt.finish", lab.limits.work)
    transcript = decoded(worked(answer, "stt.finish"), Transcript, "the result of stt.finish")
    problem = CASES["stt.finish"].judge(transcript, {})
    if problem:
        raise CheckFailed(problem, expected="a result as the section describes it")
    again = link.call("stt.finish", {"session": "conformance"})
    refused(again, "stt.finish of a session that is over", ErrorCode.INVALID_PARAMS)


@METHOD_CHECKS.enter(
    "method.stt.unknown",
    "stt.finish of an unknown session is answered -32602, stt.cancel of one a result.",
    CASES["stt.start"].section,
)
def _unknown_session(lab: Lab) -> None:
    lab.need("stt.finish", "stt.cancel")
    link = lab.link()
    unknown = {"session": "conformance-unknown"}
    refused(link.call("stt.finish", unknown), "stt.finish of an unknown session", ErrorCode.INVALID_PARAMS)
    result_of(link.call("stt.cancel", unknown), "stt.cancel of an unknown session")
    link.notify("stt.feed", {"session": "conformance-unknown", "seq": 0, "data_b64": _SILENCE})
    link.barrier()


@METHOD_CHECKS.enter(
    "method.stt.cancel", "A session that is cancelled is over, and the next one can begin.", CASES["stt.start"].section
)
def _cancelled_session(lab: Lab) -> None:
    lab.need("stt.start", "stt.finish", "stt.cancel")
    link = lab.link()
    worked(link.call("stt.start", CASES["stt.start"].params), "stt.start")
    _feed(link, "conformance")
    result_of(link.call("stt.cancel", {"session": "conformance"}), "stt.cancel")
    answer = link.call("stt.finish", {"session": "conformance"})
    refused(answer, "stt.finish of a session that was cancelled", ErrorCode.INVALID_PARAMS)
    worked(link.call("stt.start", CASES["stt.start"].params), "stt.start after a cancelled session")
    result_of(link.call("stt.cancel", {"session": "conformance"}), "stt.cancel")


# ---- Health


@METHOD_CHECKS.enter("health.shape", "plugin.health answers a status and a detail.", "plugin.health")
def _health(lab: Lab) -> None:
    answer = lab.link().call("plugin.health", {})
    decoded(result_of(answer, "plugin.health"), HealthResult, "the result of plugin.health")


@METHOD_CHECKS.enter(
    "health.busy", "plugin.health is answered within 5 s, also while the plugin is busy.", "plugin.health", alone=True
)
def _busy(lab: Lab) -> None:
    calls = [(name, case.params) for name, case in CASES.items() if lab.lists(name) and case.safe]
    with lab.fresh() as link:
        if lab.lists("stt.start"):
            link.call("stt.start", {"session": "busy"})
            _feed(link, "busy")
            calls.append(("stt.finish", {"session": "busy"}))
        link.requests(calls)
        link.answer(link.request("plugin.health", {}), "plugin.health", lab.limits.health)
