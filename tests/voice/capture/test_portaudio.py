"""The PortAudio source against a library that does what the real one does on a bad day."""

from __future__ import annotations

import atexit
import sys
import threading
import types
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from support import audio
from utter_runner.voice.capture import portaudio
from utter_runner.voice.capture.capture import Capture
from utter_runner.voice.capture.portaudio import PortAudioSource
from utter_runner.voice.capture.source import SourceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

INVALID_RATE, INVALID_CHANNELS, DEVICE_UNAVAILABLE = -9997, -9998, -9985


class PortAudioError(Exception):
    pass


class Library(types.ModuleType):
    """Stands for the module sounddevice: one device, and streams that the test steers."""

    PortAudioError = PortAudioError

    def __init__(self) -> None:
        super().__init__("sounddevice")
        self.devices: list[dict[str, Any]] = [
            {"name": "speakers", "max_input_channels": 0, "default_samplerate": 48_000.0},
            {"name": "pipewire", "max_input_channels": 64, "default_samplerate": 44_100.0},
        ]
        self.accepts: Callable[[int, int], int] = lambda _rate, _channels: 0
        self.streams: list[Stream] = []
        self.asked: list[tuple[int, int]] = []
        self.refreshes = 0
        self.hang_in_open = threading.Event()
        self.hang_in_close = threading.Event()
        self.hang_in_open.set()
        self.hang_in_close.set()
        self.opening, self.started, self.closed = (threading.Semaphore(0) for _ in range(3))

    def query_devices(self, device: str | None = None, kind: str | None = None) -> Any:
        if device is None:
            return self.devices[0] if kind else self.devices
        for info in self.devices:
            if device in info["name"]:
                return info
        raise ValueError(f"No input device matching {device!r}")

    def RawInputStream(self, **settings: Any) -> Stream:  # noqa: N802 - the library's name
        return Stream(self, settings)

    def _terminate(self) -> None:
        self.refreshes += 1

    def _initialize(self) -> None:
        pass

    def _exit_handler(self) -> None:
        pass


class Stream:
    def __init__(self, library: Library, settings: dict[str, Any]) -> None:
        rate, channels = settings["samplerate"], settings["channels"]
        library.asked.append((rate, channels))
        library.query_devices(settings["device"])
        library.opening.release()
        library.hang_in_open.wait()
        if code := library.accepts(rate, channels):
            raise PortAudioError(f"refused {rate} Hz", code)
        self.library, self.settings = library, settings
        self.ended: list[str] = []
        library.streams.append(self)

    def start(self) -> None:
        self.ended.append("start")
        self.library.started.release()

    def deliver(self, data: bytes) -> None:
        assert self.settings["callback"](data, 0, None, None) is None

    def finish(self) -> None:
        assert self.settings["finished_callback"]() is None

    def abort(self, *, ignore_errors: bool) -> None:
        assert ignore_errors
        self.library.hang_in_close.wait()
        self.ended.append("abort")

    def close(self, *, ignore_errors: bool) -> None:
        assert ignore_errors
        self.ended.append("close")
        self.library.closed.release()


async def happened(event: threading.Semaphore) -> None:
    assert await trio.to_thread.run_sync(lambda: event.acquire(timeout=5))


class Recording:
    """A source that runs, and what it delivers."""

    def __init__(self, source: PortAudioSource, library: Library) -> None:
        self.source, self.library = source, library
        self.heard = bytearray()
        self.error: SourceError | None = None
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        try:
            with self._scope:
                await self.source.run(self.heard.extend)
        except SourceError as error:
            self.error = error

    async def stream(self) -> Stream:
        await happened(self.library.started)
        return self.library.streams[-1]

    def cancel(self) -> None:
        self._scope.cancel()


@asynccontextmanager
async def recording_from(source: PortAudioSource, library: Library) -> AsyncIterator[Recording]:
    recording = Recording(source, library)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recording.run)
        yield recording


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setitem(sys.modules, "sounddevice", library)
    monkeypatch.setattr(portaudio, "_PATIENCE", 0.2)
    monkeypatch.setattr(portaudio, "_LIBRARY", threading.Lock())
    monkeypatch.setattr(portaudio, "_STREAMS", set())
    return library


