"""The microphone through PortAudio (sounddevice), the usual source.

Rules here: the library is loaded on first use, and every call that may block runs on a worker thread that the loop can
give up. A stream is aborted and closed, never stopped: stopping one whose audio server stands still can take minutes.
PortAudio is not thread-safe, so one call at a time goes into it.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from utter_runner.voice.capture.resample import RATE, MissingLibrary, StreamResampler
from utter_runner.voice.capture.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import ModuleType

    from utter_runner.voice.capture.source import OnFrames

# Larger buffers than PortAudio's own choice: with "low" latency or a block size of 0 blocks are lost.
_BLOCKS_PER_SECOND = 50
_LATENCY = 0.1
_PATIENCE = 2.0
_SERVERS = ("pipewire", "pulse")

# PaErrorCode (portaudio.h): the device is there and does not take this rate, number of channels or sample format.
_FORMAT_REFUSED = {-9998, -9997, -9994}

_LIBRARY = threading.Lock()
_STREAMS: set[_Opening] = set()
"""Openings whose stream exists. To have the devices listed again would end it, so that is not done meanwhile."""


class PortAudioSource:
    """Frames from a PortAudio stream; a device that refuses 16 kHz mono is recorded as it wants and resampled.

    Args:
        device: a part of the device's name as PortAudio lists it, or nothing for the sound server's default source.
    """

    live = True

    def __init__(self, device: str = "") -> None:
        self._device = device
        self._known = _Known()

    @property
    def description(self) -> str:
        """The device's name and how it is reached."""
        return f"{self._device or 'the default source'} (PortAudio)"

    async def prepare(self) -> None:
        """Loads the library, which takes about 100 ms, so that the first opening does not."""
        with contextlib.suppress(SourceError):
            await trio.to_thread.run_sync(_load, abandon_on_cancel=True)

    async def run(self, on_frames: OnFrames) -> None:
        """See `AudioSource.run`."""
        ended = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def on_end() -> None:
            # A stream that was given up may end when nobody runs any more.
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(ended.set)

        opening = _Opening(self._device, self._known, on_frames, on_end)
        try:
            await trio.to_thread.run_sync(opening.open, abandon_on_cancel=True)
            await ended.wait()
            self._known.stale = True
            raise SourceError(f"The audio server closed the stream from {self.description}.")
        finally:
            with trio.move_on_after(_PATIENCE, shield=True) as scope:
                await trio.to_thread.run_sync(opening.close, abandon_on_cancel=True)
            if scope.cancelled_caught:
                _forget_exit_handler()


class Inputs(NamedTuple):
    """The microphones that PortAudio lists.

    Args:
        names: each is a value of `[audio] device` that opens this device and no other.
        default: the one that is opened if none is named; None if there is none.
        chosen: the one that `[audio] device` comes to; None if it is none of these, or could be several.
        current: the list was read just now, and not when the stream was opened that exists.
    """

    names: list[str]
    default: str | None
    chosen: str | None
    current: bool


def list_inputs(device: str) -> Inputs:
    """List the microphones; blocks, so it is for a worker thread.

    Args:
        device: as `PortAudioSource` takes it.

    Raises:
        SourceError: PortAudio cannot be used.
    """
    with _library(refresh=not _STREAMS) as sounddevice:
        try:
            return _inputs(sounddevice, device)
        except sounddevice.PortAudioError as error:
            raise SourceError(f"PortAudio cannot list the microphones: {error}.") from error


def _inputs(sounddevice: ModuleType, device: str) -> Inputs:
    def found(name: str | None) -> int | None:
        try:
            return int(sounddevice.query_devices(name, "input")["index"])
        except (ValueError, sounddevice.PortAudioError):
            return None

    names: dict[int, str] = {}
    for info in sounddevice.query_devices():
        if info["max_input_channels"]:
            name, system = info["name"], sounddevice.query_hostapis(info["hostapi"])["name"]
            # Two devices of one name are told apart by the system behind them, if at all.
            usable = [one for one in (name, f"{name}, {system}") if found(one) == info["index"]]
            if usable:
                names[info["index"]] = usable[0]
    default = found(_preferred(names.values()))
    chosen = found(device) if device else default
    known = names.get
    return Inputs(
        list(names.values()),
        None if default is None else known(default),
        None if chosen is None else known(chosen),
        not _STREAMS,
    )


@dataclass
class _Known:
    """What one opening leaves to the next.

    Args:
        accepted: rate and channels that the device took.
        stale: the list of devices is to be read again. PortAudio reads it once, and what it reads while the sound
            server is down stays empty.
        server: there was a sound server. Without it PortAudio lists the hardware itself; whoever records from that
            keeps it from the server when it comes back, and so from every program of the desktop.
    """

    accepted: tuple[int, int] | None = None
    stale: bool = False
    server: bool = False


