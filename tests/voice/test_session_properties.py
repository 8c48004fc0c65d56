"""Whatever the user, the devices and the plugins do: what always holds of spoken sessions."""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from support.voice import OK, PERIOD, Rig
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import CommandResult
from utter_runner.voice.fakes import FakeFeed, FakeVoiceActivity, numbered
from utter_runner.voice.machine import OPEN_ENDED, RECORDING, State

EXAMPLES = settings(deadline=None, derandomize=True, database=None, max_examples=300)
if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.voice.recording import Session

RATE, FRAMES, PRE, POST, REACH = 1_600, 32, 480, 320, 3_200
MAX_MS = 2_000
WINDOW, SILENCE, NO_SPEECH = 51, 480, 1_600
CRASH = RpcError(ErrorCode.PLUGIN_FAILED, "It crashed.")
FAILED = CommandResult(results=[], understood=False)


def unset(event: trio.Event) -> trio.Event:
    """One that is not set: the same if it is not, for somebody may wait for it."""
    return trio.Event() if event.is_set() else event


USER = ("press", "release", "toggle", "cancel")
WORLD: dict[str, Callable[[Rig], None]] = {
    "hear": lambda rig: rig.recogniser.may_finish.set(),
    "deaf": lambda rig: setattr(rig.recogniser, "may_finish", trio.Event()),
    "stt breaks": lambda rig: setattr(rig.recogniser, "start_error", CRASH),
    "stt works": lambda rig: setattr(rig.recogniser, "start_error", None),
    "unplug": lambda rig: rig.feed.fail("Unplugged."),
    "players hang": lambda rig: setattr(rig.media, "may_answer", unset(rig.media.may_answer)),
    "players answer": lambda rig: rig.media.may_answer.set(),
    "plug": lambda rig: rig.feed.repair() if rig.feed.fault else None,
}

steps = st.lists(
    st.one_of(
        st.sampled_from(["press", "release", *USER]),
        st.tuples(st.sampled_from(["press", "toggle", "listen"]), st.integers(-100, 5_000)),
        st.integers(1, 30),
        st.sampled_from(["acting", "confirming", "planning", OK, FAILED, CRASH]),
        st.sampled_from(["wav", *WORLD]),
    ),
    max_size=40,
)


