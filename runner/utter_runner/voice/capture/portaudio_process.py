"""The program in which PortAudio runs: it is told on stdin what to record, and writes frames to stdout.

PortAudio's ALSA thread may spin for ever, or a call into it never return, when the sound server goes away at an unlucky
moment. Nothing inside of a process ends that, so the process is one that can be killed.

A request is a line of JSON, `{"list": device}` or `{"open": device, "format": [rate, channels] | null, "server":
bool}`, and so is the answer: `Inputs`, `_Opened` or `_Refused` of `portaudio.py`. Before all of them comes `_Ready`.
What is opened is followed by frames (f32le, 16 kHz, mono) until the process ends, with status 0 if the sound server has
ended the stream; after another answer there may be another request.

Rules here: what is imported costs time at each start, so this imports next to nothing; the process ends with its stdin,
or with its parent, whatever its other threads do; what the C libraries print reaches nobody; PortAudio's thread never
waits for a reader. A stream is not closed: the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import queue
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from utter_runner.voice.capture.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType

RATE = 16_000
# Larger buffers than PortAudio's own choice: with "low" latency or a block size of 0 blocks are lost.
_BLOCKS_PER_SECOND = 50
_LATENCY = 0.1
_SERVERS = ("pipewire", "pulse")
# Of frames 4 s, for which the reader may be away before some are lost.
_PIPE_BYTES = 1 << 18
_ATOMIC = 4096
"""PIPE_BUF: so many bytes are written as a whole or not at all, so that no frame is torn."""
_PR_SET_PDEATHSIG = 1

# PaErrorCode (portaudio.h): the device is there and does not take this rate, number of channels or sample format.
_FORMAT_REFUSED = {-9998, -9997, -9994}


class Output:
    """Where frames go: a pipe that is never waited for.

    Args:
        fd: its writing end.

    Attributes:
        lost: how many pieces found no room.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self.lost = 0

    def start(self, begin: Callable[[], object], answer: dict[str, Any]) -> None:
        """Writes the answer when `begin` has returned, and before any frames that it brings forth."""
        with self._lock:
            begin()
            self.answer(answer)
            # Where the user has used up what pipes may hold it is 1 s.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            os.set_blocking(self._fd, False)

    def answer(self, answer: dict[str, Any]) -> None:
        """Writes an answer."""
        os.write(self._fd, json.dumps(answer).encode() + b"\n")

    def write(self, frames: Any) -> None:
        """Takes frames, on PortAudio's thread."""
        view = memoryview(frames)
        with self._lock:
            for at in range(0, len(view), _ATOMIC):
                try:
                    os.write(self._fd, view[at : at + _ATOMIC])
                except BlockingIOError:
                    self.lost += 1
                except BrokenPipeError:
                    os._exit(0)


