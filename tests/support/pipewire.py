"""The headless PipeWire of scripts/headless_audio.py for tests, and WAV files to play and compare."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "headless_audio.py"


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

missing = [program for program in ("pipewire", "wireplumber", "pw-play") if shutil.which(program) is None]
"""Programs that are not installed; a test that needs the bed is skipped if there are any."""


@contextlib.contextmanager
def pipewire_bed(tmp_path: Path) -> Iterator[Any]:
    """A running `HeadlessAudio` in tmp_path; while it lasts, this process's environment points to it, too."""
    root = tmp_path / "pipewire"
    root.mkdir()
    with HeadlessAudio(root) as audio, mock.patch.dict(os.environ, audio.environment):
        yield audio
