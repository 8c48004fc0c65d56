"""The real daemon on a real PipeWire that has a bad day, and what it keeps open when it has nothing to hear."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import audio
from support.daemon import Daemon, environment
from support.pipewire import missing, pipewire_bed
from utter_runner.voice.cues import CUE_RATE, cue_pcm
from utter_runner.voice.players import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_sdk.client import Client, Subscription

STT = Path(__file__).parents[1] / "support" / "counting_stt.py"
CONFIG = """
[[plugin]]
id = "commands"
[[plugin]]
id = "desktop"
[plugin.settings]
dry_run = true
[[plugin]]
id = "ear"
entrypoint = ['{python}', '{stt}', 'ear', 'heard']
[audio]
source = "{source}"
capture = "{capture}"
[hotkeys]
enabled = false
[voice]
# A machine that is busy for a moment is not to look like a sound server that stands still.
open_ms = 8000
stall_ms = 3000
zeros_ms = 5000
"""

pytestmark = [
    pytest.mark.pipewire,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
    pytest.mark.timeout(300),
]


class Cues:
    """What the daemon plays, on its way through programs that keep it and play it, too.

    A sound that one program cannot play is tried with the next, and is the same file: it is kept once.
    """

    def __init__(self, directory: Path) -> None:
        self._played = directory / "played"
        self._played.mkdir()
        self.programs = directory / "programs"
        self.programs.mkdir()
        for name in filter(shutil.which, PROGRAMS):
            script = (
                f'#!/bin/sh\nfor sound; do :; done\ncp "$sound" {self._played}/$$.part\n'
                f'mv {self._played}/$$.part "{self._played}/$(stat -Lc %i "$sound").wav"\n'
                f'exec {shutil.which(name)} "$@"\n'
            )
            (self.programs / name).write_text(script)
            (self.programs / name).chmod(0o755)

    def count(self, name: Any) -> int:
        sound = audio.wav(audio.floats(cue_pcm(name)), CUE_RATE, encoding=3, bits=32)[44:]
        return sum(path.read_bytes()[44:].startswith(sound) for path in self._played.glob("*.wav"))

    def wait(self, name: Any, count: int) -> None:
        deadline = time.monotonic() + 20
        while self.count(name) < count:
            assert time.monotonic() < deadline, f"the {name} cue was played {self.count(name)} times, not {count}"
            time.sleep(0.01)
        assert self.count(name) == count


class Spoken:
    """The daemon with a microphone, and somebody who speaks."""

    def __init__(self, directory: Path, bed: Any, client: Client, events: Subscription, cues: Cues) -> None:
        self.bed, self.client, self.cues = bed, client, cues
        self._events = events
        self._seen: list[dict[str, Any]] = []
        self._told = 0
        self._recording = audio.write_wav(directory / "spoken.wav", audio.babble(1))

    def press(self) -> str:
        return str(self.client.call("ptt.press", {}, timeout=10)["session"])

    def release(self) -> None:
        self.client.call("ptt.release", {}, timeout=10)

    def report(self, session: str) -> dict[str, Any]:
        for number in count():
            event = self._event(number)
            if event["event"] == "report" and event["report"]["session"] == session:
                return dict(event["report"])
        raise AssertionError

    def say(self) -> dict[str, Any]:
        """One whole session, with sound."""
        session = self.press()
        assert self.bed.play(self._recording).wait(timeout=60) == 0
        self.release()
        return self.report(session)

    def until(self, state: str, detail: str = "") -> dict[str, Any]:
        """The next that is told of the microphone with this state and text. A server that starts may fail again."""
        for number in count(self._told):
            event = self._event(number)
            if event["event"] == "audio" and event["state"] == state and detail in event["detail"]:
                self._told = number + 1
                return event
        raise AssertionError

    def _event(self, number: int) -> dict[str, Any]:
        while len(self._seen) <= number:
            self._seen.append(self._events.get(60))
        return self._seen[number]

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.client.call("runner.status", {}, timeout=10)["audio"])


@contextmanager
def spoken(directory: Path, source: str, capture: str) -> Iterator[Spoken]:
    cues = Cues(directory)
    with pipewire_bed(directory) as bed:
        path = f"{cues.programs}:{os.environ['PATH']}"
        env = {**environment(directory), **bed.environment, "PATH": path}
        config = CONFIG.format(python=sys.executable, stt=STT, source=source, capture=capture)
        daemon = Daemon(directory, config, env=env, quiet=False)
        daemon.socket = Path(bed.environment["XDG_RUNTIME_DIR"]) / "utter" / "runner.sock"
        with daemon, daemon.client() as client, daemon.client() as watcher:
            for plugin in ("commands", "desktop", "ear"):
                daemon.wait_plugin(plugin, "ready")
            events = watcher.subscribe("runner.events")
            state = next(events)["status"]["audio"]
            one = Spoken(directory, bed, client, events, cues)
            if capture == "always" and not state["open"]:
                one.until("open")
            yield one


@pytest.mark.parametrize("source", ["sounddevice", "pw-record"])
def test_every_fault_is_told_heard_once_and_over_without_a_restart(tmp_path: Path, source: str) -> None:
    with spoken(tmp_path, source, "always") as one:
        assert one.say()["outcome"] == "done"
        assert one.cues.count("error") == 0

        # The sound server dies while somebody speaks.
        session = one.press()
        one.bed.kill()
        assert one.until("fault")["detail"]
        report = one.report(session)
        assert (report["outcome"], bool(report["detail"])) == ("unavailable", True)
        one.release()
        one.cues.wait("error", 1)
        one.bed.restart()
        one.until("recovered")
        assert one.say()["outcome"] == "done"

        # It stands still while nobody does.
        one.bed.pause()
        one.until("fault", "for 3 s")
        assert not one.status["open"]
        one.cues.wait("error", 2)
        one.bed.resume()
        one.until("recovered")
        assert one.say()["outcome"] == "done"

        # Nothing but zeros: the recording goes on, and is not disturbed.
        session = one.press()
        one.until("fault", "nothing but silence")
        assert "nothing but silence" in one.status["detail"]
        assert one.cues.count("error") == 2
        voice = one.client.call("runner.status", {}, timeout=10)["voice"]
        assert (voice["session"], voice["state"]) == (session, "listening")
        one.release()
        assert one.report(session)["outcome"] == "nothing_heard"
        one.cues.wait("error", 3)
        assert one.say()["outcome"] == "done"
        one.until("recovered", "not silent any more")

        assert one.status["faults"] >= 3
        assert one.status["open"]
        assert one.cues.count("error") == 3


@pytest.mark.parametrize("source", ["sounddevice", "pw-record"])
def test_on_demand_nothing_records_but_while_the_key_is_held(tmp_path: Path, source: str) -> None:
    with spoken(tmp_path, source, "on-demand") as one:
        for _ in range(2):
            assert one.bed.recorders() == []
            assert not one.status["open"]
            assert "no pre-roll" in one.status["detail"]
            session = one.press()
            one.until("open")
            assert len(one.bed.recorders()) == 1
            assert one.status["open"]
            one.release()
            one.until("closed")
            one.bed.wait(lambda: not one.bed.recorders(), "nothing is recorded")
            assert one.report(session)["results"] == []
        assert one.say()["outcome"] == "done"
        one.until("closed")
        one.bed.wait(lambda: not one.bed.recorders(), "nothing is recorded")


def test_always_one_stream_records_and_one_only(tmp_path: Path) -> None:
    with spoken(tmp_path, "pw-record", "always") as one:
        assert one.status["detail"] == ""
        assert one.bed.recorders() == ["pw-record"]
        session = one.press()
        assert one.bed.recorders() == ["pw-record"]
        one.release()
        one.report(session)
        assert one.bed.recorders() == ["pw-record"]
