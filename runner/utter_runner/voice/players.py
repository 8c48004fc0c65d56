"""The programs that play sound, for everything that the runner lets be heard: cues and speech.

Rules here: which programs there are, how each is told the device and the format, and in what words it failed, stands
here and nowhere else. A program of its own cannot take the runner down, and reaches whatever sound server there is.
PipeWire plays on the default output if the one that was asked for is not there, without a word, so it
is asked first; the other programs say so themselves. With aplay, the device is ALSA's name.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from utter_runner.machine.pipewire import NodesUnknown
from utter_runner.voice.pipewire_nodes import read_nodes

if TYPE_CHECKING:
    from utter_protocol.kinds import SpeechFormat

PROGRAMS = ("pw-play", "paplay", "aplay")
"""In the order in which they are tried."""
CHECKING = 0.05
"""Seconds that it takes at most, as a rule, to find out whether a chosen output is there."""
GRACE = 5.0
"""How many seconds after its end a sound may still be playing."""
TAIL = 0.05
"""Seconds of silence behind a sound: pw-play ends up to half a quantum before the last frame is heard."""
_PROBE_SECONDS = 2.0
_MOST_WORDS = 200
_DEVICE = {"pw-play": "--target={}", "paplay": "--device={}", "aplay": "--device={}"}
_QUICKLY = {"pw-play": ["--latency", "40ms"], "paplay": ["--latency-msec=40"], "aplay": ["-q"]}
# What each calls 16-bit integers and 32-bit floats.
_ENCODINGS = {
    "pw-play": {"s16le": "s16", "f32le": "f32"},
    "paplay": {"s16le": "s16le", "f32le": "float32le"},
    "aplay": {"s16le": "S16_LE", "f32le": "FLOAT_LE"},
}


class Players:
    """The programs, for one output.

    Args:
        device: the sound server's name for the output, or nothing for the default.
    """

    def __init__(self, device: str = "") -> None:
        self._device = device
        self._piping: list[str] | None = None

    def file_command(self, program: str, path: str) -> list[str]:
        """The command that plays a WAV file."""
        return [program, *_QUICKLY[program], *self._chosen(program), path]

    async def pipe_program(self) -> str | None:
        """The first program that is there and plays raw audio from a pipe."""
        for program in PROGRAMS:
            if shutil.which(program) and (program != "pw-play" or await self._pw_play_pipes() is not None):
                return program
        return None

    async def pipe_command(self, program: str, format_: SpeechFormat) -> list[str]:
        """The command that plays raw audio from its standard input."""
        rate, channels, encoding = str(format_.rate), str(format_.channels), _ENCODINGS[program][format_.encoding]
        if program == "pw-play":
            raw = await self._pw_play_pipes() or []
            shape = ["--rate", rate, "--channels", channels, "--format", encoding]
            return [program, *raw, *shape, *self._chosen(program), "-"]
        if program == "paplay":
            shape = ["--raw", f"--rate={rate}", f"--channels={channels}", f"--format={encoding}"]
            return [program, *shape, *self._chosen(program)]
        return [program, "-q", "-t", "raw", "-f", encoding, "-r", rate, "-c", channels, *self._chosen(program), "-"]

    async def problem(self, program: str) -> str:
        """Why a program cannot play, as far as it can be known before, in words behind its name; or nothing."""
        if shutil.which(program) is None:
            return "is not installed"
        if program != "pw-play" or not self._device:
            return ""
        try:
            sinks = (await read_nodes()).sinks
        except NodesUnknown:
            # pw-play itself says what is wrong.
            return ""
        if any(self._device in {sink.name, sink.serial} for sink in sinks):
            return ""
        there = sorted(sink.name for sink in sinks)
        return f'finds no output "{self._device}"; there is {", ".join(there) or "none"} ([audio] output_device)'

    def _chosen(self, program: str) -> list[str]:
        return [_DEVICE[program].format(self._device)] if self._device else []

    async def _pw_play_pipes(self) -> list[str] | None:
        """The options with which pw-play takes raw audio from a pipe; None if it does not.

        Since PipeWire 1.0 it has to be told; before, it takes nothing else.
        """
        if self._piping is None:
            said = await _output(["pw-play", "--help"])
            if "--raw" in said:
                self._piping = ["--raw"]
            elif "|-]" in said:
                self._piping = []
        return self._piping


def last_words(said: bytes) -> str:
    """What a program said, in one line that is short enough to be shown."""
    return " ".join(said.decode(errors="replace").split())[:_MOST_WORDS]


async def _output(command: list[str]) -> str:
    """What a program that ends at once says on both its outputs; nothing if it cannot be started or hangs."""
    with trio.move_on_after(_PROBE_SECONDS), suppress(OSError):
        done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
        return done.stdout.decode(errors="replace")
    return ""
