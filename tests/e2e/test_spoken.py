"""From speech to a policy-checked action: real PipeWire, real daemon, real plugins, real model."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.audio import floats, write_wav
from support.daemon import Daemon, environment
from support.pipewire import missing, pipewire_bed
from utter_runner.voice.capture.resample import wav_to_pcm
from utter_sdk.client import Client

AUDIO = Path(__file__).parents[1] / "data" / "audio" / "en"
NEXT = AUDIO / "recorded_next.wav"
NO_COMMAND = AUDIO / "recorded_oov_1.wav"

PLUGINS = """
[[plugin]]
id = "commands"
[[plugin]]
id = "whisper"
[[plugin]]
id = "desktop"
[plugin.settings]
dry_run = true
"""
VOICE = """
[audio]
source = "{source}"
capture = "{capture}"
[hotkeys]
enabled = false
[voice]
# A machine that is too busy to deliver audio in time is no fault, nor are the zeros while nothing is played.
open_ms = 8000
stall_ms = {stall_ms}
zeros_ms = 60000
"""

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


def voice_config(source: str, capture: str, *, stall_ms: int = 60_000) -> str:
    return VOICE.format(source=source, capture=capture, stall_ms=stall_ms)


def plugin(client: Client, name: str) -> dict[str, Any]:
    plugins = client.call("runner.plugins", {}, timeout=10)["plugins"]
    return next(one for one in plugins if one["id"] == name)


def wait_for_model(client: Client, epoch: int = 1) -> None:
    """Return once the recogniser has loaded its model."""
    events = client.subscribe("runner.events")
    for event in events:
        plugins = event["status"]["plugins"] if event["event"] == "state" else [event.get("plugin", {})]
        if any(one.get("id") == "whisper" and one["status"] == "ready" and one["epoch"] >= epoch for one in plugins):
            events.close()
            return


def hold_and_say(client: Client, bed: Any, recording: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Hold the key while a recording is played into the microphone; return the report and all events."""
    events = client.subscribe("runner.events")
    next(events)
    session = client.call("ptt.press", {}, timeout=10)["session"]
    assert bed.play(recording).wait(timeout=60) == 0
    client.call("ptt.release", {}, timeout=10)
    seen = []
    for event in events:
        seen.append(event)
        if event["event"] == "report" and event["report"]["session"] == session:
            events.close()
            return event["report"], seen
    raise AssertionError("the events ended without a report")


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
@pytest.mark.parametrize(("source", "capture"), [("sounddevice", "always"), ("pw-record", "on-demand")])
def test_a_spoken_command_becomes_an_action(tmp_path: Path, source: str, capture: str) -> None:
    with pipewire_bed(tmp_path) as bed:
        runtime = Path(bed.environment["XDG_RUNTIME_DIR"])
        env = {**environment(tmp_path), **bed.environment}
        daemon = Daemon(tmp_path, PLUGINS + voice_config(source, capture), env=env, quiet=False)
        daemon.socket = runtime / "utter" / "runner.sock"
        with daemon, daemon.client() as client:
            wait_for_model(client)
            report, events = hold_and_say(client, bed, NEXT)
            assert report["outcome"] == "done", events
            assert "next" in report["heard"].lower()
            (result,) = report["results"]
            assert (result["op"], result["args"], result["decision"]) == ("media", {"command": "next"}, "allow")
            assert result["data"]["dry_run"] is True
            assert {"capture", "stt", "router", "policy", "action", "total"} <= set(report["latency_ms"])
            parts = sum(value for name, value in report["latency_ms"].items() if name != "total")
            # Between the parts others have their turn, for as long as the machine is busy.
            assert report["latency_ms"]["stt"] < parts <= report["latency_ms"]["total"] + 1
            names = [event["event"] for event in events]
            order = [names.index(name) for name in ("session", "heard", "plan", "decision", "result", "report")]
            assert order == sorted(order)
            # Speech that is no command does nothing.
            report, _ = hold_and_say(client, bed, NO_COMMAND)
            assert (report["outcome"], report["results"]) == ("not_understood", [])


