"""Speaking: by a plugin that plays, or by playing what a plugin streams; and being cut short."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from support.host import fake_plugin
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_runner.supervision.fake import FakeInstance, FakeSupervisor
from utter_runner.voice.fakes import FakeSpeechOutput
from utter_runner.voice.speaker import LINGERS, MAX_ITEM, MAX_SPOKEN, Speaker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

FORMAT = {"encoding": "s16le", "rate": 16_000, "channels": 1}


def item(data: bytes, format_: Any = None) -> Raw:
    value: dict[str, Any] = {"data_b64": base64.b64encode(data).decode()}
    return Raw(encode(value if format_ is None else {**value, "format": format_}))


class Streams:
    """Opens streams that the test feeds."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, str, Any]] = []
        self.acks: list[int] = []
        self.stops = 0
        self.arrived = trio.Event()
        self.on_item: Callable[[int, Raw], None]
        self.on_closed: Callable[[str], None]

    def __call__(self, instance: FakeInstance, method: str, params: bytes, *, on_item: Any, on_closed: Any) -> Streams:
        self.opened.append((instance.id, method, params))
        self.on_item, self.on_closed = on_item, on_closed
        self.arrived.set()
        return self

    def acknowledge(self, seq: int) -> None:
        self.acks.append(seq)

    def stop(self) -> None:
        self.stops += 1


class Bed:
    def __init__(self, *plugins: FakeInstance) -> None:
        self.streams, self.output = Streams(), FakeSpeechOutput()
        self.speaker = Speaker(FakeSupervisor(*plugins), open_stream=self.streams, output=self.output, timeout=1.0)
        self.results: list[Any] = []

    @asynccontextmanager
    async def speaking(self, text: str = "Tea.", **options: Any) -> AsyncIterator[None]:
        """Speak beside the test; afterwards the result, or the error, is in `results`."""

        async def speak() -> None:
            try:
                self.results.append(await self.speaker.speak(text, **options))
            except RpcError as error:
                self.results.append(error)

        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(speak)
                await trio.testing.wait_all_tasks_blocked()
                yield


def mouth(**answers: Any) -> FakeInstance:
    return fake_plugin("mouth", answers, methods=["tts.speak"], provides=["tts.speak@1"])


def streaming() -> FakeInstance:
    return fake_plugin("voice", methods=["tts.speak"], streams=["tts.audio"], provides=["tts.speak@1"])


async def test_a_plugin_that_plays_is_asked_to() -> None:
    plugin = mouth(**{"tts.speak": {"spoken": True, "duration_ms": 12}})
    bed = Bed(plugin)
    result = await bed.speaker.speak("Tea.", "alto")
    assert (result.spoken, result.duration_ms) == (True, 12)
    assert plugin.received[0].params == {"text": "Tea.", "voice": "alto"}
    assert bed.streams.opened == []


async def test_what_a_plugin_streams_is_played_as_it_comes() -> None:
    bed = Bed(streaming())
    async with bed.speaking(voice="alto"):
        assert bed.streams.opened == [("voice", "tts.audio", encode({"text": "Tea.", "voice": "alto"}))]
        bed.streams.on_item(0, item(b"\1\0\2\0", FORMAT))
        await trio.testing.wait_all_tasks_blocked()
        assert bed.output.played == [b"\1\0\2\0"]
        assert bed.streams.acks == [0]
        bed.streams.on_item(1, item(b"\3\0"))
        bed.streams.on_closed("end")
    (result,) = bed.results
    assert (result.spoken, result.duration_ms) == (True, 0)
    assert b"".join(bed.output.played) == b"\1\0\2\0\3\0"
    assert [(one.rate, one.encoding) for one in bed.output.formats] == [(16_000, "s16le")]
    assert (bed.output.drained, bed.output.open_now) == (1, 0)


async def test_where_the_runner_cannot_play_the_plugin_is_asked_to() -> None:
    plugin = streaming()
    plugin.answers["tts.speak"] = {"spoken": True, "duration_ms": 12}
    bed = Bed(plugin)
    bed.output.installed = False
    assert (await bed.speaker.speak("Tea.")).duration_ms == 12
    assert bed.streams.opened == []


async def test_nothing_is_acknowledged_before_the_loudspeaker_took_it() -> None:
    bed = Bed(streaming())
    bed.output.full = True
    async with bed.speaking():
        bed.streams.on_item(0, item(b"\0\0", FORMAT))
        bed.streams.on_item(1, item(b"\0\0"))
        await trio.testing.wait_all_tasks_blocked()
        assert bed.streams.acks == []
        bed.output.make_room()
        await trio.testing.wait_all_tasks_blocked()
        assert bed.streams.acks == [0, 1]
        bed.streams.on_closed("end")


