"""Checks: does the process end when it should, lose nothing, and leave nothing behind?"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from utter_sdk.conformance.friendly import CASES
from utter_sdk.conformance.lab import Table, result_of
from utter_sdk.conformance.report import CheckFailed, NotApplicable
from utter_sdk.conformance.wire import MISSING, frame, request

if TYPE_CHECKING:
    from utter_sdk.conformance.lab import Lab
    from utter_sdk.conformance.link import Link

PROCESS = Table()
_SECTION = "The plugin's process"
_SLOW_REQUESTS = 600
_LONG_ID = 300
_DIRECTORY_MODE = 0o077


def _ends_well(link: Link) -> None:
    code = link.wait_end()
    if code != 0:
        raise CheckFailed(f"the exit code is {code}", expected="the exit code 0")


@PROCESS.enter("process.end", "It exits within 2 s with code 0 when its input ends.", _SECTION, alone=True)
def _end(lab: Lab) -> None:
    with lab.fresh() as link:
        link.end_input()
        _ends_well(link)


@PROCESS.enter(
    "process.end-at-once", "It exits with code 0 when its input ends before anything was said.", _SECTION, alone=True
)
def _end_at_once(lab: Lab) -> None:
    with lab.start() as link:
        link.end_input()
        # It may still be loading what it is made of.
        code = link.wait_end(lab.limits.handshake)
        if code != 0:
            raise CheckFailed(f"the exit code is {code}", expected="the exit code 0")


@PROCESS.enter(
    "process.end-busy",
    "It exits within 2 s with code 0 when its input ends in the middle of its work.",
    _SECTION,
    alone=True,
)
def _end_busy(lab: Lab) -> None:
    calls = [(name, case.params) for name, case in CASES.items() if lab.lists(name) and case.safe]
    calls.append(("plugin.health", {}))
    with lab.fresh() as link:
        ids = link.requests(calls)
        # The last one is answered at once: the others are under way, or done.
        link.answer(ids[-1], "plugin.health", lab.limits.health)
        link.end_input()
        _ends_well(link)


@PROCESS.enter(
    "process.quiet-end",
    "After the end of its input it writes nothing but what was under way.",
    _SECTION,
    level="should",
    alone=True,
)
def _quiet_end(lab: Lab) -> None:
    with lab.fresh() as link:
        link.barrier()
        before = len(link.messages)
        link.end_input()
        link.wait_end(lab.limits.answer)
        # An announcement may have been under way.
        if any(message.id is not MISSING for message in link.messages[before:]):
            raise CheckFailed("it sent something after the end of its input", expected="nothing")


@PROCESS.enter("process.sigterm", "It ends within 2 s after SIGTERM.", _SECTION, level="should", alone=True)
def _sigterm(lab: Lab) -> None:
    with lab.fresh() as link:
        link.kill(signal.SIGTERM)
        link.wait_end()


@PROCESS.enter("process.descendants", "It leaves no process behind when it ends.", _SECTION, level="should", alone=True)
def _descendants(lab: Lab) -> None:
    with lab.fresh() as link:
        for name, case in CASES.items():
            if lab.lists(name) and case.safe:
                link.answer(link.request(name, case.params), name, lab.limits.work)
        link.end_input()
        link.wait_end(lab.limits.answer)
        left = link.outlived()
        if left:
            raise CheckFailed(f"processes that it started still run: {', '.join(left)}", expected="none")


@PROCESS.enter(
    "process.slow-reader",
    "A runner that does not read for a while loses no answer, and gets whole frames.",
    "Framing",
    alone=True,
)
def _slow_reader(lab: Lab) -> None:
    with lab.fresh() as link:
        link.pause()
        ids = [f"{number:0{_LONG_ID}}" for number in range(_SLOW_REQUESTS)]
        link.expect(*ids)
        data = b"".join(frame(request(one, "plugin.health", {})) for one in ids)
        link.send(data, f"{len(ids)} times plugin.health with ids of {_LONG_ID} characters, and no answer is read")
        link.resume()
        for one in ids:
            result_of(link.answer(one, "plugin.health"), "plugin.health")


@PROCESS.enter(
    "transport.socket-mode",
    "The socket that it makes is open to its own user only.",
    "Transports",
    level="should",
    alone=True,
)
def _socket_mode(lab: Lab) -> None:
    if lab.subject.transport != "listen":
        raise NotApplicable("It does not listen.")
    with lab.fresh() as link:
        mode = link.socket_mode
        if mode & _DIRECTORY_MODE:
            raise CheckFailed(f"the socket's mode is {mode:04o}", expected="0600")
