"""`utter audio` against a fake runner with a ring."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support import audio
from support.fake_microphone import DEVICE, FakeMicrophone
from support.terminal import UTTER, Terminal
from utter_protocol.errors import RpcError
from utter_runner.cli import main
from utter_runner.cli.interrupts import Interrupts
from utter_runner.cli.meter import figures, meter
from utter_runner.cli.microphone import Microphone, Piece
from utter_runner.voice.capture.resample import wav_to_pcm
from utter_sdk.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.fake_runner import Connection, FakeRunner

SPEECH = Path(__file__).parents[1] / "data" / "audio" / "en" / "recorded_lock_the_front_door.wav"
SAID = wav_to_pcm(SPEECH.read_bytes())
DEVICES: dict[str, Any] = {
    "source": "pw-record",
    "inputs": [
        {"name": "built-in", "description": "Built-in \x1b[2JMicrophone", "default": True, "chosen": False},
        {"name": "usb", "description": "", "default": False, "chosen": True},
    ],
    "outputs": [],
    "detail": "PipeWire is tired.",
}
LEVELS = [
    {"rms_db": -31.4, "peak_db": -18.9, "clipped": False},
    {"rms_db": -3.0, "peak_db": 0.0, "clipped": True},
]
REFUSED = RpcError(-32000, "No audio came from the default source within 2 s. One that needs longer gets it by …")


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


# ---- devices


def test_devices_for_people(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["audio.devices"] = DEVICES
    assert main(["audio", "devices"]) == 0
    shown = lines(capsys.readouterr().out)
    assert shown[0] == 'Microphones, for [audio] device with source = "pw-record":'
    assert [line.split()[0] for line in shown if line.startswith((" built", " usb"))] == ["built-in", "usb"]
    text = "\n".join(shown)
    assert r"Built-in \x1b[2JMicrophone   default" in text
    assert "\x1b" not in text
    assert any(line.split() == ["usb", "chosen"] for line in shown)
    assert shown[shown.index("Outputs, for [audio] output_device:") + 1] == "  (none)"
    assert shown[-1] == "PipeWire is tired."
    assert max(map(len, shown)) <= 80


def test_devices_for_programs(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["audio.devices"] = DEVICES
    assert main(["audio", "devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == DEVICES


@pytest.mark.parametrize("command", [["devices"], ["level"], ["record", "x.wav"], ["test"]])
def test_without_a_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["audio", *command, "--socket", str(tmp_path / "none.sock")]) == 4
    assert "The runner is not available" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- level


@pytest.mark.parametrize("command", [["level"], ["record", "x.wav"]])
def test_a_microphone_that_cannot_be_opened(
    runner: FakeRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runner.answers["audio.open"] = REFUSED
    assert main(["audio", *command]) == 4
    assert capsys.readouterr().err == f"utter: {REFUSED.message}\n"
    assert not Path("x.wav").exists()


def test_level_in_a_pipe(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["audio.open"] = {"open": True, "device": DEVICE}
    runner.events = LEVELS
    assert main(["audio", "level", "--seconds", "3"]) == 0
    assert lines(capsys.readouterr().out) == [
        "rms  -31.4 dB  peak  -18.9 dB",
        "rms   -3.0 dB  peak    0.0 dB  CLIP",
    ]
    assert main(["audio", "level", "--seconds", "3", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == LEVELS
    assert ("stream.subscribe", {"method": "audio.level", "params": {}}) in runner.calls


def test_no_level_is_explained(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["audio.open"] = {"open": True, "device": DEVICE}
    runner.answers["runner.status"] = {"audio": {"detail": "The device is \x1b gone."}}
    # It is said for each second without one; how many of these pass to the end is the clock's affair.
    assert main(["audio", "level", "--seconds", "3"]) == 0
    told = capsys.readouterr()
    assert len(lines(told.err)) <= 3
    assert (told.out, {*lines(told.err)}) == ("", {"utter: No audio comes: The device is \\x1b gone."})


def test_the_meter_fits_any_terminal() -> None:
    for width in range(20, 200):
        for level in (*LEVELS, {"rms_db": -120.0, "peak_db": -120.0}, {"rms_db": 769.5, "peak_db": 769.5}):
            line = meter(level, width)
            assert line.startswith(figures({**level, "clipped": False}))
            assert len(line) <= max(width, len(figures(LEVELS[1])))
    assert meter({"rms_db": -30.0, "peak_db": -15.0}, 59) == ("rms  -30.0 dB  peak  -15.0 dB  [##########....|.....]")
    assert meter(LEVELS[1], 61).endswith("###|]  CLIP")


def test_level_on_a_terminal_is_one_line_and_leaves_it_as_it_was(runner: FakeRunner) -> None:
    runner.answers["audio.open"] = {"open": True, "device": DEVICE}
    runner.events = LEVELS
    with Terminal([*UTTER, "audio", "level"]) as terminal:
        terminal.wait_for("CLIP")
        runner.connections[0].emit(LEVELS[0])
        terminal.wait_for("-18.9 dB")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish()[0] == 0
    assert terminal.shown.index("\x1b[?25l") < terminal.shown.index("rms") < terminal.shown.rindex("\x1b[?25h")
    drawn, _, after = terminal.shown.partition("\x1b[?25h")
    # Nothing scrolls: each level is drawn over the one before.
    assert drawn.rstrip().count("\n") == 0
    assert "rms" not in after


# ---- record


def recorded(path: Path) -> Any:
    return audio.floats(wav_to_pcm(path.read_bytes()))


@pytest.mark.parametrize("more", [[], ["--float"]])
def test_a_recording_is_what_the_runner_hears(
    runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    path = tmp_path / "x.wav"
    with FakeMicrophone(runner, SAID):
        assert main(["audio", "record", str(path), "--seconds", "3", *more]) == 0
    heard = recorded(path)
    assert len(heard) == 48_000
    assert audio.found_share(heard, audio.floats(SAID)[: 16_000 // 10 * 20]) > 0.9
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = capsys.readouterr()
    assert told.out == ""
    assert lines(told.err) == [
        f"utter: Recording from {DEVICE}, for 3 s.",
        f"utter: Recorded 3.0 s to {path}.",
    ]
    assert runner.methods()[-2:] == ["stream.stop", "audio.close"]


def test_what_became_of_a_recording_for_programs(
    runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.wav"
    runner.events = [{"event": "audio", "state": "fault", "detail": "It is gone."}, {"event": "warning", "text": "x"}]
    with FakeMicrophone(runner, SAID):
        assert main(["audio", "record", str(path), "--seconds", "1", "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["file"], found["frames"], found["seconds"], found["rate"]) == (str(path), 16_000, 1.0, 16_000)
    assert found["lost_s"] == 0
    assert found["faults"] == ["It is gone."]
    assert "utter: It is gone.\n" in told.err


def test_what_is_overwritten_before_it_is_read_is_told(
    runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.wav"
    # Each write is three times what the ring holds.
    with FakeMicrophone(runner, bytes(4 * 48_000), seconds=1, block=48_000):
        assert main(["audio", "record", str(path), "--seconds", "2", "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["lost_s"] >= 2
    assert len(recorded(path)) == found["frames"] == 32_000
    assert "are missing: they were overwritten before" in told.err


def test_nothing_is_overwritten_without_force(
    runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(b"precious" * 100_000)
    with FakeMicrophone(runner, SAID):
        assert main(["audio", "record", str(path), "--seconds", "1"]) == 2
        assert f"{path} exists. Overwrite it with --force" in capsys.readouterr().err
        assert path.read_bytes() == b"precious" * 100_000
        assert "audio.open" not in runner.methods()
        assert main(["audio", "record", str(path), "--seconds", "1", "--force"]) == 0
    assert len(recorded(path)) == 16_000
    assert path.stat().st_size == 44 + 32_000


def test_what_is_there_stays_if_nothing_is_heard(
    runner: FakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("utter_runner.cli.microphone.PATIENCE_S", 0.1)
    old, new = tmp_path / "old.wav", tmp_path / "new.wav"
    old.write_bytes(b"precious")
    with FakeMicrophone(runner, b""):
        for path in (old, new):
            assert main(["audio", "record", str(path), "--seconds", "0.1", "--force"]) == 1
            assert "Nothing was recorded: no audio came" in capsys.readouterr().err
    assert old.read_bytes() == b"precious"
    assert not new.exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no/such/x.wav", "cannot be written: No such file or directory."),
        ("a-directory", "cannot be written: Is a directory."),
        ("a-pipe", "is no regular file. For standard output the name is -."),
    ],
)
def test_what_cannot_be_written(
    runner: FakeRunner, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    (tmp_path / "a-directory").mkdir()
    os.mkfifo(tmp_path / "a-pipe")
    assert main(["audio", "record", str(tmp_path / name), "--force"]) == 2
    assert capsys.readouterr().err == f"utter: {tmp_path / name} {says}\n"


def test_a_full_disk_leaves_what_was_written(
    runner: FakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.wav"
    written = 0

    def full(fd: int, data: bytes, at: int) -> int:
        nonlocal written
        written += 1
        if written > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data, at)

    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    with FakeMicrophone(runner, SAID):
        assert main(["audio", "record", str(path)]) == 1
    assert f"{path} cannot be written any more: No space left on device." in capsys.readouterr().err
    assert len(recorded(path)) > 0


def test_standard_output(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeMicrophone(runner, SAID):
        done = subprocess.run(
            [*UTTER, "audio", "record", "-", "--seconds", "1"], capture_output=True, timeout=60, check=True
        )
    assert len(audio.floats(wav_to_pcm(done.stdout))) == 16_000
    assert done.stderr.endswith(b"utter: Recorded 1.0 s.\n")
    assert main(["audio", "record", "-", "--json"]) == 2
    assert "With --json name a file" in capsys.readouterr().err
    with Terminal([*UTTER, "audio", "record", "-"]) as terminal:
        assert terminal.finish()[0] == 2
        assert "A recording is nothing for a terminal." in terminal.shown


def test_a_reader_that_goes_away_ends_the_recording(runner: FakeRunner) -> None:
    argv = [*UTTER, "audio", "record", "-"]
    with (
        FakeMicrophone(runner, SAID),
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read(4) == b"RIFF"
        process.stdout.close()
        assert process.wait(60) == 141


def record_until(path: Path, size: int, end: Callable[[subprocess.Popen[bytes]], None]) -> tuple[int, str]:
    """Record in a process of its own until the file has that size, and end it; the exit code, and what was said."""
    argv = [*UTTER, "audio", "record", str(path)]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not path.exists() or path.stat().st_size < size:
            assert process.poll() is None
        end(process)
        _, said = process.communicate(timeout=60)
    return process.returncode, said.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_recording_well(runner: FakeRunner, tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "x.wav"
    with FakeMicrophone(runner, SAID):
        code, said = record_until(path, 40_000, lambda process: process.send_signal(number))
    assert code == 0
    assert "until Ctrl-C" in said
    frames = len(recorded(path))
    assert path.stat().st_size == 44 + 2 * frames
    assert f"Recorded {frames / 16_000:.1f} s to {path}." in said
    assert runner.methods()[-1] == "audio.close"


def test_a_killed_recorder_leaves_a_file_that_can_be_played(runner: FakeRunner, tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    with FakeMicrophone(runner, SAID):
        assert record_until(path, 40_000, lambda process: process.kill())[0] == -signal.SIGKILL
    there = (path.stat().st_size - 44) // 2
    assert there - 1_600 <= len(recorded(path)) <= there


def test_a_runner_that_goes_away_ends_the_recording(runner: FakeRunner, tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    with FakeMicrophone(runner, SAID):
        code, said = record_until(path, 40_000, lambda _process: runner.connections[0].hang_up())
    assert code == 4
    assert "The runner is not available: " in said
    assert len(recorded(path)) >= 15_000


# ---- test


def loud() -> bytes:
    return (np.clip(audio.floats(SAID) * 30, -1, 1)).astype("<f4").tobytes()


@pytest.mark.parametrize(
    ("heard", "code", "verdict"), [(SAID, 0, "fine"), (bytes(len(SAID)), 4, "silent"), (loud(), 1, "clips")]
)
def test_the_verdict(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str], *, heard: bytes, code: int, verdict: str
) -> None:
    with FakeMicrophone(runner, heard):
        assert main(["audio", "test"]) == code
        told = capsys.readouterr()
        assert told.err == "utter: Speak now, as you usually do, for 3 s.\n"
        shown = lines(told.out)
        assert shown[0] == "Microphone  Virtual Mic"
        assert shown[1] == "Capture     always: the microphone is open all the time"
        assert shown[2].startswith("Heard       loudest ")
        assert shown[3] == "Lost        nothing"
        assert shown[4].startswith(f"Verdict     {verdict}: ")
        assert max(map(len, shown)) <= 80
        assert any(line.startswith("To do  ") for line in shown) == bool(code)
        assert main(["audio", "test", "--seconds", "2", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["device"], found["capture"]) == (verdict, "Virtual Mic", "always")
    assert (found["seconds"], found["lost_s"], found["silent"]) == (2.0, 0.0, verdict == "silent")
    assert bool(found["advice"]) == bool(code)


def test_the_verdict_on_one_that_cannot_be_opened(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["audio.open"] = REFUSED
    assert main(["audio", "test"]) == 4
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Verdict unavailable: {REFUSED.message}" in shown
    assert "Heard" not in shown
    assert main(["audio", "test", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["detail"]) == ("unavailable", REFUSED.message)
    runner.answers["audio.open"] = RpcError(-32601, "there is no method 'audio.open'")
    assert main(["audio", "test"]) == 4
    assert capsys.readouterr().err == "utter: there is no method 'audio.open'\n"


def test_a_fault_while_it_listens(
    runner: FakeRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("utter_runner.cli.microphone.PATIENCE_S", 0.1)
    runner.events = [{"event": "audio", "state": "fault", "detail": "The device is gone."}]
    with FakeMicrophone(runner, SAID):
        assert main(["audio", "test", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "fault"
    # What is over is no verdict on what is heard.
    runner.events.append({"event": "audio", "state": "recovered", "detail": "Audio comes again."})
    with FakeMicrophone(runner, SAID):
        assert main(["audio", "test", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["verdict"] == "fine"
    assert "The device is gone.\nutter: Audio comes again.\n" in told.err
    runner.events = []
    with FakeMicrophone(runner, b""):
        assert main(["audio", "test", "--seconds", "1", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "nothing"


def test_a_listener_that_is_slow_has_missed_nothing(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("utter_runner.cli.microphone.time", clock)
    # Three seconds of audio come at once, of which one is wanted.
    with (
        FakeMicrophone(runner, bytes(4 * 48_000), block=48_000),
        Client.connect(str(runner.path)) as client,
        Interrupts() as interrupts,
        Microphone(client, print) as microphone,
    ):
        for _ in microphone.listen(1, interrupts):
            clock.now += 2.0
    assert (microphone.heard, microphone.late_s) == (16_000, 0.0)


def test_what_was_due_and_did_not_come_is_late(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("utter_runner.cli.microphone.time", clock)
    with (
        FakeMicrophone(runner, SAID),
        Client.connect(str(runner.path)) as client,
        Interrupts() as interrupts,
        Microphone(client, print) as microphone,
    ):
        for _ in microphone.listen(10, interrupts):
            clock.now = 1000.0
    # A thread goes on writing while it ends; a thousand seconds of audio it has not written.
    assert 900.0 < microphone.late_s < 1000.0


def test_what_was_overwritten_and_what_was_late_are_lost_both(
    runner: FakeRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gappy(Microphone):
        def listen(self, seconds: float | None, interrupts: Interrupts) -> Iterator[Piece]:
            for piece in super().listen(seconds, interrupts):
                yield piece._replace(lost=self.rate)
                break
            self.late_s = 0.5

    monkeypatch.setattr("utter_runner.cli.trial.Microphone", Gappy)
    with FakeMicrophone(runner, SAID):
        assert main(["audio", "test", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["lost_s"] == 1.5


@pytest.mark.parametrize("seconds", ["0", "61", "x"])
def test_bounds_of_the_time(runner: FakeRunner, capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert main(["audio", "test", "--seconds", seconds]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_ctrl_c_gives_the_test_up(runner: FakeRunner) -> None:
    def never(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        return {"open": True, "device": DEVICE}

    with FakeMicrophone(runner, b""):
        runner.answers["audio.open"] = never
        with Terminal([*UTTER, "audio", "test", "--seconds", "60"]) as terminal:
            terminal.wait_for("Speak now")
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.finish()[0] == 130
        assert "Verdict" not in terminal.shown
