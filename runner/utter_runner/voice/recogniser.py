"""Speech to text through the plugin that provides `stt.transcribe@1`.

Rules here: audio goes out as `stt.feed` while it arrives; an utterance belongs to the epoch that it was started in, and
ends with it; the router's phrases go along as hints.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from utter_protocol.messages import encode
from utter_protocol.methods import SttFeedParams, SttSession, SttStartParams, Transcript
from utter_runner.supervision.dialect import decode_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.errors import RpcError
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor

STT = "stt.transcribe@1"
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
    """

    def __init__(
        self, supervisor: Supervisor, *, hints: Callable[[], list[str]], language: str, start_timeout: float
    ) -> None:
        self._supervisor = supervisor
        self._hints = hints
        self._language = language
        self._start_timeout = start_timeout

    async def start(self, session: str) -> PluginStream:
        """Open an utterance. Raises RpcError."""
        instance = await self._supervisor.wait_provider(STT, self._start_timeout)
        stream = PluginStream(instance, session)
        params = SttStartParams(session=session, hints=self._hints(), language=self._language)
        try:
            await instance.call("stt.start", params, timeout=self._start_timeout)
        except BaseException:
            stream.cancel()
            raise
        return stream


class PluginStream:
    """One utterance on its way into the plugin."""

    def __init__(self, instance: Instance, session: str) -> None:
        self._instance = instance
        self._epoch = instance.epoch
        self._session = session
        self._seq = 0
        self._over = False

    def feed(self, data: bytes) -> None:
        """Hand over whole frames, f32le mono 16 kHz. Raises RpcError."""
        peer = self._instance.peer
        if peer is None or self._instance.epoch != self._epoch:
            raise self._instance.unavailable()
        for start in range(0, len(data), _FEED_BYTES):
            chunk = base64.b64encode(data[start : start + _FEED_BYTES]).decode("ascii")
            params = SttFeedParams(session=self._session, seq=self._seq, data_b64=chunk)
            if not peer.notify("stt.feed", encode(params)):
                raise self._instance.unavailable()
            self._seq += 1

    async def finish(self, timeout: float) -> Transcript:
        """Return what was said. Raises RpcError."""
        if self._instance.epoch != self._epoch:
            raise self._instance.unavailable()
        try:
            raw = await self._instance.call("stt.finish", SttSession(session=self._session), timeout=timeout)
        except BaseException:
            # Given up while it waited for its turn, the plugin would keep the audio.
            self.cancel()
            raise
        self._over = True
        return decode_answer(raw, Transcript, "stt.finish", self._instance.id)

    def cancel(self) -> None:
        """Forget the utterance."""
        if self._over or self._instance.epoch != self._epoch:
            return
        self._over = True
        params = encode(SttSession(session=self._session))
        self._instance.request("stt.cancel", params, _ignore, timeout=_CANCEL_SECONDS)


def _ignore(_result: object, _error: RpcError | None) -> None:
    """Nobody waits for the answer to a cancellation."""
