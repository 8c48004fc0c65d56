"""Checks: does the runner read frames however they are written and cut, and refuse by name what is none?"""

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
from utter_sdk.conformance.lab import refused
from utter_sdk.conformance.report import CheckFailed
from utter_sdk.conformance.runner_lab import HARMLESS, Table
from utter_sdk.conformance.wire import MAX_FRAME, frame, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.conformance.framing_cases import Understood
    from utter_sdk.conformance.runner_lab import Needs, RunnerLab
    from utter_sdk.conformance.runner_link import RunnerLink
    from utter_sdk.conformance.wire import Message

RUNNER_FRAMING = Table()


def _asker(lab: RunnerLab, link: RunnerLink) -> Asker:
    return Asker(link, HARMLESS, lab.settled)


def _understood(case: Understood) -> Callable[[RunnerLab], None]:
    return lambda lab: case.attempt(_asker(lab, lab.link()))


# Whoever has not authenticated may send little.
_MUCH = {"framing.many", "framing.large"}

for _case in UNDERSTOOD:
    _needs: Needs = "access" if _case.check_id in _MUCH else "nothing"
    RUNNER_FRAMING.enter(_case.check_id, _case.title, FRAMING_SECTION, needs=_needs)(_understood(_case))


def _goodbye(link: RunnerLink) -> Message:
    """Wait for the answer to a framing error and the end of the connection; nothing else may come."""
    answer = link.answer(None, "the framing error")
    refused(answer, "the framing error", ErrorCode.INVALID_REQUEST)
    link.wait_closed()
    return answer


def _refusal(error: NoFrame) -> Callable[[RunnerLab], None]:
    def check(lab: RunnerLab) -> None:
        with lab.fresh() as link:
            link.expect(None)
            # The request behind it must not be answered: nobody knows where it begins.
            link.send(error.data + frame(request(link.next_id(), HARMLESS, {})), error.note)
            answer = _goodbye(link)
            named = (answer.error.get("data") or {}).get("framing")
            if named != error.kind:
                raise CheckFailed(f"data.framing is {named!r}", expected=f'data.framing is "{error.kind}"')
            # Whoever else is connected goes on.
            lab.ask(lab.link())

    return check


_TOO_LARGE = length_line(10**18)
for _error in (*NO_FRAMES, NoFrame("frame_too_large", "", _TOO_LARGE)):
    RUNNER_FRAMING.enter(
        f"framing.error.{_error.kind}" + (f".{_error.variant}" if _error.variant else ""),
        f"The framing error {_error.kind}{f' ({_error.variant})' if _error.variant else ''} is answered with its name, "
        "and ends the connection and nothing else.",
        FRAMING_SECTION,
    )(_refusal(_error))


@RUNNER_FRAMING.enter(
    "framing.early",
    "A frame that is too large is refused when its header has been read, before the body.",
    FRAMING_SECTION,
)
def _early(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        link.expect(None)
        link.send(_TOO_LARGE)
        _goodbye(link)


@RUNNER_FRAMING.enter(
    "framing.largest",
    "A frame of exactly max_frame (16 MiB) is understood.",
    "Bounds",
    level="should",
    needs="access",
)
def _largest(lab: RunnerLab) -> None:
    with lab.fresh() as link:
        _asker(lab, link).ask_padded(MAX_FRAME)


@RUNNER_FRAMING.enter(
    "framing.truncated",
    "A stream that ends inside a frame ends the connection; the part of a frame is no request.",
    FRAMING_SECTION,
)
def _truncated(lab: RunnerLab) -> None:
    for cut in (5, 40):
        with lab.fresh() as link:
            # It may still say what was wrong.
            link.expect(None)
            link.send(frame(request(link.next_id(), HARMLESS, {}))[:-cut])
            link.half_close()
            link.wait_closed()
    lab.ask(lab.link())
