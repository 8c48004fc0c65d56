"""Running espeak-ng: its command line, what its text means to it, how it says that it failed.

Rules here: nothing of a text is ever a command: control characters (which carry espeak-ng's embedded commands) and its
phoneme brackets are taken apart; its exit code alone proves nothing.
"""

from __future__ import annotations

import os
import subprocess

PROGRAM = "espeak-ng"
MAX_TEXT = 4000
"""The longest text, in characters."""
VOICE = r"^[A-Za-z][A-Za-z0-9_-]*(?:[/+][A-Za-z0-9_-]+)*\Z"
"""Voices and their variants, such as "en-us", "gmw/en-GB" and "en+f3": nothing that leads out of its directory."""

_UTF8 = "1"
_SHOWN = 300


def find_program() -> str | None:
    """Return the path of espeak-ng, or None if it is not on PATH."""
    for directory in os.get_exec_path():
        path = f"{directory}/{PROGRAM}"
        if os.access(path, os.X_OK):
            return path
    return None


def clean(text: str) -> str:
    """Return `text` as plain words on one line."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    # "[[" would begin phonemes, as in "[[h@lou]]".
    while "[[" in printable:
        printable = printable.replace("[[", "[ [")
    return " ".join(printable.split())


class Speech:
    """One run of espeak-ng.

    Args:
        program: its path.
        voice: which voice.
        rate: words per minute.
        volume: 0 to 200.
        play: whether anything is heard; otherwise the sound is computed and thrown away.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, program: str, *, voice: str, rate: int, volume: int, play: bool) -> None:
        self._process = subprocess.Popen(
            [program, *options(voice, rate, volume), *([] if play else ["--stdout"])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def say(self, text: str) -> str:
        """Speak `text` to its end; return an empty string, or a sentence that says what went wrong."""
        _, errors = self._process.communicate(text.encode())
        return failure(self._process.returncode, errors)

    def kill(self) -> None:
        """End it now."""
        self._process.kill()


def options(voice: str, rate: int, volume: int) -> list[str]:
    """The command line's options."""
    return ["--stdin", "-b", _UTF8, "-v", voice, "-s", str(rate), "-a", str(volume)]


def failure(code: int, errors: bytes) -> str:
    """What an exit code and the program's stderr say went wrong, in a sentence; empty if nothing did."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines()]
    # Without an audio device it says "error: Host is down" and exits with 0.
    wrong = next((line for line in lines if line.lower().startswith("error")), "")
    if not code and not wrong:
        return ""
    what = wrong or next(filter(None, lines), "it said nothing")
    return f"espeak-ng failed (exit code {code}): {what[:_SHOWN]}"
