"""Speech through real player programs."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from support import audio, pipewire
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.kinds import SpeechFormat
from utter_runner.voice.speech_output import PlayerOutput

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT = SpeechFormat(encoding="s16le", rate=22_050)
FLOAT = SpeechFormat(encoding="f32le", rate=48_000, channels=2)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a program in a directory that is the whole PATH."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))

    def make(name: str, script: str) -> None:
        path = directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make


def recording(tmp_path: Path, extra: str = "") -> str:
    return f'/usr/bin/printf "%s\\n" "$*" > {tmp_path}/args\n/bin/cat > {tmp_path}/heard\n{extra}'


def assert_heard(tmp_path: Path, sent: bytes) -> None:
    """The player got what was sent, and silence behind it."""
    heard = (tmp_path / "heard").read_bytes()
    assert heard.startswith(sent)
    assert len(heard) > len(sent)
    assert not any(heard[len(sent) :])


PW_PLAY = 'case "$1" in --help) echo "  --raw  raw data";; *) {}\n;; esac'


@pytest.mark.parametrize(
    ("name", "format_", "arguments"),
    [
        ("pw-play", SHORT, "--raw --rate 22050 --channels 1 --format s16 --target=kitchen -"),
        ("pw-play", FLOAT, "--raw --rate 48000 --channels 2 --format f32 --target=kitchen -"),
        ("paplay", SHORT, "--raw --rate=22050 --channels=1 --format=s16le --device=kitchen"),
        ("paplay", FLOAT, "--raw --rate=48000 --channels=2 --format=float32le --device=kitchen"),
        ("aplay", SHORT, "-q -t raw -f S16_LE -r 22050 -c 1 --device=kitchen -"),
        ("aplay", FLOAT, "-q -t raw -f FLOAT_LE -r 48000 -c 2 --device=kitchen -"),
    ],
)
async def test_a_player_is_told_the_format_and_gets_the_bytes(
    tmp_path: Path, program: Callable[[str, str], None], name: str, format_: SpeechFormat, arguments: str
) -> None:
    script = recording(tmp_path)
    program(name, PW_PLAY.format(script) if name == "pw-play" else script)
    async with PlayerOutput("kitchen").open(format_) as sink:
        await sink.write(b"\1\0" * 40)
        await sink.write(b"\2\0" * 40)
        await sink.drain()
    assert (tmp_path / "args").read_text().strip() == arguments
    assert_heard(tmp_path, b"\1\0" * 40 + b"\2\0" * 40)


async def test_an_old_pw_play_takes_raw_audio_without_being_told(
    tmp_path: Path, program: Callable[[str, str], None]
) -> None:
    script = recording(tmp_path)
    program("pw-play", f'case "$1" in --help) echo "pw-play [options] [<file>|-]";; *) {script}\n;; esac')
    async with PlayerOutput("kitchen").open(SHORT) as sink:
        await sink.write(b"\1\0" * 40)
        await sink.drain()
    assert (tmp_path / "args").read_text().strip() == "--rate 22050 --channels 1 --format s16 --target=kitchen -"
    assert_heard(tmp_path, b"\1\0" * 40)


async def test_a_pw_play_that_reads_no_pipe_is_passed_over(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    program("pw-play", "echo 'pw-play: no such option'; exit 1")
    program("aplay", recording(tmp_path))
    output = PlayerOutput()
    for _ in range(2):
        async with output.open(SHORT) as sink:
            await sink.write(b"\0\0")
            await sink.drain()
    assert "-t raw" in (tmp_path / "args").read_text()


@pytest.mark.parametrize(
    ("name", "script", "ready"),
    [
        ("aplay", "exit 0", True),
        ("paplay", "exit 0", True),
        ("pw-play", PW_PLAY.format(":"), True),
        ("pw-play", "exit 1", False),
        ("other", "exit 0", False),
    ],
)
async def test_it_is_ready_where_something_can_play(
    program: Callable[[str, str], None], name: str, script: str, ready: bool
) -> None:
    program(name, script)
    assert await PlayerOutput().ready() is ready


async def test_no_player_is_an_error_that_names_them(program: Callable[[str, str], None]) -> None:
    with pytest.raises(RpcError) as error:
        async with PlayerOutput().open(SHORT):
            pytest.fail("nothing can play")
    assert error.value.code == ErrorCode.PLUGIN_FAILED
    assert all(name in error.value.message for name in ("pw-play", "paplay", "aplay"))


async def test_a_player_that_fails_says_why(program: Callable[[str, str], None]) -> None:
    program("aplay", "echo 'cannot open device' >&2; exit 3")

    async def play(pieces: int) -> None:
        async with PlayerOutput().open(SHORT) as sink:
            for _ in range(pieces):
                await sink.write(bytes(100_000))
            await sink.drain()

    for pieces in (100, 0):
        with trio.fail_after(20), pytest.raises(RpcError) as error:
            await play(pieces)
        assert "cannot open device" in error.value.message


async def test_a_player_that_complains_a_lot_plays_on(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    program("aplay", f"/usr/bin/head -c 300000 /dev/zero >&2\n{recording(tmp_path)}")
    async with PlayerOutput().open(SHORT) as sink:
        await sink.write(b"\1\0" * 40)
        with trio.fail_after(20):
            await sink.drain()
    assert_heard(tmp_path, b"\1\0" * 40)


async def test_leaving_early_ends_the_player(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    program("aplay", f"echo $$ > {told}\nexec /bin/sleep 600")
    with trio.move_on_after(30) as scope:
        async with PlayerOutput().open(SHORT) as sink:
            pid = int(await trio.to_thread.run_sync(told.read_text))
            scope.cancel()
            await sink.write(bytes(1_000_000))
    assert scope.cancelled_caught
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.pipewire
@pytest.mark.skipif(bool(pipewire.missing), reason=f"not installed: {pipewire.missing}")
async def test_it_is_heard(tmp_path: Path) -> None:
    """A second of a tone in pieces, through the real sound server."""
    with pipewire.pipewire_bed(tmp_path):
        sent = audio.tone(440, 1.0, 48_000)
        data = (sent * 32_767).astype("<i2").tobytes()
        began = trio.current_time()
        async with PlayerOutput().open(SpeechFormat(encoding="s16le", rate=48_000)) as sink:
            for start in range(0, len(data), 9_600):
                await sink.write(data[start : start + 9_600])
            await sink.drain()
        # It is played at the speed of sound and not swallowed.
        assert trio.current_time() - began > 0.8
