"""Speaking: through a `tts` plugin that plays by itself, or by playing what it streams.

Rules here: one text is spoken at a time, and a newer one ends the older; whoever asked for a text that was cut short is
told so, and not that it failed; what a plugin streams is played as it comes, and acknowledged when it was taken.
"""

from __future__ import annotations

import base64
from math import inf
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio
from msgspec import Raw

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.kinds import SpeakResult, SpeechFormat, SpeechItem
from utter_protocol.messages import encode
from utter_protocol.methods import SpeakParams
from utter_runner.supervision.dialect import decode_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor
    from utter_runner.supervision.work import Work
    from utter_runner.voice.speech_output import SpeechOutput

TTS = "tts.speak@1"
SPEAK = "tts.speak"
AUDIO = "tts.audio"
MAX_SPOKEN = 4000
MAX_ITEM = 32 * 1024
LINGERS = 0.1
"""How many seconds after its end speech may still come out of the loudspeaker."""
_END = "end"
# The stream's credit bounds what waits here.
_decode_item = msgspec.json.Decoder(SpeechItem).decode


class OpenStream(Protocol):
    """A subscription of the runner's own at a plugin."""

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` was taken."""

    def stop(self) -> None:
        """End it. Idempotent."""


class StreamOpener(Protocol):
    """Opens streams of plugins for the runner itself."""

    def __call__(
        self,
        instance: Instance,
        method: str,
        params: bytes,
        *,
        on_item: Callable[[int, Raw], None],
        on_closed: Callable[[str], None],
    ) -> OpenStream:
        """Subscribe, reliably; `on_closed` is called once unless `stop` was, also when it cannot be opened."""


class Speaker:
    """Speaks texts.

    Args:
        supervisor: knows the plugin.
        open_stream: subscribes at a plugin.
        output: the loudspeaker.
        timeout: seconds to wait for a plugin that is restarting.
    """

    def __init__(
        self, supervisor: Supervisor, *, open_stream: StreamOpener, output: SpeechOutput, timeout: float
    ) -> None:
        self._supervisor = supervisor
        self._open_stream = open_stream
        self._output = output
        self._timeout = timeout
        self._speaking: trio.CancelScope | None = None
        self._heard_until = -inf

    def reconfigure(self, output: SpeechOutput, *, timeout: float) -> None:
        """Have another loudspeaker and time-out from the next text on."""
        self._output, self._timeout = output, timeout

    def heard_until(self) -> float:
        """Until when, by the loop's clock, what is spoken can be heard by a microphone; -inf if nothing was."""
        return trio.current_time() + LINGERS if self._speaking is not None else self._heard_until

    def hush(self) -> bool:
        """End what is spoken; return whether anything was."""
        speaking = self._speaking
        if speaking is not None:
            self._silent(speaking)
            speaking.cancel()
        return speaking is not None

    async def speak(
        self,
        text: str,
        voice: str = "",
        *,
        timeout: float = inf,
        instance: Instance | None = None,
        work: Work | None = None,
    ) -> SpeakResult:
        """Speak a text and wait until it was heard, or was cut short by `hush` or a newer text.

        Args:
            text: at most `MAX_SPOKEN` characters.
            voice: a name that the plugin knows; empty for its own choice.
            timeout: seconds for the whole of it.
            instance: the plugin; None takes whoever provides `tts.speak@1`.
            work: what it is part of.

        Raises:
            RpcError: -32602 (too long), -32005 (nobody speaks), -32000, -32001.
        """
        if len(text) > MAX_SPOKEN:
            raise RpcError(
                ErrorCode.INVALID_PARAMS,
                f"the text has {len(text)} characters; at most {MAX_SPOKEN} are spoken",
                {"field": "text", "bound": "max_spoken", "limit": MAX_SPOKEN},
            )
        self.hush()
        started = trio.current_time()
        with trio.CancelScope() as scope, trio.move_on_after(timeout) as limit:
            self._speaking = scope
            try:
                return await self._speak(text, voice, instance, work)
            finally:
                self._silent(scope)
        milliseconds = round((trio.current_time() - started) * 1000)
        if limit.cancelled_caught:
            raise RpcError(
                ErrorCode.TIMED_OUT,
                f"the text was not spoken within {round(timeout * 1000)} ms",
                {"timeout_ms": round(timeout * 1000)},
            )
        return SpeakResult(spoken=False, duration_ms=milliseconds)

    def _silent(self, scope: trio.CancelScope) -> None:
        if self._speaking is scope:
            self._heard_until = self.heard_until()
            self._speaking = None

    async def _speak(self, text: str, voice: str, instance: Instance | None, work: Work | None) -> SpeakResult:
        plugin = instance or await self._supervisor.wait_provider(TTS, self._timeout)
        params = SpeakParams(text=text, voice=voice)
        # Where the runner cannot play, the plugin may be able to.
        streams = plugin.handshake.streams if plugin.handshake is not None else ()
        if AUDIO in streams and await self._output.ready():
            return await self._play(plugin, encode(params))
        raw = await plugin.call(SPEAK, params, timeout=inf, work=work)
        return decode_answer(raw, SpeakResult, SPEAK, plugin.id)

    async def _play(self, plugin: Instance, params: bytes) -> SpeakResult:
        send, receive = trio.open_memory_channel[tuple[int, Raw] | str](inf)
        stream = self._open_stream(
            plugin,
            AUDIO,
            params,
            on_item=lambda seq, data: send.send_nowait((seq, data)),
            on_closed=send.send_nowait,
        )
        try:
            first = await receive.receive()
            if isinstance(first, str):
                self._check_end(plugin, first)
                return SpeakResult(spoken=False, duration_ms=0)
            chunk, format_ = _decode(plugin, first[1])
            if format_ is None:
                raise _wrong(plugin, "its first item has no format")
            return await self._play_all(plugin, stream, receive, format_, (first[0], chunk))
        finally:
            stream.stop()
            send.close()
            receive.close()

    async def _play_all(
        self,
        plugin: Instance,
        stream: OpenStream,
        receive: trio.MemoryReceiveChannel[tuple[int, Raw] | str],
        format_: SpeechFormat,
        first: tuple[int, bytes],
    ) -> SpeakResult:
        frame = (2 if format_.encoding == "s16le" else 4) * format_.channels
        seq, chunk = first
        written = 0
        async with self._output.open(format_) as sink:
            while True:
                if len(chunk) % frame:
                    raise _wrong(plugin, f"an item of {len(chunk)} bytes does not hold whole frames of {frame} bytes")
                await sink.write(chunk)
                written += len(chunk)
                stream.acknowledge(seq)
                received = await receive.receive()
                if isinstance(received, str):
                    self._check_end(plugin, received)
                    break
                seq, data = received
                chunk, _ = _decode(plugin, data)
            await sink.drain()
        return SpeakResult(spoken=written > 0, duration_ms=round(written / frame / format_.rate * 1000))

    @staticmethod
    def _check_end(plugin: Instance, reason: str) -> None:
        if reason != _END:
            raise RpcError(
                ErrorCode.PLUGIN_FAILED,
                f"{plugin.id} stopped speaking: {reason}",
                {"plugin": plugin.id, "reason": reason},
            )


def _decode(plugin: Instance, data: Raw) -> tuple[bytes, SpeechFormat | None]:
    try:
        item = _decode_item(data)
        chunk = base64.b64decode(item.data_b64, validate=True)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        # b64decode raises a ValueError of its own kind for what is not ASCII.
        raise _wrong(plugin, str(error)) from None
    if len(chunk) > MAX_ITEM:
        raise _wrong(plugin, f"an item has {len(chunk)} bytes of audio; at most {MAX_ITEM} are taken")
    return chunk, item.format


def _wrong(plugin: Instance, why: str) -> RpcError:
    return RpcError(
        ErrorCode.PLUGIN_FAILED,
        f"{plugin.id} sent in {AUDIO} something else than the protocol says: {why}",
        {"plugin": plugin.id, "method": AUDIO},
    )
