"""Who is asked, whose answer counts, and that every question ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from support.stage import Person, assert_paired
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.confirm.confirmer import MAX_QUESTIONS, Confirmer, Question, Verdict

if TYPE_CHECKING:
    from trio.testing import MockClock

QUESTION = Question(
    text="Run in a terminal: ls",
    op="terminal",
    args={"command": "ls"},
    provenance="user",
    digest="d" * 64,
    session="s1",
)


class Room:
    """A confirmer and what it told."""

    def __init__(self, *persons: Person, timeout: float = 30.0) -> None:
        self.persons = [*persons]
        self.events: list[dict[str, Any]] = []
        self.confirmer = Confirmer(lambda: [*self.persons], timeout=timeout, emit=self.events.append)

    @property
    def questions(self) -> list[tuple[str, str]]:
        return [(event["id"], event["state"]) for event in self.events]

    @property
    def states(self) -> list[str]:
        return [state for _, state in self.questions]


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_a_person_is_shown_the_question_as_it_is() -> None:
    person = Person(answer=True)
    room = Room(person, timeout=12.5)
    assert await room.confirmer.ask(QUESTION) == Verdict(approved=True, why="it was approved", surface="person")
    (shown,) = person.asked
    assert (shown.text, shown.op, shown.args) == (QUESTION.text, "terminal", {"command": "ls"})
    assert (shown.provenance, shown.digest, shown.timeout_ms) == ("user", QUESTION.digest, 12_500)
    assert len(shown.id) == 16
    first, second = room.events
    assert first == {"event": "confirm", "session": "s1", "id": shown.id, "text": QUESTION.text, "state": "asked"}
    assert second == {**first, "state": "approved"}


async def test_a_no_is_a_no() -> None:
    room = Room(Person(answer=False))
    assert await room.confirmer.ask(QUESTION) == Verdict(approved=False, why="it was declined", surface="person")
    assert room.states == ["asked", "denied"]


@pytest.mark.parametrize("first", [True, False])
async def test_the_first_answer_wins_and_the_others_are_withdrawn(first: bool) -> None:
    persons = [Person(), Person(), Person()]
    room = Room(*persons)
    verdicts: list[Verdict] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ask, room, verdicts)
        await settle()
        assert [len(person.asked) for person in persons] == [1, 1, 1]
        persons[1].say(first)
        await settle()
        assert [verdict.approved for verdict in verdicts] == [first]
        assert [person.withdrawn for person in persons] == [1, 0, 1]
        persons[0].say(not first)
        await settle()
    assert room.states == ["asked", "approved" if first else "denied"]
    assert len({person.asked[0].id for person in persons}) == 1


async def _ask(room: Room, verdicts: list[Verdict]) -> None:
    verdicts.append(await room.confirmer.ask(QUESTION))


async def test_two_answers_of_the_same_moment_are_one() -> None:
    room = Room(Person(answer=True), Person(answer=False))
    verdict = await room.confirmer.ask(QUESTION)
    assert room.states == ["asked", "approved" if verdict.approved else "denied"]


@pytest.mark.parametrize("how", [None, RpcError(ErrorCode.METHOD_NOT_FOUND, "I cannot"), ValueError("a defect")])
async def test_whoever_cannot_ask_abstains(how: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    able = Person()
    room = Room(Person(answer=how), able, Person(answer=how))
    verdicts: list[Verdict] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ask, room, verdicts)
        await settle()
        assert (verdicts, able.withdrawn) == ([], 0)
        able.say(answer=True)
    assert verdicts[0].approved
    room.persons = [Person(answer=how), Person(answer=how)]
    verdict = await room.confirmer.ask(QUESTION)
    assert verdict == Verdict(approved=False, why="nobody who is connected can ask a person")
    assert room.states == ["asked", "approved", "asked", "denied"]


async def test_with_nobody_there_it_is_no_at_once() -> None:
    room = Room()
    assert await room.confirmer.ask(QUESTION) == Verdict(approved=False, why="nobody is there to ask")
    assert room.states == ["asked", "denied"]


async def test_silence_is_no(autojump_clock: MockClock) -> None:
    person, abstains = Person(), Person(answer=None)
    room = Room(person, abstains, timeout=30.0)
    began = trio.current_time()
    verdict = await room.confirmer.ask(QUESTION)
    assert trio.current_time() - began == pytest.approx(30.0)
    assert verdict == Verdict(approved=False, why="nobody answered within 30 s", timed_out=True)
    assert room.states == ["asked", "timed_out"]
    assert person.withdrawn == 1


async def test_each_question_has_its_own_time_once_it_is_asked(autojump_clock: MockClock) -> None:
    person = Person()
    room = Room(person, timeout=10.0)
    verdicts: list[Verdict] = []
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(_ask, room, verdicts)
        await trio.sleep(35)
    assert [verdict.approved for verdict in verdicts] == [False] * 3
    assert room.states == ["asked", "timed_out"] * 3
    assert_paired(room.questions)


async def test_an_answer_just_in_time_counts(autojump_clock: MockClock) -> None:
    person = Person()
    room = Room(person, timeout=10.0)
    verdicts: list[Verdict] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ask, room, verdicts)
        await trio.sleep(9.999)
        person.say(answer=True)
    assert verdicts[0].approved


async def test_one_question_at_a_time_to_those_who_are_there_then() -> None:
    early, late = Person(), Person()
    room = Room(early)
    verdicts: list[Verdict] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ask, room, verdicts)
        nursery.start_soon(_ask, room, verdicts)
        await settle()
        assert len(early.asked) == 1
        room.persons = [late]
        early.say(answer=False)
        await settle()
        assert (len(early.asked), len(late.asked)) == (1, 1)
        late.say(answer=True)
    assert [verdict.approved for verdict in verdicts] == [False, True]
    assert_paired(room.questions)


@pytest.mark.parametrize("queued", [False, True])
async def test_a_cancelled_question_is_denied_and_makes_room_for_the_next(queued: bool) -> None:
    person = Person()
    room = Room(person)
    verdicts: list[Verdict] = []
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope)
            await room.confirmer.ask(QUESTION)
        assert scope.cancelled_caught
        assert person.withdrawn == 1
        assert room.states == ["asked", "denied"]
        if queued:
            nursery.start_soon(_ask, room, verdicts)
            await settle()
            person.say(answer=True)
            await settle()
            assert verdicts[0].approved
    assert_paired(room.questions)


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await settle()
    scope.cancel()


async def test_a_source_of_surfaces_that_fails_still_ends_its_question(caplog: pytest.LogCaptureFixture) -> None:
    events: list[dict[str, Any]] = []

    def broken() -> list[Any]:
        raise ValueError("boom")

    confirmer = Confirmer(broken, timeout=1.0, emit=events.append)
    for _ in range(2):
        with pytest.raises(ValueError, match="boom"):
            await confirmer.ask(QUESTION)
    assert [event["state"] for event in events] == ["asked", "denied"] * 2


async def test_more_questions_than_a_person_can_answer_are_denials(autojump_clock: MockClock) -> None:
    silent = Room(Person(), timeout=30.0)
    verdicts: list[Verdict] = []

    async def ask() -> None:
        verdicts.append(await silent.confirmer.ask(QUESTION))

    async with trio.open_nursery() as nursery:
        for _ in range(MAX_QUESTIONS + 2):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert [verdict.approved for verdict in verdicts] == [False, False]
        assert "max_questions" in verdicts[0].why
        nursery.cancel_scope.cancel()
    # The queue is free again.
    verdict = await Room(timeout=1.0).confirmer.ask(QUESTION)
    assert "max_questions" not in verdict.why
    verdict = await silent.confirmer.ask(QUESTION)
    assert "max_questions" not in verdict.why
    assert_paired(silent.questions)
