"""Collaborators of a spoken session that need no hardware and no plugins, for tests and programs built on this room.

Rules here: they keep every promise of `utter_runner.voice.collaborators`, and remember what was asked of them.
"""

from __future__ import annotations

import struct
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import CommandResult, Provenance, StepResult, Transcript
from utter_protocol.ring import Overrun
from utter_runner.voice.collaborators import SAMPLE_BYTES, AudioUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from utter_protocol.kinds import SpeechFormat
    from utter_runner.rpc.requesters import Requester
    from utter_runner.voice.collaborators import Chunk, CueName, PhaseCallback


def numbered(start: int, count: int) -> bytes:
    """Frames that carry their own number, none of them silent."""
    return struct.pack(f"<{count}I", *range(start + 1, start + count + 1))


class FakeFeed:
    """A microphone whose frames are numbered (`numbered`), so that a test can tell which of them arrived.

    Args:
        rate: frames per second.
        capacity: how many frames the ring holds.
        opening_s: how long `acquire` takes while nobody holds the microphone.
    """

    def __init__(self, *, rate: int = 16_000, capacity: int = 64 * 16_000, opening_s: float = 0.0) -> None:
        self.rate = rate
        self.capacity = capacity
        self.opening_s = opening_s
        self.position = 0
        self.holders = 0
        self.fault: str | None = None
        self._opened_at = 0
        self._changed = trio.Event()

    @property
    def oldest(self) -> int:
        """The first readable frame of this opening."""
        return max(self._opened_at, self.position - self.capacity)

    @property
    def status(self) -> dict[str, Any]:
        """As `Capture.status`."""
        return {
            "capture": "on-demand",
            "open": self.holders > 0 and self.fault is None,
            "device": "the fake microphone",
            "faults": int(self.fault is not None),
            "detail": self.fault or "",
        }

    async def acquire(self) -> None:
        """Open the microphone; see `AudioFeed.acquire`."""
        await trio.sleep(self.opening_s if self.holders == 0 else 0.0)
        if self.fault is not None:
            raise AudioUnavailable(self.fault)
        if self.holders == 0:
            self._opened_at = self.position
        self.holders += 1

    def release(self) -> None:
        """Give it back; see `AudioFeed.release`."""
        if self.holders == 0:
            raise AssertionError("the microphone was released more often than it was acquired")
        self.holders -= 1

    def read(self, start: int, count: int) -> bytes:
        """Read frames; see `AudioFeed.read`."""
        if start < 0 or start + count > self.position:
            raise ValueError(f"frames {start} to {start + count} of {self.position} were asked for")
        if start < self.oldest:
            raise Overrun(self.oldest)
        return numbered(start, count)

    async def wait_beyond(self, position: int) -> None:
        """Wait for frames; see `AudioFeed.wait_beyond`."""
        await trio.lowlevel.checkpoint()
        while self.position <= position:
            if self.fault is not None:
                raise AudioUnavailable(self.fault)
            await self._changed.wait()

    def advance(self, frames: int) -> None:
        """The microphone delivers so many frames, if anyone holds it."""
        if self.holders and self.fault is None:
            self.position += frames
            self._wake()

    async def run(self, period_s: float = 0.02) -> None:
        """Deliver audio at the pace of the clock, forever."""
        while True:
            await trio.sleep(period_s)
            self.advance(round(period_s * self.rate))

    def fail(self, reason: str) -> None:
        """The device breaks until `repair`."""
        self.fault = reason
        self._wake()

    def repair(self) -> None:
        """The device can be opened again."""
        self.fault = None
        self._opened_at = self.position

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class FakeVoiceActivity:
    """Knows of each frame of a `FakeFeed` whether it is speech.

    Args:
        speech: spans of frames, from the first to the one after the last.
        window: how many frames are looked at together.

    Attributes:
        installed: without it nothing is detected.
        error: raised for the next window when set.
        open_now: how many utterances are followed.
    """

    def __init__(self, *speech: tuple[int, int], window: int = 512) -> None:
        self.speech = list(speech)
        self.window = window
        self.installed = True
        self.error: Exception | None = None
        self.open_now = 0

    async def open(self) -> FakeVoiceActivity | None:
        """Follow an utterance; see `VoiceActivity.open`."""
        await trio.lowlevel.checkpoint()
        self.open_now += self.installed
        return self if self.installed else None

    def probability(self, frames: bytes) -> float:
        """Return the share of speech; see `SpeechDetector.probability`."""
        if self.error is not None:
            raise self.error
        numbers = [number - 1 for (number,) in struct.iter_unpack("<I", frames)]
        return sum(any(first <= number < last for first, last in self.speech) for number in numbers) / len(numbers)

    def close(self) -> None:
        """Forget the utterance."""
        self.open_now -= 1


