"""A wake word in place of the key: real daemon, real plugins, real models; sound is played, nobody presses a key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.audio import write_wav
from support.daemon import Daemon, environment
from support.microphone import SPEECH, WORDS, pause, recording
from support.pipewire import missing, pipewire_bed

if TYPE_CHECKING:
    from support.audio import Samples
    from utter_sdk.client import Client

PLUGINS = """
[[plugin]]
id = "commands"
[[plugin]]
id = "whisper"
[[plugin]]
id = "wake"
[[plugin]]
id = "desktop"
[plugin.settings]
dry_run = true
"""
VOICE = """
[voice]
# The word lies within it, and is not heard all the same.
pre_roll_ms = 1500
max_ms = {max_ms}
# A machine that is too busy to deliver audio in time is no fault, nor are the zeros while nothing is played.
open_ms = 8000
stall_ms = 60000
zeros_ms = 60000
[hotkeys]
enabled = false
[audio]
capture = "{capture}"
source = "{source}"
{more}
"""

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


def spoken() -> Samples:
    """The wake word, and what is wanted."""
    word, command = recording(WORDS / "okay_nabu.wav"), recording(SPEECH / "recorded_next.wav")
    return np.concatenate([pause(0.7), word, pause(0.25), command, pause(0.5)])


def wait_ready(daemon: Daemon) -> None:
    """Return once there is a recogniser, and somebody listens for the word."""
    daemon.said("wake: listening for okay_nabu")
    for name in ("whisper", "commands", "desktop"):
        daemon.wait_plugin(name, "ready", timeout=120)


def check_next(events: Any) -> float:
    """Wait for the next session that begins, and see what became of it; for how many seconds it listened."""
    first = next(event for event in events if event.get("state") == "listening")
    began, seen = first["session"], []
    for event in events:
        seen.append(event)
        if event["event"] == "report" and event["report"]["session"] == began:
            break
    report = seen[-1]["report"]
    assert report["outcome"] == "done", seen
    heard = report["heard"].lower()
    # What was said after the word was heard from its beginning on, and of the word nothing.
    assert "next" in heard
    assert not any(part in heard for part in ("nabu", "okay", "ok,"))
    (result,) = report["results"]
    assert (result["op"], result["args"], result["decision"]) == ("media", {"command": "next"}, "allow")
    until: float = next(event["at"] for event in seen if event.get("state") == "recognising")
    return until - float(first["at"])


def ptt_state(client: Client) -> str:
    state: str = client.call("runner.status", {}, timeout=10)["voice"]["state"]
    return state


def test_a_word_begins_a_session_that_hears_what_follows(tmp_path: Path) -> None:
    # Said again and again, for it is not known when everything is ready.
    sound = np.concatenate([part for _ in range(30) for part in (spoken(), pause(4))])
    write_wav(tmp_path / "spoken.wav", sound)
    more = f'wav_path = "{tmp_path}/spoken.wav"\ncues = false'
    config = VOICE.format(capture="always", source="wav", max_ms=4_000, more=more) + PLUGINS
    with Daemon(tmp_path, config, quiet=False) as daemon:
        wait_ready(daemon)
        with daemon.client() as client, client.subscribe("runner.events") as events:
            next(events)
            check_next(events)


@pytest.mark.pipewire
@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
def test_a_word_that_a_microphone_hears_begins_a_session(tmp_path: Path) -> None:
    write_wav(tmp_path / "spoken.wav", spoken())
    with pipewire_bed(tmp_path) as bed:
        env = {**environment(tmp_path), **bed.environment}
        config = VOICE.format(capture="always", source="sounddevice", max_ms=60_000, more="") + PLUGINS
        daemon = Daemon(tmp_path, config, env=env, quiet=False)
        daemon.socket = Path(bed.environment["XDG_RUNTIME_DIR"]) / "utter" / "runner.sock"
        with daemon:
            wait_ready(daemon)
            with daemon.client() as client, client.subscribe("runner.events") as events:
                next(events)
                assert bed.play(SPEECH / "recorded_next.wav").wait(timeout=60) == 0
                assert ptt_state(client) == "idle"
                assert bed.play(tmp_path / "spoken.wav").wait(timeout=60) == 0
                # Nobody ends it but the silence after the command.
                assert check_next(events) < 30


def test_with_a_microphone_that_is_mostly_closed_it_says_so(tmp_path: Path) -> None:
    write_wav(tmp_path / "spoken.wav", spoken())
    more = f'wav_path = "{tmp_path}/spoken.wav"\ncues = false'
    config = VOICE.format(capture="on-demand", source="wav", max_ms=4_000, more=more) + '[[plugin]]\nid = "wake"\n'
    with Daemon(tmp_path, config, quiet=False) as daemon:
        plugin = daemon.wait_plugin("wake", "degraded")
        assert 'set [audio] capture = "always"' in plugin["detail"]
