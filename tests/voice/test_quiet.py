"""Who is held when: holds that wait for more than a tap, and releases that nothing of the session can miss."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from support.voice import Rig
from utter_runner.voice.fakes import FakeFeed, FakeMedia
from utter_runner.voice.quiet import Quiet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from utter_protocol.methods import CommandResult
    from utter_runner.voice.collaborators import PhaseCallback

BOTH = [("hold", "s1"), ("release", "s1")]


@asynccontextmanager
async def quiet(media: FakeMedia) -> AsyncIterator[Quiet]:
    made = Quiet(media)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        yield made
        nursery.cancel_scope.cancel()
    assert media.held == []


async def test_players_are_held_after_a_while_and_released_when_it_is_over(autojump_clock: MockClock) -> None:
    media = FakeMedia()
    async with quiet(media) as made:
        made.listen("s1", after=0.15)
        await trio.sleep(0.14)
        assert media.calls == []
        await trio.sleep(0.02)
        assert media.calls == BOTH[:1]
        made.over("s1")
        await made.settled("s1")
        assert media.calls == BOTH
        # Whoever asks later does not wait.
        await made.settled("s1")


async def test_what_is_over_before_its_time_holds_nobody(autojump_clock: MockClock) -> None:
    media = FakeMedia()
    async with quiet(media) as made:
        made.listen("s1", after=0.15)
        made.over("s1")
        await made.settled("s1")
        await trio.sleep(1)
    assert media.calls == []


async def test_the_next_one_holds_before_the_last_one_lets_go(autojump_clock: MockClock) -> None:
    media = FakeMedia()
    async with quiet(media) as made:
        made.listen("s1", after=0)
        await trio.testing.wait_all_tasks_blocked()
        made.over("s1")
        made.listen("s2", after=0.15)
        await made.settled("s1")
        assert media.calls == [("hold", "s1"), ("hold", "s2"), ("release", "s1")]
    assert media.calls[3:] == [("release", "s2")]


async def test_a_hold_is_answered_before_the_release_is_sent(autojump_clock: MockClock) -> None:
    media = FakeMedia()
    media.may_answer = trio.Event()
    async with quiet(media) as made:
        made.listen("s1", after=0)
        await trio.testing.wait_all_tasks_blocked()
        made.over("s1")
        await trio.testing.wait_all_tasks_blocked()
        assert media.calls == BOTH[:1]
        media.may_answer.set()
        await made.settled("s1")
        assert media.calls == BOTH


async def test_the_end_releases_what_is_held_and_lets_go_on_who_waits(autojump_clock: MockClock) -> None:
    media = FakeMedia()
    async with trio.open_nursery() as waiting, quiet(media) as made:
        for session in ("s1", "s2"):
            made.listen(session, after=0 if session == "s1" else 60)
            waiting.start_soon(made.settled, session)
        await trio.testing.wait_all_tasks_blocked()
    assert media.calls == [("hold", "s1"), ("hold", "s2"), ("release", "s1"), ("release", "s2")]


# In a session.


async def speak(rig: Rig, held: float = 0.5) -> None:
    rig.controller.press()
    await trio.sleep(held)
    rig.controller.release()


async def test_the_players_are_held_from_the_key_to_the_post_roll_and_the_deed_comes_after(
    autojump_clock: MockClock,
) -> None:
    rig = Rig("pause the music")
    calls_at_the_deed = []

    async def do(_utterance: str, on_phase: PhaseCallback) -> CommandResult:
        calls_at_the_deed.append([*rig.media.calls])
        on_phase("acting")
        raise RuntimeError

    rig.commander.behaviour = do
    async with rig.running():
        await speak(rig)
        assert rig.media.calls == BOTH[:1]
        await trio.sleep(0.15)
        assert rig.media.held == ["s1"]
        await trio.sleep(0.3)
    assert calls_at_the_deed == [BOTH]


async def test_the_deed_waits_for_players_that_take_their_time(autojump_clock: MockClock) -> None:
    rig = Rig("next song")
    async with rig.running():
        await speak(rig)
        rig.media.may_answer = trio.Event()
        await trio.sleep(1)
        assert (rig.media.calls, rig.commander.commands) == (BOTH, [])
        rig.media.may_answer.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [session for session, _, _ in rig.commander.commands] == ["s1"]


async def test_listening_does_not_wait_for_the_players(autojump_clock: MockClock) -> None:
    rig = Rig("next song")
    rig.media.may_answer = trio.Event()
    async with rig.running():
        await speak(rig)
        await trio.sleep(0.3)
        assert rig.recogniser.streams["s1"].finished
        rig.media.may_answer.set()
    assert len(rig.frames("s1")) == pytest.approx((0.5 + 0.2) * 16_000, abs=640)


@pytest.mark.parametrize(("held", "calls"), [(0.1, []), (0.2, BOTH)])
async def test_a_tap_pauses_nobody(autojump_clock: MockClock, held: float, calls: list[tuple[str, str]]) -> None:
    rig = Rig("open youtube")
    async with rig.running():
        await speak(rig, held)
        await trio.sleep(0.5)
    assert rig.media.calls == calls


async def test_a_tap_that_begins_to_listen_pauses_at_once(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube", tap="toggle")
    async with rig.running():
        await speak(rig, 0.05)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.media.calls == BOTH[:1]


async def test_toggle_pauses_at_once(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube")
    async with rig.running():
        rig.controller.toggle()
        await trio.testing.wait_all_tasks_blocked()
        assert rig.media.calls == BOTH[:1]


async def test_a_session_that_is_cancelled_or_fails_lets_the_players_play(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        for end in (rig.controller.cancel, lambda: rig.feed.fail("Unplugged.")):
            rig.controller.press()
            await trio.sleep(0.5)
            end()
            await trio.testing.wait_all_tasks_blocked()
    assert rig.media.calls == [*BOTH, ("hold", "s2"), ("release", "s2")]


async def test_a_microphone_that_does_not_open_pauses_nobody_for_long(autojump_clock: MockClock) -> None:
    feed = FakeFeed(opening_s=0.3)
    feed.fail("There is none.")
    rig = Rig(feed=feed, always_open=False)
    async with rig.running():
        rig.controller.press()
        await trio.sleep(1)
    assert rig.media.calls == BOTH


async def test_a_recording_that_is_handed_in_pauses_nobody(autojump_clock: MockClock) -> None:
    rig = Rig("open youtube")
    async with rig.running():
        await rig.controller.listen_wav(bytes(6_400), timeout=5)
    assert rig.media.calls == []


async def test_players_that_are_held_at_the_end_are_released(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.running():
        rig.controller.toggle()
        await trio.sleep(0.5)
        assert not rig.controller.ended.is_set()
    assert rig.controller.ended.is_set()
    assert rig.media.calls == BOTH