class FakeRecogniser:
    """Hears what it was told to hear, in order, and "" after that.

    Attributes:
        streams: every utterance by session.
        hints: what was said to be likely in each.
        texts: what is heard next.
        start_error: raised by `start` when set.
        finish_error: raised by `finish` when set.
        may_finish: `finish` waits for it.
        provenance: what trust each utterance has.
    """

    def __init__(self, *texts: str) -> None:
        self.texts = deque(texts)
        self.streams: dict[str, FakeStream] = {}
        self.hints: dict[str, Sequence[str] | None] = {}
        self.start_error: RpcError | None = None
        self.finish_error: RpcError | None = None
        self.provenance: Provenance = "user"
        self.may_finish = trio.Event()
        self.may_finish.set()

    async def start(self, session: str, hints: Sequence[str] | None = None) -> FakeStream:
        """Open an utterance."""
        await trio.lowlevel.checkpoint()
        if self.start_error is not None:
            raise self.start_error
        self.hints[session] = hints
        stream = self.streams[session] = FakeStream(self)
        return stream

    @property
    def open(self) -> list[str]:
        """The sessions whose utterance is neither finished nor cancelled."""
        return [name for name, stream in self.streams.items() if not (stream.finished or stream.cancelled)]


class FakeAnswers:
    """Understands yes and no.

    Attributes:
        open: the questions that can be answered, by session.
        answered: what each was answered.
    """

    words = ("yes", "no")

    def __init__(self) -> None:
        self.open: dict[str, str] = {}
        self.answered: dict[str, bool] = {}

    def waits(self, session: str) -> str:
        """Return a session's question."""
        return self.open.get(session, "")

    def answer(self, question: str, text: str) -> bool | None:
        """Take an answer."""
        if question not in self.open.values() or text not in self.words:
            return None
        self.open = {session: one for session, one in self.open.items() if one != question}
        self.answered[question] = text == "yes"
        return self.answered[question]


