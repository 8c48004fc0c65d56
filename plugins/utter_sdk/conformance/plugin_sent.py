"""Checks of everything that the plugin wrote in all the other checks: frames, messages, answers, announcements.

Rules here: they run last and start nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from utter_protocol import host
from utter_protocol.contracts import METHODS
from utter_sdk.conformance.report import Check, Outcome
from utter_sdk.conformance.wire import MISSING, Fault, FaultKind, Message, dumps, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 5
_TOLD = frozenset({"message", "answer"})
_HOST = {
    "host.context": host.HostContextParams,
    "host.perceive": host.HostPerceiveParams,
    "host.action": host.HostActionParams,
    "host.confirm": host.HostConfirmParams,
    "host.emit": host.HostEmitParams,
    "host.invoke": host.HostInvokeParams,
}


class Sent(NamedTuple):
    """What was written outside of the frames' rules, and what was sent unasked, each with the check that ran then."""

    faults: Sequence[tuple[str, Fault]]
    heard: Sequence[tuple[str, Message]]


_OF_FAULTS: tuple[tuple[Check, frozenset[FaultKind], str], ...] = (
    (
        Check("sent.frames-only", "It writes nothing but frames.", "The plugin's process"),
        frozenset({"junk"}),
        "nothing between frames",
    ),
    (
        Check("sent.headers", "Its header parts are those that a sender writes, with the right length.", "Framing"),
        frozenset({"header"}),
        "Content-Length: N, an empty line, N bytes; lines end in CRLF",
    ),
    (
        Check("sent.json", "Each body is one JSON text in UTF-8.", "Framing"),
        frozenset({"body"}),
        "JSON in UTF-8 without a byte order mark",
    ),
    (
        Check("sent.messages", "Each body is one JSON-RPC 2.0 message.", "Messages"),
        frozenset({"message"}),
        "a request, a notification or an answer",
    ),
    (
        Check("sent.answers", "Each answer is to a request that is open, and there is one.", "Messages"),
        frozenset({"answer"}),
        "one answer for each request",
    ),
)
_ANNOUNCED = Check("sent.announcements", "What it announces has the params that the protocol gives it.", "Methods")
_ASKED = Check(
    "sent.requests", "What it asks of the runner has the params that the protocol gives it.", "Host callbacks"
)
CHECKS: tuple[Check, ...] = (*(check for check, _, _ in _OF_FAULTS), _ANNOUNCED, _ASKED)


def judge(sent: Sent, failed: frozenset[str]) -> list[Outcome]:
    """One outcome for each of `CHECKS`.

    Args:
        sent: what was written.
        failed: the ids of the checks that do not hold. What was wrong with messages there has been told already.
    """
    outcomes = []
    for check, kinds, expected in _OF_FAULTS:
        found = [
            f"{fault.text} (during {where})"
            for where, fault in sent.faults
            if fault.kind in kinds and not (fault.kind in _TOLD and where in failed)
        ]
        outcomes.append(_outcome(check, found, expected))
    announced = [(where, one) for where, one in sent.heard if _form(one) == "announcement"]
    outcomes.append(_shapes(_ANNOUNCED, announced, "It announced nothing."))
    asked = [(where, one) for where, one in sent.heard if one.method in _HOST and one.id is not MISSING]
    outcomes.append(_shapes(_ASKED, asked, "It asked nothing of the runner."))
    return outcomes


def _form(message: Message) -> str:
    return METHODS[message.method].form if message.method in METHODS else ""


def _shapes(check: Check, messages: list[tuple[str, Message]], nothing: str) -> Outcome:
    if not messages:
        return Outcome(check, "skipped", nothing)
    found = []
    for where, message in messages:
        wanted = _HOST.get(message.method) or METHODS[message.method].params
        params = b"{}" if message.params is MISSING else dumps(message.params)
        try:
            msgspec.json.decode(params, type=wanted)
        except msgspec.MsgspecError as error:
            found.append(f"{message.method} {shown(params)}: {error} (during {where})")
    return _outcome(check, found, "params as the section describes them")


def _outcome(check: Check, found: list[str], expected: str) -> Outcome:
    if not found:
        return Outcome(check, "holds")
    more = f" There are {len(found) - 1} more." if len(found) > 1 else ""
    return Outcome(check, "fails", f"{found[0]}.{more}", expected=expected, got=tuple(found[:_SHOWN]))
