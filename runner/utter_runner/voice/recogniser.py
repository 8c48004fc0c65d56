"""Speech to text through the plugin that provides `stt.transcribe@1`.

Rules here: audio goes out as `stt.feed` while it arrives; an utterance belongs to the epoch that it was started in, and
ends with it; the router's phrases go along as hints. To a plugin that reads the ring, what lies there unchanged goes by
its place. A plugin that decides by itself when an utterance is over is
believed about its own utterances only; of its announcement and its answer the first counts.
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING

import trio

from utter_protocol.errors import RpcError
from utter_protocol.kinds import SttPartial, SttResult
from utter_protocol.messages import encode
from utter_protocol.methods import (
    RingFrames,
    SttFeedParams,
    SttSession,
    SttStartParams,
    SttStartResult,
    Transcript,
)
from utter_runner.config.log_fields import about
from utter_runner.supervision.dialect import decode_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Raw

    from utter_protocol.methods import Provenance
    from utter_runner.dataplane.ring import RingWriter
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor
    from utter_runner.voice.collaborators import Chunk

logger = logging.getLogger(__name__)

STT = "stt.transcribe@1"
FINAL = "stt.final@1"
# Chunks stay well below every frame bound, also in base64.
_FEED_BYTES = 256 * 1024
_CANCEL_SECONDS = 5.0


class PluginRecogniser:
    """Opens utterances.

    Args:
        supervisor: knows the plugin.
        hints: returns the phrases that are likely to be said.
        language: of what is said, as BCP 47.
        start_timeout: seconds to wait for a plugin that is restarting, and for its answer to `stt.start`.
        ring: the microphone's audio.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        hints: Callable[[], list[str]],
        language: str,
        start_timeout: float,
        ring: RingWriter,
    ) -> None:
        self._supervisor = supervisor
        self._hints = hints
        self._language = language
        self._start_timeout = start_timeout
        self._ring = ring
        self._warned: set[tuple[str, int]] = set()
        self._open: dict[str, PluginStream] = {}

    def reconfigure(self, *, language: str, start_timeout: float) -> None:
        """Have another language and time-out from the next utterance on."""
        self._language, self._start_timeout = language, start_timeout

    async def start(self, session: str, hints: Sequence[str] | None = None) -> PluginStream:
        """Open an utterance, see `Recogniser.start`. Raises RpcError."""
        instance = await self._supervisor.wait_provider(STT, self._start_timeout)
        stream = PluginStream(instance, session, self._open)
        likely = self._hints() if hints is None else list(hints)
        params = SttStartParams(session=session, hints=likely, language=self._language)
        try:
            answer = await instance.call("stt.start", params, timeout=self._start_timeout)
            if decode_answer(answer, SttStartResult, "stt.start", instance.id).ring and self._may_read(instance):
                stream.ring = self._ring
        except BaseException:
            stream.cancel()
            raise
        return stream

    def _may_read(self, instance: Instance) -> bool:
        """Whether a plugin that says that it has the ring can have it from the runner."""
        if "microphone" in instance.permissions:
            return True
        incarnation = (instance.id, instance.epoch)
        if incarnation not in self._warned:
            self._warned.add(incarnation)
            logger.warning(
                '%s says that it reads the audio ring, for which it lacks the permission "microphone"; it is fed by '
                "messages",
                instance.id,
                extra=about(instance),
            )
        return False

    def on_partial(self, instance: Instance, params: Raw) -> SttPartial | None:
        """Return what a plugin has understood so far of an utterance of its own, else None. Raises RpcError."""
        partial = decode_answer(params, SttPartial, "stt.partial", instance.id)
        stream = self._open.get(partial.session)
        return partial if stream is not None and stream.is_at(instance) else None

    def on_final(self, instance: Instance, params: Raw) -> None:
        """`stt.final` of a plugin. Raises RpcError."""
        final = decode_answer(params, SttResult, "stt.final", instance.id)
        stream = self._open.get(final.session)
        if stream is not None and FINAL in instance.provides:
            stream.note_final(instance, Transcript(text=final.text, confidence=final.confidence))


