"""One question at a time, put to every surface at once; the first answer wins and no answer is "no".

Rules here: the text comes rendered from the policy and is shown as it is; an answer counts only for the digest that was
asked about; surfaces that cannot ask a person, or fail while they try, abstain. Who withdraws a question (by
cancelling) has it denied.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio

from utter_protocol.errors import RpcError
from utter_protocol.methods import ConfirmParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.methods import Provenance

logger = logging.getLogger(__name__)

MAX_QUESTIONS = 16


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: the concrete step, and the text that a person must read."""

    text: str
    op: str
    args: dict[str, Any]
    provenance: Provenance
    digest: str
    session: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The answer, why it is so in one sentence, whether time ran out, and the kind of the surface that gave it."""

    approved: bool
    why: str
    timed_out: bool = False
    surface: str = ""


class Surface(Protocol):
    """A place where a person can be asked; `kind` is its name in the audit trail."""

    kind: str

    async def ask(self, params: ConfirmParams) -> bool | None:
        """Return the person's answer, or None when nobody can be asked here."""


class Confirmer:
    """Asks all surfaces.

    Args:
        surfaces: called for each question; returns whom to ask now.
        timeout: seconds until silence means "no".
        emit: told of every question and its end.
    """

    def __init__(
        self, surfaces: Callable[[], list[Surface]], *, timeout: float, emit: Callable[[dict[str, Any]], None]
    ) -> None:
        self._surfaces = surfaces
        self._timeout = timeout
        self._emit = emit
        self._one_at_a_time = trio.Lock()
        self._open = 0

    async def ask(self, question: Question) -> Verdict:
        """Return the verdict. Up to `MAX_QUESTIONS` queue; each has its own time-out once it is asked."""
        if self._open >= MAX_QUESTIONS:
            await trio.lowlevel.checkpoint()
            return Verdict(approved=False, why=f"max_questions ({MAX_QUESTIONS}) confirmations are waiting already")
        self._open += 1
        try:
            return await self._ask_in_turn(question)
        finally:
            self._open -= 1

    async def _ask_in_turn(self, question: Question) -> Verdict:
        async with self._one_at_a_time:
            params = ConfirmParams(
                id=secrets.token_hex(8),
                text=question.text,
                op=question.op,
                args=question.args,
                provenance=question.provenance,
                digest=question.digest,
                timeout_ms=round(self._timeout * 1000),
            )
            self._tell(question, params.id, "asked")
            state = "denied"
            try:
                verdict, state = await self._ask_surfaces(params)
            finally:
                self._tell(question, params.id, state)
            return verdict

    async def _ask_surfaces(self, params: ConfirmParams) -> tuple[Verdict, str]:
        surfaces = self._surfaces()
        if not surfaces:
            return Verdict(approved=False, why="nobody is there to ask"), "denied"
        answers: list[tuple[bool, str]] = []
        with trio.move_on_after(self._timeout) as scope:
            async with trio.open_nursery() as nursery:

                async def ask_one(surface: Surface) -> None:
                    try:
                        answer = await surface.ask(params)
                    except RpcError as error:
                        # Its message may repeat what was asked.
                        logger.debug("a surface could not ask: error %d", error.code)
                        return
                    except Exception:
                        logger.exception("a surface failed while it asked")
                        return
                    if answer is not None:
                        answers.append((answer, surface.kind))
                        nursery.cancel_scope.cancel()

                for surface in surfaces:
                    nursery.start_soon(ask_one, surface)
        if answers:
            approved, kind = answers[0]
            why = "it was approved" if approved else "it was declined"
            return Verdict(approved=approved, why=why, surface=kind), "approved" if approved else "denied"
        if scope.cancelled_caught:
            why = f"nobody answered within {self._timeout:g} s"
            return Verdict(approved=False, why=why, timed_out=True), "timed_out"
        return Verdict(approved=False, why="nobody who is connected can ask a person"), "denied"

    def _tell(self, question: Question, question_id: str, state: str) -> None:
        self._emit(
            {"event": "confirm", "session": question.session, "id": question_id, "text": question.text, "state": state}
        )