@pytest.mark.parametrize("plugin", [mouth, streaming])
@pytest.mark.parametrize("by", ["hush", "newer"])
async def test_speech_is_cut_short(plugin: Callable[[], FakeInstance], by: str, autojump_clock: MockClock) -> None:
    speaker = plugin()
    bed = Bed(speaker)
    async with bed.speaking():
        if plugin is streaming:
            bed.streams.on_item(0, item(b"\0\0" * 100, FORMAT))
        await trio.sleep(0.5)
        if by == "hush":
            assert bed.speaker.hush() is True
            assert bed.speaker.hush() is False
        else:
            async with bed.speaking("Coffee."):
                assert bed.speaker.hush() is True
    assert (bed.results[0].spoken, bed.results[0].duration_ms) == (False, 500)
    assert bed.output.open_now == 0
    if plugin is streaming:
        assert bed.streams.stops >= 1
        assert bed.output.drained == 0
    else:
        assert speaker.received[0].cancelled


async def test_it_takes_no_longer_than_it_may(autojump_clock: MockClock) -> None:
    bed = Bed(mouth())
    with pytest.raises(RpcError) as error:
        await bed.speaker.speak("Tea.", timeout=2.5)
    assert (error.value.code, error.value.data) == (ErrorCode.TIMED_OUT, {"timeout_ms": 2500})
    assert bed.speaker.hush() is False


async def test_a_text_has_a_length_and_nobody_to_speak_is_an_error() -> None:
    bed = Bed()
    with pytest.raises(RpcError) as error:
        await bed.speaker.speak("x" * (MAX_SPOKEN + 1))
    assert error.value.data == {"field": "text", "bound": "max_spoken", "limit": MAX_SPOKEN}
    with pytest.raises(RpcError) as error:
        await bed.speaker.speak("Tea.")
    assert error.value.code == ErrorCode.CAPABILITY_MISSING


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([Raw(b"{}")], "data_b64"),
        ([Raw(b'{"data_b64": "*"}')], "base64"),
        ([Raw('{"data_b64": "é"}'.encode())], "ASCII"),
        ([item(b"\0\0")], "no format"),
        ([item(b"\0\0", {**FORMAT, "encoding": "mp3"})], "mp3"),
        ([item(b"\0\0", {**FORMAT, "rate": 1})], "rate"),
        ([item(b"\0\0\0", FORMAT)], "whole frames"),
        ([item(b"\0\0", FORMAT), item(b"\0")], "whole frames"),
        ([item(bytes(MAX_ITEM + 2), FORMAT)], str(MAX_ITEM)),
    ],
)
async def test_a_stream_of_something_else_is_the_plugins_failure(items: list[Raw], said: str) -> None:
    bed = Bed(streaming())
    async with bed.speaking():
        for seq, one in enumerate(items):
            bed.streams.on_item(seq, one)
    (error,) = bed.results
    assert isinstance(error, RpcError)
    assert error.code == ErrorCode.PLUGIN_FAILED
    assert said in error.message
    assert (bed.streams.stops, bed.output.open_now) == (1, 0)


@pytest.mark.parametrize("after", [0, 1])
async def test_a_stream_that_breaks_off_is_a_failure_and_one_that_held_nothing_is_none(after: int) -> None:
    bed = Bed(streaming())
    async with bed.speaking():
        for seq in range(after):
            bed.streams.on_item(seq, item(b"\0\0", FORMAT))
        bed.streams.on_closed("voice went away: end of file")
    assert bed.results[0].code == ErrorCode.PLUGIN_FAILED
    assert "voice went away" in bed.results[0].message
    async with bed.speaking():
        bed.streams.on_closed("end")
    assert bed.results[1].spoken is False


async def test_a_loudspeaker_that_fails_ends_the_stream() -> None:
    bed = Bed(streaming())
    bed.output.failure = RpcError(ErrorCode.PLUGIN_FAILED, "no sound")
    async with bed.speaking():
        bed.streams.on_item(0, item(b"\0\0", FORMAT))
    assert bed.results == [bed.output.failure]
    assert bed.streams.stops == 1


async def test_it_is_known_until_when_speech_is_heard(autojump_clock: MockClock) -> None:
    bed = Bed(streaming())
    assert bed.speaker.heard_until() == -inf
    async with bed.speaking():
        await trio.sleep(5)
        assert bed.speaker.heard_until() == trio.current_time() + LINGERS
        bed.speaker.hush()
        hushed = trio.current_time()
        assert bed.speaker.heard_until() == hushed + LINGERS
        await trio.sleep(5)
    assert bed.speaker.heard_until() == hushed + LINGERS
    async with bed.speaking():
        await trio.sleep(5)
        bed.streams.on_closed("end")
        ended = trio.current_time()
    await trio.sleep(5)
    assert bed.speaker.heard_until() == ended + LINGERS
