"""Signals that come at the worst moment: after the last bytecode, and before poll(2) waits.

Such a signal does not end the call with EINTR. Here it is taken by another thread, which has the same effect each time.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from utter_runner.cli import main
from utter_runner.cli.ask import agreed, ask
from utter_runner.cli.interrupts import Interrupts, signals_wake
from utter_sdk.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fake_runner import Connection, FakeRunner

QUESTION = {"text": "Do it.", "timeout_ms": 3_600_000}


@contextmanager
def signal_without_eintr(number: signal.Signals, after: threading.Event) -> Iterator[None]:
    """Once `after` is set the signal comes, and the main thread's system calls go on."""

    def send() -> None:
        assert after.wait(60)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        signal.pthread_kill(threading.get_ident(), number)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal in place of stdin and stderr; no fixture, for pytest replaces the streams after fixtures are made."""
    outer, inner = os.openpty()
    with os.fdopen(inner, "r+b", buffering=0) as raw, open(os.dup(inner), "w", encoding="utf-8") as text:  # noqa: PTH123
        monkeypatch.setattr("sys.stdin", raw)
        monkeypatch.setattr("sys.stderr", text)
        yield inner
    os.close(outer)


def asking(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the main thread is about to wait."""
    waits = threading.Event()
    real = select.poll

    class Poll:
        def __init__(self) -> None:
            self._poll = real()

        def register(self, fd: int, events: int) -> None:
            self._poll.register(fd, events)

        def unregister(self, fd: int) -> None:
            self._poll.unregister(fd)

        def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
            waits.set()
            return self._poll.poll(timeout)

    monkeypatch.setattr(select, "poll", Poll)
    return waits


def test_ctrl_c_ends_the_runners_question(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    waits = asking(monkeypatch)
    with (
        ours,
        theirs,
        terminal(monkeypatch) as stdin,
        signal_without_eintr(signal.SIGINT, waits),
        pytest.raises(KeyboardInterrupt),
    ):
        ask(QUESTION, stdin, ours.fileno(), lambda: False)


def test_ctrl_c_ends_a_question_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = asking(monkeypatch)
    with terminal(monkeypatch), signal_without_eintr(signal.SIGINT, waits), pytest.raises(KeyboardInterrupt):
        agreed("Fetch them?")


def test_ctrl_c_ends_the_wait_for_an_answer(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: queue.SimpleQueue[object] = queue.SimpleQueue()

    def command(connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        given_up.put(connection._read()["method"])
        return {"results": []}

    runner.answers["runner.command"] = command
    waits = asking(monkeypatch)
    with signal_without_eintr(signal.SIGINT, waits):
        assert main(["say", "x"]) == 130
    assert given_up.get(timeout=60) == "$/cancel"


def test_what_is_heeded_is_read_empty_and_the_wait_goes_on(runner: FakeRunner) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        with Client.connect(str(runner.path)) as client:
            client.heed(reading)
            os.write(writing, bytes(100))
            assert client.call("runner.status", {}, 60)
            with pytest.raises(BlockingIOError):
                os.read(reading, 1)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_is_seen_by_those_who_wait_for_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asking(monkeypatch)
    with Interrupts([number]) as interrupts, signal_without_eintr(number, waits):
        poll = select.poll()
        poll.register(interrupts.fd, select.POLLIN)
        assert [fd for fd, _ in poll.poll(60_000)] == [interrupts.fd]
    assert interrupts.came


def test_a_signal_while_a_question_waits_still_reaches_who_waits_for_it() -> None:
    with Interrupts() as interrupts:
        with signals_wake() as wake:
            signal.raise_signal(signal.SIGINT)
            assert select.select([wake, interrupts.fd], [], [], 60)[0] == [wake, interrupts.fd]
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_was_there_before_is_there_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(), signals_wake():
        pass
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1