async def test_the_stream_is_opened_as_measured_and_aborted_and_closed(library: Library) -> None:
    async with recording_from(PortAudioSource(), library) as recording:
        stream = await recording.stream()
        assert {name: stream.settings[name] for name in ("samplerate", "channels", "dtype", "device")} == {
            "samplerate": 16_000,
            "channels": 1,
            "dtype": "float32",
            "device": "pipewire",
        }
        assert (stream.settings["blocksize"], stream.settings["latency"]) == (320, 0.1)
        stream.deliver(b"four")
        assert recording.heard == b"four"
        recording.cancel()
    assert stream.ended == ["start", "abort", "close"]
    stream.deliver(b"late")
    stream.finish()
    assert recording.heard == b"four"


@pytest.mark.parametrize(
    ("names", "chosen"), [(["hw:0", "pulse", "pipewire"], "pipewire"), (["hw:0", "pulse"], "pulse"), (["hw:0"], None)]
)
async def test_a_sound_server_is_preferred_to_a_device_of_which_it_may_be_in_use(
    library: Library, names: list[str], chosen: str | None
) -> None:
    library.devices = [{"name": name, "max_input_channels": 1, "default_samplerate": 48_000.0} for name in names]
    async with recording_from(PortAudioSource(), library) as recording:
        assert (await recording.stream()).settings["device"] == chosen
        recording.cancel()


async def test_while_the_sound_server_is_away_the_hardware_is_left_to_it(library: Library) -> None:
    source, served = PortAudioSource(), library.devices
    hardware = [{"name": "hw:0", "max_input_channels": 2, "default_samplerate": 48_000.0}]
    for _ in range(2):
        async with recording_from(source, library) as recording:
            assert (await recording.stream()).settings["device"] == "pipewire"
            recording.cancel()
        library.devices = hardware
        for _ in range(2):
            with pytest.raises(SourceError, match=r"start it again.*\(hw:0\) is left to the server"):
                await source.run(lambda _: None)
        library.devices = served
    # Who names it wants it.
    library.devices = hardware
    async with recording_from(PortAudioSource("hw:0"), library) as recording:
        assert (await recording.stream()).settings["device"] == "hw:0"
        recording.cancel()


@pytest.mark.parametrize("code", [INVALID_RATE, INVALID_CHANNELS])
async def test_a_device_that_refuses_is_asked_for_what_it_prefers_and_remembered(library: Library, code: int) -> None:
    library.devices[1] |= {"max_input_channels": 2, "default_samplerate": 48_000.0}
    library.accepts = lambda rate, channels: 0 if (rate, channels) == (48_000, 2) else code
    source = PortAudioSource()
    async with recording_from(source, library) as recording:
        stream = await recording.stream()
        assert stream.settings["blocksize"] == 960
        stereo = audio.tone(440, 1, 48_000).repeat(2).tobytes()
        for at in range(0, len(stereo), 960 * 8):
            stream.deliver(stereo[at : at + 960 * 8])
        recording.cancel()
    assert library.asked == [(16_000, 1), (48_000, 2)]
    heard = audio.floats(bytes(recording.heard))
    assert len(heard) == pytest.approx(16_000, abs=500)
    assert audio.loudest_frequency(heard) == pytest.approx(440, abs=0.5)
    async with recording_from(source, library) as recording:
        await recording.stream()
        recording.cancel()
    assert library.asked == [(16_000, 1), (48_000, 2), (48_000, 2)]


async def test_an_unknown_name_and_no_microphone_at_all_are_told_apart(library: Library) -> None:
    with pytest.raises(SourceError) as caught:
        await PortAudioSource("desk").run(lambda _: None)
    assert "No input device matching 'desk'" in caught.value.reason
    assert caught.value.reason.endswith("PortAudio lists: pipewire.")
    library.devices = library.devices[:1]
    for device in ("", "desk"):
        with pytest.raises(SourceError, match="PortAudio finds no microphone"):
            await PortAudioSource(device).run(lambda _: None)


