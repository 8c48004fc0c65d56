"""What the doctor says of a microphone without the runner, against a real PipeWire daemon."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from support import audio, pipewire
from utter_runner.operate.doctor.examine import examine
from utter_runner.operate.doctor.look import Options
from utter_runner.operate.doctor.outside import Machine
from utter_runner.operate.doctor.registry import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from utter_runner.operate.doctor.model import Finding

pytestmark = [
    pytest.mark.pipewire,
    pytest.mark.skipif(bool(pipewire.missing), reason=f"not installed: {', '.join(pipewire.missing)}"),
]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Any]:
    with pipewire.pipewire_bed(tmp_path) as bed:
        yield bed


def sound(tmp_path: Path) -> dict[str, Finding]:
    """What is found by those checks of sound that do not ask who else runs on this machine."""
    config = tmp_path / "runner.toml"
    config.touch()
    environ = {**os.environ, "HOME": str(tmp_path)}
    checks = {name: CHECKS[name] for name in ("sound.server", "sound.microphone")}
    report = examine(Machine(environ), Options(config=str(config)), checks, seconds=60)
    assert report.state == "down"
    return {finding.check: finding for finding in report.findings}


def test_a_microphone_that_hears_something(bed: Any, tmp_path: Path) -> None:
    recording = audio.write_wav(tmp_path / "spoken.wav", audio.babble(20))
    player = bed.play(recording)
    try:
        bed.wait(lambda: "Stream/Output/Audio" in bed.nodes().values(), "it plays")
        found = sound(tmp_path)
    finally:
        player.kill()
        player.wait()
    assert (found["sound.microphone"].status, found["sound.server"].status) == ("ok", "ok"), found
    assert pipewire.MICROPHONE in found["sound.microphone"].what
    assert "PipeWire " in found["sound.server"].what


def test_a_microphone_that_gives_zeros(bed: Any, tmp_path: Path) -> None:
    finding = sound(tmp_path)["sound.microphone"]
    assert finding.status == "broken"
    assert f"({pipewire.MICROPHONE}) is open and gives nothing but silence" in finding.what
    assert bed.recorders() == []


def test_no_microphone(tmp_path: Path) -> None:
    with pipewire.pipewire_bed(tmp_path, microphone=False):
        finding = sound(tmp_path)["sound.microphone"]
    assert (finding.status, finding.what) == ("broken", "PipeWire has no microphone.")


def test_a_daemon_that_was_killed(bed: Any, tmp_path: Path) -> None:
    bed.kill()
    found = sound(tmp_path)
    assert found["sound.server"].status == "broken"
    assert "PipeWire" in found["sound.server"].what
    # Of the microphone it says nothing that is not known.
    assert "sound.microphone" not in found


def test_a_daemon_that_stands_still(bed: Any, tmp_path: Path) -> None:
    bed.pause()
    try:
        found = sound(tmp_path)
    finally:
        bed.resume()
    assert found["sound.server"].status == "broken"
    assert "it hangs" in found["sound.server"].what
