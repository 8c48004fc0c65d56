"""Serving a plugin in a process of its own: its wire, its signals, its end.

Rules here: the process ends with its connection, whatever handlers are doing, unless somebody else than the runner
started it; `on_cancel` callbacks are called first, and nothing more is written to the runner.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from utter_protocol.framing import FramingError
from utter_protocol.inherited import RING_VARIABLE, WAKE_VARIABLE
from utter_sdk.connection import Connection, exit_code
from utter_sdk.handlers import log_traceback
from utter_sdk.lanes import Lanes
from utter_sdk.service import Service
from utter_sdk.stdio import log, take_over

if TYPE_CHECKING:
    from utter_sdk.microphone import InheritedRing
    from utter_sdk.plugin import Plugin, Transport
    from utter_sdk.sockets import Endpoint, SocketWire


def refuse_terminal(plugin: Plugin) -> None:
    """Exit with 2 and an explanation if frames would come from a terminal."""
    if plugin.hello.transport != "stdio" or not os.isatty(0):
        return
    log(
        f"{plugin.hello.plugin.name} is a plugin for utter-runner. It speaks JSON-RPC in Content-Length frames on\n"
        "stdin and stdout, so it is not started by hand: name it in a [[plugin]] table of the runner's config,\n"
        "or talk to it in a test through utter_sdk.testing.PluginProcess."
    )
    sys.exit(2)


class Server(Service):
    """Serves one plugin in this process."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(plugin, Lanes())
        self._endpoint: Endpoint | None = None
        self._wire: SocketWire | None = None
        self._stopping = False

    def run(self) -> NoReturn:
        """Serve until there is no more runner to expect, then end the process."""
        code = 1
        try:
            self.prepare()
            code = self._run_stdio() if self.plugin.hello.transport == "stdio" else self._run_sockets()
        except SystemExit as stop:
            code = exit_code(stop)
        except BaseException as error:  # noqa: BLE001 - the process ends here in any case; stderr must say why
            log_traceback(error)
        self.end(code)

    def end(self, code: int) -> NoReturn:
        """End the process now, from any thread, after the `on_cancel` callbacks."""
        connection = self.connection
        for callback in () if connection is None else connection.requests.cancel_all(waits=False):
            with suppress(Exception):
                callback()
        if self._endpoint is not None:
            self._endpoint.close()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # Worker threads may sit in C code for as long as they like, and an orderly exit would wait for some of them.
        os._exit(code)

    def start(self, settings: dict[str, Any]) -> None:
        """Run the start hooks; and let whoever has said hello take their time from now on."""
        if self._wire is not None:
            self._wire.deadline = None
        super().start(settings)

    def broken(self, connection: Connection) -> None:
        """Nobody reads any more: the same as the end of what they send."""
        if self._endpoint is None or self._endpoint.spawned:
            self.end(0)
        if self._wire is not None and connection is self.connection:
            self._wire.hang_up()

    def _run_stdio(self) -> int:
        self.inherited_ring = _take_ring()
        self.connection = connection = Connection(self, take_over())
        self._take_signals()
        return self._serve(connection)

    def _run_sockets(self) -> int:
        from utter_sdk.sockets import Endpoint  # noqa: PLC0415 - most plugins talk over stdin and stdout

        hello = self.plugin.hello
        self._endpoint = endpoint = Endpoint(hello.plugin.name, cast("Transport", hello.transport), os.environ)
        endpoint.take_over(self._input_ended)
        self._take_signals()
        while True:
            self._wire = wire = endpoint.next()
            self.connection = connection = Connection(self, wire)
            if self._input_over():
                wire.end_input()
            code = self._serve(connection)
            greeted = connection.greeted
            if endpoint.is_last(greeted=greeted):
                return code
            self.connection = self._wire = None
            connection.end("the runner has gone")
            if self._input_over():
                return code
            wire.close()
            endpoint.over(greeted=greeted)

    def _input_over(self) -> bool:
        return self._stopping

    def _input_ended(self) -> None:
        """The runner has closed stdin: end, after what it sent before."""
        self._stopping = True
        if self._wire is None:
            self.end(0)
        self._wire.end_input()

    def _serve(self, connection: Connection) -> int:
        try:
            connection.serve()
        except FramingError as error:
            log(f"the runner broke the framing ({error.kind}): {error.message}")
            connection.refuse(error)
            return 1
        except OSError as error:
            log(f"the connection to the runner broke: {error.strerror}")
        return 0

    def _take_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        # A Python handler runs on the main thread between two bytecodes: too late if that is about to wait in read().
        # What the interpreter writes to the wake-up descriptor arrives whatever the main thread does.
        wake, into = os.pipe()
        os.set_blocking(into, False)
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        ending = {signal.SIGTERM, signal.SIGINT} if _in_terminal_foreground() else {signal.SIGTERM}
        threading.Thread(target=self._watch, args=(wake, ending), name="utter-signals", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not SIG_IGN, which children would inherit.
            signal.signal(number, lambda *_: None)

    def _watch(self, wake: int, ending: set[signal.Signals]) -> None:
        while numbers := os.read(wake, 64):
            if ending.intersection(numbers):
                self.end(0)


def _take_ring() -> InheritedRing | None:
    """Return the audio ring that this process inherited, if it did, and let nothing that it starts inherit it too."""
    names = [os.environ.pop(name, "") for name in (RING_VARIABLE, WAKE_VARIABLE)]
    if not all(names):
        return None
    from utter_sdk.microphone import InheritedRing  # noqa: PLC0415 - few plugins hear
    from utter_sdk.wakening import Wakening  # noqa: PLC0415 - as above

    try:
        ring, wake = map(int, names)
        for fd in (ring, wake):
            os.set_inheritable(fd, False)  # noqa: FBT003 - the signature is os's
    except (ValueError, OSError):
        raise SystemExit(
            f"{RING_VARIABLE} and {WAKE_VARIABLE} must be the numbers of open descriptors, not {' and '.join(names)}"
        ) from None
    return InheritedRing(ring, Wakening(wake))


def _in_terminal_foreground() -> bool:
    """Whether Ctrl-C on this process's terminal means this process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