class FakeStream:
    """One utterance of a `FakeRecogniser`."""

    def __init__(self, recogniser: FakeRecogniser) -> None:
        self._recogniser = recogniser
        self.provenance = recogniser.provenance
        self.chunks: list[Chunk] = []
        self.finished = False
        self.cancelled = False

    @property
    def audio(self) -> bytes:
        """All that was fed."""
        return b"".join(chunk.data for chunk in self.chunks)

    def feed(self, chunk: Chunk) -> None:
        """Take frames."""
        if self.finished or self.cancelled:
            raise AssertionError("audio was fed into an utterance that is over")
        self.chunks.append(chunk)

    async def finish(self, timeout: float) -> Transcript:
        """Return the next text."""
        with trio.move_on_after(timeout):
            await self._recogniser.may_finish.wait()
            await trio.lowlevel.checkpoint()
            if self._recogniser.finish_error is not None:
                raise self._recogniser.finish_error
            self.finished = True
            text = self._recogniser.texts.popleft() if self._recogniser.texts else ""
            return Transcript(text=text, audio_ms=len(self.audio) // SAMPLE_BYTES // 16)
        raise RpcError(ErrorCode.TIMED_OUT, f"The recogniser took longer than {timeout:g} s.")

    def cancel(self) -> None:
        """Forget it."""
        self.cancelled = True


async def obey(utterance: str, on_phase: PhaseCallback) -> CommandResult:
    """A command that works at once: one step that says what it was told."""
    on_phase("acting")
    await trio.lowlevel.checkpoint()
    step = StepResult(op="say", ok=True, detail=f"Said {utterance}.", decision="allow")
    return CommandResult(results=[step], latency_ms={"router": 1.0, "policy": 0.1, "action": 2.0})


class FakeCommander:
    """Does what its behaviour does.

    Args:
        behaviour: called with the utterance and `on_phase`.
    """

    def __init__(self, behaviour: Callable[[str, PhaseCallback], Awaitable[CommandResult]] = obey) -> None:
        self.behaviour = behaviour
        self.commands: list[tuple[str, str, Provenance]] = []
        self.requesters: list[frozenset[Requester]] = []
        self.running: list[str] = []
        self.cancelled: list[str] = []

    async def command(
        self,
        utterance: str,
        *,
        session: str,
        provenance: Provenance,
        on_phase: PhaseCallback,
        requesters: frozenset[Requester] = frozenset(),
    ) -> CommandResult:
        """Run the behaviour and remember how it went."""
        self.requesters.append(requesters)
        self.commands.append((session, utterance, provenance))
        self.running.append(session)
        try:
            return await self.behaviour(utterance, on_phase)
        except trio.Cancelled:
            self.cancelled.append(session)
            raise
        finally:
            self.running.remove(session)


class FakeMedia:
    """Players that are paused and resumed.

    Attributes:
        calls: every call, in order: what, and for which session.
        held: the sessions that hold now.
        may_answer: both calls wait for it.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Literal["hold", "release"], str]] = []
        self.held: list[str] = []
        self.may_answer = trio.Event()
        self.may_answer.set()

    async def hold(self, session: str) -> None:
        """Pause; see `Media.hold`."""
        if ("hold", session) in self.calls:
            raise AssertionError(f"{session} holds twice")
        self.calls.append(("hold", session))
        self.held.append(session)
        await self.may_answer.wait()
        await trio.lowlevel.checkpoint()

    async def release(self, session: str) -> None:
        """Play on; see `Media.release`."""
        if session not in self.held:
            raise AssertionError(f"{session} releases what it does not hold")
        self.calls.append(("release", session))
        await self.may_answer.wait()
        await trio.lowlevel.checkpoint()
        self.held.remove(session)


class FakeCues:
    """Remembers what was played.

    Args:
        seconds: how long each cue sounds; the others are silent.

    Attributes:
        inaudible: nothing is heard of them in the microphone; else they drown everything.
    """

    def __init__(self, seconds: Mapping[CueName, float] | None = None) -> None:
        self.seconds = dict(seconds or {})
        self.inaudible = False
        self.played: list[CueName] = []

    def play(self, name: CueName) -> float:
        """Remember the cue."""
        self.played.append(name)
        return self.seconds.get(name, 0.0)

    def silence(self, data: bytes) -> bytes:
        """See `Cues.silence`."""
        return data if self.inaudible else bytes(len(data))


class FakeOutput:
    """A loudspeaker that keeps what it was given; raises `error` instead when that is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.played: list[tuple[bytes, int]] = []

    def play(self, pcm: bytes, rate: int) -> None:
        """Keep the sound."""
        if self.error is not None:
            raise self.error
        self.played.append((pcm, rate))


class FakeSpeechOutput:
    """A loudspeaker for speech that keeps what it is given (`voice.speech_output.SpeechOutput`).

    Attributes:
        played: every piece of audio that was taken, in order.
        formats: of each utterance.
        drained: how many utterances were heard to their end.
        open_now: how many are under way.
        full: whether it takes nothing until `make_room`.
        failure: raised by the next write.
        installed: whether there is something that can play.
    """

    def __init__(self) -> None:
        self.played: list[bytes] = []
        self.formats: list[SpeechFormat] = []
        self.drained = 0
        self.open_now = 0
        self.full = False
        self.failure: RpcError | None = None
        self.installed = True
        self._room = trio.Event()

    async def ready(self) -> bool:
        """Whether it can play."""
        await trio.lowlevel.checkpoint()
        return self.installed

    def make_room(self) -> None:
        """Take audio again."""
        self.full = False
        self._room.set()

    @asynccontextmanager
    async def open(self, format_: SpeechFormat) -> AsyncIterator[FakeSpeechOutput]:
        """Begin an utterance."""
        self.formats.append(format_)
        self.open_now += 1
        try:
            yield self
        finally:
            self.open_now -= 1

    async def write(self, data: bytes) -> None:
        """Take audio, or wait for room."""
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        while self.full:
            await self._room.wait()
        self.played.append(data)

    async def drain(self) -> None:
        """Everything was heard."""
        await trio.lowlevel.checkpoint()
        self.drained += 1