def followed_by_silence(recording: Path, seconds: float, path: Path) -> Path:
    """The recording, and after it so much of what a quiet room sounds like."""
    spoken = floats(wav_to_pcm(recording.read_bytes()))
    quiet = np.random.default_rng(3).normal(0, 0.0003, round(seconds * 16_000))
    return write_wav(path, np.concatenate([spoken, quiet]))


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
def test_silence_ends_a_session_that_nobody_holds_and_no_other(tmp_path: Path) -> None:
    recording = followed_by_silence(NEXT, 3.0, tmp_path / "next.wav")
    with pipewire_bed(tmp_path) as bed:
        runtime = Path(bed.environment["XDG_RUNTIME_DIR"])
        env = {**environment(tmp_path), **bed.environment}
        daemon = Daemon(tmp_path, PLUGINS + voice_config("sounddevice", "always"), env=env, quiet=False)
        daemon.socket = runtime / "utter" / "runner.sock"
        with daemon, daemon.client() as client:
            assert client.call("runner.status", {}, timeout=10)["voice"]["vad"] == "silero"
            wait_for_model(client)
            events = client.subscribe("runner.events")
            next(events)
            session = client.call("ptt.toggle", {}, timeout=10)["session"]
            playing = bed.play(recording)
            seen = []
            for event in events:
                seen.append(event)
                if event["event"] == "report":
                    break
            assert playing.wait(timeout=60) == 0
            assert (seen[-1]["report"]["session"], seen[-1]["report"]["outcome"]) == (session, "done"), seen
            assert seen[-1]["report"]["results"][0]["args"] == {"command": "next"}
            moments = {event["state"]: event["at"] for event in seen if event["event"] == "session"}
            # It was not the maximum length.
            assert moments["recognising"] - moments["listening"] < 55
            session = client.call("ptt.press", {}, timeout=10)["session"]
            assert bed.play(recording).wait(timeout=60) == 0
            held = client.call("runner.status", {}, timeout=10)["voice"]
            assert (held["state"], held["session"]) == ("listening", session)
            assert client.call("ptt.release", {}, timeout=10)["session"] == session
            report = next(event["report"] for event in events if event["event"] == "report")
            assert (report["session"], report["outcome"]) == (session, "done")
            assert report["results"][0]["args"] == {"command": "next"}
            events.close()