async def test_another_refusal_is_the_reason_and_the_devices_are_read_again_next_time(library: Library) -> None:
    library.accepts = lambda _rate, _channels: DEVICE_UNAVAILABLE
    source = PortAudioSource()
    for attempt in range(3):
        with pytest.raises(SourceError, match="The microphone cannot be opened"):
            await source.run(lambda _: None)
        assert (library.refreshes, len(library.asked)) == (attempt, attempt + 1)
    library.accepts = lambda _rate, _channels: 0
    for _ in range(2):
        async with recording_from(source, library) as recording:
            await recording.stream()
            recording.cancel()
    assert library.refreshes == 3


async def test_a_stream_that_the_server_ends_is_a_fault_and_closed(library: Library) -> None:
    async with recording_from(PortAudioSource(), library) as recording:
        stream = await recording.stream()
        stream.finish()
    assert recording.error is not None
    assert "closed the stream" in recording.error.reason
    assert stream.ended == ["start", "abort", "close"]


async def test_opening_that_hangs_can_be_given_up_and_is_closed_when_it_comes_back(library: Library) -> None:
    library.hang_in_open.clear()
    async with recording_from(PortAudioSource(), library) as recording:
        await happened(library.opening)
        recording.cancel()
        begun = trio.current_time()
    assert trio.current_time() - begun < 1.0
    with pytest.raises(SourceError, match="does not come back from an earlier call"):
        await PortAudioSource().run(lambda _: None)
    library.hang_in_open.set()
    await happened(library.closed)
    (stream,) = library.streams
    assert stream.ended == ["start", "abort", "close"]


