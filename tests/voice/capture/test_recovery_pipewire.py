"""What happens to a sound server in real life: each is noticed, told once, and over when its cause is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import trio

from support import audio, pipewire
from support.capturing import ENOUGH, NOTICED, PATIENCE, SOURCES, UNHURRIED, capturing, hear
from utter_runner.voice.capture.capture import RATE, Capture
from utter_runner.voice.capture.microphones_only import MicrophonesOnly
from utter_runner.voice.capture.portaudio import PortAudioSource
from utter_runner.voice.capture.pw_record import PwRecordSource
from utter_runner.voice.collaborators import AudioUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from utter_runner.voice.capture.source import AudioSource

pytestmark = [
    pytest.mark.pipewire,
    pytest.mark.skipif(bool(pipewire.missing), reason=f"not installed: {', '.join(pipewire.missing)}"),
]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Any]:
    with pipewire.pipewire_bed(tmp_path) as bed:
        yield bed


@pytest.fixture
def bare_bed(tmp_path: Path) -> Iterator[Any]:
    """Without a microphone."""
    with pipewire.pipewire_bed(tmp_path, microphone=False) as bed:
        yield bed


class Speech:
    """Something to say, in a file."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.samples = audio.babble(2, seed=seed)
        self.path = audio.write_wav(directory / f"speech{seed}.wav", self.samples)

    async def share_heard(self, capture: Capture, bed: Any, microphone: str) -> float:
        """How much is heard of it when it is said into a microphone."""
        heard = await hear(capture, bed, self.path, 2, into=microphone)
        return audio.found_share(audio.floats(heard), self.samples)


async def reason_becomes(capture: Capture, pattern: str) -> None:
    """Waits until the status says so; a further attempt to open changes it without an event."""
    with trio.fail_after(PATIENCE):
        while not re.search(pattern, capture.status["detail"]):
            await capture._changed.wait()


async def listen(capture: Capture) -> None:
    """Ten seconds of audio."""
    await capture.acquire()
    try:
        await capture.wait_beyond(capture.position + 10 * RATE)
    finally:
        capture.release()


in_thread = trio.to_thread.run_sync


@pytest.mark.parametrize("make", SOURCES)
async def test_the_default_source_is_followed_when_another_is_chosen_and_when_that_one_goes(
    bed: Any, tmp_path: Path, make: Callable[..., AudioSource]
) -> None:
    first, second, third = (Speech(tmp_path, seed) for seed in (1, 2, 3))
    async with capturing(MicrophonesOnly(make()), "always") as (capture, events):
        await events.next("open")
        assert await first.share_heard(capture, bed, "vmic") >= ENOUGH
        await in_thread(bed.plug, "desk")
        await in_thread(bed.choose, "desk")
        assert await second.share_heard(capture, bed, "desk") >= ENOUGH
        await in_thread(bed.unplug, "desk")
        assert await third.share_heard(capture, bed, "vmic") >= ENOUGH


@pytest.mark.parametrize("how", ["unplug", "destroy"])
@pytest.mark.parametrize("make", SOURCES)
async def test_the_only_microphone_goes_and_another_comes_and_the_loudspeaker_is_none(
    bare_bed: Any, tmp_path: Path, make: Callable[..., AudioSource], how: str
) -> None:
    speech = Speech(tmp_path, 1)
    await in_thread(bare_bed.plug, "desk")
    async with capturing(MicrophonesOnly(make()), "always") as (capture, events):
        await events.next("open")
        assert await speech.share_heard(capture, bare_bed, "desk") >= ENOUGH
        gone = trio.current_time()
        await in_thread(getattr(bare_bed, how), "desk")
        told = await events.next("fault")
        # The other end of what was destroyed is an output, too, for as long as it is still there.
        assert any(f"what the loudspeaker {name!r} plays" in told for name in ("speaker", "desk_in"))
        assert events.told - gone < NOTICED
        assert not capture.status["open"]
        at = capture.position
        await in_thread(bare_bed.plug, "headset")
        await events.next("recovered")
        # Of what the loudspeaker played meanwhile nothing was recorded.
        assert capture.oldest == at
        assert await speech.share_heard(capture, bare_bed, "headset") >= ENOUGH
        assert capture.status["faults"] == 1


@pytest.mark.parametrize("make", SOURCES)
async def test_a_runner_that_starts_without_a_microphone_says_so_and_finds_the_first(
    bare_bed: Any, tmp_path: Path, make: Callable[..., AudioSource]
) -> None:
    speech = Speech(tmp_path, 1)
    async with capturing(MicrophonesOnly(make()), open_seconds=5.0) as (capture, _):
        # The look goes beside the recording, so that a microphone is not opened later because of it.
        with pytest.raises(AudioUnavailable, match="There is no microphone"):
            await listen(capture)
        at = capture.position
        with pytest.raises(AudioUnavailable, match="There is no microphone"):
            await capture.acquire()
        assert capture.position == at
        await in_thread(bare_bed.plug, "desk")
        assert await speech.share_heard(capture, bare_bed, "desk") >= ENOUGH


