"""Which output is played on: the chosen one or none, for cues as for speech, on a real sound server with two sinks."""

from __future__ import annotations

import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from support import audio, pipewire
from utter_protocol.errors import RpcError
from utter_protocol.kinds import SpeechFormat
from utter_runner.voice.playback import Playback
from utter_runner.voice.players import PROGRAMS, Players
from utter_runner.voice.speech_output import PlayerOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

RATE = 24_000
SINKS = ("speaker", "headphones")
FLOAT = SpeechFormat(encoding="f32le", rate=RATE)

pytestmark = [
    pytest.mark.pipewire,
    pytest.mark.skipif(bool(pipewire.missing), reason=f"not installed: {', '.join(pipewire.missing)}"),
]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Any]:
    with pipewire.pipewire_bed(tmp_path) as bed:
        yield bed


class Ears:
    """What comes out of each sink, as f32le."""

    def __init__(self) -> None:
        self.heard = {sink: bytearray() for sink in SINKS}
        self._more = trio.Event()

    async def listen(self, sink: str, *, task_status: trio.TaskStatus[None]) -> None:
        """Record a sink until cancelled; started when the first audio is there."""
        record = ["stdbuf", "-o0", "pw-record", "--rate", str(RATE), "--channels", "1", "--format", "f32"]
        process = await trio.lowlevel.open_process(
            [*record, "-P", "{ stream.capture.sink = true }", "--target", sink, "-"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async for piece in process.stdout:
                if not self.heard[sink]:
                    task_status.started()
                self.heard[sink] += piece
                self._more.set()
                self._more = trio.Event()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await process.stdout.aclose()

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Return when `ready`, asked whenever there is more."""
        while not ready():
            await self._more.wait()

    async def pass_seconds(self, seconds: float) -> None:
        """Return when so much more has come out of each sink."""
        until = {sink: len(data) + round(seconds * RATE) * 4 for sink, data in self.heard.items()}
        await self.wait(lambda: all(len(self.heard[sink]) >= most for sink, most in until.items()))

    def share(self, sink: str, sound: Any) -> float:
        """How much of a sound has come out of a sink."""
        return audio.found_share(audio.floats(bytes(self.heard[sink][: len(self.heard[sink]) // 4 * 4])), sound, RATE)


@asynccontextmanager
async def ears() -> AsyncIterator[Ears]:
    made = Ears()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for sink in SINKS:
                await nursery.start(made.listen, sink)
            yield made
            nursery.cancel_scope.cancel()


async def play_cue(sound: Any, device: str) -> list[str]:
    failures: list[str] = []
    playback = Playback(device, on_failure=failures.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: playback.run(task_status=task_status))
        playback.play(sound.tobytes(), RATE)
        while playback._playing:  # noqa: ASYNC110 - there is no event for "all is played", and nobody else needs one
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return failures


async def play_speech(sound: Any, device: str) -> list[str]:
    try:
        async with PlayerOutput(device).open(FLOAT) as sink:
            await sink.write(sound.tobytes())
            await sink.drain()
    except RpcError as error:
        return [error.message]
    return []


@pytest.mark.usefixtures("bed")
@pytest.mark.parametrize("play", [play_cue, play_speech])
@pytest.mark.parametrize(("device", "sink"), [("", "speaker"), ("headphones", "headphones")])
async def test_the_chosen_output_is_played_on_and_no_other(
    play: Callable[[Any, str], Awaitable[list[str]]], device: str, sink: str
) -> None:
    sound = audio.babble(0.8, RATE)
    async with ears() as heard:
        assert await play(sound, device) == []
        await heard.pass_seconds(0.3)
        (other,) = set(SINKS) - {sink}
        assert heard.share(sink, sound) >= 0.5
        assert not any(heard.heard[other])


@pytest.mark.usefixtures("bed")
@pytest.mark.parametrize("play", [play_cue, play_speech])
async def test_an_output_that_is_not_there_is_said_and_nothing_is_played_elsewhere(
    play: Callable[[Any, str], Awaitable[list[str]]],
) -> None:
    async with ears() as heard:
        (problem,) = await play(audio.babble(0.3, RATE), "kitchen")
        await heard.pass_seconds(0.3)
        assert problem.startswith('No sound can be played: pw-play finds no output "kitchen"; there is headphones, ')
        assert "speaker" in problem
        assert not any(heard.heard["speaker"])
        assert not any(heard.heard["headphones"])


@pytest.mark.usefixtures("bed")
async def test_speech_that_is_cut_short_is_silent_at_once() -> None:
    sound = audio.babble(5.0, RATE)
    async with ears() as heard:
        async with PlayerOutput("headphones").open(FLOAT) as sink:
            with trio.move_on_after(1000) as speaking:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sink.write, sound.tobytes())
                    await heard.wait(lambda: any(heard.heard["headphones"]))
                    speaking.cancel()
        ended = len(heard.heard["headphones"])
        await heard.pass_seconds(1.5)
        # What is under way in the sound server and in our pipe may still come; of what follows nothing does.
        assert not any(heard.heard["headphones"][ended + RATE * 4 :])


async def test_without_an_answer_of_the_sound_server_the_player_itself_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pw-play").write_text("#!/bin/sh\n")
    (tmp_path / "pw-play").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await Players("kitchen").problem("pw-play") == ""
    assert [await Players().problem(program) for program in PROGRAMS] == ["", *["is not installed"] * 2]
