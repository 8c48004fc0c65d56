from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from support.voice import Rig
from utter_runner.voice.alarm import SETTLED_SECONDS, FaultAlarm
from utter_runner.voice.capture.capture import Capture
from utter_runner.voice.capture.fake import FakeSource
from utter_runner.voice.capture.source import NoSource, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable


class Alarms:
    """An alarm behind a capture, and when it sounded."""

    def __init__(self, source: Any) -> None:
        self.at: list[float] = []
        self.events: list[str] = []
        self._alarm = FaultAlarm(self._sound, lambda event: self.events.append(event["state"]))
        self.capture = Capture(source, mode="always", on_event=self._tell)

    def _sound(self) -> None:
        self.at.append(trio.current_time())

    def _tell(self, event: dict[str, Any]) -> None:
        self._alarm.emit(event, permanent=bool(self.capture.hopeless))


async def test_a_fault_sounds_once_however_long_it_lasts(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    alarms = Alarms(source)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.capture.run)
        await trio.sleep(1)
        source.stalled = True
        await trio.sleep(60)
        assert len(alarms.at) == 1
        source.stalled = False
        await trio.sleep(10)
        assert alarms.events == ["open", "fault", "recovered"]
        source.end("It fell over.")
        await trio.sleep(10)
        assert len(alarms.at) == 2
        nursery.cancel_scope.cancel()


async def test_a_microphone_that_comes_and_goes_sounds_once(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    alarms = Alarms(source)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.capture.run)
        for _ in range(20):
            await alarms.capture.until_delivering()
            await trio.sleep(SETTLED_SECONDS / 2)
            source.end("It fell over.")
            await trio.testing.wait_all_tasks_blocked()
        assert alarms.events.count("fault") == 20
        assert len(alarms.at) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("make", [lambda: NoSource("There is none."), FakeSource])
async def test_what_did_not_break_does_not_sound(
    autojump_clock: trio.testing.MockClock, make: Callable[[], Any]
) -> None:
    alarms = Alarms(make())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.capture.run)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert alarms.at == []
    assert len(alarms.events) == 1


async def test_a_server_that_is_not_there_when_the_runner_starts_sounds(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    source.refuse = SourceError("The sound server is down.")
    alarms = Alarms(source)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.capture.run)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert len(alarms.at) == 1


async def test_an_alarm_sounds_at_once_while_nobody_speaks(autojump_clock: trio.testing.MockClock) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.alarm()
        assert rig.cues.played == ["error"]
        rig.controller.press()
        await trio.sleep(1)
        rig.controller.release()
        await trio.sleep(5)
    assert rig.cues.played == ["error", "start", "stop", "done"]


async def test_an_alarm_waits_until_a_session_has_recorded(autojump_clock: trio.testing.MockClock) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.press()
        await trio.sleep(1)
        rig.controller.alarm()
        await trio.sleep(1)
        assert rig.cues.played == ["start"]
        rig.controller.release()
        # The post-roll is recorded, too.
        assert rig.cues.played == ["start"]
        await trio.sleep(5)
    assert rig.cues.played == ["start", "error", "done"]


async def test_a_session_that_ends_by_the_fault_sounds_once(autojump_clock: trio.testing.MockClock) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.press()
        await trio.sleep(1)
        rig.controller.alarm()
        rig.feed.fail("gone")
        await trio.sleep(5)
        assert rig.cues.played == ["start", "error"]
        assert rig.reports[-1].outcome == "unavailable"
        rig.feed.repair()
        rig.controller.press()
        await trio.sleep(1)
        rig.controller.release()
        await trio.sleep(5)
    assert rig.cues.played == ["start", "error", "start", "stop", "done"]


async def test_an_alarm_during_a_tap_is_heard_after_it(autojump_clock: trio.testing.MockClock) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.press()
        await trio.sleep(0.05)
        rig.controller.alarm()
        rig.controller.release()
        assert rig.outcome("s1") == "tap"
        assert rig.cues.played == ["start", "error"]
