"""The microphone through `pw-record`, for machines without PortAudio.

Rules here: one child process per opening, in a session of its own so that a Ctrl-C meant for the runner does not reach
it; it is killed when the source is closed, for it has nothing to save.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import trio

from utter_runner.voice.capture.resample import RATE
from utter_runner.voice.capture.source import SourceError

if TYPE_CHECKING:
    from utter_runner.voice.capture.source import OnFrames

_FRAME = 4
_STDERR_TAIL = 2_000
_MISSING = (
    "{program} is not installed, and the microphone is to be opened through it. Install PipeWire's command line"
    " programs (pipewire-bin or pipewire-utils) and coreutils, or set [audio] source to another one."
)


class PwRecordSource:
    """Raw frames from a pw-record child.

    Args:
        device: name or serial of the PipeWire node to record, or nothing for the default source, which is followed when
            it changes. PipeWire takes the default source, too, when there is no node of that name.
    """

    live = True

    def __init__(self, device: str = "") -> None:
        self._device = device
        self._raw: list[str] | None = None

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
            process = await trio.lowlevel.open_process(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"pw-record cannot be started: {error}.") from error
        try:
            said = await _pump(process, on_frames)
            code = await process.wait()
        finally:
            await _end(process)
        raise SourceError(f"pw-record ended with exit status {code}{said}. Is PipeWire running?")

    async def _argv(self) -> list[str]:
        for program in ("stdbuf", "pw-record"):
            if shutil.which(program) is None:
                raise SourceError(_MISSING.format(program=program), permanent=True)
        if self._raw is None:
            usage = await trio.run_process(
                ["pw-record", "--help"], capture_stdout=True, capture_stderr=True, check=False
            )
            # Newer versions write a file header to standard output unless they are told not to.
            self._raw = ["--raw"] if b"--raw" in usage.stdout + usage.stderr else []
        target = ["--target", self._device] if self._device else []
        # Without stdbuf the C library holds frames back until 4 KiB are full.
        command = ["stdbuf", "-o0", "pw-record", "--rate", str(RATE), "--channels", "1", "--format", "f32"]
        return [*command, "--latency", "100ms", *target, *self._raw, "-"]


async def _pump(process: trio.Process, on_frames: OnFrames) -> str:
    """Delivers frames until the program closes its output; returns what it had to say, with a colon before it."""
    assert process.stdout is not None  # noqa: S101 - it was started with a pipe
    errors = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_collect, process.stderr, errors)
        rest = b""
        async for piece in process.stdout:
            data = rest + piece
            whole = len(data) // _FRAME * _FRAME
            if whole:
                on_frames(data[:whole])
            rest = data[whole:]
    said = " ".join(errors.decode(errors="replace").split())
    return f": {said}" if said else ""


async def _collect(stream: trio.abc.ReceiveStream | None, tail: bytearray) -> None:
    if stream is not None:
        async for piece in stream:
            tail += piece
            del tail[:-_STDERR_TAIL]


async def _end(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        process.kill()
        await process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                await stream.aclose()