class PortAudio:
    """The library, and at most one stream of it."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._library: ModuleType | None = None
        self._stale = False
        self._served = False
        # Nothing else keeps it, and what nobody keeps may be freed under PortAudio's thread.
        self._stream: Any = None

    def load(self) -> ModuleType:
        """Loads the library, which reads the list of devices, unless that is done.

        Raises:
            SourceError: it cannot be used.
        """
        if self._library is None:
            self._library = _load()
        return self._library

    def handle(self, request: dict[str, Any]) -> None:
        """Does what is asked for, and answers."""
        try:
            if "list" in request:
                self._output.answer(_list(self.load(), request["list"]))
            else:
                self._served = request["server"]
                self._open(request["open"], request["format"])
        except SourceError as error:
            self._stale = True
            self._output.answer(
                {
                    "answer": "refused",
                    "error": error.reason,
                    "permanent": error.permanent,
                    "server": self._served,
                }
            )

    def _open(self, device: str, known: list[int] | None) -> None:
        """Opens by the list of devices that there is; where that fails it may be old, and is read again."""
        sounddevice = self.load()
        if not self._stale:
            try:
                self._open_listed(sounddevice, device, known, old=True)
            except SourceError as error:
                if error.permanent:
                    raise
            else:
                return
        self._open_listed(self._refresh(sounddevice), device, None, old=False)

    def _refresh(self, sounddevice: ModuleType) -> ModuleType:
        try:
            sounddevice._terminate()  # noqa: SLF001 - the only way to have the devices listed again
            sounddevice._initialize()  # noqa: SLF001 - see above
        except sounddevice.PortAudioError as error:
            # Whether it is initialised now is not known; when it is imported again, it is.
            self._library = None
            sys.modules.pop("sounddevice", None)
            raise SourceError(f"PortAudio cannot be initialised: {error}.") from error
        return sounddevice

    def _open_listed(self, sounddevice: ModuleType, device: str, known: list[int] | None, *, old: bool) -> None:
        """Opens and starts the stream, and answers.

        Args:
            sounddevice: the library.
            device: as `PortAudioSource` takes it.
            known: the format that it took the last time.
            old: whether the list of devices may be.

        Raises:
            SourceError: there is no such device, or it cannot be opened.
        """
        try:
            name = self._choose(sounddevice, device, old=old)
            info = sounddevice.query_devices(name, "input")
            formats = [(known[0], known[1])] if known else _formats(info)
            stream, (rate, channels) = self._first_accepted(sounddevice, name, formats)
        except ValueError as error:
            raise SourceError(
                f"The microphone {device!r} cannot be chosen: {error}. PortAudio lists:"
                f" {', '.join(_names(sounddevice))}."
            ) from error
        except sounddevice.PortAudioError as error:
            raise SourceError(f"The microphone cannot be opened: {error}.") from error
        held = None if name in _SERVERS else _name_of(sounddevice, info)
        answer = {"answer": "opened", "format": [rate, channels], "server": self._served, "device": held}
        try:
            self._output.start(stream.start, answer)
        except sounddevice.PortAudioError as error:
            stream.close(ignore_errors=True)
            raise SourceError(f"The microphone cannot be opened: {error}.") from error
        self._stream = stream

    def _choose(self, sounddevice: ModuleType, device: str, *, old: bool) -> str | None:
        """Returns by which name a device is to be opened; None is PortAudio's own choice."""
        names = _names(sounddevice)
        if not names:
            raise SourceError(
                "PortAudio finds no microphone. Is the sound server running, and is its ALSA plug-in (pipewire-alsa"
                " or alsa-plugins-pulse) installed?"
            )
        server = _preferred(names)
        # Without a server PortAudio lists the hardware itself; whoever records from that keeps it from the server when
        # it comes back, and so from every program of the desktop.
        if not server and not device and (self._served or old):
            raise SourceError(
                "The sound server that was here is gone; start it again (systemctl --user start pipewire). What"
                f" PortAudio lists without it ({', '.join(names)}) is left to the server, unless [audio] device names"
                " it."
            )
        self._served |= server is not None
        return device or server

    def _first_accepted(
        self, sounddevice: ModuleType, device: str | None, formats: list[tuple[int, int]]
    ) -> tuple[Any, tuple[int, int]]:
        """Opens the stream in the first format that the device takes."""
        for rate, channels in formats:
            try:
                stream = sounddevice.RawInputStream(
                    samplerate=rate,
                    channels=channels,
                    dtype="float32",
                    device=device,
                    blocksize=rate // _BLOCKS_PER_SECOND,
                    latency=_LATENCY,
                    callback=self._callback(rate, channels),
                    finished_callback=self._finished,
                )
            except sounddevice.PortAudioError as error:
                if (rate, channels) == formats[-1] or _FORMAT_REFUSED.isdisjoint(error.args[1:2]):
                    raise
            else:
                return stream, (rate, channels)
        raise AssertionError("the last format either opens or raises")

    def _callback(self, rate: int, channels: int) -> Callable[[Any, int, Any, Any], None]:
        write = self._output.write
        if (rate, channels) == (RATE, 1):

            def deliver(data: Any, _frames: int, _time: Any, _status: Any) -> None:
                write(data)

            return deliver
        # Not loaded where the device takes what is wanted.
        from utter_runner.voice.capture.resample import MissingLibrary, StreamResampler  # noqa: PLC0415 - see above

        try:
            resampler = StreamResampler(rate, channels)
        except MissingLibrary as error:
            raise SourceError(str(error), permanent=True) from error

        def convert(data: Any, _frames: int, _time: Any, _status: Any) -> None:
            if mono := resampler.process(data):
                write(mono)

        return convert

    def _finished(self) -> None:
        """The sound server has ended the stream."""
        if self._output.lost:
            sys.stderr.write(f"{self._output.lost} blocks were lost, which nobody fetched")
            sys.stderr.flush()
        os._exit(0)


