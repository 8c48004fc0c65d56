"""What a spoken session needs from the rest of the house: audio, recognition, commands, cues, quiet.

Rules here: Protocols, their value types and their errors only, no behaviour. Every span of audio is counted in frames
of the feed's ring (f32le mono at `AudioFeed.rate`), every time in seconds of `trio.current_time()`. The fakes in
`utter_runner.voice.fakes` follow the same contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from utter_protocol.methods import CommandResult, Provenance, Transcript
    from utter_runner.rpc.requesters import Requester

CueName = Literal["start", "stop", "done", "error", "confirm", "cancel"]
Phase = Literal["planning", "confirming", "acting"]
EmitEvent = Callable[[dict[str, Any]], None]
PhaseCallback = Callable[[Phase], None]

SAMPLE_BYTES = 4
"""Bytes of one frame: one channel of float32."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an utterance.

    Attributes:
        data: whole frames, f32le mono.
        start: the frame of the feed's ring at which exactly this lies; None if it was changed or never lay there.
    """

    data: bytes
    start: int | None = None

    @property
    def frames(self) -> int:
        """How many frames it has."""
        return len(self.data) // SAMPLE_BYTES

    def cut(self, frames: int) -> tuple[Chunk, Chunk]:
        """Return its first `frames` frames and the rest."""
        at = frames * SAMPLE_BYTES
        rest = None if self.start is None else self.start + frames
        return Chunk(self.data[:at], self.start), Chunk(self.data[at:], rest)


class AudioUnavailable(Exception):
    """The microphone cannot be opened, or stopped delivering.

    Args:
        reason: one sentence for a person: what happened and what to do.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AudioFeed(Protocol):
    """Live audio behind a ring that several readers share.

    `position` only grows, also over a reopened device; frames are never renumbered.
    """

    @property
    def rate(self) -> int:
        """Frames per second (16 000)."""
        ...

    @property
    def position(self) -> int:
        """How many frames have been written so far: the number of the next one."""
        ...

    @property
    def oldest(self) -> int:
        """The first frame that can still be read and that is contiguous with the present.

        Audio from before the device was last (re)opened is not contiguous, whether or not the ring still holds it.
        """
        ...

    async def acquire(self) -> None:
        """Open the microphone if it is closed. Calls nest: each is matched by one `release`.

        Raises:
            AudioUnavailable: it cannot be opened. Nothing is held then.
        """
        ...

    def release(self) -> None:
        """Give one `acquire` back. The device may be closed when nobody holds it. Never raises."""
        ...

    def read(self, start: int, count: int) -> bytes:
        """The frames `[start, start + count)` as f32le mono.

        Raises:
            utter_protocol.ring.Overrun: some of them were overwritten.
            ValueError: some of them are not written yet.
        """
        ...

    async def wait_beyond(self, position: int) -> None:
        """Return once `self.position > position`.

        Raises:
            AudioUnavailable: the device failed, also when it failed before the call and was not reopened since.
        """
        ...


class RecognitionStream(Protocol):
    """One utterance on its way into the recogniser."""

    @property
    def provenance(self) -> Provenance:
        """The most trust that what was heard may have."""
        ...

    def feed(self, chunk: Chunk) -> None:
        """Hand over the next frames. Never blocks; bounded by the caller.

        Raises:
            RpcError: the recogniser is gone.
        """
        ...

    async def finish(self, timeout: float) -> Transcript:
        """Everything was fed: return what was said.

        Raises:
            RpcError: the recogniser failed, or took longer than `timeout` seconds.
        """
        ...

    def cancel(self) -> None:
        """Forget the utterance. Never blocks, never raises, may be called twice and after a failure."""
        ...


class Recogniser(Protocol):
    """The speech-to-text plugin."""

    async def start(self, session: str, hints: Sequence[str] | None = None) -> RecognitionStream:
        """Open an utterance. A call that is cancelled leaves no utterance open.

        Args:
            session: its id.
            hints: what is likely to be said; None: whatever commands there are.

        Raises:
            RpcError: no recogniser is running, or it refused.
        """
        ...


class SpeechDetector(Protocol):
    """Follows one utterance."""

    @property
    def window(self) -> int:
        """How many frames it takes at a time."""
        ...

    def probability(self, frames: bytes) -> float:
        """Return the probability, 0 to 1, that the next window is speech. Takes a few milliseconds.

        `frames` are `window` frames of f32le mono at 16 kHz, fewer at the utterance's end; any bit pattern is harmless.
        """
        ...

    def close(self) -> None:
        """The utterance is over. Called once; never raises."""
        ...


class VoiceActivity(Protocol):
    """Tells speech from everything else."""

    async def open(self) -> SpeechDetector | None:
        """Begin an utterance. Returns None if there is no voice activity detection; never raises."""
        ...


class Commander(Protocol):
    """Router, policy, confirmation and action in one: the only way from text to a deed."""

    async def command(
        self,
        utterance: str,
        *,
        session: str,
        provenance: Provenance,
        on_phase: PhaseCallback,
        requesters: frozenset[Requester] = frozenset(),
    ) -> CommandResult:
        """Do what was said. Cancelling the call withdraws a pending confirmation (as denied) and cancels the action.

        Args:
            utterance: the text heard.
            session: the id that events about this command carry.
            provenance: `user` for speech, unless the recogniser says otherwise.
            on_phase: called on every change of phase, in order; the call starts in `planning`. It may cancel the call.
            requesters: the clients that asked for it, who may not confirm it.

        Raises:
            RpcError: there is no router, or it failed; errors of single steps are in the result instead.
        """
        ...


class Answers(Protocol):
    """Spoken answers to confirmations."""

    @property
    def words(self) -> Sequence[str]:
        """What can be said."""
        ...

    def waits(self, session: str) -> str:
        """Return the id of the question of this session that can be answered by voice now, or nothing."""
        ...

    def answer(self, question: str, text: str) -> bool | None:
        """Take what was said; return whether it was a yes or a no, or None: neither, or that is not asked now."""
        ...


class Cues(Protocol):
    """Short sounds that say what the session does."""

    def play(self, name: CueName) -> float:
        """Start a cue and return how many seconds pass until it has died away, 0.0 if nothing sounds.

        Never blocks, never raises.
        """
        ...

    def silence(self, data: bytes) -> bytes:
        """Return audio from the microphone with what is heard in it of the cues played last replaced by silence.

        `data` is f32le mono at 16 kHz, recorded while they sounded; the result is as long.
        """
        ...


class Media(Protocol):
    """The media players, which are heard by the microphone, too."""

    async def hold(self, session: str) -> None:
        """Pause what plays, for a session. Bounded in time; what cannot be paused plays on, and nothing is raised.

        Cancelled or not, it is followed by one `release` of the same session.
        """
        ...

    async def release(self, session: str) -> None:
        """Play on what was paused, unless another session holds or somebody else has had a hand in it.

        Bounded in time; raises nothing.
        """
        ...


class AudioOutput(Protocol):
    """A loudspeaker."""

    def play(self, pcm: bytes, rate: int) -> None:
        """Start f32le mono audio. Never blocks; raises nothing that the caller must handle."""
        ...
