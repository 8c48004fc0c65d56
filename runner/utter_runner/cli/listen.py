"""`utter listen`: one spoken session from the microphone or from a recording, shown as it happens.

Rules here: one thread; the session is told apart from others by the id that `ptt.press` answered; Enter or the first
Ctrl-C ends the recording, a second Ctrl-C gives the session up.
"""

from __future__ import annotations

import base64
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.cli.ask import serve_confirm
from utter_runner.cli.busy import Busy
from utter_runner.cli.connection import CALL_TIMEOUT_S, UsageError
from utter_runner.cli.exits import Exit, of_session
from utter_runner.cli.guard import say
from utter_runner.cli.interrupts import Interrupts
from utter_runner.cli.lines import event_line, session_of
from utter_runner.cli.text import document
from utter_sdk.client import RunnerUnavailable

if TYPE_CHECKING:
    from utter_sdk.client import Client, Subscription

# 60 s of 32-bit stereo at 192 kHz is 92 MB; what does not fit a frame (16 MiB, as base64) the runner cannot be given.
MAX_WAV_BYTES = 12 * 1000 * 1000
LISTEN_TIMEOUT_S = 240.0
_TURN_S = 0.05
_LINE_BYTES = 4096


def read_wav(path: str) -> bytes:
    """The bytes of a WAV file.

    Raises:
        UsageError: unreadable, no WAV file, or too large; the sentence names the file.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as in the rest of the CLI
            data = file.read(MAX_WAV_BYTES + 1)
    except OSError as error:
        raise UsageError(f"The recording {path} cannot be read: {os.strerror(error.errno or 0)}.") from None
    if data[:4] not in {b"RIFF", b"RF64"} or data[8:12] != b"WAVE":
        raise UsageError(f"{path} is not a WAV file. Convert it, for example with: ffmpeg -i {path} recording.wav")
    if len(data) > MAX_WAV_BYTES:
        raise UsageError(
            f"{path} is larger than {MAX_WAV_BYTES} bytes. A spoken command is short: 60 s of 16 kHz mono are 2 MB."
        )
    return data


def from_file(client: Client, path: str, data: bytes, *, as_json: bool) -> Exit:
    """Give a recording to the runner as if it had been spoken, and print its SessionReport."""
    with Busy("Listening to the recording") as busy:
        serve_confirm(client, busy)
        try:
            report = client.call("runner.listen", {"wav_b64": base64.b64encode(data).decode()}, LISTEN_TIMEOUT_S)
        except RpcError as error:
            if error.code != ErrorCode.INVALID_PARAMS:
                raise
            raise UsageError(f"{path}: {error.message}") from None
    if as_json:
        print(document(report))
    else:
        from utter_runner.cli.render import console, print_report  # noqa: PLC0415 - rich only for people

        print_report(console(), report)
    return finish(report)


def finish(report: dict[str, Any]) -> Exit:
    """The exit code of a session, with the reason on stderr where no step tells it."""
    if report.get("detail") and report.get("outcome") != "done" and not report.get("results"):
        say(str(report["detail"]))
    return of_session(report)


def live(client: Client, *, as_json: bool) -> Exit:
    """Press, show the session's events, release at Enter, Ctrl-C or elsewhere, and end with the report."""
    serve_confirm(client)
    with client.subscribe("runner.events") as stream, Interrupts() as interrupts:
        session = str(client.call("ptt.press", {}, CALL_TIMEOUT_S)["session"])
        try:
            say("Listening. Press Enter when you have finished speaking.")
            report = _Live(client, stream, session, interrupts, as_json=as_json).run()
        except (KeyboardInterrupt, BrokenPipeError):
            with suppress(RpcError, RunnerUnavailable, TimeoutError):
                client.call("ptt.cancel", {}, CALL_TIMEOUT_S)
            raise
    return finish(report)


class _Live:
    """Follows one session. While it is held, the keyboard and Ctrl-C are watched beside the events."""

    def __init__(
        self, client: Client, stream: Subscription, session: str, interrupts: Interrupts, *, as_json: bool
    ) -> None:
        self._client = client
        self._stream = stream
        self._session = session
        self._interrupts = interrupts
        self._as_json = as_json
        self._poll = select.poll()
        self._poll.register(client.fileno(), select.POLLIN)
        self._releasers = {interrupts.fd}
        with suppress(OSError, ValueError, AttributeError):
            self._releasers.add(sys.stdin.fileno())
        for fd in self._releasers:
            self._poll.register(fd, select.POLLIN)

    def run(self) -> dict[str, Any]:
        """Show the session's events up to its report, which is returned."""
        while True:
            while self._stream.ready:
                report = self._take(self._stream.get(None))
                if report is not None:
                    return report
            ready = {fd for fd, _ in self._poll.poll()}
            if any(self._wants_release(fd) for fd in ready & self._releasers):
                self._let_go()
                self._client.call("ptt.release", {}, CALL_TIMEOUT_S)
            if self._client.fileno() in ready:
                with suppress(TimeoutError):
                    self._client.wait_stream(self._stream, _TURN_S)

    def _take(self, event: dict[str, Any]) -> dict[str, Any] | None:
        name = event.get("event")
        ours = session_of(event) == self._session
        if ours or name in {"warning", "audio"}:
            print(document(event) if self._as_json else event_line(event), flush=True)
        if ours and name == "session" and event.get("state") != "listening":
            self._let_go()
        return dict(event["report"]) if ours and name == "report" else None

    def _let_go(self) -> None:
        """The key is up: from here on the keyboard is for confirmations, and Ctrl-C gives up."""
        self._interrupts.disarm()
        # The descriptor of signals stays: a wait that begins just after one has to end by it.
        for fd in self._releasers - {self._interrupts.fd}:
            self._poll.unregister(fd)
        self._releasers = set()

    def _wants_release(self, fd: int) -> bool:
        if fd == self._interrupts.fd:
            return True
        data = os.read(fd, _LINE_BYTES)
        if not data and not os.isatty(fd):
            # A stdin that has ended has nobody behind it; the session ends at Ctrl-C, at the key, or by its length.
            self._releasers.discard(fd)
            self._poll.unregister(fd)
            return False
        return not data or b"\n" in data
