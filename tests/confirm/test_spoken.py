"""A voice as one of the surfaces: when it is asked, and what it may say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from support.stage import Person
from utter_runner.confirm.confirmer import Confirmer, Question, Verdict
from utter_runner.confirm.spoken import SpokenAnswers

if TYPE_CHECKING:
    from trio.testing import MockClock

QUESTION = Question(
    text="Set the volume", op="volume", args={}, provenance="user", digest="d" * 64, session="s1", spoken=True
)


class Room:
    def __init__(self, *persons: Person, timeout: float = 30.0) -> None:
        self.spoken = SpokenAnswers(["yes", "do it"], ["no", "Don't!"])
        self.confirmer = Confirmer(lambda: [*persons], timeout=timeout, emit=lambda _event: None, spoken=self.spoken)
        self.verdicts: list[Verdict] = []

    async def ask(self, question: Question) -> None:
        self.verdicts.append(await self.confirmer.ask(question))


@pytest.mark.parametrize(
    ("said", "approved"), [("Yes.", True), ("DO  it!", True), ("no", False), ("don\u2019t", False)]
)
async def test_a_voice_answers_what_somebody_can_read(said: str, approved: bool) -> None:
    person = Person()
    room = Room(person)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.ask, QUESTION)
        await person.wait_asked()
        await trio.testing.wait_all_tasks_blocked()
        (open_question,) = room.confirmer.questions()
        assert room.spoken.waits("s1") == open_question.id
        assert room.spoken.waits("s2") == ""
        assert room.spoken.answer(open_question.id, said) is approved
    assert [(one.approved, one.surface) for one in room.verdicts] == [(approved, "voice")]
    assert person.withdrawn == 1
    assert room.spoken.waits("s1") == ""
    assert room.spoken.answer(open_question.id, said) is None


@given(st.text())
def test_only_the_whole_answer_counts(text: str) -> None:
    spoken = SpokenAnswers(["yes"], ["no"])
    assert spoken.answer("q", text) is None
    for said in (f"yes {text}", f"{text} yes"):
        letters = "".join(char for char in said if char.isalnum())
        assert spoken._meaning.get(said.strip()) is None or letters.casefold() == "yes"


@pytest.mark.parametrize("question", [{"spoken": False}, {"session": ""}])
async def test_what_a_voice_may_not_answer_does_not_wait_for_one(question: dict[str, object]) -> None:
    person = Person()
    room = Room(person)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.ask, msgspec.structs.replace(QUESTION, **question))
        await person.wait_asked()
        await trio.testing.wait_all_tasks_blocked()
        assert room.spoken.waits("s1") == ""
        person.say(answer=True)
    assert room.verdicts[0].surface == "person"


async def test_what_nobody_can_read_is_not_asked_of_a_voice(autojump_clock: MockClock) -> None:
    gone = Person(answer=None)
    room = Room(gone)
    await room.ask(QUESTION)
    assert room.verdicts == [Verdict(approved=False, why="nobody who is connected can ask a person")]
    assert trio.current_time() < 30


async def test_once_it_can_be_read_nowhere_any_more_no_voice_counts() -> None:
    person = Person()
    room = Room(person)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.ask, QUESTION)
        await person.wait_asked()
        await trio.testing.wait_all_tasks_blocked()
        asked = room.spoken.waits("s1")
        # The terminal is closed.
        person.say(None)
        await trio.testing.wait_all_tasks_blocked()
        assert room.spoken.answer(asked, "yes") is None
    assert room.verdicts[0].approved is False


def test_a_word_of_both_lists_is_a_no() -> None:
    assert SpokenAnswers(["sure"], ["sure"])._meaning == {"sure": False}
