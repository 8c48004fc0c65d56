"""Confirmations as notifications on the desktop.

Rules here: the body is the question's text, with what a server would take for markup escaped; an answer counts only
from the unique name of the server that shows the question, and with the id that it gave it; a text that a server may
cut short has no buttons. A desktop without a bus, a server, or buttons abstains, and the next question finds out anew.
Source: Desktop Notifications Specification 1.3.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import trio

from utter_protocol.methods import ConfirmResult
from utter_runner.rpc.bus import BusError, session_bus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from jeepney import Message

    from utter_protocol.methods import ConfirmParams
    from utter_runner.rpc.bus import Bus

logger = logging.getLogger(__name__)

NAME = "org.freedesktop.Notifications"
PATH = "/org/freedesktop/Notifications"
BUS = "org.freedesktop.DBus"
SUMMARY = "utter-runner asks before it acts"
SUMMARY_ELSEWHERE = "utter-runner asks before it acts: answer with utter confirm"
MAX_BUTTONS_TEXT = 240
"""Characters of a text that can be confirmed on a notification; servers show no more than a few lines."""
MAX_BUTTONS_LINES = 4
ALLOW = "allow"
REFUSE = "refuse"
_ACTIONS = [ALLOW, "Allow", REFUSE, "Don't allow"]
_CRITICAL = 2
_DISMISSED = 2
_CLOSE_SECONDS = 1.0
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Notifications:
    """A surface (confirm.Surface) on the desktop.

    Args:
        environ: where the session bus's address is read.
    """

    kind = "notification"
    requester = None

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._complained = ""

    def withhold(self, params: ConfirmParams) -> None:
        """Nobody asks for actions through notifications."""

    async def ask(self, params: ConfirmParams, abstain: Callable[[], None]) -> ConfirmResult | None:
        """Show the question until it is answered here or is over elsewhere."""
        try:
            async with session_bus(self._environ) as bus:
                approved = await self._ask(bus, params, abstain)
        except BusError as error:
            self._complain(str(error))
            return None
        return None if approved is None else ConfirmResult(approved=approved, digest=params.digest)

    def _complain(self, why: str) -> None:
        """Say once why notifications do not work; again when it is something else."""
        if why != self._complained:
            self._complained = why
            logger.info("confirmations are not shown as notifications: %s", why)

    async def _ask(self, bus: Bus, params: ConfirmParams, abstain: Callable[[], None]) -> bool | None:
        server, body = await bus.call(_to(NAME, "GetCapabilities"))
        able = frozenset(map(str, _first(body, list)))
        if "body" not in able:
            raise BusError("the notification server shows no text")
        for rule in _rules(server):
            await bus.call(rule)
        answerable = "actions" in able and fits(params.text)
        shown = notification(params, server, markup="body-markup" in able, answerable=answerable)
        sent = await bus.send(shown)
        try:
            _, body = await bus.reply(sent)
        except trio.Cancelled:
            # Over already, and only who knows its id can take the notification away again.
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                await _close(bus, server, bus.reply(sent))
            raise
        number = _first(body, int)
        self._complained = ""
        try:
            if not answerable:
                abstain()
                await trio.sleep_forever()
            return await _answer(bus, server, number)
        finally:
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                await _close(bus, server, number)


def fits(text: str) -> bool:
    """Whether every server shows all of a text, so that it can be confirmed there."""
    return len(text) <= MAX_BUTTONS_TEXT and text.count("\n") < MAX_BUTTONS_LINES


def body_of(text: str, *, markup: bool) -> str:
    """Return a text as a notification's body; `markup`: the server takes some of it for markup."""
    return text.translate(_ESCAPES) if markup else text


def notification(params: ConfirmParams, server: str, *, markup: bool, answerable: bool) -> Message:
    """Return the call `Notify` for a question."""
    hints = {"urgency": ("y", _CRITICAL), "resident": ("b", True)}
    return _to(
        server,
        "Notify",
        "susssasa{sv}i",
        (
            "utter-runner",
            0,
            "dialog-question",
            SUMMARY if answerable else SUMMARY_ELSEWHERE,
            body_of(params.text, markup=markup),
            _ACTIONS if answerable else [],
            hints,
            params.timeout_ms,
        ),
    )


async def _answer(bus: Bus, server: str, number: int) -> bool | None:
    """Wait for the person, or until the notification is gone; None when it went by itself."""
    while True:
        signal = await bus.signal()
        if signal.sender == BUS and signal.member == "NameOwnerChanged" and signal.body == (server, server, ""):
            raise BusError("the notification server went away while it asked")
        if signal.sender != server or signal.interface != NAME or signal.body[:1] != (number,):
            continue
        match signal.member, signal.body[1:]:
            case "ActionInvoked", ("allow",):
                return True
            case "ActionInvoked", ("refuse",):
                return False
            case "NotificationClosed", (reason,):
                # Whoever takes the question away has answered it; one that ran out, or was closed, has no answer.
                return False if reason == _DISMISSED else None
            case _:
                logger.debug("the notification server said %s %r", signal.member, signal.body)


async def _close(bus: Bus, server: str, shown: int | Awaitable[tuple[str, tuple[Any, ...]]]) -> None:
    """Take a notification away, by its id or by what will answer with it."""
    try:
        number = shown if isinstance(shown, int) else _first((await shown)[1], int)
        await bus.call(_to(server, "CloseNotification", "u", (number,)))
    except BusError as error:
        logger.debug("a notification could not be closed: %s", error)


def _first(body: tuple[Any, ...], kind: type) -> Any:
    if not body or not isinstance(body[0], kind):
        raise BusError("the notification server's answer makes no sense")
    return body[0]


def _to(server: str, method: str, signature: str | None = None, body: tuple[Any, ...] = ()) -> Message:
    from jeepney import DBusAddress, new_method_call  # noqa: PLC0415 - jeepney is optional

    return new_method_call(DBusAddress(PATH, bus_name=server, interface=NAME), method, signature, body)


def _rules(server: str) -> list[Message]:
    """Subscribe to what this server says, and to its end."""
    from jeepney import MatchRule  # noqa: PLC0415 - jeepney is optional
    from jeepney.bus_messages import message_bus  # noqa: PLC0415 - see above

    said = MatchRule(type="signal", sender=server, interface=NAME, path=PATH)
    gone = MatchRule(type="signal", sender=BUS, interface=BUS, member="NameOwnerChanged")
    gone.add_arg_condition(0, server)
    return [message_bus.AddMatch(said), message_bus.AddMatch(gone)]
