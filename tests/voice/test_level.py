"""The level of the microphone: what is measured, and that nothing is while nobody asks."""

from __future__ import annotations

import math
import struct
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from utter_protocol.errors import ErrorCode
from utter_protocol.methods import AudioLevel
from utter_protocol.ring import Overrun
from utter_runner.voice.capture.capture import Capture
from utter_runner.voice.capture.fake import FakeSource
from utter_runner.voice.capture.source import NoSource, SourceError
from utter_runner.voice.collaborators import AudioUnavailable
from utter_runner.voice.level import PERIOD, SILENCE_DB, LevelMeter, measure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def frames(*samples: float) -> bytes:
    return struct.pack(f"<{len(samples)}f", *samples)


def sine(amplitude: float) -> bytes:
    return frames(*(amplitude * math.sin(2 * math.pi * n / 40) for n in range(800)))


@pytest.mark.parametrize(
    ("data", "rms_db", "peak_db", "clipped"),
    [
        (sine(1.0), -3.0, 0.0, True),
        (sine(0.5), -9.0, -6.0, False),
        (sine(0.01), -43.0, -40.0, False),
        (frames(1.0, -1.0), 0.0, 0.0, True),
        (frames(0.0, 0.0, -1.0, 0.0), -6.0, 0.0, True),
        # What a 16-bit device reaches at most.
        (frames(32767 / 32768), 0.0, 0.0, True),
        (frames(0.99), -0.1, -0.1, False),
        (frames(2.0), 6.0, 6.0, True),
        (frames(0.0, -0.0), SILENCE_DB, SILENCE_DB, False),
        (frames(1e-30), SILENCE_DB, SILENCE_DB, False),
        # No number is silence, and what is one still counts.
        (frames(math.nan, math.inf, -math.inf, 0.5), -12.0, -6.0, False),
        (frames(math.nan), SILENCE_DB, SILENCE_DB, False),
        (frames(3e38, 3e38), 769.5, 769.5, True),
    ],
)
def test_levels(data: bytes, rms_db: float, peak_db: float, clipped: bool) -> None:
    level = measure(data)
    assert level.rms_db == pytest.approx(rms_db, abs=0.06)
    assert level.peak_db == pytest.approx(peak_db, abs=0.06)
    assert level.clipped is clipped


class Rig:
    def __init__(self, source: Any, mode: Any) -> None:
        self.levels: list[AudioLevel] = []
        self.at: list[float] = []
        self.capture = Capture(source, mode=mode, on_event=lambda _: None, ring_seconds=10)
        self.meter = LevelMeter(self.capture, self._note)

    def _note(self, level: AudioLevel) -> None:
        self.levels.append(level)
        self.at.append(trio.current_time())


@asynccontextmanager
async def metering(source: Any, mode: Any = "always") -> AsyncIterator[Rig]:
    rig = Rig(source, mode)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: rig.capture.run(task_status=task_status))
        nursery.start_soon(rig.meter.run)
        yield rig
        nursery.cancel_scope.cancel()


async def test_twenty_levels_a_second_while_somebody_wants_them(autojump_clock: trio.testing.MockClock) -> None:
    async with metering(FakeSource()) as rig:
        await trio.sleep(2)
        assert rig.levels == []
        rig.meter.want(wanted=True)
        await trio.sleep(2)
        rig.meter.want(wanted=False)
        count = len(rig.levels)
        assert count == pytest.approx(2 / PERIOD, abs=2)
        assert all(after - before == pytest.approx(PERIOD) for before, after in pairwise(rig.at))
        assert all(level.clipped for level in rig.levels)
        await trio.sleep(2)
        assert len(rig.levels) == count
        # And again.
        rig.meter.want(wanted=True)
        await trio.sleep(1)
        assert len(rig.levels) > count + 10


async def test_asking_does_not_open_the_microphone_and_costs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    source = FakeSource()
    async with metering(source, "on-demand") as rig:
        for wanted in (False, True):
            if wanted:
                rig.meter.want(wanted=True)
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        assert source.openings == 0
        await rig.capture.acquire()
        await trio.sleep(1)
        heard = len(rig.levels)
        assert heard > 15
        rig.capture.release()
        await trio.sleep(1)
        assert len(rig.levels) <= heard + 1
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        # The next opening is measured again.
        await rig.capture.acquire()
        await trio.sleep(1)
        assert len(rig.levels) > heard + 15


async def test_every_frame_counts_once(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with metering(FakeSource()) as rig:
        await rig.capture.until_delivering()
        spans: list[tuple[int, int]] = []
        read = rig.capture.read

        def noting(start: int, count: int) -> bytes:
            spans.append((start, start + count))
            return read(start, count)

        monkeypatch.setattr(rig.capture, "read", noting)
        monkeypatch.setattr(rig.capture, "_heard_only_silence", lambda _: False)
        rig.meter.want(wanted=True)
        await trio.sleep(1)
    assert len(spans) > 15
    assert all(end == start for (_, end), (start, _) in pairwise(spans))


async def test_frames_that_were_lost_cost_one_level(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with metering(FakeSource()) as rig:
        read = rig.capture.read
        failures = [Overrun(5)]

        def losing(start: int, count: int) -> bytes:
            if failures:
                raise failures.pop()
            return read(start, count)

        monkeypatch.setattr(rig.capture, "_heard_only_silence", lambda _: False)
        monkeypatch.setattr(rig.capture, "read", losing)
        rig.meter.want(wanted=True)
        await trio.sleep(1)
    assert failures == []
    assert len(rig.levels) > 10


async def test_without_a_microphone_it_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with metering(NoSource("There is none.")) as rig:
        refusal = rig.meter.refusal()
        assert refusal is not None
        assert (refusal.code, refusal.message) == (ErrorCode.PLUGIN_FAILED, "there is no audio: There is none.")
    source = FakeSource()
    source.refuse = SourceError("No such library.", permanent=True)
    async with metering(source, "on-demand") as rig:
        assert rig.meter.refusal() is None
        with pytest.raises(AudioUnavailable):
            await rig.capture.acquire()
        refusal = rig.meter.refusal()
        assert refusal is not None
        assert refusal.message == "there is no audio: No such library."


async def test_a_microphone_that_is_away_for_a_moment_may_be_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = FakeSource()
    source.refuse = SourceError("The device is busy.")
    async with metering(source) as rig:
        await trio.sleep(1)
        assert rig.meter.refusal() is None
        rig.meter.want(wanted=True)
        await trio.sleep(1)
        assert rig.levels == []
        source.refuse = None
        await trio.sleep(8)
        assert rig.levels
