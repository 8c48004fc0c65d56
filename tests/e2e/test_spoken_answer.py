"""A confirmation that is answered with the key: real daemon, real plugins, a recogniser that hears what it is told."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from support.audio import babble, write_wav
from support.daemon import Daemon

if TYPE_CHECKING:
    from pathlib import Path

    from utter_sdk.client import Client

HEARS = """
import sys
from utter_sdk import Plugin
texts = iter(["volume up", "yes", "volume down", "no", "volume up", "next", "yes"])
plugin = Plugin("ear", version="1", kind="stt", provides=["stt.transcribe@1"])
plugin.method("stt.start")(lambda: None)
plugin.method("stt.finish")(lambda: {"text": next(texts)})
plugin.method("stt.cancel")(lambda: None)
plugin.run()
"""
CONFIG = """
[[plugin]]
id = "commands"
[[plugin]]
id = "desktop"
[plugin.settings]
dry_run = true
[[plugin]]
id = "ear"
entrypoint = ["{python}", "{ear}"]
[policy]
notify = false
[policy.ops.volume]
confirm = "always"
spoken = true
[voice]
spoken_confirm = true
vad = "off"
[audio]
source = "wav"
wav_path = "{wav}"
cues = false
[hotkeys]
enabled = false
"""


def speak(client: Client) -> str:
    """Hold the key for as long as it takes to be no tap."""
    session: str = client.call("ptt.press", {}, timeout=30)["session"]
    with client.subscribe("audio.level") as levels:
        for _ in range(6):
            levels.get(30)
    client.call("ptt.release", {}, timeout=30)
    return session


def test_the_key_answers_what_a_spoken_command_asks(tmp_path: Path) -> None:
    ear = tmp_path / "ear.py"
    ear.write_text(HEARS)
    config = CONFIG.format(python=sys.executable, ear=ear, wav=write_wav(tmp_path / "a.wav", babble(5)))
    with (
        Daemon(tmp_path, config, quiet=False) as daemon,
        daemon.client() as client,
        daemon.client() as screen,
        client.subscribe("runner.events") as events,
    ):
        daemon.wait_plugin("ear", "ready")
        # Somebody sees the question, and does not answer it: what is asked of a client that reads nothing stays open.
        screen.call("confirm.attend", {}, timeout=30)

        def wait_for(**wanted: object) -> dict[str, object]:
            while True:
                event = events.get(60)
                if wanted.items() <= event.items():
                    return event

        def report_of(session: str) -> tuple[str, str]:
            while True:
                report = events.get(60).get("report")
                if report is not None and report["session"] == session:
                    return report["outcome"], report["detail"]

        first = speak(client)
        wait_for(event="confirm", session=first, state="asked")
        assert report_of(speak(client)) == ("done", "You said yes.")
        assert report_of(first)[0] == "done"
        second = speak(client)
        wait_for(event="confirm", session=second, state="asked")
        assert report_of(speak(client)) == ("done", "You said no.")
        outcome, detail = report_of(second)
        assert (outcome, "declined" in detail) == ("blocked", True)
        third = speak(client)
        wait_for(event="confirm", session=third, state="asked")
        # Another command is no answer.
        said = report_of(speak(client))
        assert said[0] == "not_understood", said
        assert report_of(speak(client)) == ("done", "You said yes.")
        assert report_of(third)[0] == "done"