class Observed:
    """A rig that is watched: every event and every call of the user updates what the audio of each session must be."""

    def __init__(self, *, tap: str, activity: FakeVoiceActivity | None) -> None:
        self.floor = 0
        self.since: int | None = None
        """From which frame on the next session was asked for."""
        self.expected: dict[str, list[int]] = {}
        """First frame and the frame after the last, by session; the latter is 0 while it is unknown."""
        self.recording: str | None = None
        self.broken: list[Exception] = []
        self.rig = Rig(
            *["text"] * 50,
            feed=FakeFeed(rate=RATE),
            activity=activity,
            scripted=True,
            tap=tap,
            max_ms=MAX_MS,
            silence_ms=SILENCE * 1_000 // RATE,
            no_speech_ms=NO_SPEECH * 1_000 // RATE,
            on_event=self.on_event,
        )

    def on_event(self, event: dict[str, Any]) -> None:
        try:
            self.follow(event)
        except Exception as error:  # noqa: BLE001 - the controller survives what is raised here; the test must not
            self.broken.append(error)

    def follow(self, event: dict[str, Any]) -> None:
        self.check_now()
        if event["event"] != "session":
            return
        session, state, position = event["session"], event["state"], self.rig.feed.position
        if state == "listening":
            if not self.rig.controller._sessions[-1].live:
                return
            start = max(self.rig.feed.oldest, self.floor, position - PRE)
            if self.since is not None:
                start = min(position, max(self.rig.feed.oldest, self.floor, position - REACH, self.since))
            self.expected[session] = [start, 0]
            self.recording = session
        elif session == self.recording:
            if state == "recognising":
                end = self.expected[session][1]
                # Without a known end it would still be recording; before it, the next press has cut it short.
                assert end
                self.floor = self.expected[session][1] = min(end, position)
            else:
                self.floor = position
            self.recording = None

    def check_now(self) -> None:
        rig = self.rig
        live = rig.controller._sessions
        assert len(live) <= 2
        assert sum(session.state in RECORDING for session in live) <= 1
        assert len(rig.recogniser.open) <= 1
        assert len(rig.commander.running) <= 1
        if len(live) == 2:
            # The one that is just becoming so is denied before anything else happens.
            assert live[1].state not in {State.PLANNING, State.CONFIRMING, State.ACTING}
        for session in rig.commander.running:
            assert session not in rig.media.held, "a deed found the players as the runner left them"
        done = [report.session for report in rig.reports]
        assert len(done) == len(set(done))

    async def do(self, step: object, nursery: trio.Nursery) -> None:
        rig = self.rig
        if isinstance(step, int):
            for _ in range(step):
                await self.tick()
        elif isinstance(step, str) and step in USER:
            before = self.open_ended()
            getattr(rig.controller, step)()
            self.expect_end(before)
        elif isinstance(step, tuple):
            self.from_frame(*step)
        elif step == "wav":
            nursery.start_soon(self.wav)
        elif isinstance(step, str) and step in WORLD:
            WORLD[step](rig)
        elif rig.commander.running:
            await rig.say(step)  # type: ignore[arg-type] # what is left are the commander's steps
        await trio.testing.wait_all_tasks_blocked()
        self.check_now()
        assert not self.broken

    def from_frame(self, how: str, back: int) -> None:
        """Something opens a session, or not, and says where it begins."""
        rig, before, opened = self.rig, self.open_ended(), len(self.rig.opened)
        self.since = max(rig.feed.position - back, 0)
        within_another = self.since < self.floor
        getattr(rig.controller, how)(self.since)
        self.since = None
        if how == "listen":
            assert self.open_ended() is before or before is None
            assert not within_another or len(rig.opened) == opened
        self.expect_end(before)

    async def tick(self) -> None:
        before = self.open_ended()
        held = before is not None and before.state is State.LISTENING
        self.rig.feed.advance(FRAMES)
        await trio.testing.wait_all_tasks_blocked()
        if before is not None and before.state is State.TAIL:
            # Time stood still: it was ended by what it heard, or rather did not hear.
            assert not held
            self.check_pause(before)
        self.expect_end(before)
        before = self.open_ended()
        await trio.sleep(PERIOD)
        await trio.testing.wait_all_tasks_blocked()
        if before is not None and before.state is State.TAIL:
            # Time passed and nothing was heard: it was the maximum length.
            assert trio.current_time() >= before.opened_at + MAX_MS / 1_000
        self.expect_end(before)
        self.check_latched()

    def check_pause(self, session: Session) -> None:
        """It was quiet for as long as it must be: after speech, or since the session began."""
        assert session.start is not None
        began, now = session.start + session.lead, self.rig.feed.position
        told = session.start if session.since is not None else began
        spoken = [end for start, end in speech_in(self.rig, told, now) if end - start >= 3 * WINDOW]
        assert now - (max(spoken) if spoken else began) >= SILENCE - WINDOW

    def check_latched(self) -> None:
        """A session that nobody holds open does not outlast the silence."""
        session = self.open_ended()
        if self.rig.activity is None or session is None or session.state is not State.LATCHED or session.start is None:
            return
        began, now = session.start + session.lead, self.rig.feed.position
        quiet_since = max([began, *(end for _, end in speech_in(self.rig, began, now))])
        assert now - quiet_since <= NO_SPEECH + 2 * WINDOW

    def open_ended(self) -> Session | None:
        live = self.rig.controller._sessions
        return live[-1] if live and live[-1].live and live[-1].state in OPEN_ENDED else None

    def expect_end(self, listened: Session | None) -> None:
        """The key went up, or the maximum length was reached, if a session that listened does so no more."""
        if listened is not None and listened.state is State.TAIL:
            self.expected[listened.id][1] = self.rig.feed.position + POST

    async def wav(self) -> None:
        with suppress(RpcError):
            await self.rig.controller.listen_wav(numbered(0, 1_000), timeout=4)


def speech_in(rig: Rig, first: int, last: int) -> list[tuple[int, int]]:
    """The spans of speech within some frames, cut there."""
    spans = rig.activity.speech if rig.activity else []
    return [(max(a, first), min(b, last)) for a, b in spans if min(b, last) > max(a, first)]