class PluginStream:
    """One utterance on its way into the plugin; it is in `register` while it is open.

    Attributes:
        ring: where the plugin reads what lies there unchanged; None: it reads no ring.
    """

    def __init__(self, instance: Instance, session: str, register: dict[str, PluginStream]) -> None:
        self._instance = instance
        self._epoch = instance.epoch
        self._memory = instance.memory
        self._session = session
        self.ring: RingWriter | None = None
        self._register = register
        self._seq = 0
        self._over = False
        # What the plugin said that was heard, or why it cannot say, and that one of them is there.
        self._transcript: Transcript | None = None
        self._error: RpcError | None = None
        self._decided = trio.Event()
        register[session] = self

    @property
    def provenance(self) -> Provenance:
        """The most trust that what was heard may have: a plugin that reads the screen can hear what stands there."""
        return "screen" if self._memory.screen else "user"

    def feed(self, chunk: Chunk) -> None:
        """Hand over frames at 16 kHz. Raises RpcError."""
        if chunk.start is not None and self._lies_in_the_ring(chunk.start):
            frames = RingFrames(start=chunk.start, count=chunk.frames)
            self._send(SttFeedParams(session=self._session, seq=self._seq, frames=frames))
            return
        for start in range(0, len(chunk.data), _FEED_BYTES):
            data = base64.b64encode(chunk.data[start : start + _FEED_BYTES]).decode("ascii")
            self._send(SttFeedParams(session=self._session, seq=self._seq, data_b64=data))

    def _lies_in_the_ring(self, start: int) -> bool:
        """Whether the plugin can read from `start` on, and has time to: what waited is overwritten soon."""
        return self.ring is not None and start >= self.ring.position - self.ring.layout.capacity // 2

    def _send(self, params: SttFeedParams) -> None:
        peer = self._instance.peer
        if peer is None or self._instance.epoch != self._epoch or not peer.notify("stt.feed", encode(params)):
            raise self._instance.unavailable()
        self._seq += 1

    async def finish(self, timeout: float) -> Transcript:
        """Return what was said. Raises RpcError."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._instance.epoch != self._epoch:
            self.cancel()
            raise self._instance.unavailable()
        if not self._decided.is_set():
            params = encode(SttSession(session=self._session))
            sent = self._instance.request("stt.finish", params, self._on_answer, timeout=timeout)
            try:
                await self._decided.wait()
            except trio.Cancelled:
                if sent is not None and self._instance.epoch == self._epoch:
                    self._instance.cancel(sent)
                # Given up while it waited for its turn, the plugin would keep the audio.
                self.cancel()
                raise
            if self._transcript is not None:
                self._end()
        # What was decided before it was asked leaves a session open there.
        self.cancel()
        if self._transcript is None:
            raise self._error or self._instance.unavailable()
        return self._transcript

    def _on_answer(self, result: Raw | None, error: RpcError | None) -> None:
        if self._decided.is_set():
            return
        try:
            if result is not None:
                self._transcript = decode_answer(result, Transcript, "stt.finish", self._instance.id)
        except RpcError as nonsense:
            error = nonsense
        self._error = error
        self._decided.set()

    def is_at(self, instance: Instance) -> bool:
        """Whether a plugin, in the epoch that it is in, has this utterance."""
        return instance is self._instance and instance.epoch == self._epoch

    def note_final(self, instance: Instance, transcript: Transcript) -> None:
        """A plugin says what was said; of what it says more than once the first counts."""
        if self.is_at(instance) and not self._decided.is_set():
            self._transcript = transcript
            self._decided.set()

    def cancel(self) -> None:
        """Forget the utterance."""
        over = self._over
        self._end()
        if over or self._instance.epoch != self._epoch:
            return
        params = encode(SttSession(session=self._session))
        self._instance.request("stt.cancel", params, _ignore, timeout=_CANCEL_SECONDS)

    def _end(self) -> None:
        self._over = True
        if self._register.get(self._session) is self:
            del self._register[self._session]


def _ignore(_result: object, _error: RpcError | None) -> None:
    """Nobody waits for the answer to a cancellation."""
