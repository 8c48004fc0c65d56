from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from utter_plugins.desktop.failure import Failure
from utter_plugins.desktop.volume import change_volume, parse_volume, volume_argv

if TYPE_CHECKING:
    from pathlib import Path

SINK = "@DEFAULT_AUDIO_SINK@"


@pytest.mark.parametrize(
    ("command", "percent", "expected"),
    [
        ("set", 50, ["wpctl", "set-volume", "--limit", "1.5", SINK, "50%"]),
        ("set", 0, ["wpctl", "set-volume", "--limit", "1.5", SINK, "0%"]),
        ("set", 150.0, ["wpctl", "set-volume", "--limit", "1.5", SINK, "150%"]),
        ("set", 12.5, ["wpctl", "set-volume", "--limit", "1.5", SINK, "12.5%"]),
        ("up", None, ["wpctl", "set-volume", "--limit", "1.5", SINK, "5%+"]),
        ("up", 10, ["wpctl", "set-volume", "--limit", "1.5", SINK, "10%+"]),
        ("down", None, ["wpctl", "set-volume", "--limit", "1.5", SINK, "5%-"]),
        ("mute", None, ["wpctl", "set-mute", SINK, "1"]),
        ("unmute", None, ["wpctl", "set-mute", SINK, "0"]),
        ("toggle_mute", None, ["wpctl", "set-mute", SINK, "toggle"]),
    ],
)
def test_arguments(command: Any, percent: float | None, expected: list[str]) -> None:
    assert volume_argv(command, percent) == expected


@pytest.mark.parametrize(("command", "percent"), [("set", None), ("set", 151), ("up", -1), ("set", float("nan"))])
def test_arguments_out_of_bounds(command: Any, percent: float | None) -> None:
    with pytest.raises(Failure, match=r"percent"):
        volume_argv(command, percent)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Volume: 0.55\n", (55, False)),
        ("Volume: 1.50 [MUTED]\n", (150, True)),
        ("Volume: 1\n", (100, False)),
        ("nothing", None),
    ],
)
def test_reading_back(text: str, expected: tuple[int, bool] | None) -> None:
    assert parse_volume(text) == expected


def fake_wpctl(directory: Path, body: str) -> dict[str, str]:
    program = directory / "wpctl"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


def test_a_change_is_made_and_read_back(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    env = fake_wpctl(tmp_path, f'echo "$@" >> {calls}\n[ "$1" = get-volume ] && echo "Volume: 0.50 [MUTED]"\nexit 0')
    assert change_volume(volume_argv("set", 50), env) == (50, True)
    assert calls.read_text().splitlines() == [f"set-volume --limit 1.5 {SINK} 50%", f"get-volume {SINK}"]


def test_an_error_of_wpctl_is_told(tmp_path: Path) -> None:
    env = fake_wpctl(tmp_path, 'echo "Could not connect to PipeWire" >&2; exit 2')
    with pytest.raises(Failure, match=r"wpctl says 'Could not connect to PipeWire'\. Check that PipeWire"):
        change_volume(volume_argv("mute", None), env)


def test_without_wpctl(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"wpctl is missing\. Install WirePlumber"):
        change_volume(volume_argv("mute", None), {"PATH": str(tmp_path)})
