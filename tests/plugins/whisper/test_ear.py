"""Whose ring is read: that of the runner that is there now."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from utter_plugins.whisper.ear import LOST, Ear
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.ring import Overrun, RingError


class FakeMicrophone:
    """A ring of one runner; it holds the frames from 100 to 200."""

    def __init__(self, runner: int) -> None:
        self.runner = runner
        self.closed = False

    def read(self, start: int, count: int) -> bytes:
        if start < 100:
            raise Overrun(100)
        if start + count > 200:
            raise ValueError(f"frames {start} to {start + count} were asked for")
        return bytes([self.runner]) * 4 * count

    def close(self) -> None:
        self.closed = True


class FakePlugin:
    """A plugin that a runner has greeted; `runner` counts them."""

    def __init__(self, error: Exception | None = None, transport: str = "connect") -> None:
        self.hello = SimpleNamespace(transport=transport)
        self.error = error
        self.logged: list[str] = []
        self.opened: list[FakeMicrophone] = []
        self.asked, self.may_open = threading.Event(), threading.Event()
        self.may_open.set()
        self.served_by = SimpleNamespace(connection=object())

    def microphone(self) -> FakeMicrophone:
        self.asked.set()
        assert self.may_open.wait(30)
        if self.error is not None:
            raise self.error
        self.opened.append(FakeMicrophone(len(self.opened)))
        return self.opened[-1]

    def log(self, text: str) -> None:
        self.logged.append(text)

    def next_runner(self) -> None:
        self.served_by.connection = object()


def ear_of(plugin: Any) -> Ear:
    return Ear(plugin)


def test_frames_are_read_where_they_lie() -> None:
    ear = ear_of(FakePlugin())
    ear.open()
    assert ear.ready()
    assert ear.read(100, 2) == bytes(8)


def test_what_is_gone_is_an_error_that_says_what_to_do() -> None:
    ear = ear_of(FakePlugin())
    ear.open()
    with pytest.raises(RpcError, match="say it again") as caught:
        ear.read(99, 2)
    assert (caught.value.code, caught.value.message) == (ErrorCode.PLUGIN_FAILED, LOST)


def test_what_is_not_there_names_the_field() -> None:
    ear = ear_of(FakePlugin())
    for opened in (False, True):
        if opened:
            ear.open()
        with pytest.raises(RpcError) as caught:
            ear.read(199, 2)
        assert (caught.value.code, caught.value.data) == (ErrorCode.INVALID_PARAMS, {"field": "frames"})


@pytest.mark.parametrize(
    ("error", "transport", "logged"),
    [
        (RpcError(ErrorCode.NOT_PERMITTED, "it may not"), "connect", ["goes without the audio ring: it may not"]),
        (RpcError(ErrorCode.NOT_PERMITTED, "nothing was inherited"), "stdio", []),
        (RingError("it is none"), "stdio", ["goes without the audio ring: it is none"]),
        (OSError(24, "too many open files"), "listen", ["goes without the audio ring: [Errno 24] too many open files"]),
    ],
)
def test_without_a_ring_it_goes_on(error: Exception, transport: str, logged: list[str]) -> None:
    plugin = FakePlugin(error, transport)
    ear = ear_of(plugin)
    ear.open()
    assert not ear.ready()
    assert plugin.logged == logged


def test_the_ring_of_a_runner_that_has_gone_is_not_read_any_more() -> None:
    plugin = FakePlugin()
    ear = ear_of(plugin)
    ear.open()
    plugin.may_open.clear()
    plugin.next_runner()
    # Nobody waits for the next one's.
    assert not ear.ready()
    assert plugin.opened[0].closed
    with pytest.raises(RpcError):
        ear.read(100, 1)
    plugin.may_open.set()
    while not ear.ready():
        pass
    assert ear.read(100, 1) == b"\1" * 4


def test_a_ring_that_comes_too_late_is_closed() -> None:
    plugin = FakePlugin()
    ear = ear_of(plugin)
    plugin.may_open.clear()
    opening = threading.Thread(target=ear.open)
    opening.start()
    assert plugin.asked.wait(30)
    plugin.next_runner()
    plugin.may_open.set()
    opening.join(30)
    assert plugin.opened[0].closed
    while not ear.ready():
        pass
    assert ear.read(100, 1) == b"\1" * 4
