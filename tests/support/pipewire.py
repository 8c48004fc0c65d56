"""The headless PipeWire of scripts/headless_audio.py for tests, with what happens to a sound server in real life."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "headless_audio.py"
_PATIENCE = 20.0
_CHANNELS = {1: ["MONO"], 2: ["FL", "FR"]}


def _load_script() -> Any:
    spec = importlib.util.spec_from_file_location("headless_audio", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    return module


headless_audio = _load_script()
HeadlessAudio = headless_audio.HeadlessAudio
MICROPHONE: str = headless_audio.MICROPHONE

missing = [program for program in ("pipewire", "wireplumber", "pw-play") if shutil.which(program) is None]
"""Programs that are not installed; a test that needs the bed is skipped if there are any."""


class Bed(HeadlessAudio):  # type: ignore[misc]  # a script's class
    """The bed, with microphones that come and go."""

    _start_seconds = 40.0

    def __init__(self, root: Path, *, microphone: bool = True) -> None:
        super().__init__(root, microphone=microphone)
        self._plugged: dict[str, subprocess.Popen[bytes]] = {}

    def plug(self, name: str, *, rate: int = 48_000, channels: int = 1) -> None:
        """Adds a microphone; what is played into NAME_in comes out of it. It is the default if there is no other."""
        # Above the monitor of the speaker, and below the microphone that is always there.
        form = {"audio.rate": rate, "audio.position": _CHANNELS[channels], "priority.session": 2500}
        sides = {"capture": (f"{name}_in", "Audio/Sink"), "playback": (name, "Audio/Source")}
        props = [
            word
            for side, (node, kind) in sides.items()
            for word in (f"--{side}-props", json.dumps({"node.name": node, "media.class": kind, **form}))
        ]
        # Its output would tell of every server that is killed.
        self._plugged[name] = subprocess.Popen(
            ["pw-loopback", "--channels", str(channels), *props],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait(lambda: {name, f"{name}_in"} <= set(self.nodes()), f"{name} is there")
        # The session manager has looked at it when it has a default that is a microphone.
        self.wait(lambda: self.default_source() in self._plugged.keys() | {MICROPHONE}, "there is a default source")

    def unplug(self, name: str) -> None:
        """Takes a microphone away that `plug` added."""
        process = self._plugged.pop(name)
        process.kill()
        process.wait()
        self.wait(lambda: name not in self.nodes(), f"{name} is gone")

    def destroy(self, name: str) -> None:
        """Removes a node out of the graph while its maker still lives, as happens when a driver fails."""
        number = next(one["id"] for one in self.objects("Node") if one["info"]["props"].get("node.name") == name)
        subprocess.run(
            ["pw-cli", "destroy", str(number)],
            env={**os.environ, **self.environment},
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
        )
        self.wait(lambda: name not in self.nodes(), f"{name} is gone")

    def choose(self, name: str) -> None:
        """Makes a microphone the default source, as a desktop's sound settings do."""
        key = "default.configured.audio.source"
        subprocess.run(
            ["pw-metadata", "0", key, json.dumps({"name": name}), "Spa:String:JSON"],
            env={**os.environ, **self.environment},
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
        )
        self.wait(lambda: self.default_source() == name, f"{name} is the default source")

    def default_source(self) -> str:
        """The name of what is recorded by who chooses nothing."""
        found = re.search(rb'value:\'\{"name":"([^"]*)"', self._metadata())
        return found[1].decode() if found else ""

    def lose_session_manager(self) -> None:
        """Kills WirePlumber, and with it the microphones, for it owns the devices of a real machine."""
        self.kill_session_manager()
        for name in [*self._plugged]:
            self.unplug(name)

    def regain_session_manager(self, microphone: str) -> None:
        """Starts it again; a microphone appears."""
        self.restart()
        self.plug(microphone)

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind, such as "Node", as pw-dump shows them."""
        shown = subprocess.run(
            ["pw-dump"],
            env={**os.environ, **self.environment},
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
        )
        found: dict[int, dict[str, Any]] = {}
        text, decoder = shown.stdout.decode().strip(), json.JSONDecoder()
        while text:
            # What changes meanwhile comes in lists of its own; what is removed has no info any more.
            some, end = decoder.raw_decode(text)
            found |= {one["id"]: one for one in some}
            text = text[end:].strip()
        wanted = f"PipeWire:Interface:{kind}"
        return [one for one in found.values() if one.get("type") == wanted and one.get("info")]

    def nodes(self) -> dict[str, str]:
        """The media class of each node by its name."""
        shown = [one["info"]["props"] for one in self.objects("Node")]
        return {one["node.name"]: one.get("media.class", "") for one in shown}

    def recorders(self) -> list[str]:
        """The streams that record something, and so what a desktop's microphone indicator shows."""
        return [name for name, kind in self.nodes().items() if kind == "Stream/Input/Audio"]

    def wait(self, happened: Callable[[], object], what: str) -> None:
        """Returns when something is so, which PipeWire tells only who asks."""
        deadline = time.monotonic() + _PATIENCE
        while not happened():
            assert time.monotonic() < deadline, f"not within {_PATIENCE:g} s: {what}"
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends everything."""
        for process in self._plugged.values():
            process.kill()
            process.wait()
        self._plugged.clear()
        super().stop()


@contextlib.contextmanager
def pipewire_bed(tmp_path: Path, *, microphone: bool = True) -> Iterator[Any]:
    """A running `Bed` in tmp_path; while it lasts, this process's environment points to it, too.

    Without the microphone that is always there, those that are plugged are the only ones.
    """
    root = tmp_path / "pipewire"
    root.mkdir()
    with Bed(root, microphone=microphone) as audio, mock.patch.dict(os.environ, audio.environment):
        yield audio
