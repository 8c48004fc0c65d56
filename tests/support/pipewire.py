"""The headless PipeWire of scripts/headless_audio.py for tests, with what happens to a sound server in real life."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
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

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._plugged: dict[str, subprocess.Popen[bytes]] = {}

    def plug(self, name: str) -> None:
        """Adds a microphone; what is played into NAME_in comes out of it. It is not chosen as the default."""
        sides = {"capture": (f"{name}_in", "Audio/Sink"), "playback": (name, "Audio/Source")}
        props = [
            word
            for side, (node, kind) in sides.items()
            for word in (f"--{side}-props", json.dumps({"node.name": node, "media.class": kind}))
        ]
        # Its output would tell of every server that is killed.
        self._plugged[name] = subprocess.Popen(
            ["pw-loopback", "--channels", "1", *props],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait(lambda: {name, f"{name}_in"} <= set(self.nodes()), f"{name} is there")

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
        self.wait(lambda: json.dumps(name).encode() in self._metadata(), f"{name} is the default source")

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
def pipewire_bed(tmp_path: Path) -> Iterator[Any]:
    """A running `Bed` in tmp_path; while it lasts, this process's environment points to it, too."""
    root = tmp_path / "pipewire"
    root.mkdir()
    with Bed(root) as audio, mock.patch.dict(os.environ, audio.environment):
        yield audio
