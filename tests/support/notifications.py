"""A notification server on a test's own bus, with somebody at it who presses buttons.

Rules here: it shows nothing and remembers everything; each wait has an end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from support.dbus import Service
from utter_runner.confirm.notifications import NAME, PATH

if TYPE_CHECKING:
    from collections.abc import Callable

ABLE = ("actions", "body", "body-markup")
_WAIT_S = 60.0


class Shown(NamedTuple):
    """One call of Notify."""

    number: int
    summary: str
    body: str
    actions: list[str]
    hints: dict[str, Any]
    expires_ms: int


class NotificationServer(Service):
    """A server with these capabilities; a context manager, as every service.

    Args:
        address: the bus.
        able: what GetCapabilities says.
        answers: what it says to a method in place of its own answer.
    """

    def __init__(
        self, address: str, able: tuple[str, ...] = ABLE, answers: dict[str, tuple[str, Any] | str | None] | None = None
    ) -> None:
        self.shown: list[Shown] = []
        self.closed: list[int] = []
        self._able = able
        self._answers = answers or {}
        self._changed = threading.Condition()
        super().__init__(address, NAME, self._do)

    def wait_shown(self, count: int = 1) -> Shown:
        """Wait until so many were shown; return the last."""
        self._wait(lambda: len(self.shown) >= count)
        return self.shown[-1]

    def wait_closed(self, number: int) -> None:
        """Wait until a notification was taken away."""
        self._wait(lambda: number in self.closed)

    def press(self, number: int, key: str) -> None:
        """Somebody presses a button."""
        self.emit(PATH, NAME, "ActionInvoked", "us", (number, key))

    def end(self, number: int, reason: int) -> None:
        """A notification goes: it ran out (1), somebody took it away (2), or the server's reasons (4)."""
        self.emit(PATH, NAME, "NotificationClosed", "uu", (number, reason))

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, _WAIT_S), (self.shown, self.closed)

    def _do(self, _interface: str, member: str, body: tuple[Any, ...]) -> tuple[str, Any] | str | None:
        with self._changed:
            self._changed.notify_all()
            if member == "Notify":
                number = len(self.shown) + 7
                self.shown.append(Shown(number, body[3], body[4], body[5], body[6], body[7]))
                answer: tuple[str, Any] = ("u", (number,))
            elif member == "CloseNotification":
                self.closed.append(body[0])
                answer = ("", ())
            else:
                answer = ("as", (list(self._able),))
        return self._answers.get(member, answer)