async def test_closing_that_hangs_is_given_up_and_does_not_hang_the_exit(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[Any] = []
    monkeypatch.setattr(atexit, "unregister", forgotten.append)
    async with recording_from(PortAudioSource(), library) as recording:
        stream = await recording.stream()
        library.hang_in_close.clear()
        recording.cancel()
        begun = trio.current_time()
    assert trio.current_time() - begun < 1.0
    assert forgotten == [library._exit_handler]
    stream.deliver(b"late")
    assert recording.heard == b""
    library.hang_in_close.set()
    await happened(library.closed)


async def test_the_callback_copies_into_the_ring_moves_the_position_and_wakes_and_nothing_else(
    library: Library,
) -> None:
    capture = Capture(PortAudioSource(), mode="always", on_event=lambda _: None)
    calls: set[str] = set()

    def note(frame: Any, event: str, function: Any) -> None:
        if event == "call":
            calls.add(frame.f_code.co_qualname)
        elif event == "c_call":
            calls.add(function.__qualname__)

    def deliver(stream: Stream) -> None:
        callback = stream.settings["callback"]
        block = bytes(4 * 320)
        sys.setprofile(note)
        try:
            callback(block, 320, None, None)
        finally:
            sys.setprofile(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(capture.run)
        await happened(library.started)
        nursery.start_soon(capture.until_delivering)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(deliver, library.streams[0])
        await capture.until_delivering()
        assert capture.position == 320
        nursery.cancel_scope.cancel()
    ring = {
        "RingWriter.write",
        "RingPen.write",
        "RingPen._copy",
        "RingWriter._wake",
        "RingLayout.frame_size",
        "spans",
        "Fence.__call__",
    }
    way = {"_Opening._callback.<locals>.deliver", "_Opening.write"}
    plain = {
        "divmod",
        "len",
        "min",
        "max",
        "memoryview.cast",
        "lock.__enter__",
        "lock.__exit__",
        "spans.<locals>.<listcomp>",
    }
    # The one system call writes the eventfd of who waits.
    assert calls - plain - {"setprofile"} == ring | way | {"write"}


# ---- which microphones there are


class Listing(types.ModuleType):
    """Stands for the module sounddevice with several devices, which are looked up as the real one does."""

    PortAudioError = PortAudioError

    def __init__(self, *devices: tuple[str, str, int], default: int = -1) -> None:
        super().__init__("sounddevice")
        self.systems = sorted({system for _, system, _ in devices})
        self.devices = [
            {"name": name, "index": index, "hostapi": self.systems.index(system), "max_input_channels": channels}
            for index, (name, system, channels) in enumerate(devices)
        ]
        self.default = default
        self.refreshes = 0

    def query_hostapis(self, index: int) -> dict[str, str]:
        return {"name": self.systems[index]}

    def query_devices(self, name: str | None = None, kind: str | None = None) -> Any:
        if kind is None:
            return self.devices
        if name is None:
            if self.default < 0:
                raise PortAudioError("Error querying device -1")
            return self.devices[self.default]
        names = [(one, f"{one['name']}, {self.systems[one['hostapi']]}") for one in self.devices]
        found = [(one, full) for one, full in names if one["max_input_channels"] and name.lower() in full.lower()]
        exact = [one for one, full in found if name.lower() in (one["name"].lower(), full.lower())]
        if len(found) == 1:
            return found[0][0]
        if len(exact) == 1:
            return exact[0]
        raise ValueError(f"{len(found)} devices match {name!r}")

    def _terminate(self) -> None:
        self.refreshes += 1

    def _initialize(self) -> None:
        pass


def listing(monkeypatch: pytest.MonkeyPatch, *devices: tuple[str, str, int], default: int = -1) -> Listing:
    library = Listing(*devices, default=default)
    monkeypatch.setattr(portaudio, "_STREAMS", set())
    monkeypatch.setitem(sys.modules, "sounddevice", library)
    return library


def test_the_server_is_the_default_and_outputs_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    library = listing(monkeypatch, ("hw:0", "ALSA", 2), ("hw:0 out", "ALSA", 0), ("pipewire", "ALSA", 64), default=0)
    assert portaudio.list_inputs("") == (["hw:0", "pipewire"], "pipewire", "pipewire", True)
    assert portaudio.list_inputs("hw") == (["hw:0", "pipewire"], "pipewire", "hw:0", True)
    assert portaudio.list_inputs("none such").chosen is None
    # What was plugged in since the last time is there.
    assert library.refreshes == 3


def test_without_a_server_it_is_portaudios_own_default(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, ("hw:0", "ALSA", 2), ("hw:1", "ALSA", 1), default=1)
    assert portaudio.list_inputs("")[1:3] == ("hw:1", "hw:1")
    listing(monkeypatch, ("hw:0", "ALSA", 2))
    assert portaudio.list_inputs("")[1:3] == (None, None)
    listing(monkeypatch)
    assert portaudio.list_inputs("") == ([], None, None, True)


def test_devices_of_one_name_are_told_apart_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, ("mic", "ALSA", 1), ("mic", "OSS", 1), ("twin", "ALSA", 1), ("twin", "ALSA", 1))
    assert portaudio.list_inputs("mic, oss") == (["mic, ALSA", "mic, OSS"], None, "mic, OSS", True)
    assert portaudio.list_inputs("mic").chosen is None


async def test_an_open_stream_is_not_ended_by_listing(library: Library) -> None:
    for index, device in enumerate(library.devices):
        device |= {"index": index, "hostapi": 0}
    library.query_hostapis = lambda _index: {"name": "ALSA"}  # type: ignore[attr-defined] # the one thing more
    async with recording_from(PortAudioSource(), library) as recording:
        stream = await recording.stream()
        assert portaudio.list_inputs("").current is False
        assert (library.refreshes, stream.ended) == (0, ["start"])
        recording.cancel()
    assert portaudio.list_inputs("").current is True
    assert library.refreshes == 1


def test_a_library_that_cannot_list_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    library = listing(monkeypatch, ("mic", "ALSA", 1))

    def broken(_index: int) -> dict[str, str]:
        raise PortAudioError("it is not initialised")

    monkeypatch.setattr(library, "query_hostapis", broken)
    with pytest.raises(SourceError, match="cannot list the microphones: it is not initialised"):
        portaudio.list_inputs("")
