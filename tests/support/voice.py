"""A voice controller between fakes, for the tests of `utter_runner.voice`."""

from __future__ import annotations

import math
import struct
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from utter_protocol.errors import RpcError
from utter_protocol.methods import CommandResult, SessionReport, StepResult
from utter_runner.voice.fakes import (
    FakeAnswers,
    FakeCommander,
    FakeCues,
    FakeFeed,
    FakeMedia,
    FakeRecogniser,
    FakeVoiceActivity,
)
from utter_runner.voice.session import VoiceController
from utter_runner.voice.settings import VoiceSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from utter_runner.voice.collaborators import CueName, Phase, PhaseCallback

PERIOD = 0.02
FRAMES = 320
"""Frames of one period at 16 kHz."""

OK = CommandResult(
    results=[StepResult(op="open_url", ok=True, detail="Opened.", decision="allow")],
    latency_ms={"router": 3.0, "policy": 0.5, "action": 20.0},
)


def frames_of(audio: bytes) -> list[int]:
    """The numbers of the fake feed's frames; -1 for a silent one."""
    return [number - 1 for (number,) in struct.iter_unpack("<I", audio)]


class Rig:
    """The controller and everything around it.

    Args:
        texts: what the recogniser hears, one per session.
        cues: seconds that cues sound.
        always_open: the microphone is open all the time, as with `capture = "always"`.
        scripted: the commander does what `say` tells it instead of obeying at once.
        answers: takes spoken answers.
        activity: tells speech from silence; without it nobody does.
        settings: other than default settings.
    """

    def __init__(
        self,
        *texts: str,
        cues: dict[CueName, float] | None = None,
        always_open: bool = True,
        scripted: bool = False,
        feed: FakeFeed | None = None,
        answers: FakeAnswers | None = None,
        activity: FakeVoiceActivity | None = None,
        on_event: Callable[[dict[str, Any]], None] = lambda _: None,
        **settings: Any,
    ) -> None:
        self.feed = feed or FakeFeed()
        self.recogniser = FakeRecogniser(*(texts or ("open youtube",)))
        self.commander = FakeCommander(self._follow) if scripted else FakeCommander()
        self.cues = FakeCues(cues)
        self.activity = activity
        self.media = FakeMedia()
        self.heard_until = -math.inf
        self.events: list[dict[str, Any]] = []
        self.transcripts: list[tuple[str, str]] = []
        self.always_open = always_open
        self._on_event = on_event
        self._say, self._heard = trio.open_memory_channel["Phase | CommandResult | RpcError"](100)
        ids = count(1)
        self.controller = VoiceController(
            feed=self.feed,
            recogniser=self.recogniser,
            commander=self.commander,
            cues=self.cues,
            answers=answers,
            activity=activity,
            emit=self._emit,
            media=self.media,
            heard_until=lambda: self.heard_until,
            on_transcript=lambda session, transcript: self.transcripts.append((session, transcript.text)),
            settings=VoiceSettings(**settings),
            new_id=lambda: f"s{next(ids)}",
            wall_clock=lambda: 1_000.0,
        )

    def _emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._on_event(event)

    async def _follow(self, _: str, on_phase: PhaseCallback) -> CommandResult:
        while True:
            step = await self._heard.receive()
            if isinstance(step, RpcError):
                raise step
            if isinstance(step, CommandResult):
                return step
            on_phase(step)

    async def say(self, step: Phase | CommandResult | RpcError) -> None:
        """The scripted commander's next step, done when this returns."""
        self._say.send_nowait(step)
        await trio.testing.wait_all_tasks_blocked()

    @asynccontextmanager
    async def running(self, *, clocked: bool = True) -> AsyncIterator[trio.Nursery]:
        """Run the controller; with the microphone delivering at the pace of the clock unless `clocked` is False."""
        held_before = 0
        if self.always_open:
            await self.feed.acquire()
            held_before = 1
        async with trio.open_nursery() as nursery:
            await nursery.start(self._run)
            if clocked:
                nursery.start_soon(self.feed.run, PERIOD)
            yield nursery
            nursery.cancel_scope.cancel()
        assert self.feed.holders == held_before, "the microphone was left open"
        assert not self.media.held, "players were left paused"
        assert not self.recogniser.open, "an utterance was left open"
        assert not self.commander.running
        assert self.activity is None or not self.activity.open_now, "an utterance is still followed"
        assert self.controller.status() == {"session": "", "state": "idle"}
        assert sorted(self.opened) == sorted(report.session for report in self.reports)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        await self.controller.run(task_status=task_status)

    async def tick(self, periods: int = 1) -> None:
        """Let so many periods pass, with audio (for a rig that is not clocked)."""
        for _ in range(periods):
            await trio.sleep(PERIOD)
            self.feed.advance(FRAMES)
            await trio.testing.wait_all_tasks_blocked()

    @property
    def reports(self) -> list[SessionReport]:
        return [event["report"] for event in self.events if event["event"] == "report"]

    @property
    def opened(self) -> list[str]:
        """The sessions that began, in order."""
        return [
            event["session"] for event in self.events if event["event"] == "session" and event["state"] == "listening"
        ]

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(event["session"], event["state"]) for event in self.events if event["event"] == "session"]

    @property
    def warnings(self) -> list[str]:
        return [event["text"] for event in self.events if event["event"] == "warning"]

    def outcome(self, session: str) -> str:
        return next(report.outcome for report in self.reports if report.session == session)

    def frames(self, session: str) -> list[int]:
        """The frames that the recogniser was given for a session."""
        return frames_of(self.recogniser.streams[session].audio)
