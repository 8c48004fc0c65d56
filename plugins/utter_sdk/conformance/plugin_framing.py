"""Checks: does the plugin read frames however they are written and cut, and give up where it must?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.framing_cases import (
    FRAMING_SECTION,
    NO_FRAMES,
    UNDERSTOOD,
    Asker,
    NoFrame,
    length_line,
)
from utter_sdk.conformance.lab import Table, refused, result_of
from utter_sdk.conformance.report import CheckFailed
from utter_sdk.conformance.wire import MAX_FRAME, frame, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.framing_cases import Understood
    from utter_sdk.conformance.lab import Lab
    from utter_sdk.conformance.link import Link

FRAMING = Table()
_HEALTH = "plugin.health"


def _asker(link: Link) -> Asker:
    return Asker(link, _HEALTH, lambda message: result_of(message, _HEALTH))


def _understood(case: Understood) -> Callable[[Lab], None]:
    return lambda lab: case.attempt(_asker(lab.link()))


for _case in UNDERSTOOD:
    FRAMING.enter(_case.check_id, _case.title, FRAMING_SECTION)(_understood(_case))


@FRAMING.enter(
    "framing.largest", "A frame of exactly max_frame (16 MiB) is understood.", "Bounds", level="should", alone=True
)
def _largest(lab: Lab) -> None:
    with lab.fresh() as link:
        _asker(link).ask_padded(MAX_FRAME, lab.limits.work)


@FRAMING.enter(
    "framing.empty-body", "A frame with a length of 0 is no message, and the next one is understood.", "Messages"
)
def _empty_body(lab: Lab) -> None:
    link = lab.link()
    link.allow(None)
    link.send(frame(b""))
    link.barrier()


@FRAMING.enter(
    "framing.truncated", "When its input ends inside a frame, it ends and answers nothing.", FRAMING_SECTION, alone=True
)
def _truncated(lab: Lab) -> None:
    with lab.fresh() as link:
        before = len(link.messages)
        link.send(frame(request(link.next_id(), _HEALTH, {}))[:-5])
        link.end_input()
        link.wait_end()
        if any(message.is_answer for message in link.messages[before:]):
            raise CheckFailed("it answered half a frame", expected="no answer")


def _broken(data: bytes, note: str = "") -> Callable[[Lab], None]:
    def check(lab: Lab) -> None:
        with lab.fresh() as link:
            link.allow(None)
            link.send(data, note)
            # A request, so that whoever took the bytes for a part of something waits for no more.
            request_id = link.next_id()
            link.allow(request_id)
            link.body(request(request_id, _HEALTH, {}))
            link.wait_closed(request_id)

    return check


_TOO_LARGE = length_line(MAX_FRAME + 1)
_RARE = ("malformed_header", "bad_content_type", "bom")
for _error in (*NO_FRAMES, NoFrame("frame_too_large", "", _TOO_LARGE)):
    # One way of getting a length wrong is enough here.
    if _error.variant in ("", "negative"):
        FRAMING.enter(
            f"framing.error.{_error.kind}",
            f"After the framing error {_error.kind} it closes the connection.",
            FRAMING_SECTION,
            level="should" if _error.kind in _RARE else "must",
            alone=True,
        )(_broken(_error.data, _error.note))


@FRAMING.enter(
    "framing.huge", "A length of 19 digits is refused, and no memory is set aside for it.", FRAMING_SECTION, alone=True
)
def _huge(lab: Lab) -> None:
    _broken(length_line(10**19 - 1))(lab)


@FRAMING.enter(
    "framing.error-answer",
    "A framing error is answered -32600 with its name in data.framing and the id null.",
    FRAMING_SECTION,
    level="should",
    alone=True,
)
def _error_answer(lab: Lab) -> None:
    with lab.fresh() as link:
        link.expect(None)
        link.send(_TOO_LARGE)
        answer = link.answer(None, "the framing error")
        refused(answer, "the framing error", ErrorCode.INVALID_REQUEST)
        named = (answer.error.get("data") or {}).get("framing")
        if named != "frame_too_large":
            raise CheckFailed(f"data.framing is {named!r}", expected='data.framing is "frame_too_large"')
