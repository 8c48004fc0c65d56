from __future__ import annotations

import contextlib
import math
import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from support import audio, pipewire
from utter_runner.voice import playback as playback_module
from utter_runner.voice.playback import MAX_AT_ONCE, Playback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from utter_runner.voice.collaborators import AudioOutput

RATE = 24_000


@contextlib.asynccontextmanager
async def playing(device: str = "") -> AsyncIterator[tuple[Playback, list[str]]]:
    failures: list[str] = []
    playback = Playback(device, on_failure=failures.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: playback.run(task_status=task_status))
        yield playback, failures
        nursery.cancel_scope.cancel()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of programs in place of the machine's."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


class Player:
    """A player program that tells through a fifo that it was started, with its arguments and the file it was given."""

    def __init__(self, directory: Path, name: str, then: str) -> None:
        self.told = directory / f"{name}.told"
        os.mkfifo(self.told)
        program = directory / name
        program.write_text(
            f'#!/bin/sh\nfor last; do :; done\n/usr/bin/printf "%s\\n" "$*" > {self.told}.args\n'
            f'/bin/cat "$last" > {self.told}\n{then}\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    async def was_given(self) -> bytes:
        """What lay in the file that it was to play."""
        with trio.fail_after(30):
            return await trio.to_thread.run_sync(self.told.read_bytes, abandon_on_cancel=True)

    def arguments(self) -> list[str]:
        return Path(f"{self.told}.args").read_text().split()


async def until_quiet(playback: Playback) -> None:
    with trio.fail_after(30):
        while playback._playing:  # noqa: ASYNC110 - there is no event for "all is played", and nobody else needs one
            await trio.sleep(0.005)


def test_it_is_an_audio_output() -> None:
    output: AudioOutput = Playback(on_failure=lambda _: None)
    output.play(b"", RATE)  # not running: nothing sounds, nothing is raised


async def test_a_player_is_given_a_wav_file_with_the_sound_and_a_little_silence(programs: Path) -> None:
    player = Player(programs, "pw-play", "exit 0")
    pcm = audio.tone(440, 0.25, RATE).tobytes()
    async with playing("kitchen") as (playback, failures):
        playback.play(pcm, RATE)
        given = await player.was_given()
        await until_quiet(playback)
    assert given == audio.wav(audio.floats(pcm + bytes(1200 * 4)), RATE, encoding=3, bits=32)
    assert player.arguments()[:3] == ["--latency", "40ms", "--target=kitchen"]
    assert failures == []


async def test_a_player_that_fails_gives_way_to_the_next_which_is_then_tried_first(programs: Path) -> None:
    broken = Player(programs, "pw-play", "echo Host is down >&2; exit 1")
    works = Player(programs, "aplay", "exit 0")
    async with playing() as (playback, failures):
        playback.play(bytes(400), RATE)
        await broken.was_given()
        await works.was_given()
        await until_quiet(playback)
        # Nobody would read what pw-play tells: it is not started again.
        playback.play(bytes(400), RATE)
        await works.was_given()
        await until_quiet(playback)
    assert failures == []


async def test_no_output_is_told_once_with_what_each_program_said(programs: Path) -> None:
    broken = Player(programs, "pw-play", "echo Host is down >&2; exit 1")
    async with playing() as (playback, failures):
        for _ in range(2):
            playback.play(bytes(400), RATE)
            await broken.was_given()
            await until_quiet(playback)
    told = "pw-play ended with exit status 1 (Host is down); paplay is not installed; aplay is not installed"
    assert failures == [f"No sound can be played: {told}."]


async def test_it_is_told_again_after_a_sound_could_be_played(programs: Path) -> None:
    async with playing() as (playback, failures):
        playback.play(bytes(400), RATE)
        await until_quiet(playback)
        player = Player(programs, "aplay", "exit 0")
        playback.play(bytes(400), RATE)
        await player.was_given()
        await until_quiet(playback)
        (programs / "aplay").unlink()
        playback.play(bytes(400), RATE)
        await until_quiet(playback)
    assert len(failures) == 2


async def test_a_player_that_hangs_is_killed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playback_module, "GRACE", 4.0)
    player = Player(programs, "pw-play", "trap '' TERM; exec /bin/sleep 1000")
    async with playing() as (playback, failures):
        playback.play(bytes(400), RATE)
        await player.was_given()
        await until_quiet(playback)
    assert "pw-play did not end within 4 s after the sound should have been over" in failures[0]


async def test_too_many_sounds_at_once_are_dropped_and_the_end_ends_those_that_sound(programs: Path) -> None:
    player = Player(programs, "pw-play", "exec /bin/sleep 1000")
    before = {entry.name for entry in await trio.to_thread.run_sync(lambda: list(Path("/proc/self/fd").iterdir()))}
    async with playing() as (playback, failures):
        for _ in range(MAX_AT_ONCE + 3):
            playback.play(bytes(400), RATE)
        assert playback._playing == MAX_AT_ONCE
        await player.was_given()
    after = {entry.name for entry in await trio.to_thread.run_sync(lambda: list(Path("/proc/self/fd").iterdir()))}
    assert playback._playing == 0
    assert after == before
    assert failures == []


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Any]:
    with pipewire.pipewire_bed(tmp_path) as bed:
        yield bed


@pytest.mark.pipewire
@pytest.mark.skipif(bool(pipewire.missing), reason=f"not installed: {', '.join(pipewire.missing)}")
async def test_a_sound_is_heard_to_its_end_from_the_loudspeaker_and_not_from_the_microphone(bed: Any) -> None:
    sound = audio.babble(1.0, RATE)
    record = ["stdbuf", "-o0", "pw-record", "--rate", str(RATE), "--channels", "1", "--format", "f32", "-"]
    loudspeaker = [*record[:-1], "-P", "{ stream.capture.sink = true }", "--target", "speaker", "-"]
    heard: dict[str, bytearray] = {"loudspeaker": bytearray(), "microphone": bytearray()}
    listening = {name: trio.Event() for name in heard}
    arrived, arrivals = trio.open_memory_channel[None](math.inf)

    async def listen(name: str, argv: list[str]) -> None:
        process = await trio.lowlevel.open_process(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            async for piece in process.stdout:
                heard[name] += piece
                listening[name].set()
                arrived.send_nowait(None)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await process.stdout.aclose()

    with trio.fail_after(60):
        async with playing() as (playback, failures), trio.open_nursery() as nursery:
            nursery.start_soon(listen, "loudspeaker", loudspeaker)
            nursery.start_soon(listen, "microphone", record)
            for event in listening.values():
                await event.wait()
            ends = 0
            for _ in range(3):
                begun = len(heard["loudspeaker"])
                playback.play(sound.tobytes(), RATE)
                await until_quiet(playback)
                over = len(heard["loudspeaker"])
                while len(heard["loudspeaker"]) < over + 4 * RATE // 2:
                    await arrivals.receive()
                recorded = audio.floats(bytes(heard["loudspeaker"][begun:]))
                ends += audio.found_share(recorded, sound[-RATE // 10 :], RATE) == 1.0
                if ends == 2:
                    break
            nursery.cancel_scope.cancel()
    assert audio.found_share(recorded, sound, RATE) >= 0.5
    # A player that stops early does not let the end be heard; a sound server that is busy may lose it once.
    assert ends == 2
    assert not any(heard["microphone"])
    assert failures == []
