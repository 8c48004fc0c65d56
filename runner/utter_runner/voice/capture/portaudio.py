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
# To be loaded takes 0.2 s, unless the machine is busy or the sound server hangs.
_LOADING_SECONDS = 5.0

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


class _Ready(msgspec.Struct, frozen=True, tag_field="answer", tag="ready"):
    """The library is loaded, or cannot be."""


_Answer = _Opened | Inputs | _Refused | _Ready
_ANSWERS: msgspec.json.Decoder[_Answer] = msgspec.json.Decoder(_Answer)


class PortAudioSource:
    """Frames from a PortAudio stream; a device that refuses 16 kHz mono is recorded as it wants and resampled.

    Args:
        device: a part of the device's name as PortAudio lists it, or nothing for the sound server's default source.
    """

    live = True

    def __init__(self, device: str = "") -> None:
        self._device = device
        self._ready: _Recorder | None = None
        # What one opening leaves to the next.
        self._accepted: tuple[int, int] | None = None
        self._served = False

    @property
    def description(self) -> str:
        """The device's name and how it is reached."""
        return f"{self._device or 'the default source'} (PortAudio)"

    async def prepare(self) -> None:
        """Starts the process and waits until its library is loaded, so that the next opening need not."""
        await self._discard_ended()
        if self._ready is None:
            try:
                self._ready = _start()
            except SourceError:
                # Whoever opens it is told.
                return
        try:
            with trio.move_on_after(_LOADING_SECONDS):
                await self._ready.loaded()
        except SourceError:
            await self.aclose()

    async def aclose(self) -> None:
        """See `AudioSource.aclose`."""
        recorder, self._ready = self._ready, None
        if recorder is not None:
            await recorder.program.end()

    async def run(self, on_frames: OnFrames) -> None:
        """See `AudioSource.run`."""
        await self._discard_ended()
        recorder, self._ready = self._ready or _start(), None
        try:
            opened = await self._open(recorder)
            held = {opened.device} if opened.device else set()
            _held.update(held)
            try:
                await deliver_frames(recorder.program.stdout, on_frames, recorder.rest)
            finally:
                _held.difference_update(held)
            raise await self._end_of(recorder)
        finally:
            if recorder is not self._ready:
                await recorder.program.end()

    async def _open(self, recorder: _Recorder) -> _Opened:
        # The device may be another one when it did not take what it took before.
        accepted, self._accepted = self._accepted, None
        answer = await recorder.ask({"open": self._device, "format": accepted, "server": self._served})
        if isinstance(answer, _Opened):
            self._accepted, self._served = answer.format, answer.server
            return answer
        if isinstance(answer, _Refused):
            self._served = answer.server
            if not answer.permanent:
                # It is as good as a new one.
                self._ready = recorder
            raise SourceError(answer.error, permanent=answer.permanent)
        raise await self._end_of(recorder) if answer is None else _junk(answer)

    async def _end_of(self, recorder: _Recorder) -> SourceError:
        """Why there is no more, of a process that has closed its output."""
        code, complaint = await recorder.last_words()
        if code == 0:
            return SourceError(f"The audio server closed the stream from {self.description}{complaint}.")
        return _death(code, complaint)

    async def _discard_ended(self) -> None:
        if self._ready is not None and self._ready.program.ended:
            await self.aclose()


async def list_inputs(device: str) -> Inputs:
    """List the microphones that there are now; takes a fraction of a second.

    Args:
        device: as `PortAudioSource` takes it.

    Raises:
        SourceError: PortAudio cannot be used, or does not answer.
    """
    recorder = _start()
    try:
        with trio.fail_after(_LISTING_SECONDS):
            answer = await recorder.ask({"list": device})
            if answer is None:
                raise _death(*await recorder.last_words())
    except trio.TooSlowError:
        raise SourceError(
            f"PortAudio has not listed the microphones for {_LISTING_SECONDS:g} s; the sound server may hang."
        ) from None
    finally:
        await recorder.program.end()
    if isinstance(answer, _Refused):
        raise SourceError(answer.error, permanent=answer.permanent)
    if not isinstance(answer, Inputs):
        raise _junk(answer)
    for name in _held.difference(answer.names):
        answer = Inputs([*answer.names, name], answer.default, name)
    return answer


def _start() -> _Recorder:
    try:
        return _Recorder(Program(_PROCESS))
    except OSError as error:
        raise SourceError(f"The program that records cannot be started: {error}.") from error


class _Recorder:
    """The process, and what it has said that nobody has taken yet.

    Attributes:
        program: the process.
        rest: what came after the last answer; frames, if a stream was opened.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.rest = b""
        self._loaded = False

    async def loaded(self) -> None:
        """Returns when its library is loaded, or it has ended. Raises SourceError if it says something else."""
        if not self._loaded:
            answer = await self._answer()
            if not isinstance(answer, _Ready | None):
                raise _junk(answer)
            self._loaded = True

    async def ask(self, request: dict[str, Any]) -> _Answer | None:
        """Returns the answer, or None if the process ends instead. Raises SourceError if it is none."""
        # Who has ended cannot be told anything; the end of its output follows.
        with contextlib.suppress(trio.BrokenResourceError):
            await self.program.stdin.send_all(msgspec.json.encode(request) + b"\n")
        await self.loaded()
        return await self._answer()

    async def last_words(self) -> tuple[int, str]:
        """Returns the exit status of one that ends, and what it complained, with a colon before it."""
        code = await self.program.wait()
        tail = bytearray()
        await collect(self.program.stderr, tail)
        return code, said(tail)

    async def _answer(self) -> _Answer | None:
        while b"\n" not in self.rest:
            if len(self.rest) > _LONGEST_ANSWER:
                raise _junk(self.rest)
            piece = await self.program.stdout.receive_some()
            if not piece:
                return None
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            return _ANSWERS.decode(line)
        except msgspec.MsgspecError:
            raise _junk(line) from None


def _junk(answer: object) -> SourceError:
    return SourceError(f"The program that records has answered with something else: {str(answer)[:100]}")


def _death(code: int, complaint: str) -> SourceError:
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
    return SourceError(f"The program that records has ended {how}{complaint}.")
