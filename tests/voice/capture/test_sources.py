"""What the sources do without a sound server."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from support import audio
from utter_runner.voice.capture import pw_record
from utter_runner.voice.capture.portaudio import PortAudioSource, list_inputs
from utter_runner.voice.capture.pw_record import PwRecordSource
from utter_runner.voice.capture.source import NoSource, SourceError
from utter_runner.voice.capture.wav import WavSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from utter_runner.voice.capture.source import AudioSource


def stop_after(frames: int, scope: trio.CancelScope, heard: bytearray) -> Callable[[Any], None]:
    def on_frames(data: Any) -> None:
        heard.extend(data)
        if len(heard) >= 4 * frames:
            scope.cancel()

    return on_frames


async def record(source: AudioSource, frames: int) -> bytes:
    heard = bytearray()
    with trio.CancelScope() as scope:
        await source.run(stop_after(frames, scope, heard))
    return bytes(heard)


async def why_not(source: AudioSource) -> SourceError:
    with trio.fail_after(10), pytest.raises(SourceError) as caught:
        await source.run(lambda _: None)
    return caught.value


async def test_a_file_plays_in_real_time_and_is_followed_by_silence(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    spoken = audio.babble(1.01)
    source = WavSource(audio.write_wav(tmp_path / "a.wav", spoken))
    heard = bytearray()
    begun = trio.current_time()
    with trio.CancelScope() as scope:
        await source.run(stop_after(16_000 * 2, scope, heard))
    assert trio.current_time() - begun == pytest.approx(2.0, abs=0.03)
    samples = audio.floats(bytes(heard))
    assert abs(samples[: len(spoken)] - spoken).max() < 1e-4
    assert not samples[len(spoken) :].any()
    assert source.description == "the file a.wav"


async def test_a_file_can_play_faster(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    source = WavSource(audio.write_wav(tmp_path / "a.wav", audio.babble(1)), speed=10)
    begun = trio.current_time()
    await record(source, 16_000)
    assert trio.current_time() - begun == pytest.approx(0.1)


async def test_a_file_is_converted_and_read_anew_at_each_opening(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = audio.write_wav(tmp_path / "a.wav", audio.tone(440, 1, 48_000), 48_000, bits=24)
    source = WavSource(path)
    assert audio.loudest_frequency(audio.floats(await record(source, 16_000))) == pytest.approx(440, abs=0.5)
    audio.write_wav(path, audio.tone(880, 1))
    assert audio.loudest_frequency(audio.floats(await record(source, 16_000))) == pytest.approx(880, abs=0.5)


async def test_a_file_that_is_not_there_may_come_and_one_that_is_wrong_stays_wrong(tmp_path: Path) -> None:
    error = await why_not(WavSource(tmp_path / "a.wav"))
    assert error.reason == f"The recording {tmp_path}/a.wav cannot be read: No such file or directory."
    assert not error.permanent
    (tmp_path / "a.wav").write_bytes(b"OggS")
    error = await why_not(WavSource(tmp_path / "a.wav"))
    assert "This is not a WAV file: it begins with b'OggS'" in error.reason
    assert error.permanent


async def test_no_source_gives_its_reason() -> None:
    error = await why_not(NoSource("There is none."))
    assert (error.reason, error.permanent) == ("There is none.", True)


@pytest.mark.parametrize(
    ("error", "permanent", "says"),
    [
        ("ModuleNotFoundError(\"No module named 'sounddevice'\")", True, "pip install 'utter-runner[audio]'"),
        ("OSError('PortAudio library not found')", True, "Install libportaudio2"),
        ("RuntimeError('Error initializing PortAudio')", False, "PortAudio cannot be initialised"),
    ],
)
async def test_what_portaudio_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, permanent: bool, says: str
) -> None:
    (tmp_path / "sounddevice.py").write_text(f"raise {error}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = PortAudioSource()
    await source.prepare()
    raised = await why_not(source)
    assert says in raised.reason
    assert raised.permanent == permanent
    with pytest.raises(SourceError, match=re.escape(says)):
        await list_inputs("")
    await source.aclose()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs in place of the machine's, with a stdbuf that only runs what it is given."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    program(directory / "stdbuf", 'shift; exec "$@"')
    return directory


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


async def test_a_missing_pw_record_is_named(programs: Path) -> None:
    error = await why_not(PwRecordSource())
    assert error.reason.startswith("pw-record is not installed")
    assert error.permanent
    (programs / "stdbuf").unlink()
    program(programs / "pw-record", "")
    assert (await why_not(PwRecordSource())).reason.startswith("stdbuf is not installed")


async def test_the_end_of_pw_record_is_told_with_what_it_said(programs: Path) -> None:
    program(programs / "pw-record", 'test "$1" = --help || { echo error: Host is down >&2; exit 3; }')
    error = await why_not(PwRecordSource())
    assert error.reason == "pw-record ended with exit status 3: error: Host is down. Is PipeWire running?"
    assert not error.permanent


@pytest.mark.parametrize(
    ("usage", "given"),
    [
        ("", ""),
        ("  -a, --raw   RAW mode", " --raw"),
        ("  -P  --properties  Set node properties", f" --properties {pw_record._NO_OTHER}"),
    ],
)
async def test_pw_record_is_asked_in_the_way_its_version_knows(
    programs: Path, tmp_path: Path, usage: str, given: str
) -> None:
    program(
        programs / "pw-record",
        f'test "$1" = --help && {{ echo "{usage}"; exit; }}; echo "$@" > {tmp_path}/arguments; exit 1',
    )
    await why_not(PwRecordSource("desk"))
    common = "--rate 16000 --channels 1 --format f32 --latency 100ms --target desk"
    assert (tmp_path / "arguments").read_text() == f"{common}{given} -\n"
    await why_not(PwRecordSource())
    # The default source is followed.
    assert "reconnect" not in (tmp_path / "arguments").read_text()


DUMP = [
    {"id": 1, "info": {"props": {"node.name": "vmic", "media.class": "Audio/Source", "object.serial": 71}}},
    {"id": 2, "info": {"props": {"node.name": "speaker", "media.class": "Audio/Sink", "object.serial": 72}}},
]


async def test_a_chosen_device_that_is_not_there_is_named_with_those_that_are(programs: Path, tmp_path: Path) -> None:
    program(programs / "pw-record", f'test "$1" = --help || {{ echo > {tmp_path}/opened; exit 1; }}')
    (tmp_path / "dump").write_text(json.dumps(DUMP))
    (programs / "cat").symlink_to("/bin/cat")
    program(programs / "pw-dump", f"cat {tmp_path}/dump")
    for device in ("desk", "speaker", "7"):
        error = await why_not(PwRecordSource(device))
        assert error.reason == (
            f"There is no microphone '{device}'; it is opened when it is plugged in. PipeWire lists: vmic."
        )
        assert not error.permanent
    assert not (tmp_path / "opened").exists()
    for device in ("vmic", "71", ""):
        assert "ended with exit status 1" in (await why_not(PwRecordSource(device))).reason
        (tmp_path / "opened").unlink()
    # It is gone while pw-dump works.
    (tmp_path / "dump").write_text(json.dumps(DUMP) + "\n" + json.dumps([{"id": 1, "info": None}]))
    assert (await why_not(PwRecordSource("vmic"))).reason.endswith("PipeWire lists: none.")
    # Who cannot look leaves it to pw-record.
    program(programs / "pw-dump", "exit 1")
    assert "ended with exit status 1" in (await why_not(PwRecordSource("desk"))).reason


async def test_frames_that_arrive_in_pieces_are_delivered_whole() -> None:
    program_side, stdout = trio.testing.memory_stream_one_way_pair()
    errors_side, stderr = trio.testing.memory_stream_one_way_pair()
    delivered: list[bytes] = []
    said: list[str] = []

    async def pump() -> None:
        process: Any = SimpleNamespace(stdout=stdout, stderr=stderr)
        said.append(await pw_record._pump(process, lambda frames: delivered.append(bytes(frames))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        for piece in (b"abc", b"defghi", b"jkl", b"mnopq"):
            await program_side.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        await errors_side.send_all(b"the sound\nserver  left\n")
        await program_side.aclose()
        await errors_side.aclose()
    assert delivered == [b"abcdefgh", b"ijkl", b"mnop"]
    assert said == [": the sound server left"]
