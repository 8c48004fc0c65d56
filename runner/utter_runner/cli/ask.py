"""Asking the person at the terminal whether an action may happen (`host.confirm`), or a package may be installed.

Rules here: only a person can confirm, so there is no option that answers for one, and nothing is asked where stdin or
stderr is no terminal; what was typed before the question was shown does not count; no answer is "no".
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from utter_runner.cli.interrupts import signals_wake
from utter_runner.cli.text import harmless_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_runner.cli.busy import Busy
    from utter_sdk.client import Client

_DEFAULT_TIMEOUT_MS = 30_000
_LINE_BYTES = 4096


def serve_confirm(client: Client, busy: Busy | None = None) -> None:
    """Answer `host.confirm` on `client` by asking at the terminal; without one the client refuses with -32601.

    What this client asks for itself is asked elsewhere, and this says so.
    """

    def elsewhere(params: dict[str, Any]) -> None:
        with nullcontext() if busy is None else busy.paused():
            _show("The runner asks elsewhere before it acts, on the desktop or where `utter confirm` runs:")
            for line in harmless_lines(params.get("text", "")):
                _show(f"  {line}")

    client.on_notification("confirm.elsewhere", elsewhere)
    if not at_a_terminal():
        return

    def confirm(params: dict[str, Any]) -> dict[str, Any]:
        with nullcontext() if busy is None else busy.paused():
            return answer_confirm(client, params)[1]

    client.on_request("host.confirm", confirm)


def at_a_terminal() -> bool:
    """Whether a person can be asked here."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def answer_confirm(client: Client, params: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Ask at the terminal; return whether a person answered, and what to answer the runner."""
    answer = ask(params, sys.stdin.fileno(), client.fileno(), client.withdrawn)
    return answer is not None, {"approved": answer is True, "digest": str(params.get("digest", ""))}


def ask(params: dict[str, Any], stdin: int, connection: int, withdrawn: Callable[[], bool]) -> bool | None:
    """Show the question and wait for a line.

    Args:
        params: ConfirmParams.
        stdin: the terminal's descriptor.
        connection: the client's, to see that the question was answered elsewhere.
        withdrawn: says so.

    Returns:
        True for "y" or "yes", False for anything else and the end of input; None for no answer: the question was
        withdrawn, or the time is over.
    """
    timeout_ms = int(params.get("timeout_ms", _DEFAULT_TIMEOUT_MS))
    deadline = time.monotonic() + timeout_ms / 1000
    _show("The runner asks before it acts:")
    for line in harmless_lines(params.get("text", "")):
        _show(f"  {line}")
    termios.tcflush(stdin, termios.TCIFLUSH)
    _show(f"Do it? No answer within {timeout_ms / 1000:g} s means no. [y/N] ", end="")
    try:
        answer = _wait(stdin, connection, withdrawn, deadline)
    except BaseException:
        _show("")
        raise
    if isinstance(answer, bytes):
        return answer.strip().lower() in {b"y", b"yes"}
    _show(answer)
    return None


def agreed(question: str) -> bool | None:
    """Ask a question that is not the runner's, and wait for a line as long as it takes.

    Returns:
        Whether it is "y" or "yes"; None if there is no terminal to ask on.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    stdin = sys.stdin.fileno()
    termios.tcflush(stdin, termios.TCIFLUSH)
    _show(f"{question} [y/N] ", end="")
    with signals_wake() as wake:
        poll = _poll(stdin, wake)
        while stdin not in {fd for fd, _ in poll.poll()}:
            _drain(wake)
    return os.read(stdin, _LINE_BYTES).strip().lower() in {b"y", b"yes"}


def _wait(stdin: int, connection: int, withdrawn: Callable[[], bool], deadline: float) -> bytes | str:
    """The line that was typed, or why there is none."""
    with signals_wake() as wake:
        poll = _poll(stdin, connection, wake)
        while (left := deadline - time.monotonic()) > 0:
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            if stdin in ready:
                # Past sys.stdin, whose buffer would hide from poll what it has taken.
                return os.read(stdin, _LINE_BYTES)
            if connection in ready and withdrawn():
                return "\nThe question was answered elsewhere, or is over."
            if wake in ready:
                _drain(wake)
    return "\nNo answer: not done."


def _poll(*fds: int) -> select.poll:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return poll


def _drain(wake: int) -> None:
    """Take what woke; the signal's own handler has its say before this returns."""
    os.read(wake, _LINE_BYTES)


def _show(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
