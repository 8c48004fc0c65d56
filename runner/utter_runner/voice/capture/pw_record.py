"""The microphone through `pw-record`, for machines without PortAudio.

Rules here: one child process per opening, which is killed when the source is closed.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import trio

from utter_runner.machine.pipewire import NodesUnknown
from utter_runner.voice.capture.program import Program, collect, deliver_frames, said
from utter_runner.voice.capture.resample import RATE
from utter_runner.voice.capture.source import SourceError
from utter_runner.voice.pipewire_nodes import read_nodes

if TYPE_CHECKING:
    from utter_runner.voice.capture.source import OnFrames

_MISSING = (
    "{program} is not installed, and the microphone is to be opened through it. Install PipeWire's command line"
    " programs (pipewire-bin or pipewire-utils) and coreutils, or set [audio] source to another one."
)
# Without these PipeWire records from its default source when the chosen one is not there, or goes away. The first is
# known to WirePlumber up to 0.4, the second to later ones.
_NO_OTHER = "{ node.dont-reconnect = true, node.dont-fallback = true }"


class PwRecordSource:
    """Raw frames from a pw-record child.

    Args:
        device: name or serial of the PipeWire node to record, and no other one; or nothing for the default source,
            which is followed when it changes.
    """

    live = True

    def __init__(self, device: str = "") -> None:
        self._device = device
        self._options: list[str] | None = None

    @property
    def description(self) -> str:
        """The node's name and how it is reached."""
        return f"{self._device or 'the default source'} (pw-record)"

    async def prepare(self) -> None:
        """Nothing to prepare: the program starts in milliseconds."""

    async def run(self, on_frames: OnFrames) -> None:
        """See `AudioSource.run`."""
        try:
            argv = await self._argv()
            await self._look_for_device()
            process = Program(argv)
        except OSError as error:
            raise SourceError(f"pw-record cannot be started: {error}.") from error
        try:
            complaint = await _pump(process, on_frames)
            code = await process.wait()
        finally:
            await process.end()
        raise SourceError(f"pw-record ended with exit status {code}{complaint}. Is PipeWire running?")

    async def aclose(self) -> None:
        """Nothing is kept between openings."""

    async def _argv(self) -> list[str]:
        for program in ("stdbuf", "pw-record"):
            if shutil.which(program) is None:
                raise SourceError(_MISSING.format(program=program), permanent=True)
        if self._options is None:
            self._options = await self._find_options()
        # Without stdbuf the C library holds frames back until 4 KiB are full.
        command = ["stdbuf", "-o0", "pw-record", "--rate", str(RATE), "--channels", "1", "--format", "f32"]
        return [*command, "--latency", "100ms", *self._options, "-"]

    async def _find_options(self) -> list[str]:
        """What depends on the version of the program."""
        done = await trio.run_process(["pw-record", "--help"], capture_stdout=True, capture_stderr=True, check=False)
        usage = done.stdout + done.stderr
        options = ["--target", self._device] if self._device else []
        if self._device and b"--properties" in usage:
            options += ["--properties", _NO_OTHER]
        # Newer versions write a file header to standard output unless they are told not to.
        return [*options, "--raw"] if b"--raw" in usage else options

    async def _look_for_device(self) -> None:
        """Raises SourceError if the chosen device is not there: pw-record would wait for it without a word."""
        if not self._device:
            return
        try:
            sources = (await read_nodes()).sources
        except NodesUnknown:
            # Then nobody but pw-record itself can say what is wrong.
            return
        if not any(self._device in {node.name, node.serial} for node in sources):
            there = ", ".join(node.name for node in sources) or "none"
            raise SourceError(
                f"There is no microphone {self._device!r}; it is opened when it is plugged in. PipeWire lists: {there}."
            )


async def _pump(process: Program, on_frames: OnFrames) -> str:
    """Delivers frames until the program closes its output; returns what it had to say, with a colon before it."""
    errors = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, process.stderr, errors)
        await deliver_frames(process.stdout, on_frames)
    return said(errors)