def _load() -> ModuleType:
    try:
        import sounddevice  # noqa: PLC0415 - optional, and initialises PortAudio
    except ImportError as error:
        raise SourceError(
            f"The microphone needs the Python package sounddevice, which is not installed ({error}). Install it with:"
            " pip install 'utter-runner[audio]'",
            permanent=True,
        ) from error
    except OSError as error:
        raise SourceError(
            f"The microphone needs the PortAudio library, which cannot be loaded ({error}). Install libportaudio2"
            ' (Debian, Ubuntu) or portaudio, or set [audio] source = "pw-record".',
            permanent=True,
        ) from error
    except Exception as error:
        # sounddevice initialises PortAudio while it is imported and raises its own error then.
        raise SourceError(f"PortAudio cannot be initialised: {error}.") from error
    module: ModuleType = sounddevice
    return module


def _names(sounddevice: ModuleType) -> list[str]:
    return [info["name"] for info in sounddevice.query_devices() if info["max_input_channels"]]


def _preferred(names: Collection[str]) -> str | None:
    """A device of the sound server, which follows the user's choice of a default microphone; None: PortAudio's own."""
    return next((name for name in _SERVERS if name in names), None)


def _formats(info: dict[str, Any]) -> list[tuple[int, int]]:
    """What to ask a device for, in order: what is wanted, and what it says that it prefers."""
    rate, channels = round(info["default_samplerate"]), info["max_input_channels"]
    return list(dict.fromkeys([(RATE, 1), (rate, min(2, channels)), (rate, channels), (rate, 1)]))


def _list(sounddevice: ModuleType, device: str) -> dict[str, Any]:
    """Returns the microphones, in the shape of `portaudio.Inputs`."""
    try:
        names = {}
        for info in sounddevice.query_devices():
            if info["max_input_channels"] and (name := _name_of(sounddevice, info)):
                names[info["index"]] = name
        default = _find(sounddevice, _preferred(names.values()))
        chosen = _find(sounddevice, device) if device else default
    except sounddevice.PortAudioError as error:
        raise SourceError(f"PortAudio cannot list the microphones: {error}.") from error
    return {"answer": "inputs", "names": [*names.values()], "default": names.get(default), "chosen": names.get(chosen)}


def _name_of(sounddevice: ModuleType, info: dict[str, Any]) -> str | None:
    """A name that opens this device and no other; None: there is none."""
    name, system = info["name"], sounddevice.query_hostapis(info["hostapi"])["name"]
    # Two devices of one name are told apart by the system behind them, if at all.
    return next((one for one in (name, f"{name}, {system}") if _find(sounddevice, one) == info["index"]), None)


def _find(sounddevice: ModuleType, name: str | None) -> int | None:
    """The index of a device that can be recorded; None is PortAudio's own choice."""
    try:
        return int(sounddevice.query_devices(name, "input")["index"])
    except (ValueError, sounddevice.PortAudioError):
        return None


def _die_with_parent() -> None:
    """Has the kernel kill this process when the thread ends that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """Passes lines of stdin on, and ends the process with it, even if the other threads hang."""
    rest = b""
    while piece := os.read(0, 4096):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            requests.put(line)
    os._exit(0)


def _silence() -> int:
    """Gives what others print to nobody, and what Python has to say to stderr; returns stdout's descriptor."""
    output, errors, nobody = os.dup(1), os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nobody, fd)
    os.close(nobody)
    sys.stderr = os.fdopen(errors, "w", encoding="utf-8", errors="backslashreplace")
    return output


def main() -> NoReturn:
    """Serves until stdin ends."""
    _die_with_parent()
    output = Output(_silence())
    served = PortAudio(output)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    with contextlib.suppress(SourceError):
        # Whoever asks is told; until then the cause may go away.
        served.load()
    output.answer({"answer": "ready"})
    try:
        while True:
            served.handle(json.loads(requests.get()))
    except Exception:  # noqa: BLE001 - whatever it is, it is told
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        # The library is not shut down as it wants at an exit: that may hang.
        os._exit(1)


if __name__ == "__main__":
    main()
