"""One spoken session: its state, its span of audio, and its way from the ring to the recogniser.

Rules here: the controller changes `state`, the recorder the span; the cursor moves only in `pull`. Audio is copied out
of the ring as it arrives, so that a session that waits for its turn does not depend on how much the ring holds; what is
kept is bounded by the maximum length. No frame is handed over twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.voice.collaborators import SAMPLE_BYTES, Chunk
from utter_runner.voice.machine import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.methods import Provenance, SessionReport
    from utter_runner.rpc.requesters import Requester
    from utter_runner.voice.collaborators import AudioFeed

MAX_CHUNK_FRAMES = 8_000
"""Half a second: its base64 stays below the 64 KiB that travel inline."""


def check_recording(pcm: bytes, *, rate: int, max_ms: int) -> None:
    """Refuse a recording that cannot be one session.

    Raises:
        RpcError: invalid params: not whole float32 frames, or longer than `max_ms`.
    """
    frames, rest = divmod(len(pcm), SAMPLE_BYTES)
    if rest:
        raise RpcError(
            ErrorCode.INVALID_PARAMS,
            f"The recording has {len(pcm)} bytes, which are not whole float32 frames.",
            {"field": "wav_b64"},
        )
    if frames * 1000 > max_ms * rate:
        raise RpcError(
            ErrorCode.INVALID_PARAMS,
            f"The recording is {frames / rate:.1f} s long; one session is at most {max_ms / 1000:g} s (voice.max_ms).",
            {"field": "wav_b64", "bound": "voice.max_ms", "limit": max_ms},
        )


@dataclass(eq=False, slots=True)
class Session:
    """One session.

    Attributes:
        id: its name in events.
        opened_at: when the key went down.
        behind: `done` of every earlier session that still runs; its turn comes when all of them are set.
        live: False for a recording that was handed in whole.
        screened: a screen stands between the recorder and the recogniser, see `voice.vad.screen`.
        key_up_at: when the key went up, or the recording was complete.
        captured_at: when the last frame was there.
        requesters: the clients that asked for it; empty for the keys.
        acts: whether what is heard is done.
        answers: the question that it answers; empty for commands.
        since: a frame before which nothing belongs to it, if whoever opened it knows one, in place of the pre-roll.
        start: its first frame in the ring; None until the microphone is open.
        end: the frame after its last one; None while that is unknown.
        due: when the post-roll is over; infinite while the key is held.
        cursor: the next frame to take from the ring.
        lead: how many of its frames are from before the key went down.
        muted: the span of frames in which a cue sounds; what is heard of it is silenced.
        silence: silences cues, see `Cues.silence`.
        holding: it has the microphone acquired.
        provenance: the most trust that what was heard may have.
        report: how it ended; None while it has not.
        done: set when it has ended and nothing of it runs any more.
        scope: cancels all its work.
        recording: cancels its recording alone.
        waiting: its wait for the next frames.
        sender, recorded: the two ends of the way that its audio goes first.
        cleared, audio: those of the way that it goes last, to the recogniser; the same way without a screen.
    """

    id: str
    opened_at: float
    silence: Callable[[bytes], bytes]
    behind: tuple[trio.Event, ...] = ()
    live: bool = True
    screened: bool = False
    requesters: frozenset[Requester] = frozenset()
    acts: bool = True
    answers: str = ""
    since: int | None = None
    state: State = State.IDLE
    key_up_at: float | None = None
    captured_at: float | None = None
    start: int | None = None
    end: int | None = None
    due: float = math.inf
    cursor: int = 0
    lead: int = 0
    muted: tuple[int, int] = (0, 0)
    holding: bool = False
    heard: str = ""
    provenance: Provenance = "user"
    report: SessionReport | None = None
    latency: dict[str, float] = field(default_factory=dict)
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    recording: trio.CancelScope = field(default_factory=trio.CancelScope)
    waiting: trio.CancelScope = field(default_factory=trio.CancelScope)
    sender: trio.MemorySendChannel[Chunk] = field(init=False)
    recorded: trio.MemoryReceiveChannel[Chunk] = field(init=False)
    cleared: trio.MemorySendChannel[Chunk] = field(init=False)
    audio: trio.MemoryReceiveChannel[Chunk] = field(init=False)

    def __post_init__(self) -> None:
        self.sender, self.recorded = trio.open_memory_channel(math.inf)
        if self.screened:
            self.cleared, self.audio = trio.open_memory_channel(math.inf)
        else:
            self.cleared, self.audio = self.sender, self.recorded

    @property
    def complete(self) -> bool:
        """Every frame up to the end has been taken."""
        return self.end is not None and self.cursor >= self.end

    def begin(self, start: int) -> None:
        """The microphone is open: the utterance begins at frame `start`."""
        self.start = self.cursor = start

    def pull(self, feed: AudioFeed) -> None:
        """Take what the ring has of this session.

        Raises:
            Overrun: the ring has already lost a part of it.
        """
        limit = feed.position if self.end is None else min(feed.position, self.end)
        while self.cursor < limit:
            count = min(limit - self.cursor, MAX_CHUNK_FRAMES)
            for chunk in self._silenced(feed.read(self.cursor, count)):
                self.sender.send_nowait(chunk)
            self.cursor += count

    def put(self, pcm: bytes) -> None:
        """Take audio that did not come from the ring."""
        step = MAX_CHUNK_FRAMES * SAMPLE_BYTES
        for at in range(0, len(pcm), step):
            self.sender.send_nowait(Chunk(pcm[at : at + step]))

    def close(self) -> None:
        """No more audio comes."""
        self.sender.close()

    def _silenced(self, data: bytes) -> list[Chunk]:
        """Cut what was read at the cursor so that what is silenced lies in a chunk of its own."""
        first = max(self.muted[0] - self.cursor, 0) * SAMPLE_BYTES
        last = min(max(self.muted[1] - self.cursor, 0) * SAMPLE_BYTES, len(data))
        if first >= last:
            return [Chunk(data, self.cursor)]
        loud = data[first:last]
        quiet = self.silence(loud)
        if quiet == loud:
            return [Chunk(data, self.cursor)]
        before, after = data[:first], data[last:]
        chunks = (Chunk(before, self.cursor), Chunk(quiet), Chunk(after, self.cursor + last // SAMPLE_BYTES))
        return [chunk for chunk in chunks if chunk.data]
