"""Where a person can be asked, and one question on its way through all such places.

Rules here: the first answer ends a round, and every other surface is withdrawn by cancelling it; an answer to another
step than the one that was shown is a denial, whatever it says; a surface that fails or only shows the question does not
keep the round open.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from utter_protocol.errors import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from utter_protocol.methods import ConfirmParams, ConfirmResult
    from utter_runner.rpc.requesters import Requester

logger = logging.getLogger(__name__)

VOICE = "voice"
"""The kind of the surface on which nothing can be read: it answers only while another one shows the question."""
MISMATCH = "answer-mismatch"
"""The rule by which an answer to another step than the one that was shown is a denial."""


class Verdict(msgspec.Struct, frozen=True):
    """The answer, and why it is so in one sentence.

    Attributes:
        rule: names the rule that made it a denial, if one did.
        timed_out: whether nobody answered in time.
        surface: the kind of the surface that answered.
    """

    approved: bool
    why: str
    rule: str = ""
    timed_out: bool = False
    surface: str = ""


class Surface(Protocol):
    """A place where a person can be asked; `kind` is its name in the audit trail."""

    kind: str

    @property
    def requester(self) -> Requester | None:
        """Who is behind it, if that is somebody who could have asked for an action."""

    async def ask(self, params: ConfirmParams, abstain: Callable[[], None]) -> ConfirmResult | None:
        """Return the person's answer, or None when nobody can be asked here.

        A surface that shows the question without being able to take an answer calls `abstain` and goes on showing it
        until it is cancelled, which is when the question is over.
        """

    def withhold(self, params: ConfirmParams) -> None:
        """Take note that others are asked, because this is where the action was asked for. Must not raise."""


class Round:
    """One question, while it is put to surfaces.

    Args:
        params: what they are asked.
        requesters: who is not asked.
        plugins: the pids of plugins, which are not asked either: what they show is not the runner's.

    Attributes:
        verdict: the first answer; None as long as there is none.
        withheld: whether somebody was not asked because they asked for the action.
    """

    def __init__(
        self, params: ConfirmParams, requesters: frozenset[Requester], plugins: frozenset[int] = frozenset()
    ) -> None:
        self.verdict: Verdict | None = None
        self.withheld = False
        self._params = params
        self._requesters = requesters
        self._plugins = plugins
        self._put: list[Surface] = []
        self._showing: list[Surface] = []
        self._may_answer = 0
        self._nursery: trio.Nursery | None = None

    async def run(self, surfaces: Iterable[Surface]) -> None:
        """Ask; return at the first answer, or when nobody is left who could give one."""
        async with trio.open_nursery() as self._nursery:
            not_asked = [surface for surface in surfaces if not self.put(surface)]
            if self._may_answer:
                for surface in not_asked:
                    if surface.requester in self._requesters:
                        surface.withhold(self._params)
        self._nursery = None

    def put(self, surface: Surface) -> bool:
        """Ask on this surface, too; whether it is asked."""
        if self._nursery is None or any(one is surface for one in self._put):
            return False
        if surface.requester is not None and surface.requester.is_among(self._requesters):
            self.withheld = True
            return False
        if surface.requester is not None and surface.requester.pid in self._plugins:
            return False
        if surface.kind != VOICE:
            self._showing.append(surface)
        elif not self._showing:
            return False
        self._put.append(surface)
        self._may_answer += 1
        self._nursery.start_soon(self._ask, surface)
        return True

    async def _ask(self, surface: Surface) -> None:
        counts = True

        def abstain() -> None:
            nonlocal counts
            if counts:
                counts = False
                self._may_answer -= 1
                if not self._may_answer:
                    self._end()

        answer: ConfirmResult | None = None
        try:
            answer = await surface.ask(self._params, abstain)
        except RpcError as error:
            logger.debug("a surface could not ask: %s", error)
        except Exception:
            logger.exception("a surface failed while it asked")
        if answer is not None and counts and self.verdict is None:
            self.verdict = msgspec.structs.replace(self._judge(answer), surface=surface.kind)
            self._end()
        abstain()
        if surface in self._showing:
            self._showing.remove(surface)
            if not self._showing:
                # What nobody can read any more, no voice can approve.
                self._end()

    def _end(self) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _judge(self, answer: ConfirmResult) -> Verdict:
        if answer.digest not in {"", self._params.digest}:
            return Verdict(approved=False, why="the answer was given for another step", rule=MISMATCH)
        return Verdict(approved=answer.approved, why="it was approved" if answer.approved else "it was declined")