def check_finished(rig: Rig, frames: list[int], start: int, end: int) -> None:
    """Everything was recognised, or everything but silence at its ends."""
    if rig.activity is None or not (spoken := speech_in(rig, start, end)):
        assert frames == list(range(start, end))
        return
    # Less than a twelfth of a window is not noticed.
    spoken = [(a, b) for a, b in spoken if b - a > WINDOW // 12]
    assert frames
    assert all(frames[0] <= a and b <= frames[-1] + 1 for a, b in spoken)


def check_audio(observed: Observed) -> None:
    rig = observed.rig
    last_end = 0
    for session, (start, end) in observed.expected.items():
        assert start >= last_end
        stream = rig.recogniser.streams.get(session)
        frames = rig.frames(session) if stream else []
        if frames:
            assert frames == list(range(frames[0], frames[0] + len(frames)))
            assert start <= frames[0]
            assert not end or frames[-1] < end
        if stream and stream.finished:
            check_finished(rig, frames, start, end)
        last_end = max(start, *(frame + 1 for frame in frames[-1:]), end if stream and stream.finished else 0)
        assert all(
            chunk.start is not None and chunk.data == numbered(chunk.start, chunk.frames)
            for chunk in (stream.chunks if stream else [])
        )
    heard = {event["session"] for event in rig.events if event["event"] == "heard"}
    assert {session for session, _, _ in rig.commander.commands} <= heard
    for report in rig.reports:
        if report.outcome == "tap" or (report.outcome == "cancelled" and not report.heard):
            assert report.session not in heard
        stream = rig.recogniser.streams.get(report.session)
        if report.outcome == "tap" and stream:
            assert not stream.finished


def check_media(observed: Observed) -> None:
    """Each session that held the players released them, once; a tap holds only what is held anyway."""
    rig = observed.rig
    holding: set[str] = set()
    for what, session in rig.media.calls:
        assert (session in holding) is (what == "release")
        if what == "hold" and rig.outcome(session) == "tap":
            assert holding
        holding ^= {session}
    assert not holding
    held = [session for what, session in rig.media.calls if what == "hold"]
    assert len(held) == len(set(held))
    assert set(held) <= observed.expected.keys()


async def run(script: list[object], tap: str, players_hang: bool, speech: list[tuple[int, int]] | None) -> None:
    activity = None if speech is None else FakeVoiceActivity(*speech, window=WINDOW)
    observed = Observed(tap=tap, activity=activity)
    if players_hang:
        WORLD["players hang"](observed.rig)
    async with observed.rig.running(clocked=False) as nursery:
        try:
            for step in script:
                await observed.do(step, nursery)
        finally:
            # At last they do, for the real ones have a deadline.
            observed.rig.media.may_answer.set()
    check_audio(observed)
    check_media(observed)


@EXAMPLES
@given(steps, st.sampled_from(["ignore", "toggle"]), st.booleans())
def test_what_always_holds(script: list[object], tap: str, players_hang: bool) -> None:
    """One session at a time, one report each, every frame in at most one session, exactly the ones of its span.

    And the players are held in pairs, and by no session that acts.
    """
    trio.run(run, script, tap, players_hang, None, clock=trio.testing.MockClock(autojump_threshold=0))


def spans(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of speech from the silence before each and its length."""
    ends = list(accumulate(gap + length for gap, length in pieces))
    return [(end - length, end) for end, (_, length) in zip(ends, pieces, strict=True)]


speech = st.lists(st.tuples(st.integers(0, 2_000), st.integers(3 * WINDOW, 2_000)), max_size=8).map(spans)
# The same as above, and more often time that passes while nobody does anything.
unattended = st.lists(
    st.one_of(st.sampled_from(["toggle", "press", "release"]), st.integers(5, 90)), min_size=3, max_size=20
)


@EXAMPLES
@given(st.one_of(steps, unattended), st.sampled_from(["ignore", "toggle"]), st.booleans(), speech)
def test_what_always_holds_with_voice_activity(
    script: list[object], tap: str, players_hang: bool, spoken: list[tuple[int, int]]
) -> None:
    """The same; and silence never ends a held key, ends all else in time, and no speech is lost at a session's ends."""
    trio.run(run, script, tap, players_hang, spoken, clock=trio.testing.MockClock(autojump_threshold=0))
