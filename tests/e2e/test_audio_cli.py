"""`utter audio` against the real daemon, with a virtual microphone and without one."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio

from support import audio
from support.daemon import Daemon, environment
from support.pipewire import missing, pipewire_bed
from support.terminal import UTTER, Terminal
from utter_runner.voice.capture.capture import RATE, Capture
from utter_runner.voice.capture.portaudio import PortAudioSource
from utter_runner.voice.capture.pw_record import PwRecordSource
from utter_runner.voice.capture.resample import wav_to_pcm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from utter_runner.voice.capture.source import AudioSource

SPEECH = Path(__file__).parents[1] / "data" / "audio" / "en" / "recorded_turn_off_lights_in_the_office.wav"
CONFIG = """
[audio]
source = "{source}"
capture = "{capture}"
cues = false
{more}
[hotkeys]
enabled = false
[voice]
# A machine that is too busy to deliver audio is no fault, and neither is that nobody speaks yet.
open_ms = 8000
stall_ms = 60000
zeros_ms = 60000
"""
# On a busy machine blocks are lost between the programs; half of what was said proves that it was heard.
ENOUGH = 0.5
WITH_PIPEWIRE = [
    pytest.mark.pipewire,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]
EACH = [("sounddevice", "always"), ("pw-record", "on-demand"), ("sounddevice", "on-demand"), ("pw-record", "always")]


def live(combinations: Sequence[tuple[str, str]]) -> pytest.MarkDecorator:
    """Run a test with these sources and modes, on a PipeWire."""
    return pytest.mark.parametrize(
        ("source", "capture"), [pytest.param(*one, marks=WITH_PIPEWIRE) for one in combinations]
    )


class Stage:
    """A daemon, and the environment in which its commands run."""

    def __init__(self, daemon: Daemon, bed: Any) -> None:
        self.daemon = daemon
        self.bed = bed
        self.env = {**daemon.env, "UTTER_SOCKET": str(daemon.socket)}

    def run(self, *command: str) -> tuple[int, str, str]:
        """Run `utter audio COMMAND`; its exit code, stdout and stderr."""
        done = subprocess.run(
            [*UTTER, "audio", *command], env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def run_while_playing(self, recording: Path, *command: str) -> tuple[int, str, str]:
        """The same; the recording is played as soon as the command says that it listens."""
        argv = [*UTTER, "audio", *command]
        with subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            said = process.stderr.readline()
            with self.bed.play(recording) as player:
                out, err = process.communicate(timeout=60)
                player.terminate()
        return process.returncode, out, said + err

    def is_open(self) -> bool:
        with self.daemon.client() as client:
            return bool(client.call("runner.status", {}, 10)["audio"]["open"])


@contextmanager
def staged(tmp_path: Path, source: str, capture: str, more: str = "", bed: Any = None) -> Iterator[Stage]:
    config = CONFIG.format(source=source, capture=capture, more=more)
    env = None if bed is None else {**environment(tmp_path), **bed.environment}
    daemon = Daemon(tmp_path, config, env=env, quiet=False)
    if bed is not None:
        daemon.socket = Path(bed.environment["XDG_RUNTIME_DIR"]) / "utter" / "runner.sock"
    with daemon:
        yield Stage(daemon, bed)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Any]:
    with pipewire_bed(tmp_path) as bed:
        yield bed


# ---- a microphone


@live(EACH)
def test_a_recording_is_what_was_said_and_the_microphone_is_let_go(
    bed: Any, tmp_path: Path, source: str, capture: str
) -> None:
    said = audio.babble(2)
    made = tmp_path / "made.wav"
    with staged(tmp_path, source, capture, bed=bed) as stage, stage.daemon.client() as client:
        events = client.subscribe("runner.events")
        code, _, told = stage.run_while_playing(
            audio.write_wav(tmp_path / "said.wav", said), "record", str(made), "--seconds", "4"
        )
        assert code == 0, told
        heard = audio.floats(wav_to_pcm(made.read_bytes()))
        assert audio.found_share(heard, said) >= ENOUGH
        if capture == "on-demand":
            while events.get(30).get("state") != "closed":
                pass
            assert not stage.is_open()
        else:
            assert stage.is_open()


@live(EACH[:2])
def test_the_verdict_on_what_is_said(bed: Any, tmp_path: Path, source: str, capture: str) -> None:
    quiet = audio.write_wav(tmp_path / "quiet.wav", audio.babble(4) * 0.003)
    clipped = audio.write_wav(tmp_path / "clipped.wav", np.clip(audio.babble(4) * 40, -1, 1))
    with staged(tmp_path, source, capture, bed=bed) as stage:
        code, out, _ = stage.run("test", "--seconds", "1", "--json")
        assert (code, json.loads(out)["verdict"]) == (4, "silent")
        code, out, _ = stage.run_while_playing(SPEECH, "test", "--seconds", "4", "--json")
        found = json.loads(out)
        # A machine that is too busy to deliver what was said is told of as such.
        assert (code, found["verdict"]) == ((1, "gaps") if found["lost_s"] else (0, "fine")), found
        assert (found["capture"], found["detail"][:12]) == (capture, "It hears you")
        for recording, verdict in ((quiet, "quiet"), (clipped, "clips")):
            code, out, _ = stage.run_while_playing(recording, "test", "--seconds", "3", "--json")
            assert (code, json.loads(out)["verdict"]) == (1, verdict), out


@live(EACH[:2])
def test_the_meter_moves_with_what_is_said(bed: Any, tmp_path: Path, source: str, capture: str) -> None:
    recording = audio.write_wav(tmp_path / "tone.wav", audio.tone(440, 20))
    with (
        staged(tmp_path, source, capture, bed=bed) as stage,
        Terminal([*UTTER, "audio", "level"], stage.env) as terminal,
    ):
        terminal.wait_for("peak")
        with bed.play(recording) as player:
            terminal.wait_for("#")
            # A tone at half volume.
            terminal.wait_for("-6.0 dB")
            player.terminate()
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish()[0] == 0
        assert terminal.shown.rstrip("\r\n").endswith("\x1b[?25h")


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
def test_a_command_that_is_killed_leaves_the_microphone_closed(bed: Any, tmp_path: Path) -> None:
    with staged(tmp_path, "pw-record", "on-demand", bed=bed) as stage, stage.daemon.client() as client:
        events = client.subscribe("runner.events")
        with subprocess.Popen([*UTTER, "audio", "level"], env=stage.env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"rms")
            assert stage.is_open()
            process.kill()
        while events.get(30).get("state") != "closed":
            pass
        assert not stage.is_open()


# ---- devices


@contextmanager
def second_microphone() -> Iterator[None]:
    """A microphone `second` beside that of the bed; `second_in` is its other side."""
    argv = [
        "pw-loopback",
        "--capture-props=media.class=Audio/Sink node.name=second_in node.description=Second",
        "--playback-props=media.class=Audio/Source node.name=second node.description=Second",
    ]
    with subprocess.Popen(argv) as process:
        try:
            yield
        finally:
            process.terminate()


async def hears(source: AudioSource, bed: Any, recordings: dict[str, Path]) -> float:
    """The frequency of what a microphone hears while these are played into these outputs, in Hz."""
    capture = Capture(source, on_event=lambda _event: None, stall_seconds=60, silence_seconds=60)
    players: list[subprocess.Popen[bytes]] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(capture.run)
            with trio.fail_after(60):
                await capture.acquire()
                # The other way round the virtual microphone may stay silent: it is opened again while it is played to.
                players += [bed.play(recording, output) for output, recording in recordings.items()]
                while True:
                    start = capture.position
                    await capture.wait_beyond(start + RATE)
                    heard = audio.floats(capture.read(start, RATE))
                    if np.abs(heard).max() > 0.1:
                        nursery.cancel_scope.cancel()
                        return audio.loudest_frequency(heard)
    finally:
        for player in players:
            player.kill()
            player.wait()


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
async def test_each_microphone_that_is_listed_for_pw_record_can_be_opened_by_its_name(bed: Any, tmp_path: Path) -> None:
    named = 'device = "second"\noutput_device = "vmic_in"'
    with second_microphone(), staged(tmp_path, "pw-record", "on-demand", named, bed) as stage:
        found: dict[str, Any] = {}
        # The second one is there some time after its program was started.
        with trio.fail_after(60):
            while "'second'" not in str(found.get("inputs")) or "second_in" not in str(found.get("outputs")):
                _, out, _ = await trio.to_thread.run_sync(stage.run, "devices", "--json")
                found = json.loads(out)
        assert found["detail"] == ""
        inputs = {one["name"]: (one["description"], one["default"], one["chosen"]) for one in found["inputs"]}
        assert inputs == {"vmic": ("Virtual Microphone", True, False), "second": ("Second", False, True)}
        outputs = {one["name"]: (one["default"], one["chosen"]) for one in found["outputs"]}
        assert outputs["vmic_in"] == (False, True)
        assert [name for name, (default, _) in outputs.items() if default] == ["speaker"]
        # What is played to an output that is not the default is heard by the microphone behind it.
        played = {
            "vmic_in": audio.write_wav(tmp_path / "a.wav", audio.tone(440, 60)),
            "second_in": audio.write_wav(tmp_path / "b.wav", audio.tone(1000, 60)),
        }
        assert await hears(PwRecordSource("vmic"), bed, played) == pytest.approx(440, abs=10)
        assert await hears(PwRecordSource("second"), bed, played) == pytest.approx(1000, abs=10)


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
@pytest.mark.parametrize("capture", ["always", "on-demand"])
async def test_each_microphone_that_is_listed_for_sounddevice_can_be_opened_by_its_name(
    bed: Any, tmp_path: Path, capture: str
) -> None:
    with staged(tmp_path, "sounddevice", capture, bed=bed) as stage, stage.daemon.client() as client:
        opened = client.call("audio.open", {}, 10)
        assert opened["open"] is True
        code, out, _ = await trio.to_thread.run_sync(stage.run, "devices", "--json")
        # Listing has not disturbed whoever listens.
        audio_status = client.call("runner.status", {}, 10)["audio"]
        assert (audio_status["open"], audio_status["faults"]) == (True, 0)
    found = json.loads(out)
    assert code == 0
    names = [one["name"] for one in found["inputs"]]
    assert "pipewire" in names
    assert [one["name"] for one in found["inputs"] if one["chosen"] and one["default"]] == ["pipewire"]
    # Nobody is told that the list may be old, for it is not.
    assert "microphone is open" not in found["detail"]
    played = {"vmic_in": audio.write_wav(tmp_path / "a.wav", audio.tone(440, 60))}
    for name in names:
        assert await hears(PortAudioSource(name), bed, played) == pytest.approx(440, abs=10)


# ---- no microphone


def test_a_config_without_a_microphone_is_explained(tmp_path: Path) -> None:
    with staged(tmp_path, "none", "always") as stage:
        reason = '[audio] source is "none". Set it to "sounddevice" to use a microphone.'
        code, out, _ = stage.run("test", "--json")
        found = json.loads(out)
        assert (code, found["verdict"], found["detail"]) == (4, "unavailable", reason)
        for command in (["level"], ["record", str(tmp_path / "x.wav")]):
            assert stage.run(*command) == (4, "", f"utter: {reason}\n")
        assert not (tmp_path / "x.wav").exists()
        code, out, _ = stage.run("devices", "--json")
        assert (code, json.loads(out)["inputs"]) == (0, [])
        assert 'source is "none"' in json.loads(out)["detail"]


def test_a_file_in_place_of_a_microphone_is_heard_as_one(tmp_path: Path) -> None:
    # It is not over when a busy machine comes to listen.
    said = audio.write_wav(tmp_path / "said.wav", audio.babble(30))
    with staged(tmp_path, "wav", "on-demand", f'wav_path = "{said}"') as stage:
        code, out, _ = stage.run("test", "--json")
        found = json.loads(out)
        assert (code, found["verdict"]) == ((1, "gaps") if found["lost_s"] else (0, "fine")), found
        assert (found["device"], found["detail"][:12]) == ("the file said.wav", "It hears you")
        made = tmp_path / "made.wav"
        assert stage.run("record", str(made), "--seconds", "2.5", "--float")[0] == 0
        played, heard = (audio.floats(wav_to_pcm(path.read_bytes())) for path in (said, made))
        assert len(heard) == 40_000
        # It is opened for each command, and played from its beginning; the first blocks are over when it is read.
        start = next(
            at for at in range(0, len(played) - 8000, 160) if np.array_equal(played[at : at + 8000], heard[:8000])
        )
        assert np.array_equal(heard, played[start : start + 40_000])


def test_a_runner_that_dies_ends_a_recording_that_can_be_played(tmp_path: Path) -> None:
    made = tmp_path / "made.wav"
    with staged(tmp_path, "wav", "on-demand", f'wav_path = "{SPEECH}"') as stage:
        with subprocess.Popen(
            [*UTTER, "audio", "record", str(made)], env=stage.env, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            assert "Recording from the file" in process.stderr.readline()
            with stage.daemon.client() as client, client.subscribe("audio.level") as levels:
                # What is heard by now need not have been written yet.
                while made.stat().st_size < 44 + 3200:
                    levels.get(30)
            assert stage.daemon.process is not None
            stage.daemon.process.terminate()
            _, said = process.communicate(timeout=60)
        assert process.returncode == 4
        assert "The runner is not available" in said
        assert len(wav_to_pcm(made.read_bytes())) > 0
