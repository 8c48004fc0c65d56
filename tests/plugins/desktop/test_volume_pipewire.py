"""The volume against a real PipeWire and WirePlumber."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from support import pipewire
from utter_plugins.desktop.failure import Failure
from utter_plugins.desktop.volume import change_volume, volume_argv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from utter_plugins.desktop.volume import Command

pytestmark = [
    pytest.mark.pipewire,
    pytest.mark.skipif(
        bool(pipewire.missing) or shutil.which("wpctl") is None,
        reason=f"not installed: {', '.join(pipewire.missing) or 'wpctl'}",
    ),
]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with pipewire.pipewire_bed(tmp_path_factory.mktemp("volume")) as bed:
        yield {"PATH": "/usr/bin:/bin", **bed.environment}


def test_a_walk_through_all_commands(env: dict[str, str]) -> None:
    walk: list[tuple[Command, float | None, tuple[int, bool]]] = [
        ("set", 50, (50, False)),
        ("up", None, (55, False)),
        ("down", 20, (35, False)),
        ("set", 150, (150, False)),
        ("up", None, (150, False)),
        ("mute", None, (150, True)),
        ("mute", None, (150, True)),
        ("toggle_mute", None, (150, False)),
        ("toggle_mute", None, (150, True)),
        ("unmute", None, (150, False)),
        ("set", 0, (0, False)),
        ("down", None, (0, False)),
    ]
    for command, percent, expected in walk:
        assert change_volume(volume_argv(command, percent), env) == expected, (command, percent)


def test_without_a_sound_server(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"Could not connect to PipeWire.*Check that PipeWire and WirePlumber run"):
        change_volume(volume_argv("mute", None), {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)})
