"""A spoken yes or no to what a spoken command made the runner ask.

Rules here: a voice only ever answers a question that stands somewhere to be read while it is answered, for the session
that it was asked in, and with exactly one of the configured words; anything else leaves the question open. Which ops
may be answered so is not decided here.
"""

from __future__ import annotations

import unicodedata
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from utter_protocol.methods import ConfirmResult
from utter_runner.confirm.surfaces import VOICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from utter_protocol.methods import ConfirmParams


class SpokenAnswers:
    """What is said while a question is open.

    Args:
        yes: words, or several words together, that mean yes.
        no: those that mean no; what stands in both does.
    """

    def __init__(self, yes: Iterable[str], no: Iterable[str]) -> None:
        self.words = [*yes, *no]
        self._meaning = {**dict.fromkeys(map(_plain, yes), True), **dict.fromkeys(map(_plain, no), False)}
        self._open: dict[str, _Spoken] = {}

    @contextmanager
    def about(self, question: str, session: str) -> Iterator[_Spoken]:
        """Give the surface on which a question of a session is asked; from the start on, what is said is for it."""
        self._open[question] = spoken = _Spoken(session)
        try:
            yield spoken
        finally:
            del self._open[question]

    def waits(self, session: str) -> str:
        """Return the id of the question of this session that can be answered by voice now, or nothing."""
        return next((question for question, one in self._open.items() if one.session == session), "")

    def answer(self, question: str, text: str) -> bool | None:
        """Take what was said; return whether it was a yes or a no, or None: neither, or that is not asked now."""
        approved = self._meaning.get(_plain(text))
        waiting = self._open.get(question)
        if approved is None or waiting is None:
            return None
        waiting.take(approved=approved)
        return approved


class _Spoken:
    """One question (confirm.Surface)."""

    kind = VOICE
    requester = None

    def __init__(self, session: str) -> None:
        self.session = session
        self._answered = trio.Event()
        self._approved = False

    def take(self, *, approved: bool) -> None:
        """It was answered; of several answers the first counts."""
        if not self._answered.is_set():
            self._approved = approved
            self._answered.set()

    async def ask(self, params: ConfirmParams, abstain: Callable[[], None]) -> ConfirmResult | None:  # noqa: ARG002 - the interface of a surface
        """Wait until somebody says it."""
        await self._answered.wait()
        return ConfirmResult(approved=self._approved, digest=params.digest)

    def withhold(self, params: ConfirmParams) -> None:
        """Nobody who asked is here."""


def _plain(text: str) -> str:
    """Letters and digits in lower case, with single spaces."""
    kept = "".join(char if char.isalnum() else " " for char in unicodedata.normalize("NFKC", text).casefold())
    return " ".join(kept.split())
