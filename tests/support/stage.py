"""A gate between a fake plugin and scripted persons, for the tests of actions and of what is built on them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from support.policy import EVERYTHING_ON, SESSION, USER, candidates, registry
from utter_protocol.methods import ConfirmResult
from utter_runner.actions.audit import MemoryAudit
from utter_runner.actions.commands import Commands
from utter_runner.actions.gate import ActionGate, Submission
from utter_runner.confirm.confirmer import Confirmer
from utter_runner.confirm.spoken import SpokenAnswers
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.supervision.fake import FakeInstance, FakeSupervisor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from msgspec import Raw

    from utter_protocol.errors import RpcError
    from utter_protocol.methods import CommandResult, ConfirmParams, PlannedStep
    from utter_runner.policy import Decision, Origin, PolicyRules
    from utter_runner.rpc.requesters import Requester

DONE = {"ok": True, "detail": "Done."}
SILENT = object()


class Person:
    """A surface with somebody behind it, who answers when told to.

    Args:
        answer: what they answer at once; "later" waits for `say`. An exception is raised, None abstains.
    """

    kind = "person"

    def __init__(self, answer: bool | Exception | str | None = "later") -> None:
        self.asked: list[ConfirmParams] = []
        self.withheld: list[ConfirmParams] = []
        self.withdrawn = 0
        self._answer = answer
        self._waits = answer == "later"
        self._said = trio.Event()
        self._was_asked = trio.Event()

    requester: Requester | None = None
    digest = ""

    def withhold(self, params: ConfirmParams) -> None:
        self.withheld.append(params)

    async def ask(self, params: ConfirmParams, abstain: Callable[[], None]) -> ConfirmResult | None:  # noqa: ARG002 - the interface of a surface
        self.asked.append(params)
        self._was_asked.set()
        try:
            if self._waits:
                await self._said.wait()
            else:
                await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.withdrawn += 1
            raise
        answer = self._answer
        if self._waits:
            self._answer, self._said = "later", trio.Event()
        if isinstance(answer, Exception):
            raise answer
        assert not isinstance(answer, str)
        return None if answer is None else ConfirmResult(approved=answer, digest=self.digest)

    async def wait_asked(self) -> None:
        """Wait for the first question."""
        await self._was_asked.wait()

    def say(self, answer: bool | Exception | None) -> None:
        self._answer = answer
        self._said.set()


class Ending:
    """What one submission's callbacks were told."""

    def __init__(self) -> None:
        self.replies: list[tuple[Raw | None, RpcError | None]] = []
        self.phases: list[str] = []
        self.decisions: list[Decision] = []
        self.submission: Submission | None = None
        self._done = trio.Event()

    def on_reply(self, result: Raw | None, error: RpcError | None) -> None:
        self.replies.append((result, error))
        self._done.set()

    async def wait(self) -> None:
        with trio.fail_after(100):
            await self._done.wait()
        # A second answer would come right behind the first.
        await trio.testing.wait_all_tasks_blocked()
        assert len(self.replies) == 1

    @property
    def result(self) -> Any:
        ((raw, error),) = self.replies
        assert error is None, error
        return msgspec.json.decode(raw)

    @property
    def error(self) -> RpcError:
        ((_, error),) = self.replies
        assert error is not None
        return error


class Stage:
    """The gate, with the ops of the plugin `desktop` (`support.policy.OPS`).

    Args:
        persons: who can be asked.
        invoke: what the plugin answers to `action.invoke`; SILENT never.
        others: further plugins.
        spoken: takes spoken answers.
    """

    def __init__(
        self,
        *persons: Person,
        rules: PolicyRules = EVERYTHING_ON,
        confirm_timeout: float = 30.0,
        invoke: Any = DONE,
        others: tuple[FakeInstance, ...] = (),
        spoken: SpokenAnswers | None = None,
    ) -> None:
        self.deadlines = Deadlines()
        scripted = {} if invoke is SILENT else {"action.invoke": invoke}
        self.plugin = FakeInstance("desktop", scripted, deadlines=self.deadlines)
        for other in others:
            other.deadlines = self.deadlines
        self.supervisor = FakeSupervisor(self.plugin, *others)
        self.ops = registry()
        self.candidates = candidates()
        self.events: list[dict[str, Any]] = []
        self.persons: list[Person] = [*persons]
        self.confirmer = Confirmer(lambda: [*self.persons], timeout=confirm_timeout, emit=self.emit, spoken=spoken)
        self.audit = MemoryAudit()
        self.gate = ActionGate(
            self.supervisor,
            ops=self.ops,
            rules=rules,
            candidates=self.candidates,
            confirmer=self.confirmer,
            emit=self.emit,
            audit=self.audit,
        )

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.deadlines.run)
            await nursery.start(self.gate.run)
            yield nursery
            nursery.cancel_scope.cancel()

    def submit(self, step: PlannedStep, origin: Origin = USER, *, timeout: float = 30.0) -> Ending:
        ending = Ending()
        ending.submission = self.gate.submit(
            step,
            origin,
            ending.on_reply,
            timeout=timeout,
            on_phase=ending.phases.append,
            on_decision=ending.decisions.append,
        )
        return ending

    @property
    def questions(self) -> list[tuple[str, str]]:
        """(id, state) of every event `confirm`."""
        return [(event["id"], event["state"]) for event in self.events if event["event"] == "confirm"]


class Desk(Stage):
    """A stage with a router, and commands on it.

    Args:
        plan: what the router answers to `router.plan`; SILENT never.
        others: further plugins.
    """

    def __init__(
        self, *persons: Person, plan: Any = SILENT, others: tuple[FakeInstance, ...] = (), **options: Any
    ) -> None:
        answers = {} if plan is SILENT else {"router.plan": plan}
        self.router = FakeInstance("router", answers, provides=["router.plan@1"])
        super().__init__(*persons, others=(self.router, *others), **options)
        self.phases: list[str] = []
        self.commands = Commands(self.supervisor, self.gate, timeout=30.0, router_wait=10.0, emit=self.emit)

    async def say(self, utterance: str = "do it", **options: Any) -> CommandResult:
        given = {"provenance": "user", "session": SESSION, "on_phase": self.phases.append, **options}
        return await self.commands.command(utterance, **given)


def assert_paired(questions: list[tuple[str, str]]) -> None:
    """Every question was asked and ended, once each, one after the other."""
    assert len(questions) % 2 == 0
    for (first, asked), (second, ended) in zip(questions[::2], questions[1::2], strict=True):
        assert first == second
        assert asked == "asked"
        assert ended in {"approved", "denied", "timed_out"}
    ids = [question for question, _ in questions[::2]]
    assert len(set(ids)) == len(ids)
