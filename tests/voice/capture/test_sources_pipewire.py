"""The two live sources against a real PipeWire daemon."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from support import audio, pipewire
from support.capturing import ENOUGH, NOTICED, SOURCES, capturing, hear
from utter_runner.voice.capture.capture import RATE
from utter_runner.voice.capture.portaudio import PortAudioSource
from utter_runner.voice.capture.pw_record import PwRecordSource
from utter_runner.voice.collaborators import AudioUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from utter_runner.voice.capture.source import AudioSource

pytestmark = [
    pytest.mark.pipewire,
    pytest.mark.skipif(bool(pipewire.missing), reason=f"not installed: {', '.join(pipewire.missing)}"),
]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Any]:
    with pipewire.pipewire_bed(tmp_path) as bed:
        yield bed


@pytest.mark.parametrize("make", SOURCES)
async def test_what_is_spoken_is_recorded(bed: Any, tmp_path: Path, make: Callable[..., AudioSource]) -> None:
    spoken = audio.babble(2)
    recording = audio.write_wav(tmp_path / "spoken.wav", spoken)
    async with capturing(make()) as (capture, events):
        heard = audio.floats(await hear(capture, bed, recording, 2))
        await events.next("open")
        await events.next("closed")
    assert audio.found_share(heard, spoken) >= ENOUGH


@pytest.mark.parametrize("make", SOURCES)
async def test_a_killed_daemon_is_a_fault_at_once_and_capture_recovers_by_itself(
    bed: Any, tmp_path: Path, make: Callable[..., AudioSource]
) -> None:
    spoken = audio.babble(2)
    recording = audio.write_wav(tmp_path / "spoken.wav", spoken)
    async with capturing(make(), "always") as (capture, events):
        await events.next("open")
        killed = trio.current_time()
        await trio.to_thread.run_sync(bed.kill)
        await events.next("fault")
        assert events.told - killed < NOTICED
        with pytest.raises(AudioUnavailable):
            await capture.wait_beyond(capture.position)
        await trio.to_thread.run_sync(bed.restart)
        await events.next("recovered")
        heard = audio.floats(await hear(capture, bed, recording, 2))
    assert audio.found_share(heard, spoken) >= ENOUGH


@pytest.mark.parametrize("make", SOURCES)
async def test_a_daemon_that_stands_still_is_a_fault_at_once_and_closing_does_not_hang(
    bed: Any, make: Callable[..., AudioSource]
) -> None:
    async with capturing(make(), stall=0.5) as (capture, events):
        await capture.acquire()
        await events.next("open")
        stopped = trio.current_time()
        bed.pause()
        with pytest.raises(AudioUnavailable, match=r"for 0\.5 s"):
            await capture.wait_beyond(capture.position + 10 * RATE)
        await events.next("fault")
        assert events.told - stopped < NOTICED
        bed.resume()
        await events.next("recovered")
        bed.pause()
        await events.next("fault")
        capture.release()
        bed.resume()


@pytest.mark.parametrize("make", SOURCES)
async def test_a_daemon_that_is_not_there_is_named_as_the_reason(bed: Any, make: Callable[..., AudioSource]) -> None:
    bed.kill()
    async with capturing(make(), open_seconds=5.0) as (capture, events):
        with pytest.raises(AudioUnavailable) as caught:
            await capture.acquire()
        await events.next("fault")
    assert re.search("cannot be opened|Is the sound server running|Is PipeWire running", caught.value.reason)


@pytest.mark.parametrize("rate", [44_100, 48_000])
async def test_a_device_that_refuses_16_khz_mono_is_resampled_with_the_right_pitch_and_length(
    bed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    (tmp_path / ".asoundrc").write_text(
        f'pcm.stiff{rate} {{ type pipewire  rate {rate}  channels 2  hint {{ show on  description "Stiff" }} }}\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    recording = audio.write_wav(tmp_path / "tone.wav", audio.tone(440, 2))
    source = PortAudioSource(f"stiff{rate}")
    async with capturing(source) as (capture, _):
        # PortAudio may have read its devices before this one was configured; and reads them anew after a failure.
        await capture.acquire()
        begun, first = trio.current_time(), capture.position
        heard = audio.floats(await hear(capture, bed, recording, 2))
        seconds, frames = trio.current_time() - begun, capture.position - first
        capture.release()
    assert source._accepted == (rate, 2)
    assert audio.loudest_frequency(heard) == pytest.approx(440, abs=5)
    # Not resampled it would be three times as much, not mixed down six times.
    assert frames / RATE == pytest.approx(seconds, rel=0.25)
    assert abs(heard).max() == pytest.approx(0.5, abs=0.1)


async def test_an_unknown_device_is_refused_with_those_that_there_are(bed: Any) -> None:
    async with capturing(PortAudioSource("no such microphone"), open_seconds=5.0) as (capture, _):
        with pytest.raises(AudioUnavailable) as caught:
            await capture.acquire()
    assert "'no such microphone'" in caught.value.reason
    assert "pipewire" in caught.value.reason


async def test_opening_and_closing_many_times_leaves_nothing_open(bed: Any) -> None:
    counts = []
    async with capturing(PortAudioSource()) as (capture, events):
        for _ in range(6):
            await capture.acquire()
            capture.release()
            await events.next("open")
            await events.next("closed")
            counts.append(open_descriptors())
    assert len(set(counts)) == 1


async def test_a_closed_portaudio_is_gone_with_its_descriptors(bed: Any) -> None:
    children, descriptors = child_processes(), open_descriptors()
    source = PortAudioSource()
    async with capturing(source, "always") as (_, events):
        await events.next("open")
        # None waits while one records.
        assert len(child_processes() - children) == 1
        assert source._ready is None
    assert child_processes() == children
    assert open_descriptors() == descriptors


async def test_a_closed_pw_record_is_gone_with_its_descriptors(bed: Any) -> None:
    children, descriptors = child_processes(), open_descriptors()
    async with capturing(PwRecordSource()) as (capture, events):
        await capture.acquire()
        assert len(child_processes() - children) == 1
        capture.release()
        await events.next("open")
        await events.next("closed")
        assert child_processes() == children
    assert open_descriptors() == descriptors


def child_processes() -> set[str]:
    """This process's children, whichever of its threads started them."""
    found: set[str] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        # A thread may have ended meanwhile.
        with suppress(FileNotFoundError):
            found |= set(path.read_text().split())
    return found


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
