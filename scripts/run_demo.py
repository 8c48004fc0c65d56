#!/usr/bin/env python3
"""The main job on real input: a recorded command is spoken into a microphone while the key is held.

    python scripts/run_demo.py [--wav FILE.wav] [--act]

Uses the PipeWire that runs; where there is none, a private headless one is started. Either way the recording enters
through a virtual microphone and takes the way that speech takes: capture, ring, recogniser, router, policy, action.
Without a desktop session, or without --act, actions only say what they would do.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from utter_runner.cli.lines import event_line
from utter_sdk.client import Client, RunnerUnavailable

ROOT = Path(__file__).resolve().parent.parent
HEADLESS = ROOT / "scripts" / "headless_audio.py"
RECORDING = ROOT / "tests" / "data" / "audio" / "en" / "recorded_next.wav"
MICROPHONE = "utter-demo-microphone"
_READY_SECONDS = 120.0
_INSIDE = "--inside"


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


def demo_config(directory: Path, *, act: bool, virtual: bool) -> str:
    """config.example.toml with a socket of its own, and without doing anything unless `act`."""
    text = (ROOT / "config.example.toml").read_text(encoding="utf-8")
    changes = {
        '# socket_path = "~/.local/run/utter.sock"': f'socket_path = "{directory}/runner.sock"',
        'level = "info"': 'level = "warning"',
    }
    if not act:
        changes["dry_run = false"] = "dry_run = true"
    if virtual:
        changes['source = "sounddevice"'] = 'source = "pw-record"'
        changes['# device = "pipewire"'] = f'device = "{MICROPHONE}"'
    for old, new in changes.items():
        if text.count(old) != 1:
            raise SystemExit(f"config.example.toml should hold {old!r} exactly once")
        text = text.replace(old, new)
    return text


def start_runner(stack: ExitStack, config: Path, socket_path: Path) -> Client:
    """Start the daemon; return a connected client once every plugin is up and the recogniser has loaded its model."""
    runner = subprocess.Popen([sys.executable, "-m", "utter_runner", "--config", str(config)])
    stack.callback(runner.wait)
    stack.callback(runner.send_signal, signal.SIGTERM)
    deadline = time.monotonic() + _READY_SECONDS
    client = None
    told = ""
    while time.monotonic() < deadline:
        if runner.poll() is not None:
            raise SystemExit(f"the runner ended with exit code {runner.returncode}")
        if client is None:
            try:
                client = stack.enter_context(Client.connect(str(socket_path)))
            except RunnerUnavailable:
                time.sleep(0.05)
                continue
        status = client.call("runner.status", {}, timeout=10)
        # "stopped" is what a plugin is before its first start.
        waiting = [
            f"{one['id']} ({one['detail'] or one['status'].replace('stopped', 'starting')})" for one in unready(status)
        ]
        if status["state"] == "ready" and not waiting and status["audio"]["open"]:
            return client
        if waiting and told != ", ".join(waiting):
            told = ", ".join(waiting)
            say(f"waiting for {told}")
        time.sleep(0.2)
    raise SystemExit(f"the runner did not become ready: {told or 'the microphone is not open'}")


def unready(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Plugins that the demo cannot do without and that are not ready yet."""
    needed = {"commands", "whisper", "desktop"}
    return [one for one in status["plugins"] if one["id"] in needed and one["status"] != "ready"]


def virtual_microphone(stack: ExitStack) -> str:
    """A microphone in the PipeWire of this desktop; returns the node to play into."""
    loopback = subprocess.Popen(
        [
            "pw-loopback",
            f"--capture-props=media.class=Audio/Sink node.name={MICROPHONE}-input",
            f"--playback-props=media.class=Audio/Source node.name={MICROPHONE}",
        ]
    )
    stack.callback(loopback.wait)
    stack.callback(loopback.terminate)
    return f"{MICROPHONE}-input"


def speak(client: Client, recording: Path, target: str) -> dict[str, Any]:
    """Hold the key, play the recording into the microphone, release; print what happens; return the report."""
    events = client.subscribe("runner.events")
    say(f"key down; playing {recording.name} into {target}")
    session = client.call("ptt.press", {}, timeout=10)["session"]
    subprocess.run(["pw-play", "--target", target, str(recording)], check=True)
    say("key up")
    client.call("ptt.release", {}, timeout=10)
    for event in events:
        if event["event"] in {"state", "plugin"}:
            continue
        say(f"  {event_line(event)}")
        report: dict[str, Any] = event.get("report", {})
        if report.get("session") == session:
            return report
    raise SystemExit("the runner ended in the middle of the session")


def run(recording: Path, *, act: bool, headless: bool) -> int:
    """Run the demo where there is a PipeWire; return the exit code."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="utter-demo-")))
        config = directory / "runner.toml"
        config.write_text(demo_config(directory, act=act, virtual=not headless), encoding="utf-8")
        target = "vmic_in" if headless else virtual_microphone(stack)
        client = start_runner(stack, config, directory / "runner.sock")
        hotkeys = client.call("runner.status", {}, timeout=10)["hotkeys"]
        where = "the desktop's shortcuts" if hotkeys["path"] == "portal" else ", ".join(hotkeys["devices"])
        live = f"live on {where}" if hotkeys["available"] else hotkeys["detail"]
        say(f"ready; hotkeys: {live}")
        report = speak(client, recording, target)
    return 0 if report["outcome"] == "done" else 1


def main(arguments: list[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wav", type=Path, default=RECORDING, help="what is said")
    parser.add_argument("--act", action="store_true", help="really do it (needs a desktop session)")
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.wav.is_file():
        parser.error(f"there is no file {options.wav}")
    desktop = bool(os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY"))
    if options.act and not desktop:
        parser.error("--act needs a desktop session, and neither WAYLAND_DISPLAY nor DISPLAY is set")
    runtime = os.environ.get("PIPEWIRE_RUNTIME_DIR") or os.environ.get("XDG_RUNTIME_DIR")
    if options.inside or (runtime and Path(runtime, "pipewire-0").is_socket()):
        return run(options.wav, act=options.act, headless=options.inside)
    say("no PipeWire runs here: starting a private headless one")
    command = [sys.executable, str(HEADLESS), "--", sys.executable, __file__, _INSIDE, "--wav", str(options.wav)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
