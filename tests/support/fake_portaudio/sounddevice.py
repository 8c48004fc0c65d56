"""Stands for the package sounddevice in PortAudio's process, and does what a test says: see `support/portaudio.py`.

What the library would find out or bring about, the test is asked; what happens on PortAudio's thread happens on one
that waits for the test's orders.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
from typing import Any


class PortAudioError(Exception):
    pass


class Test:
    """The test at the other end."""

    def __init__(self) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect("\0" + os.environ["UTTER_TEST_PORTAUDIO"])
        self._file = connection.makefile("rwb", buffering=0)
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.stream: RawInputStream
        threading.Thread(target=self._obey, daemon=True).start()

    def tell(self, what: str, **more: Any) -> None:
        self._file.write(json.dumps({"what": what, **more}).encode() + b"\n")

    def ask(self, what: str, **more: Any) -> Any:
        self.tell(what, **more)
        return self._answers.get()

    def _obey(self) -> None:
        for line in self._file:
            order = json.loads(line)
            if "answer" in order:
                self._answers.put(order["answer"])
                continue
            if order["do"] == "deliver":
                self.stream.callback(bytes.fromhex(order["data"]), 0, None, None)
            elif order["do"] == "finish":
                self.stream.finished_callback()
            elif order["do"] == "spin":
                # As the real one does: by the descriptor, and without the interpreter's lock for most of the time.
                threading.Thread(target=flood, args=(2,), daemon=True).start()
            elif order["do"] == "complain":
                sys.stderr.write(order["text"])
                sys.stderr.flush()
            self.tell("did")


def flood(fd: int) -> None:
    while True:
        os.write(fd, b"Expression 'self->capture.ready || self->playback.ready' failed\n" * 1000)


class RawInputStream:
    def __init__(self, *, callback: Any, finished_callback: Any, **settings: Any) -> None:
        if settings["device"] is not None:
            query_devices(settings["device"], "input")
        if code := test.ask("open", settings=settings):
            raise PortAudioError(f"refused {settings['samplerate']} Hz", code)
        self.callback, self.finished_callback = callback, finished_callback
        test.stream = self

    def start(self) -> None:
        if problem := test.ask("start"):
            raise PortAudioError(problem)

    def close(self, *, ignore_errors: bool) -> None:
        assert ignore_errors
        test.ask("close")


def _initialize() -> None:
    listed.clear()
    listed.update(test.ask("initialize"))
    if listed["problem"]:
        raise PortAudioError(listed["problem"])


def _terminate() -> None:
    test.ask("terminate")


def query_hostapis(index: int) -> dict[str, str]:
    if listed["broken"]:
        raise PortAudioError(listed["broken"])
    return {"name": listed["systems"][index]}


def query_devices(name: str | None = None, kind: str | None = None) -> Any:
    devices, systems = listed["devices"], listed["systems"]
    if kind is None:
        return devices
    if name is None:
        if listed["default"] < 0:
            raise PortAudioError("Error querying device -1")
        return devices[listed["default"]]
    names = [(one, f"{one['name']}, {systems[one['hostapi']]}") for one in devices]
    found = [(one, full) for one, full in names if one["max_input_channels"] and name.lower() in full.lower()]
    exact = [one for one, full in found if name.lower() in (one["name"].lower(), full.lower())]
    if not found:
        raise ValueError(f"No input device matching {name!r}")
    if len(found) == 1:
        return found[0][0]
    if len(exact) == 1:
        return exact[0]
    raise ValueError(f"Multiple input devices found for {name!r}")


listed: dict[str, Any] = {}
test = Test()
_initialize()
