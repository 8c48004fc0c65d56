"""What each method of the protocol is asked in a friendly way, and what else must hold of its result.

Rules here: `params` do nothing that can be seen, heard or felt, and nothing that stays; `loud` ones may. A result has
been decoded as the Struct of `utter_protocol.contracts` before it is judged here, so only what a type cannot say is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from utter_protocol.contracts import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol import kinds, methods

_OP = re.compile(r"[a-z0-9_.-]{1,64}")
_HANDLE = re.compile(r"handle://[0-9a-f]{64}")
_MAX_STEPS = 32
_MAX_OPS = 256
_MAX_SCHEMA = 64 * 1024
_MAX_CANDIDATES = 4096
_MAX_ID = 256
_MAX_VALUE = 8 * 1024
_CANDIDATES = [
    {"id": "media:play", "value": "play", "label": "play"},
    {"id": "media:previous", "value": "previous", "label": "previous track"},
]


class Case(NamedTuple):
    """How one method is asked.

    Attributes:
        section: its heading in PROTOCOL.md.
        params: what can be asked at any time.
        required: whether its params have a field that must be there.
        safe: whether `params` are a sensible request, and not one that is made to be refused.
        loud: params that have an effect; None when there is no difference.
        judge: what else must hold of the decoded result for these params; a sentence, or nothing.
    """

    section: str
    params: dict[str, Any]
    required: bool = False
    safe: bool = True
    loud: dict[str, Any] | None = None
    judge: Callable[[Any, dict[str, Any]], str] = lambda _result, _params: ""


def _plan(plan: methods.PlanResult, _: dict[str, Any]) -> str:
    if len(plan.steps) > _MAX_STEPS:
        return f"There are {len(plan.steps)} steps, and at most {_MAX_STEPS} are allowed."
    if plan.score is not None and not 0 <= plan.score <= 1:
        return f"score is {plan.score}, and must be from 0 to 1."
    for step in plan.steps:
        if not _OP.fullmatch(step.op):
            return f"The step's op {step.op!r} is not the name of an op."
        if not step.arg_provenance.keys() <= step.args.keys():
            return f"arg_provenance of {step.op} names arguments that are not there."
    return ""


def _catalog(catalog: methods.CatalogResult, _: dict[str, Any]) -> str:
    import json  # noqa: PLC0415 - only here

    found = [one.id for one in catalog.candidates]
    if len(found) > _MAX_CANDIDATES:
        return f"There are {len(found)} candidates, and at most {_MAX_CANDIDATES} are allowed."
    if len(set(found)) < len(found):
        twice = next(one for one in found if found.count(one) > 1)
        return f"The id {twice!r} is there twice."
    for one in catalog.candidates:
        if not 1 <= len(one.id) <= _MAX_ID:
            return f"An id has {len(one.id)} characters; 1 to {_MAX_ID} are allowed."
        if len(json.dumps(one.value, ensure_ascii=False).encode()) > _MAX_VALUE:
            return f"The value of {one.id!r} is larger than {_MAX_VALUE} bytes."
    return ""


def _ops(found: methods.CapabilitiesResult, _: dict[str, Any]) -> str:
    names = [op.op.removeprefix("action.") for op in found.ops]
    if len(names) > _MAX_OPS:
        return f"There are {len(names)} ops, and at most {_MAX_OPS} are allowed."
    for op, name in zip(found.ops, names, strict=True):
        if not _OP.fullmatch(name):
            return f"{op.op!r} is not the name of an op."
        if names.count(name) > 1:
            return f"The op {name} is there twice."
        problem = _schema_problem(op.schema) if op.schema is not None else ""
        if problem:
            return f"The schema of {name}: {problem}"
    return ""


def _schema_problem(schema: dict[str, Any]) -> str:
    import json  # noqa: PLC0415 - only here

    import jsonschema_rs  # noqa: PLC0415 - slow to load, and few plugins have ops

    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > _MAX_SCHEMA:
        return f"it has {size} bytes, and at most {_MAX_SCHEMA} are allowed."
    for reference in _references(schema):
        if not (reference == "#" or reference.startswith("#/")):
            return f"it refers to {reference!r}, and may refer only to itself by #/..."
    try:
        jsonschema_rs.meta.validate(schema)
    except ValueError as error:
        return f"it is no JSON Schema: {str(error).splitlines()[0]}"
    return ""


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [found for one in schema for found in _references(one)]
    if not isinstance(schema, dict):
        return []
    here = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    return here + [found for one in schema.values() for found in _references(one)]


def _choice(choice: kinds.LlmChooseResult, params: dict[str, Any]) -> str:
    known = {one["id"] for one in params["candidates"]}
    if choice.choice_id is not None and choice.choice_id not in known:
        return f"choice_id is {choice.choice_id!r}, which is not the id of a candidate."
    unknown = choice.distribution.keys() - known
    if unknown:
        return f"distribution has {min(unknown)!r}, which is not the id of a candidate."
    if any(not 0 <= one <= 1 for one in choice.distribution.values()):
        return "distribution has a probability that is not from 0 to 1."
    return ""


def _snapshot(context: dict[str, Any], params: dict[str, Any]) -> str:
    more = context.keys() - set(params["sources"])
    return f"{min(more)!r} was not asked for." if more else ""


def _speech(speech: kinds.SpeakResult, params: dict[str, Any]) -> str:
    if speech.duration_ms is not None and speech.duration_ms < 0:
        return "duration_ms is less than 0."
    return "spoken is true for a text that holds nothing to say." if speech.spoken and not params["text"] else ""


def _tree(tree: kinds.TreeResult, _: dict[str, Any]) -> str:
    seen: set[str] = set()
    for node in tree.nodes:
        if node.id in seen:
            return f"The id {node.id!r} is there twice."
        if node.parent is not None and node.parent not in seen:
            return f"The node {node.id!r} comes before its parent {node.parent!r}."
        seen.add(node.id)
    return ""


def _screenshot(picture: kinds.ScreenshotResult, _: dict[str, Any]) -> str:
    if not _HANDLE.fullmatch(picture.handle):
        return f"{picture.handle!r} is no handle."
    return "" if picture.width > 0 and picture.height > 0 else "The picture's size is not above 0."


def _transcript(transcript: methods.Transcript, _: dict[str, Any]) -> str:
    if transcript.confidence is not None and not 0 <= transcript.confidence <= 1:
        return f"confidence is {transcript.confidence}, and must be from 0 to 1."
    if transcript.audio_ms is not None and transcript.audio_ms < 0:
        return "audio_ms is less than 0."
    return ""


def _resumed(answer: kinds.MediaResumed, _: dict[str, Any]) -> str:
    return f"It has resumed {answer.resumed[0]} for a session that never held." if answer.resumed else ""


_STT = "stt: speech to text"
_SCREEN = "perceive: what is on the screen"
CASES: dict[str, Case] = {
    "router.plan": Case("router.plan", {"utterance": "open youtube", "context": {}}, required=True, judge=_plan),
    "router.hints": Case("router.hints", {}),
    "knowledge.catalog": Case("knowledge.catalog", {}, judge=_catalog),
    "action.capabilities": Case("action.capabilities", {}, judge=_ops),
    "action.invoke": Case("action.invoke", {"op": "conformance.no_such_op", "args": {}}, required=True, safe=False),
    "stt.start": Case(
        _STT, {"session": "conformance", "format": {"encoding": "f32le", "rate": 16000, "channels": 1}}, required=True
    ),
    "stt.finish": Case(_STT, {"session": "conformance-unknown"}, required=True, safe=False, judge=_transcript),
    "stt.cancel": Case(_STT, {"session": "conformance-unknown"}, required=True),
    "media.hold": Case("media.hold", {}, required=True, safe=False, loud={"session": "conformance"}),
    "media.release": Case("media.release", {"session": "conformance-unknown"}, required=True, judge=_resumed),
    "tts.speak": Case("tts.speak", {"text": ""}, required=True, loud={"text": "This is a test."}, judge=_speech),
    "llm.complete": Case("llm.complete", {"prompt": "Answer with the word yes.", "max_tokens": 4}, required=True),
    "llm.choose": Case(
        "llm.choose",
        {"utterance": "play that song again", "context": {}, "candidates": _CANDIDATES},
        required=True,
        judge=_choice,
    ),
    "context.snapshot": Case("context.snapshot", {"sources": ["window"]}, judge=_snapshot),
    "perception.screenshot": Case(_SCREEN, {}, judge=_screenshot),
    "perception.tree": Case(_SCREEN, {}, judge=_tree),
    "perception.text": Case(_SCREEN, {"region": [0, 0, 16, 16]}),
    "perception.tabs": Case(_SCREEN, {}),
    "input.inject": Case("input.inject", {}, safe=False, loud={"keys": ["Shift"]}),
    "ui.render": Case(
        "ui.render",
        {"view": None, "surface": "conformance"},
        required=True,
        loud={"view": {"type": "text", "text": "A test."}, "surface": "conformance"},
    ),
}
"""Each request of `METHODS` that is not part of the handshake."""

HANDSHAKE = ("protocol.hello", "plugin.describe", "plugin.health")
REQUESTS = tuple(name for name, contract in METHODS.items() if contract.form == "request")
"""Every request that the protocol gives a meaning."""
