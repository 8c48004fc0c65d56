"""The microphone through PortAudio (sounddevice), the usual source.

Rules here: PortAudio is never loaded into this process, for it can hang or spin past all help; it runs in
`portaudio_process.py`, a child process that is killed when the source is closed. One is kept that has the library
loaded and waits, because starting it takes longer than a person who has pressed the key should wait.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from utter_runner.voice.capture.program import Program, collect, deliver_frames, said
from utter_runner.voice.capture.source import SourceError

if TYPE_CHECKING:
    from utter_runner.voice.capture.source import OnFrames

# Without -P a file in the working directory could take the place of a module.
_PROCESS = (sys.executable, "-P", "-c", "from utter_runner.voice.capture.portaudio_process import main; main()")
_LONGEST_ANSWER = 1 << 18
_LISTING_SECONDS = 10.0

_held: set[str] = set()
"""Devices that are recorded without a sound server. PortAudio does not list hardware that is in use."""


class Inputs(msgspec.Struct, frozen=True, tag_field="answer", tag="inputs"):
    """The microphones that PortAudio lists.

    Args:
        names: each is a value of `[audio] device` that opens this device and no other.
        default: the one that is opened if none is named; None if there is none.
        chosen: the one that `[audio] device` comes to; None if it is none of these, or could be several.
    """

    names: list[str]
    default: str | None
    chosen: str | None


class _Opened(msgspec.Struct, frozen=True, tag_field="answer", tag="opened"):
    """A stream: the rate and channels of it, whether there was a sound server, and the device unless it is that."""

    format: tuple[int, int]
    server: bool
    device: str | None


class _Refused(msgspec.Struct, frozen=True, tag_field="answer", tag="refused"):
    """Why there is nothing else, and whether there was a sound server."""

    error: str
    permanent: bool
    server: bool


_Answer = _Opened | Inputs | _Refused
_ANSWERS: msgspec.json.Decoder[_Answer] = msgspec.json.Decoder(_Answer)


class PortAudioSource:
    """Frames from a PortAudio stream; a device that refuses 16 kHz mono is recorded as it wants and resampled.

    Args:
        device: a part of the device's name as PortAudio lists it, or nothing for the sound server's default source.
    """

    live = True

    def __init__(self, device: str = "") -> None:
        self._device = device
        self._ready: Program | None = None
        # What one opening leaves to the next.
        self._accepted: tuple[int, int] | None = None
        self._served = False

    @property
    def description(self) -> str:
        """The device's name and how it is reached."""
        return f"{self._device or 'the default source'} (PortAudio)"

    async def prepare(self) -> None:
        """Starts the process, so that the next opening finds it with its library loaded."""
        await self._discard_ended()
        if self._ready is None:
            # Whoever opens it is told.
            with contextlib.suppress(OSError):
                self._ready = Program(_PROCESS)

    async def aclose(self) -> None:
        """See `AudioSource.aclose`."""
        program, self._ready = self._ready, None
        if program is not None:
            await program.end()

    async def run(self, on_frames: OnFrames) -> None:
        """See `AudioSource.run`."""
        await self._discard_ended()
        program, self._ready = self._ready or _start(), None
        try:
            opened, frames = await self._open(program)
            held = {opened.device} if opened.device else set()
            _held.update(held)
            try:
                await deliver_frames(program.stdout, on_frames, frames)
            finally:
                _held.difference_update(held)
            raise await self._end_of(program)
        finally:
            if program is not self._ready:
                await program.end()

    async def _open(self, program: Program) -> tuple[_Opened, bytes]:
        """Returns the answer, and what came of the frames with it."""
        # The device may be another one when it did not take what it took before.
        accepted, self._accepted = self._accepted, None
        answer, frames = await _ask(program, {"open": self._device, "format": accepted, "server": self._served})
        if isinstance(answer, _Opened):
            self._accepted, self._served = answer.format, answer.server
            return answer, frames
        if isinstance(answer, _Refused):
            self._served = answer.server
            if not answer.permanent:
                # It is as good as a new one.
                self._ready = program
            raise SourceError(answer.error, permanent=answer.permanent)
        raise await self._end_of(program) if answer is None else _junk(answer)

    async def _end_of(self, program: Program) -> SourceError:
        """Why there is no more, of a program that has closed its output."""
        code, complaint = await _last_words(program)
        if code == 0:
            return SourceError(f"The audio server closed the stream from {self.description}{complaint}.")
        return _death(code, complaint)

    async def _discard_ended(self) -> None:
        if self._ready is not None and self._ready.ended:
            await self.aclose()


async def list_inputs(device: str) -> Inputs:
    """List the microphones that there are now; takes a fraction of a second.

    Args:
        device: as `PortAudioSource` takes it.

    Raises:
        SourceError: PortAudio cannot be used, or does not answer.
    """
    program = _start()
    try:
        with trio.fail_after(_LISTING_SECONDS):
            answer, _ = await _ask(program, {"list": device})
            if answer is None:
                raise _death(*await _last_words(program))
    except trio.TooSlowError:
        raise SourceError(
            f"PortAudio has not listed the microphones for {_LISTING_SECONDS:g} s; the sound server may hang."
        ) from None
    finally:
        await program.end()
    if isinstance(answer, _Refused):
        raise SourceError(answer.error, permanent=answer.permanent)
    if not isinstance(answer, Inputs):
        raise _junk(answer)
    for name in _held.difference(answer.names):
        answer = Inputs([*answer.names, name], answer.default, name)
    return answer


def _start() -> Program:
    try:
        return Program(_PROCESS)
    except OSError as error:
        raise SourceError(f"The program that records cannot be started: {error}.") from error


async def _ask(program: Program, request: dict[str, Any]) -> tuple[_Answer | None, bytes]:
    """Returns the answer, or None if the program ends instead, and what came after it."""
    got = b""
    # Who has ended cannot be told anything; the end of its output follows.
    with contextlib.suppress(trio.BrokenResourceError):
        await program.stdin.send_all(msgspec.json.encode(request) + b"\n")
    while b"\n" not in got:
        piece = await program.stdout.receive_some()
        if not piece:
            return None, b""
        got += piece
        if len(got) > _LONGEST_ANSWER:
            raise _junk(got)
    line, _, rest = got.partition(b"\n")
    try:
        return _ANSWERS.decode(line), rest
    except msgspec.MsgspecError:
        raise _junk(line) from None


def _junk(answer: object) -> SourceError:
    return SourceError(f"The program that records has answered with something else: {str(answer)[:100]}")


async def _last_words(program: Program) -> tuple[int, str]:
    """Returns the exit status of a program that ends, and what it complained, with a colon before it."""
    code = await program.wait()
    tail = bytearray()
    await collect(program.stderr, tail)
    return code, said(tail)


def _death(code: int, complaint: str) -> SourceError:
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
    return SourceError(f"The program that records has ended {how}{complaint}.")
