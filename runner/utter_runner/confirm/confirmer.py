"""One question at a time, put to every surface at once; the first answer wins and no answer is "no".

Rules here: the text comes rendered from the policy and is shown as it is; an answer counts only for the digest that was
asked about; whoever asked for an action is not asked about it, and plugins are asked about nothing; surfaces that
cannot ask a person, or fail while they try, abstain. Who withdraws a question (by cancelling) has it denied.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from utter_protocol.methods import ConfirmParams, OpenQuestion
from utter_runner.confirm.surfaces import Round, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.methods import Provenance
    from utter_runner.confirm.spoken import SpokenAnswers
    from utter_runner.confirm.surfaces import Surface
    from utter_runner.rpc.requesters import Requester

MAX_QUESTIONS = 16
NOBODY = "nobody is there to ask"
NOBODY_CAN = "nobody who is connected can ask a person"
NOBODY_ELSE = (
    "nobody else can be asked, and whoever asks for an action may not confirm it: run `utter confirm` in another "
    "terminal, allow notifications, or set [policy] self_confirm = true"
)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: the concrete step, and the text that a person must read.

    Attributes:
        requesters: the clients that asked for the step; they are not asked about it.
        spoken: whether a voice may answer it.
    """

    text: str
    op: str
    args: dict[str, Any]
    provenance: Provenance
    digest: str
    session: str = ""
    requesters: frozenset[Requester] = frozenset()
    spoken: bool = False


class _Open:
    """A question that has no verdict yet; `asked_until` once it has its turn (trio's clock)."""

    def __init__(self, question: Question) -> None:
        self.id = secrets.token_hex(8)
        self.question = question
        self.asked_until: float | None = None


class Confirmer:
    """Asks all surfaces.

    Args:
        surfaces: called for each question; returns whom to ask now.
        timeout: seconds until silence means "no".
        emit: told of every question and its end.
        self_confirm: ask also whoever asked for the action.
        plugins: returns the pids of plugins, whose connections are never asked.
        spoken: takes spoken answers; None: there are none.
    """

    def __init__(
        self,
        surfaces: Callable[[], list[Surface]],
        *,
        timeout: float,
        emit: Callable[[dict[str, Any]], None],
        self_confirm: bool = False,
        plugins: Callable[[], frozenset[int]] = frozenset,
        spoken: SpokenAnswers | None = None,
    ) -> None:
        self._surfaces = surfaces
        self._timeout = timeout
        self._emit = emit
        self._self_confirm = self_confirm
        self._plugins = plugins
        self._spoken = spoken
        self._one_at_a_time = trio.Lock()
        self._open: list[_Open] = []
        self._round: Round | None = None

    def reconfigure(self, *, timeout: float, self_confirm: bool, spoken: SpokenAnswers | None) -> None:
        """Ask in another way from the next question on; what the arguments are, the class says."""
        self._timeout, self._self_confirm, self._spoken = timeout, self_confirm, spoken

    async def ask(self, question: Question) -> Verdict:
        """Return the verdict. Up to `MAX_QUESTIONS` queue; each has its own time-out once it is asked."""
        if len(self._open) >= MAX_QUESTIONS:
            await trio.lowlevel.checkpoint()
            return Verdict(approved=False, why=f"max_questions ({MAX_QUESTIONS}) confirmations are waiting already")
        mine = _Open(question)
        self._open.append(mine)
        try:
            return await self._ask_in_turn(mine)
        finally:
            self._open.remove(mine)

    def questions(self) -> list[OpenQuestion]:
        """Return what waits for an answer, in the order in which it is asked."""
        now = trio.current_time()
        return [
            OpenQuestion(
                id=one.id,
                text=one.question.text,
                op=one.question.op,
                provenance=one.question.provenance,
                session=one.question.session,
                state="waiting" if one.asked_until is None else "asked",
                left_ms=None if one.asked_until is None else max(0, round((one.asked_until - now) * 1000)),
            )
            for one in self._open
        ]

    def join(self, surface: Surface) -> None:
        """Ask the question that is open now on this surface, too, unless it was asked there already."""
        if self._round is not None:
            self._round.put(surface)

    async def _ask_in_turn(self, mine: _Open) -> Verdict:
        async with self._one_at_a_time:
            question = mine.question
            mine.asked_until = trio.current_time() + self._timeout
            params = ConfirmParams(
                id=mine.id,
                text=question.text,
                op=question.op,
                args=question.args,
                provenance=question.provenance,
                digest=question.digest,
                timeout_ms=round(self._timeout * 1000),
            )
            self._tell(mine, "asked")
            state = "denied"
            try:
                verdict, state = await self._ask_surfaces(params, question)
            finally:
                self._tell(mine, state)
            return verdict

    async def _ask_surfaces(self, params: ConfirmParams, question: Question) -> tuple[Verdict, str]:
        surfaces = self._surfaces()
        if not surfaces:
            return Verdict(approved=False, why=NOBODY), "denied"
        asked = Round(params, frozenset() if self._self_confirm else question.requesters, self._plugins())
        self._round = asked
        try:
            with trio.move_on_after(self._timeout) as scope, ExitStack() as stack:
                if question.spoken and question.session and self._spoken is not None:
                    surfaces = [*surfaces, stack.enter_context(self._spoken.about(params.id, question.session))]
                await asked.run(surfaces)
        finally:
            self._round = None
        if asked.verdict is not None:
            return asked.verdict, "approved" if asked.verdict.approved else "denied"
        if scope.cancelled_caught:
            why = f"nobody answered within {self._timeout:g} s"
            return Verdict(approved=False, why=why, timed_out=True), "timed_out"
        return Verdict(approved=False, why=NOBODY_ELSE if asked.withheld else NOBODY_CAN), "denied"

    def _tell(self, mine: _Open, state: str) -> None:
        self._emit(
            {
                "event": "confirm",
                "session": mine.question.session,
                "id": mine.id,
                "text": mine.question.text,
                "state": state,
            }
        )