class _Opening:
    """One stream. `open` and `close` run on worker threads, `close` perhaps while `open` is still busy."""

    def __init__(self, device: str, known: _Known, on_frames: OnFrames, on_end: Callable[[], None]) -> None:
        self._device = device
        self._known = known
        self._on_frames = on_frames
        self._on_end = on_end
        self._stream: Any = None
        self._unwanted = False

    def open(self) -> None:
        """Opens and starts the stream.

        Raises:
            SourceError: there is no such device, or it cannot be opened.
        """
        with _library(refresh=self._known.stale) as sounddevice:
            try:
                self._open(sounddevice)
                self._stream.start()
            except sounddevice.PortAudioError as error:
                self._known.stale = True
                raise SourceError(f"The microphone cannot be opened: {error}.") from error
            except SourceError:
                self._known.stale = True
                raise
            if self._unwanted:
                self._end_stream()

    def close(self) -> None:
        """Ends the stream, or has it ended as soon as it is there. Never raises."""
        self._unwanted = True
        with contextlib.suppress(SourceError), _library(refresh=False):
            self._end_stream()

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.abort(ignore_errors=True)
            self._stream.close(ignore_errors=True)
            self._stream = None
            _STREAMS.discard(self)

    def _open(self, sounddevice: ModuleType) -> None:
        names = [info["name"] for info in sounddevice.query_devices() if info["max_input_channels"]]
        if not names:
            raise SourceError(
                "PortAudio finds no microphone. Is the sound server running, and is its ALSA plug-in (pipewire-alsa"
                " or alsa-plugins-pulse) installed?"
            )
        server = _preferred(names)
        if self._known.server and not server and not self._device:
            raise SourceError(
                "The sound server that was here is gone; start it again (systemctl --user start pipewire). What"
                f" PortAudio lists without it ({', '.join(names)}) is left to the server, unless [audio] device names"
                " it."
            )
        self._known.server |= server is not None
        device = self._device or server
        known, self._known.accepted = self._known.accepted, None
        try:
            formats = [known] if known else _formats(sounddevice.query_devices(device, "input"))
            self._stream = self._first_accepted(sounddevice, device, formats)
            _STREAMS.add(self)
        except ValueError as error:
            raise SourceError(
                f"The microphone {self._device!r} cannot be chosen: {error}. PortAudio lists: {', '.join(names)}."
            ) from error
        self._known.stale = False

    def _first_accepted(self, sounddevice: ModuleType, device: str | None, formats: list[tuple[int, int]]) -> Any:
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
                self._known.accepted = (rate, channels)
                return stream
        raise AssertionError("the last format either opens or raises")

    def _callback(self, rate: int, channels: int) -> Callable[[Any, int, Any, Any], None]:
        if (rate, channels) == (RATE, 1):

            def deliver(data: Any, _frames: int, _time: Any, _status: Any) -> None:
                if not self._unwanted:
                    self._on_frames(data)

            return deliver
        try:
            resampler = StreamResampler(rate, channels)
        except MissingLibrary as error:
            raise SourceError(str(error), permanent=True) from error

        def convert(data: Any, _frames: int, _time: Any, _status: Any) -> None:
            if not self._unwanted and (mono := resampler.process(data)):
                self._on_frames(mono)

        return convert

    def _finished(self) -> None:
        self._on_end()


def _preferred(names: Collection[str]) -> str | None:
    """A device of the sound server, which follows the user's choice of a default microphone; None: PortAudio's own."""
    return next((name for name in _SERVERS if name in names), None)


@contextlib.contextmanager
def _library(*, refresh: bool) -> Iterator[ModuleType]:
    """PortAudio, for one caller at a time; with `refresh` it reads the list of devices again."""
    sounddevice = _load()
    if not _LIBRARY.acquire(timeout=_PATIENCE):
        raise SourceError(
            "PortAudio does not come back from an earlier call, as it happens when the sound server hangs. If it lasts,"
            ' restart the runner, or set [audio] source = "pw-record".'
        )
    try:
        if refresh:
            try:
                sounddevice._terminate()  # noqa: SLF001 - the only way to have the devices listed again
                sounddevice._initialize()  # noqa: SLF001 - see above
            except sounddevice.PortAudioError as error:
                raise SourceError(f"PortAudio cannot be initialised: {error}.") from error
        yield sounddevice
    finally:
        _LIBRARY.release()


def _load() -> ModuleType:
    try:
        import sounddevice  # noqa: PLC0415 - optional, slow to import, and initialises PortAudio
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


def _formats(info: dict[str, Any]) -> list[tuple[int, int]]:
    """What to ask a device for, in order: what is wanted, and what it says that it prefers."""
    rate, channels = round(info["default_samplerate"]), info["max_input_channels"]
    return list(dict.fromkeys([(RATE, 1), (rate, min(2, channels)), (rate, channels), (rate, 1)]))


def _forget_exit_handler() -> None:
    """A call that hangs would hang again when the library is shut down at exit; the kernel cleans up instead."""
    with contextlib.suppress(SourceError):
        atexit.unregister(_load()._exit_handler)  # noqa: SLF001 - the library offers no other way