def test_a_recording_is_a_command_without_any_network(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    config = tmp_path / "runner.toml"
    config.write_text(PLUGINS + voice_config("none", "on-demand"))
    command = [sys.executable, "-m", "utter_runner", "--config", str(config)]
    offline = ["unshare", "--net", "--map-root-user"] if os.getuid() else ["unshare", "--net"]
    if shutil.which("unshare") and subprocess.run([*offline, "true"], check=False, capture_output=True).returncode == 0:
        command = [*offline, *command]
    env = environment(runtime)
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            log = [next(line for line in process.stderr if ": ready on " in line)]
            with Client.connect(str(runtime / "utter" / "runner.sock")) as client:
                wav = base64.b64encode(NEXT.read_bytes()).decode()
                report = client.call("runner.listen", {"wav_b64": wav}, timeout=120)
                assert report["outcome"] == "done", log
                assert report["results"][0]["args"] == {"command": "next"}
            said = subprocess.run(
                [str(Path(sys.executable).with_name("utter")), "listen", "--file", str(NEXT), "--json"],
                env=env,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert said.returncode == 0, said.stderr
            assert json.loads(said.stdout)["outcome"] == "done"
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


def test_a_recogniser_killed_in_the_middle_costs_one_command(tmp_path: Path) -> None:
    with Daemon(tmp_path, PLUGINS) as daemon, daemon.client() as client, daemon.client() as other:
        wait_for_model(client)
        wav = base64.b64encode(NEXT.read_bytes()).decode()
        events = other.subscribe("runner.events")
        next(events)
        pid = plugin(client, "whisper")["pid"]
        os.kill(pid, signal.SIGSTOP)
        answers = client_in_background(daemon, wav)
        for event in events:
            if event["event"] == "session" and event["state"] == "recognising":
                break
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        next(event for event in events if event["event"] == "report")
        # Its death has told it, not the end of the time that a recogniser has.
        assert time.monotonic() - began < 20
        first = answers()
        assert first["outcome"] == "unavailable"
        assert "whisper" in first["detail"]
        wait_for_model(client, epoch=2)
        assert client.call("runner.listen", {"wav_b64": wav}, timeout=120)["outcome"] == "done"


def client_in_background(daemon: Daemon, wav: str) -> Any:
    """`runner.listen` in a process of its own; call the result to wait for the report."""
    code = (
        "import sys, json\n"
        "from utter_sdk.client import Client\n"
        "with Client.connect(sys.argv[1]) as client:\n"
        "    print(json.dumps(client.call('runner.listen', {'wav_b64': sys.stdin.read()}, timeout=120)))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(daemon.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def wait() -> dict[str, Any]:
        answer, _ = process.communicate(timeout=120)
        report: dict[str, Any] = json.loads(answer)
        return report

    assert process.stdin is not None
    process.stdin.write(wav)
    process.stdin.close()
    process.stdin = None
    return wait


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
def test_what_was_said_so_far_is_seen_while_the_key_is_held(tmp_path: Path) -> None:
    with pipewire_bed(tmp_path) as bed:
        env = {**environment(tmp_path), **bed.environment}
        daemon = Daemon(tmp_path, PLUGINS + voice_config("sounddevice", "always"), env=env, quiet=False)
        daemon.socket = Path(bed.environment["XDG_RUNTIME_DIR"]) / "utter" / "runner.sock"
        with daemon, daemon.client() as client:
            wait_for_model(client)
            with client.subscribe("runner.events") as events, client.subscribe("stt.partial") as partials:
                next(events)
                session = client.call("ptt.press", {}, timeout=10)["session"]
                assert bed.play(NEXT).wait(timeout=60) == 0
                # The key is held until something was understood.
                partial = partials.get(60)
                client.call("ptt.release", {}, timeout=10)
                seen = []
                while not seen or seen[-1]["event"] != "report":
                    seen.append(events.get(60))
            assert partial["session"] == session
            told = [event["text"] for event in seen if event["event"] == "partial"]
            assert told[0] == partial["text"]
            states = [event["event"] for event in seen if event["event"] in {"partial", "heard"}]
            assert states == [*["partial"] * len(told), "heard"]
            report = seen[-1]["report"]
            assert (report["session"], report["outcome"]) == (session, "done")
            assert "next" in report["heard"].lower()


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
def test_a_sound_server_that_dies_costs_one_command(tmp_path: Path) -> None:
    with pipewire_bed(tmp_path) as bed:
        runtime = Path(bed.environment["XDG_RUNTIME_DIR"])
        env = {**environment(tmp_path), **bed.environment}
        daemon = Daemon(tmp_path, PLUGINS + voice_config("sounddevice", "always", stall_ms=3000), env=env, quiet=False)
        daemon.socket = runtime / "utter" / "runner.sock"
        with daemon, daemon.client() as client, daemon.client() as watcher:
            wait_for_model(client)
            events = watcher.subscribe("runner.events")
            next(events)
            session = client.call("ptt.press", {}, timeout=10)["session"]
            bed.kill()
            report = next(event["report"] for event in events if event["event"] == "report")
            assert (report["session"], report["outcome"]) == (session, "unavailable")
            assert report["detail"]
            assert client.call("ptt.release", {}, timeout=10)["session"] == ""
            bed.restart()
            while not client.call("runner.status", {}, timeout=10)["audio"]["open"]:
                assert next(event for event in events if event["event"] == "audio")["state"] in {
                    "recovered",
                    "open",
                    "fault",
                }
            report, _ = hold_and_say(client, bed, NEXT)
            assert report["outcome"] == "done"
