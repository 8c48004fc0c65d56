"""The push-to-talk session: from a held key to a command, one at a time.

Rules here: `VoiceController` alone changes a session's state, and only by a row of `machine.TRANSITIONS`. Its methods
for the key are synchronous and may be called from any task of the loop; the work of a session runs in tasks of `run`.
Every session that was opened ends in exactly one report. Audio of one session (also of a cancelled one, or a tap) never
reaches another, and no cue but its own first one sounds while a session records.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import SessionReport
from utter_protocol.ring import Overrun
from utter_runner.config.log_fields import in_session
from utter_runner.voice import outcome
from utter_runner.voice.collaborators import AudioUnavailable
from utter_runner.voice.machine import OPEN_ENDED, RECORDING, TRANSITIONS, Effect, Event, State
from utter_runner.voice.outcome import Outcome
from utter_runner.voice.quiet import Quiet
from utter_runner.voice.recorder import Recorder
from utter_runner.voice.recording import Session, check_recording
from utter_runner.voice.settings import VoiceSettings
from utter_runner.voice.vad.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from utter_protocol.methods import Transcript
    from utter_runner.rpc.requesters import Requester
    from utter_runner.voice.collaborators import (
        Answers,
        AudioFeed,
        Commander,
        CueName,
        Cues,
        EmitEvent,
        Media,
        Phase,
        Recogniser,
        VoiceActivity,
    )

_QUEUE_LIMIT = 2
_PHASE_EVENTS: dict[Phase, Event] = {"planning": Event.PLAN, "confirming": Event.ASK, "acting": Event.ACT}
_CANCELLED = Outcome("cancelled", "It was cancelled.")
_REPLACED = Outcome(
    "cancelled", "A newer press of the key took the place of the confirmation, so nothing was confirmed."
)
_STOPPING = Outcome("cancelled", "The runner is stopping.")
_TAP = Outcome("tap", "The key was only tapped: hold it while you speak.")
_HEARD = Outcome("done", "It was only to be heard.")
_SILENCE = Outcome("nothing_heard", "Nothing was said.")
_BUSY = "A command is running and another one waits behind it already; this press of the key was ignored."

log = logging.getLogger(__name__)


def _random_id() -> str:
    return secrets.token_hex(6)


class VoiceController:
    """Runs spoken sessions.

    Args:
        feed: the microphone.
        recogniser: speech to text.
        commander: text to deed.
        cues: short sounds.
        answers: takes spoken answers to confirmations; None: a press of the key withdraws them.
        pause_media: whether those players are held.
        activity: tells speech from silence; without it silence ends nothing and is recognised, too.
        emit: told every event (`session`, `heard`, `report`, `warning`), in order; must not raise.
        media: the players that are quiet while a session listens; None lets them play.
        heard_until: until when the runner's own speech can be heard by the microphone, in seconds of the loop's clock.
        on_transcript: told every session's id and what the recogniser made of it; must not raise.
        settings: lengths and limits.
        new_id: makes session ids.
        wall_clock: the seconds since the epoch that events carry as `at`.
    """

    def __init__(
        self,
        *,
        feed: AudioFeed,
        recogniser: Recogniser,
        commander: Commander,
        cues: Cues,
        answers: Answers | None = None,
        activity: VoiceActivity | None = None,
        emit: EmitEvent,
        media: Media | None = None,
        pause_media: bool = True,
        heard_until: Callable[[], float] = lambda: -math.inf,
        on_transcript: Callable[[str, Transcript], object] = lambda _session, _transcript: None,
        settings: VoiceSettings | None = None,
        new_id: Callable[[], str] = _random_id,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._feed = feed
        self._recogniser = recogniser
        self._commander = commander
        self._cues = cues
        self._answers = answers
        self._emit = emit
        self._on_transcript = on_transcript
        self._settings = settings or VoiceSettings()
        self._new_id = new_id
        self._wall_clock = wall_clock
        self._nursery: trio.Nursery | None = None
        self._sessions: list[Session] = []
        self._running: list[Session] = []
        self._alarm = False
        self._recorder = Recorder(feed, self._settings, heard_until)
        self._screen = Screen(activity, feed.rate, self._settings) if activity is not None else None
        self._quiet = Quiet(media, wanted=pause_media)
        self._between: Callable[[], None] | None = None
        self.ended = trio.Event()
        """Nothing of any session is left: each was reported, and no player is held."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the sessions' tasks until cancelled; then every open session is reported as cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._quiet.run)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None
                    for session in list(self._sessions):
                        self._finish(session, _STOPPING)
        finally:
            self.ended.set()

    def between_sessions(self, change: Callable[[], None]) -> None:
        """Call `change` as soon as nothing of any session is under way, possibly now; of several the last counts."""
        self._between = change
        if not self._running:
            self._change()

    def _change(self) -> None:
        change, self._between = self._between, None
        if change is not None:
            change()

    def reconfigure(
        self,
        settings: VoiceSettings,
        *,
        cues: Cues,
        answers: Answers | None,
        activity: VoiceActivity | None,
        pause_media: bool,
    ) -> None:
        """Have sessions go another way, see the class; only between two sessions."""
        self._settings, self._cues, self._answers = settings, cues, answers
        self._recorder.reconfigure(settings)
        self._screen = Screen(activity, self._feed.rate, settings) if activity is not None else None
        self._quiet.wanted = pause_media

    def status(self) -> dict[str, Any]:
        """`{state, session}`: the session that listens, else the front one, else idle and ""."""
        shown = self._recording() or (self._sessions[0] if self._sessions else None)
        return self._answer(shown)

    def press(self, at: int | None = None) -> dict[str, Any]:
        """The key went down.

        Args:
            at: the frame before which nothing belongs to the session that this opens; None takes the pre-roll.

        Returns:
            `{session, state}` of the session that listens now or that this press ended; `session` is "" when the press
            was refused because one is already queued, or the controller does not run.
        """
        return self._start(Event.PRESS, at)

    def toggle(self, at: int | None = None) -> dict[str, Any]:
        """Start listening without a key being held, or stop listening. Takes and returns what `press` does."""
        return self._start(Event.TOGGLE, at)

    def listen(self, at: int | None = None) -> dict[str, Any]:
        """Start listening without a key being held; what listens already goes on. Takes and returns what `press` does.

        An `at` in the audio of an earlier session opens nothing: what was heard there was said to that session.
        """
        if at is not None and at < self._recorder.floor:
            log.info("frame %d, from which on to listen, belongs to an earlier session; it was ignored", at)
            return self._answer(self._recording())
        return self._start(Event.LISTEN, at)

    def release(self) -> dict[str, Any]:
        """The key went up.

        Returns:
            `{session, state}` of the session that was listening; `session` is "" when none was.
        """
        session = self._recording()
        if session is None:
            return self._answer(None)
        held = trio.current_time() - session.opened_at
        if held >= self._settings.tap_ms / 1000:
            self._apply(session, Event.RELEASE)
        elif self._settings.tap == "toggle":
            self._apply(session, Event.LATCH)
        else:
            self._apply(session, Event.TAP, _TAP)
        return self._answer(session)

    def cancel(self) -> bool:
        """Cancel every session, whatever it is doing. Returns whether there was one."""
        sessions = list(self._sessions)
        for session in sessions:
            self._apply(session, Event.CANCEL, _CANCELLED, sound=session is sessions[-1])
        return bool(sessions)

    def alarm(self) -> None:
        """Sound the error cue once: now, or while a session records in place of the next cue after its recording."""
        self._alarm = True
        self._cue("error")

    async def listen_wav(
        self,
        pcm_f32le_16k_mono: bytes,
        timeout: float,
        requesters: frozenset[Requester] = frozenset(),
        *,
        act: bool = True,
    ) -> SessionReport:
        """Run one session on a recording, exactly as if it had been spoken, once no other session is open.

        Args:
            pcm_f32le_16k_mono: f32le mono at the feed's rate, at most the maximum length of a session.
            timeout: seconds for all of it, waiting included.
            requesters: the clients that asked for it, who may not confirm what it does.
            act: whether anything is done; if not, the session is over when it was heard, without a sound.

        Raises:
            RpcError: invalid params (not whole frames, too long), timed out, or cancelled because the runner stops.
        """
        check_recording(pcm_f32le_16k_mono, rate=self._feed.rate, max_ms=self._settings.max_ms)
        with trio.move_on_after(timeout):
            while self._sessions:
                await self._sessions[-1].done.wait()
            return await self._play_in(pcm_f32le_16k_mono, requesters, act=act)
        raise RpcError(
            ErrorCode.TIMED_OUT,
            f"The session was not over within {timeout:g} s.",
            {"timeout_ms": round(timeout * 1000)},
        )

    # Transitions.

    def _start(self, event: Event, at: int | None) -> dict[str, Any]:
        front = self._sessions[0] if self._sessions else None
        newest = self._sessions[-1] if self._sessions else None
        target = front if front and front.state is State.CONFIRMING and not (newest and newest.answers) else newest
        question = self._question(target) if event is not Event.LISTEN else ""
        row = TRANSITIONS[target.state if target else State.IDLE, Event.REPLY if question else event]
        if self._nursery is None:
            self._emit({"event": "warning", "text": "Voice is not running, so the key was ignored."})
            return self._answer(None)
        if row.effect in {Effect.QUEUE, Effect.CUT} and len(self._sessions) >= _QUEUE_LIMIT:
            self._emit({"event": "warning", "text": _BUSY})
            self._cue("error")
            return {"session": "", "state": self.status()["state"]}
        if target is not None and not question:
            # The start cue of the session that takes its place says enough.
            self._apply(target, event, _REPLACED, sound=False)
        if row.effect in {Effect.OPEN, Effect.QUEUE, Effect.CUT, Effect.REPLACE, Effect.REPLY}:
            target = self._open(TRANSITIONS[State.IDLE, event].target, after=target, since=at, answers=question)
        return self._answer(target)

    def _question(self, session: Session | None) -> str:
        """Return the question of a session that what is said next answers, or nothing."""
        if session is None or session.state is not State.CONFIRMING or self._answers is None:
            return ""
        return self._answers.waits(session.id)

    def _apply(self, session: Session, event: Event, ending: Outcome = _CANCELLED, *, sound: bool = True) -> None:
        """Move a session on by its row of the table; `ending` is reported if it ends by that."""
        row = TRANSITIONS[session.state, event]
        if session.report is not None:
            return
        if row.effect in {Effect.FINISH, Effect.REPLACE}:
            self._finish(session, ending, sound=sound)
            return
        if row.effect is Effect.STOP:
            self._recorder.stop(session)
        elif row.effect is Effect.CUT:
            try:
                self._recorder.cut(session)
            except Overrun as error:
                self._finish(session, _lost(error), sound=sound)
        if session.report is None and row.target is not session.state:
            self._move(session, row.target)

    def _move(self, session: Session, state: State) -> None:
        before, session.state = session.state, state
        if state not in RECORDING:
            self._quiet.over(session.id)
        elif session.live:
            self._quiet.listen(session.id, after=0.0 if state is State.LATCHED else self._settings.tap_ms / 1000)
        if state.published != before.published:
            self._emit(self._event(session))
        if state is State.RECOGNISING:
            session.captured_at = trio.current_time()
            if session.key_up_at is not None:
                session.latency["capture"] = session.captured_at - session.key_up_at
        elif state is State.CONFIRMING:
            if any(other is not session and not other.answers for other in self._sessions):
                # Someone already speaks, or has spoken, the next command: it must not wait for this answer.
                self._finish(session, _REPLACED)
            else:
                self._cue("confirm")

    def _open(
        self,
        state: State,
        *,
        after: Session | None = None,
        live: bool = True,
        since: int | None = None,
        answers: str = "",
    ) -> Session:
        nursery = self._nursery
        if nursery is None:
            raise RpcError(ErrorCode.CANCELLED, "Voice is not running.")
        # Whoever answers is waited for.
        behind = () if answers else tuple(earlier.done for earlier in self._running)
        screened = live and self._screen is not None
        session = Session(
            self._new_id(),
            trio.current_time(),
            self._cues.silence,
            behind=behind,
            live=live,
            screened=screened,
            since=since,
            answers=answers,
        )
        self._sessions.append(session)
        self._running.append(session)
        if after is not None and after.holding:
            # The microphone stays open from one recording to the next.
            after.holding, session.holding = False, True
        nursery.start_soon(self._run_session, session, name=f"voice session {session.id}")
        self._move(session, state)
        return session

    def _finish(self, session: Session, ending: Outcome, *, sound: bool = True) -> None:
        """Report a session; whatever still runs of it is cancelled."""
        if session.report is not None:
            return
        if session.live and session.state in RECORDING:
            self._recorder.abandon()
        session.state = State.IDLE
        self._quiet.over(session.id)
        if session.key_up_at is not None:
            session.latency["total"] = trio.current_time() - session.key_up_at
        milliseconds = {name: round(seconds * 1000, 1) for name, seconds in session.latency.items()}
        session.report = SessionReport(
            session=session.id,
            outcome=ending.name,
            heard=session.heard,
            results=list(ending.results),
            detail=ending.detail,
            latency_ms={**ending.latency, **milliseconds},
        )
        self._sessions.remove(session)
        session.close()
        session.scope.cancel()
        why = f" ({ending.cause})" if ending.cause else ""
        log.info("voice session %s: %s%s", session.id, ending.name, why, extra=in_session(session.id))
        self._emit({**self._event(session), "outcome": ending.name})
        self._emit({"event": "report", "report": session.report})
        cue = outcome.CUES[ending.name] or ("error" if self._alarm else None)
        if cue is not None and sound:
            self._cue(cue)

    # The tasks of one session.

    async def _run_session(self, session: Session) -> None:
        try:
            with session.scope:
                async with trio.open_nursery() as nursery:
                    if session.live:
                        nursery.start_soon(self._guarded, self._record, session)
                    if session.screened and self._screen is not None:
                        nursery.start_soon(self._screen.run, session, partial(self._apply, session, Event.PAUSE))
                    await self._guarded(self._process, session)
        finally:
            self._finish(session, _STOPPING)
            session.audio.close()
            self._running.remove(session)
            session.done.set()
            if not self._running:
                self._change()

    async def _guarded(self, work: Callable[[Session], Awaitable[None]], session: Session) -> None:
        try:
            await work(session)
        except AudioUnavailable as error:
            self._apply(session, Event.FAULT, Outcome("unavailable", error.reason, error.reason))
        except Overrun as error:
            self._apply(session, Event.FAULT, _lost(error))
        except RpcError as error:
            self._apply(session, Event.FAULT, outcome.of_error(error))
        except Exception:  # one session's accident must not end the daemon
            log.exception("voice session %s failed", session.id, extra=in_session(session.id))
            self._apply(session, Event.FAULT, Outcome("failed", "An internal error ended the session; see the log."))

    async def _record(self, session: Session) -> None:
        """Take the session's span from the microphone."""
        recorder = self._recorder
        try:
            with session.recording:
                await recorder.open(session)
                recorder.begin(session)
                if session.state in OPEN_ENDED:
                    self._cue("start", of=session)
                recorder.mute_cue(session)
                while session.state in RECORDING and not session.complete:
                    if not await recorder.more(session):
                        self._apply(session, Event.LIMIT)
                if session.state in RECORDING:
                    recorder.complete(session)
                    self._apply(session, Event.CAPTURED)
                    self._cue("stop")
        finally:
            recorder.close(session)

    async def _process(self, session: Session) -> None:
        """From audio to deed, when it is this session's turn."""
        for earlier in session.behind:
            await earlier.wait()
        # Here and below: what was cancelled a moment ago must not reach the next collaborator.
        await trio.lowlevel.checkpoint_if_cancelled()
        text = await self._recognise(session)
        await trio.lowlevel.checkpoint_if_cancelled()
        if not text:
            self._apply(session, Event.SILENCE, _SILENCE)
            return
        session.heard = text
        self._emit({"event": "heard", "session": session.id, "text": text})
        self._apply(session, Event.HEARD)
        if not session.acts:
            self._apply(session, Event.END, _HEARD, sound=False)
            return
        if session.answers and self._answers is not None:
            # What a recogniser made that has seen the screen is nobody's yes.
            said = self._answers.answer(session.answers, text) if session.provenance == "user" else None
            self._apply(session, Event.END, outcome.of_answer(said, self._answers.words))
            return
        # What is done meets the players as the user had left them.
        await self._quiet.settled(session.id)
        result = await self._commander.command(
            text,
            session=session.id,
            provenance=session.provenance,
            on_phase=partial(self._on_phase, session),
            requesters=session.requesters,
        )
        self._apply(session, Event.END, outcome.of_result(result))

    async def _recognise(self, session: Session) -> str:
        """Stream the session's audio into the recogniser as it arrives and return what was said."""
        began = trio.current_time()
        likely = self._answers.words if session.answers and self._answers is not None else None
        stream = await self._recogniser.start(session.id, likely)
        recognised = False
        try:
            async for chunk in session.audio:
                stream.feed(chunk)
            transcript = await stream.finish(self._settings.stt_timeout_ms / 1000)
            session.provenance = stream.provenance
            recognised = True
        finally:
            if not recognised:
                stream.cancel()
        session.latency["stt"] = trio.current_time() - max(began, session.captured_at or began)
        self._on_transcript(session.id, transcript)
        return transcript.text.strip()

    def _on_phase(self, session: Session, phase: Phase) -> None:
        self._apply(session, _PHASE_EVENTS[phase])

    async def _play_in(self, pcm: bytes, requesters: frozenset[Requester], *, act: bool) -> SessionReport:
        session = self._open(State.LISTENING, live=False)
        session.acts = act
        session.requesters = requesters
        session.put(pcm)
        session.close()
        self._apply(session, Event.RELEASE)
        self._apply(session, Event.CAPTURED)
        try:
            await session.done.wait()
        finally:
            self._apply(session, Event.CANCEL)
        if session.report is None:
            raise RuntimeError(f"voice session {session.id} ended without a report")
        return session.report

    # Small things.

    def _recording(self) -> Session | None:
        newest = self._sessions[-1] if self._sessions else None
        return newest if newest and newest.live and newest.state in RECORDING else None

    def _answer(self, session: Session | None) -> dict[str, Any]:
        return {"session": session.id if session else "", "state": (session.state if session else State.IDLE).published}

    def _event(self, session: Session) -> dict[str, Any]:
        return {
            "event": "session",
            "session": session.id,
            "state": session.state.published,
            "at": self._wall_clock(),
        }

    def _cue(self, name: CueName, *, of: Session | None = None) -> None:
        recording = self._recording()
        if recording is not None and recording is not of:
            return
        if self._alarm and of is None:
            name, self._alarm = "error", False
        self._recorder.cue_sounds(self._cues.play(name))


def _lost(error: Overrun) -> Outcome:
    told = f"Audio was lost because the machine was too busy to read it: say it again. {error}"
    return Outcome("unavailable", told, told)