@pytest.mark.parametrize("make", SOURCES)
async def test_the_session_manager_is_killed_and_started_again(
    bare_bed: Any, tmp_path: Path, make: Callable[..., AudioSource]
) -> None:
    speech = Speech(tmp_path, 1)
    await in_thread(bare_bed.plug, "desk")
    async with capturing(MicrophonesOnly(make()), "always", stall=0.5) as (capture, events):
        await events.next("open")
        killed = trio.current_time()
        await in_thread(bare_bed.lose_session_manager)
        assert "for 0.5 s" in await events.next("fault")
        assert events.told - killed < NOTICED
        # From here on a stall would be one more fault.
        capture.reconfigure(
            None, mode="always", open_seconds=UNHURRIED, stall_seconds=UNHURRIED, silence_seconds=UNHURRIED
        )
        await in_thread(bare_bed.regain_session_manager, "desk")
        await events.next("recovered")
        assert await speech.share_heard(capture, bare_bed, "desk") >= ENOUGH


@pytest.mark.parametrize("make", SOURCES)
async def test_a_microphone_that_delivers_only_zeros_is_told_while_somebody_listens(
    bed: Any, tmp_path: Path, make: Callable[..., AudioSource]
) -> None:
    speech = Speech(tmp_path, 1)
    async with capturing(make(), "always", stall=2.5) as (capture, events):
        await events.next("open")
        await capture.wait_beyond(4 * RATE)
        await capture.acquire()
        assert "nothing but silence" in await events.next("fault")
        # It was opened again, in case that helps; the recording goes on.
        await capture.wait_beyond(capture.position + RATE)
        assert await speech.share_heard(capture, bed, "vmic") >= ENOUGH
        assert "not silent any more" in await events.next("recovered")
        capture.release()


async def test_pw_record_keeps_to_the_chosen_microphone(bed: Any, tmp_path: Path) -> None:
    first, second = Speech(tmp_path, 1), Speech(tmp_path, 2)
    await in_thread(bed.plug, "desk")
    async with capturing(PwRecordSource("desk"), "always", stall=2.5) as (capture, events):
        await events.next("open")
        assert await first.share_heard(capture, bed, "desk") >= ENOUGH
        gone = trio.current_time()
        await in_thread(bed.unplug, "desk")
        assert "desk (pw-record)" in await events.next("fault")
        assert events.told - gone < NOTICED
        await reason_becomes(capture, r"There is no microphone 'desk'; .* PipeWire lists: vmic\.$")
        # The other microphone, which nobody chose, is not recorded.
        at = capture.position
        with pytest.raises(AudioUnavailable, match="There is no microphone 'desk'"):
            await capture.wait_beyond(at)
        assert "pw-record" not in bed.recorders()
        await in_thread(bed.plug, "desk")
        await events.next("recovered")
        assert await second.share_heard(capture, bed, "desk") >= ENOUGH


async def test_a_device_that_portaudio_does_not_list_is_named_and_opened_when_it_comes(
    bed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = Speech(tmp_path, 1)
    monkeypatch.setenv("HOME", str(tmp_path))
    async with capturing(PortAudioSource("desk"), "always") as (capture, events):
        assert "'desk'" in await events.next("fault")
        (tmp_path / ".asoundrc").write_text(
            'pcm.desk { type pipewire  hint { show on  description "Desk" } }\n', encoding="utf-8"
        )
        await events.next("recovered")
        assert await speech.share_heard(capture, bed, "vmic") >= ENOUGH


@pytest.mark.parametrize("rate", [44_100, 48_000])
@pytest.mark.parametrize("make", SOURCES)
async def test_a_stereo_microphone_of_another_rate_is_heard_at_the_right_pitch_and_length(
    bed: Any, tmp_path: Path, make: Callable[..., AudioSource], rate: int
) -> None:
    await in_thread(lambda: bed.plug("desk", rate=rate, channels=2))
    await in_thread(bed.choose, "desk")
    tone = audio.tone(440, 2, rate)
    recording = audio.write_wav(tmp_path / "tone.wav", tone.repeat(2).reshape(-1, 2), rate)
    async with capturing(make(), "always") as (capture, events):
        await events.next("open")
        heard = audio.floats(await hear(capture, bed, recording, 2, into="desk"))
    assert audio.loudest_frequency(heard) == pytest.approx(440, abs=5)
    sounding = abs(heard) > 0.05
    # Of its two seconds a busy machine loses some; not resampled, it would be more than five.
    assert 0.9 < sounding.sum() / RATE < 2.5
    # Both channels are in it: PipeWire mixes so that the power stays, PortAudio's two are averaged.
    assert 0.4 < abs(heard).max() < 0.8
