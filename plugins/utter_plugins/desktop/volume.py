"""Sets the volume of the default output through WirePlumber's `wpctl`.

Rules here: one `wpctl` call for a change and one to read the result back; nothing is remembered between calls.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Literal

from .failure import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

SINK = "@DEFAULT_AUDIO_SINK@"
Command = Literal["set", "up", "down", "mute", "unmute", "toggle_mute"]
STEP_PERCENT = 5
MAX_PERCENT = 150
TIMEOUT_S = 5.0
_VOLUME_LINE = re.compile(r"Volume: (\d+(?:\.\d+)?)(?P<muted> \[MUTED\])?")


def volume_argv(command: Command, percent: float | None) -> list[str]:
    """The `wpctl` call for a command; `percent` is the level for set and the step for up and down (0 to 150).

    Raises:
        Failure: `set` without a percentage, or one out of bounds.
    """
    if percent is not None and not 0 <= percent <= MAX_PERCENT:
        raise Failure(f"The volume must be between 0 and {MAX_PERCENT} percent.")
    match command:
        case "set":
            if percent is None:
                raise Failure("Setting the volume needs a percentage, such as 50.")
            return ["wpctl", "set-volume", "--limit", "1.5", SINK, f"{percent:g}%"]
        case "up" | "down":
            step = STEP_PERCENT if percent is None else percent
            return ["wpctl", "set-volume", "--limit", "1.5", SINK, f"{step:g}%{'+' if command == 'up' else '-'}"]
        case "mute" | "unmute" | "toggle_mute":
            value = {"mute": "1", "unmute": "0", "toggle_mute": "toggle"}[command]
            return ["wpctl", "set-mute", SINK, value]


def parse_volume(text: str) -> tuple[int, bool] | None:
    """`(percent, muted)` out of what `wpctl get-volume` prints ("Volume: 0.55 [MUTED]"), or None."""
    match = _VOLUME_LINE.search(text)
    return None if match is None else (round(float(match[1]) * 100), match["muted"] is not None)


def change_volume(argv: list[str], env: Mapping[str, str]) -> tuple[int, bool] | None:
    """Run a change and read the volume back: `(percent, muted)`, or None when it cannot be read.

    Raises:
        Failure: wpctl is missing, reported an error, or did not answer.
    """
    _run(argv, env)
    return parse_volume(_run(["wpctl", "get-volume", SINK], env))


def _run(argv: list[str], env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise Failure("The volume cannot be changed: wpctl is missing. Install WirePlumber.") from error
    except OSError as error:
        raise Failure(f"The volume cannot be changed: wpctl does not start ({error.strerror}).") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(
            f"The volume cannot be changed: wpctl did not answer within {TIMEOUT_S:g} s. Check that PipeWire runs."
        ) from error
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())[:200] or f"exit status {done.returncode}"
        raise Failure(f"The volume cannot be changed: wpctl says {reason!r}. Check that PipeWire and WirePlumber run.")
    return done.stdout
