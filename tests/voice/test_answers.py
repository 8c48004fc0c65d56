"""The key answers a confirmation, where a voice may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from support.voice import OK, Rig
from utter_runner.voice.fakes import FakeAnswers

if TYPE_CHECKING:
    from trio.testing import MockClock


async def asked(rig: Rig, answers: FakeAnswers, question: str = "q1") -> None:
    """A command was spoken, and a question about it is open."""
    await speak(rig)
    answers.open["s1"] = question
    await rig.say("confirming")


async def speak(rig: Rig) -> str:
    session: str = rig.controller.press()["session"]
    await trio.sleep(0.5)
    rig.controller.release()
    await trio.sleep(0.5)
    await trio.testing.wait_all_tasks_blocked()
    return session


@pytest.mark.parametrize("said", ["yes", "no"])
async def test_the_key_answers_and_the_command_that_asked_goes_on(said: str, autojump_clock: MockClock) -> None:
    answers = FakeAnswers()
    rig = Rig("volume up", said, scripted=True, answers=answers)
    async with rig.running():
        await asked(rig, answers)
        assert await speak(rig) == "s2"
        assert answers.answered == {"q1": said == "yes"}
        assert [(one.session, one.outcome, one.detail) for one in rig.reports] == [("s2", "done", f"You said {said}.")]
        # Nothing but the words of the answer is expected, and nothing but commands otherwise.
        assert rig.recogniser.hints == {"s1": None, "s2": ("yes", "no")}
        await rig.say("acting")
        await rig.say(OK)
        assert [one.session for one in rig.reports] == ["s2", "s1"]
    assert [said for _, said, _ in rig.commander.commands] == ["volume up"]


async def test_anything_else_is_no_command_and_leaves_the_question_open(autojump_clock: MockClock) -> None:
    answers = FakeAnswers()
    rig = Rig("volume up", "open youtube", "yes", scripted=True, answers=answers)
    async with rig.running():
        await asked(rig, answers)
        await speak(rig)
        assert (rig.reports[0].outcome, answers.answered) == ("not_understood", {})
        assert "yes, no" in rig.reports[0].detail
        assert await speak(rig) == "s3"
        assert answers.answered == {"q1": True}
        await rig.say(OK)
    assert len(rig.commander.commands) == 1


async def test_what_was_answered_elsewhere_meanwhile_is_not_taken_for_the_next_question(
    autojump_clock: MockClock,
) -> None:
    answers = FakeAnswers()
    rig = Rig("volume up", "yes", scripted=True, answers=answers)
    async with rig.running():
        await asked(rig, answers)
        rig.controller.press()
        await trio.sleep(0.5)
        # On the desktop, and the next step asks, too.
        await rig.say("acting")
        answers.open["s1"] = "q2"
        await rig.say("confirming")
        rig.controller.release()
        await trio.sleep(0.5)
        await trio.testing.wait_all_tasks_blocked()
        assert (rig.reports[0].session, rig.reports[0].outcome) == ("s2", "not_understood")
        assert answers.answered == {}
        await rig.say(OK)
    assert rig.reports[1].session == "s1"


async def test_a_recogniser_that_has_seen_the_screen_says_nobodys_yes(autojump_clock: MockClock) -> None:
    answers = FakeAnswers()
    rig = Rig("volume up", "yes", scripted=True, answers=answers)
    async with rig.running():
        await asked(rig, answers)
        rig.recogniser.provenance = "screen"
        await speak(rig)
        assert (answers.answered, rig.reports[0].outcome) == ({}, "not_understood")
        await rig.say(OK)


async def test_a_question_that_no_voice_may_answer_is_withdrawn_by_the_key(autojump_clock: MockClock) -> None:
    answers = FakeAnswers()
    rig = Rig("volume up", "volume down", scripted=True, answers=answers)
    async with rig.running():
        await speak(rig)
        await rig.say("confirming")
        await speak(rig)
        assert (rig.reports[0].session, rig.reports[0].outcome) == ("s1", "cancelled")
        await rig.say(OK)


async def test_the_wake_word_answers_nothing_and_toggle_does(autojump_clock: MockClock) -> None:
    answers = FakeAnswers()
    rig = Rig("volume up", "no", scripted=True, answers=answers)
    async with rig.running():
        await asked(rig, answers)
        assert rig.controller.listen()["session"] == "s1"
        assert rig.controller.toggle() == {"session": "s2", "state": "listening"}
        await trio.sleep(0.5)
        assert rig.controller.toggle()["session"] == "s2"
        await trio.sleep(0.5)
        await trio.testing.wait_all_tasks_blocked()
        assert answers.answered == {"q1": False}
        await rig.say(OK)
