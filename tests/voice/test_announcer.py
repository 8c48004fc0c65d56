"""What became of a command is said, and what is said ends when somebody speaks."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing

from utter_protocol.errors import RpcError
from utter_protocol.kinds import SpeakResult
from utter_protocol.methods import SessionReport
from utter_runner.voice.announcer import Announcer


class FakeMouth:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.hushed = 0
        self.failure: Exception | None = None

    async def speak(self, text: str, voice: str = "", *, timeout: float) -> SpeakResult:
        assert (voice, timeout) == ("", 60.0)
        await trio.lowlevel.checkpoint()
        self.said.append(text)
        if self.failure is not None:
            raise self.failure
        return SpeakResult()

    def hush(self) -> bool:
        self.hushed += 1
        return True


def report(outcome: str, detail: str = "Opened it.") -> dict[str, Any]:
    return {"event": "report", "report": SessionReport(session="s", outcome=outcome, detail=detail)}


async def announce(mouth: FakeMouth, when: Any, *events: dict[str, Any]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    announcer = Announcer(mouth, when, told.append)
    announcer.emit(report("failed", "Before it runs."))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(announcer.run)
        await trio.testing.wait_all_tasks_blocked()
        for event in events:
            announcer.emit(event)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return told[1:]


@pytest.mark.parametrize(
    ("when", "outcome", "said"),
    [
        ("all", "done", True),
        ("problems", "done", False),
        ("off", "failed", False),
        *[(when, outcome, True) for when in ("all", "problems") for outcome in ("failed", "blocked", "unavailable")],
        ("problems", "not_understood", True),
        *[("all", outcome, False) for outcome in ("cancelled", "tap", "nothing_heard")],
    ],
)
async def test_what_is_said_is_what_was_asked_for(when: str, outcome: str, said: bool) -> None:
    mouth = FakeMouth()
    told = await announce(mouth, when, report(outcome))
    assert mouth.said == (["Opened it."] if said else [])
    assert told == [report(outcome)]


async def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    mouth = FakeMouth()
    await announce(mouth, "all", report("done", ""))
    assert mouth.said == []


async def test_the_key_going_down_ends_what_is_said() -> None:
    mouth = FakeMouth()
    events = [{"event": "session", "session": "s", "state": state} for state in ("listening", "recognising", "idle")]
    assert await announce(mouth, "off", *events, {"event": "warning", "text": "x"}) == [
        *events,
        {"event": "warning", "text": "x"},
    ]
    assert mouth.hushed == 1


@pytest.mark.parametrize("failure", [RpcError(-32005, "nobody speaks"), ValueError("nobody speaks")])
async def test_a_mouth_that_fails_is_logged_and_no_more(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    mouth = FakeMouth()
    mouth.failure = failure
    await announce(mouth, "all", report("done"), report("done", "Closed it."))
    assert mouth.said == ["Opened it.", "Closed it."]
    assert "nobody speaks" in caplog.text


async def test_nothing_is_said_into_the_microphone_while_another_session_listens() -> None:
    def session(name: str, state: str) -> dict[str, Any]:
        return {"event": "session", "session": name, "state": state}

    mouth = FakeMouth()
    first, second = report("done"), report("done", "Closed it.")
    events = [session("s2", "listening"), session("s1", "idle"), first, session("s2", "recognising"), second]
    await announce(mouth, "all", *events)
    assert mouth.said == ["Closed it."]
