"""The library of PortAudio's process, steered by a test: what the real one does on a bad day."""

from __future__ import annotations

import json
import os
import socket
import struct
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from utter_runner.voice.capture.source import SourceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import pytest

    from utter_runner.voice.capture.source import AudioSource, Frames

PATIENCE = 30.0
PACKAGE = Path(__file__).with_name("fake_portaudio")


def microphone(name: str, channels: int = 1, *, rate: int = 48_000, system: str = "ALSA") -> dict[str, Any]:
    """A device as the library lists it; an output, if it has no channels."""
    return {"name": name, "max_input_channels": channels, "default_samplerate": float(rate), "system": system}


class Library:
    """What every process of this test finds.

    Attributes, which may be changed at any time:
        devices: see `microphone`; read when the library is initialised.
        default: the index of PortAudio's own choice of a microphone.
        problem: why it cannot be initialised.
        broken: why it cannot list.
        accepts: the error code for a rate and a number of channels; 0 if a stream is opened.
        refuses_start: why a stream cannot be started.
        hangs_in_open: opening does not return.
        asked: what streams were to be opened, as (rate, channels).
        refreshes: how often the devices were listed again.
        children: the processes that have loaded the library.
    """

    def __init__(self) -> None:
        self.devices = [microphone("speakers", 0), microphone("pipewire", 64, rate=44_100)]
        self.default = -1
        self.problem = self.broken = self.refuses_start = ""
        self.accepts: Callable[[int, int], int] = lambda _rate, _channels: 0
        self.hangs_in_open = False
        self.asked: list[tuple[int, int]] = []
        self.refreshes = 0
        self.children: list[Child] = []
        self._loaded, self.loaded = trio.open_memory_channel[Child](100)
        self._opening, self.opening = trio.open_memory_channel[Child](100)
        self._started, self.started = trio.open_memory_channel[Stream](100)

    async def serve(
        self, environment: pytest.MonkeyPatch, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Stand for the library in every process that is started from now on."""
        address = f"utter-test-{uuid.uuid4()}"
        environment.setenv("UTTER_TEST_PORTAUDIO", address)
        environment.setenv("PYTHONPATH", str(PACKAGE))
        with trio.socket.socket(socket.AF_UNIX) as listener:
            await listener.bind("\0" + address)
            listener.listen()
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    connection, _ = await listener.accept()
                    child = Child(self, trio.SocketStream(connection))
                    self.children.append(child)
                    nursery.start_soon(child.serve)

    async def stream(self) -> Stream:
        """The next stream that is started."""
        with trio.fail_after(PATIENCE):
            return await self.started.receive()

    async def child(self) -> Child:
        """The next process that loads the library."""
        with trio.fail_after(PATIENCE):
            return await self.loaded.receive()

    def listing(self) -> dict[str, Any]:
        """What the library finds when it is initialised."""
        systems = sorted({one["system"] for one in self.devices})
        devices = [
            {**one, "index": index, "hostapi": systems.index(one["system"])} for index, one in enumerate(self.devices)
        ]
        return {
            "devices": devices,
            "systems": systems,
            "default": self.default,
            "problem": self.problem,
            "broken": self.broken,
        }


class Child:
    """A process that has loaded the library.

    Attributes:
        gone: it has ended.
        closed: how many streams it has closed itself.
    """

    def __init__(self, library: Library, connection: trio.SocketStream) -> None:
        self._library = library
        self._connection = connection
        self._sending = trio.Lock()
        self._did, self._done = trio.open_memory_channel[None](100)
        peer = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid: int = struct.unpack("3i", peer)[0]
        self.gone = trio.Event()
        self.closed = 0

    async def serve(self) -> None:
        """Answers what it asks, until it ends."""
        rest = b""
        try:
            async for piece in self._connection:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    await self._hear(json.loads(line))
        except trio.BrokenResourceError:
            pass
        finally:
            self.gone.set()
            await trio.aclose_forcefully(self._connection)

    async def _hear(self, message: dict[str, Any]) -> None:
        library = self._library
        match message["what"]:
            case "did":
                self._did.send_nowait(None)
            case "initialize":
                await self._send(answer=library.listing())
                library._loaded.send_nowait(self)
            case "terminate":
                library.refreshes += 1
                await self._send(answer=None)
            case "open":
                settings = message["settings"]
                wanted = settings["samplerate"], settings["channels"]
                library.asked.append(wanted)
                library._opening.send_nowait(self)
                if not library.hangs_in_open:
                    self._settings = settings
                    await self._send(answer=library.accepts(*wanted))
            case "start":
                if not library.refuses_start:
                    library._started.send_nowait(Stream(self, self._settings))
                await self._send(answer=library.refuses_start)
            case "close":
                self.closed += 1
                await self._send(answer=None)

    async def _send(self, **message: Any) -> None:
        async with self._sending:
            await self._connection.send_all(json.dumps(message).encode() + b"\n")

    async def order(self, do: str, **more: Any) -> None:
        """Has something happen on PortAudio's thread; does not wait until it has."""
        await self._send(do=do, **more)

    async def done(self) -> None:
        """Waits until the oldest order is carried out."""
        with trio.fail_after(PATIENCE):
            await self._done.receive()

    async def end(self) -> None:
        """Waits until the process has ended."""
        with trio.fail_after(PATIENCE):
            await self.gone.wait()

    def kill(self, signal: int) -> None:
        """Sends it a signal."""
        os.kill(self.pid, signal)


class Stream:
    """A stream that was started, with the settings that it was opened with."""

    def __init__(self, child: Child, settings: dict[str, Any]) -> None:
        self.child, self.settings = child, settings

    async def deliver(self, data: bytes) -> None:
        """Calls back with frames; returns when the callback has."""
        await self.child.order("deliver", data=data.hex())
        await self.child.done()

    async def finish(self) -> None:
        """The stream ends by itself."""
        await self.child.order("finish")


class Recording:
    """A source that runs, what it has delivered, and how it has failed."""

    def __init__(self, source: AudioSource) -> None:
        self._source = source
        self._scope = trio.CancelScope()
        self._changed = trio.Event()
        self.heard = bytearray()
        self.error: SourceError | None = None

    async def run(self) -> None:
        """Records until it fails or is cancelled."""
        try:
            with self._scope:
                await self._source.run(self._hear)
        except SourceError as error:
            self.error = error

    def _hear(self, frames: Frames) -> None:
        self.heard += frames
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def hears(self, count: int) -> bytes:
        """Waits for so many bytes; all that was heard."""
        with trio.fail_after(PATIENCE):
            while len(self.heard) < count:
                await self._changed.wait()
        return bytes(self.heard)

    def cancel(self) -> None:
        """Closes the source."""
        self._scope.cancel()


@asynccontextmanager
async def recording_from(source: AudioSource) -> AsyncIterator[Recording]:
    """The source runs; it is over when the source has ended."""
    recording = Recording(source)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recording.run)
            yield recording
    finally:
        await source.aclose()
