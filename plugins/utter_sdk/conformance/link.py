"""One running plugin as its runner sees it, friendly or not: requests, answers, and everything that is wrong with them.

Rules here: what came is kept for the report; faults are kept, and judged by the checks that are about them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from utter_protocol.errors import RpcError
from utter_sdk.conformance.channel import Channel, PluginEndedError
from utter_sdk.conformance.desk import Desk
from utter_sdk.conformance.report import CheckFailed
from utter_sdk.conformance.talk import Talk
from utter_sdk.conformance.wire import MISSING, Fault, Message, Reader, dumps, frame, key_of, read_message, shown

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from utter_sdk.conformance.channel import Limits
    from utter_sdk.conformance.launch import Subject
    from utter_sdk.testing.ring import AudioRing


class Link(Talk):
    """A plugin that was started; use it as a context manager, which ends it.

    Args:
        subject: what to start.
        limits: how long to wait.

    Attributes:
        faults: what the plugin wrote and must not write, and nobody has taken yet.
        messages: everything that it sent and that is a message, in order.
        greeted: whether the answer to `hello` has come.
        strangers: how many answers came that no open request has.

    Raises:
        LaunchError: it cannot be started.
        CheckFailed: it did not connect, or listen.
    """

    def __init__(self, subject: Subject, limits: Limits) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.messages: list[Message] = []
        self.greeted = False
        self.strangers = 0
        self._limits = limits
        self._desk = Desk()
        self._reader = Reader()
        self._hello = ""
        self._heard: list[Message] = []
        self._may_answer: set[str] = set()
        # Answers that wait until a frame is whole that is written in pieces; None while none is.
        self._held: list[bytes] | None = None
        self._closed = False
        self._channel = Channel(subject, limits, self._receive)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- What is sent

    def pieces(self, *parts: bytes) -> None:
        """Write bytes in pieces; what the plugin asks meanwhile is answered behind them and not inside a frame."""
        self._held = []
        try:
            super().pieces(*parts)
        finally:
            held, self._held = self._held, None
            for body in held:
                self._reply(body)

    def hello(self, params: Any) -> Any:
        """Send `protocol.hello` and return its id; until it is answered the plugin has to be silent."""
        request_id = self.next_id()
        self._hello = key_of(request_id)
        return self.request("protocol.hello", params, request_id)

    def allow(self, *request_ids: Any) -> None:
        """Say that an answer with one of these ids is no fault, whether it comes or not."""
        self._may_answer.update(map(key_of, request_ids))

    def pause(self) -> None:
        """Read nothing of what the plugin writes, until `resume`."""
        self._channel.reading = False

    def resume(self) -> None:
        """Read again."""
        self._channel.reading = True

    # ---- What comes

    def answered(self, request_id: Any) -> bool:
        """Whether an answer with this id has come and was not taken yet."""
        return key_of(request_id) in self._answers

    def take(self, request_id: Any) -> Message | None:
        """Return an answer that has come already."""
        return self._pop(key_of(request_id)) if self.answered(request_id) else None

    def forget(self, *request_ids: Any) -> None:
        """Put away answers that have come and that nobody took."""
        for request_id in request_ids:
            self._answers.pop(key_of(request_id), None)

    def barrier(self) -> None:
        """Wait until the plugin has answered a request that was sent after everything before.

        Raises:
            CheckFailed: it does not answer any more.
        """
        self.call("plugin.health", {})

    def unanswered(self, begin: int, what: str) -> None:
        """Go on only if nothing but two barriers was answered since there were `begin` messages.

        Raises:
            CheckFailed: something was, or it does not answer any more.
        """
        self.barrier()
        self.barrier()
        if sum(one.is_answer for one in self.messages[begin:]) > 2:  # noqa: PLR2004 - the barriers
            raise CheckFailed(f"{what} was answered", expected="no answer")

    def quiet(self) -> None:
        """Read for as long as nothing should come."""
        self._channel.pump(lambda: False, self._limits.quiet)

    def wait(self, found: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        """Read until `found()`.

        Raises:
            CheckFailed: it did not become true in time, or cannot any more.
        """
        limit = self._limits.answer if seconds is None else seconds
        if self._channel.pump(lambda: found() or self._channel.output_ended, limit) and found():
            return
        expected = f"{what} within {limit:g} s"
        if self._channel.output_ended:
            raise PluginEndedError(f"{what} did not come: {self._channel.ending()}", expected=expected)
        raise CheckFailed(f"{what} did not come in {limit:g} s", expected=expected)

    def take_faults(self) -> list[Fault]:
        """The faults since the last call."""
        taken, self.faults = self.faults, []
        return taken

    def take_heard(self) -> list[Message]:
        """The requests and notifications of the plugin since the last call."""
        taken, self._heard = self._heard, []
        return taken

    @property
    def pid(self) -> int:
        """The plugin's process, and its group."""
        return self._channel.pid

    @property
    def alive(self) -> bool:
        """Whether the plugin still has its end of the wire open."""
        self._channel.pump(lambda: False, 0)
        return not self._channel.output_ended

    @property
    def ring(self) -> AudioRing | None:
        """What the plugin hears, if it inherits a ring."""
        return self._channel.ring

    @property
    def socket_mode(self) -> int:
        """The permission bits of the socket that the plugin made."""
        return self._channel.socket_mode

    # ---- The end

    def end_input(self) -> None:
        """End the plugin's input as the runner does."""
        self.transcript.append(("-", "the end of its input"))
        self._channel.end_input()

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the plugin's process."""
        self.transcript.append(("-", number.name))
        self._channel.signal(number)

    def wait_end(self, seconds: float | None = None) -> int | None:
        """Read until the process has ended and everything that it wrote was read; return its exit code.

        Raises:
            CheckFailed: it goes on running.
        """
        limit = self._limits.end if seconds is None else seconds
        if not self._channel.pump(lambda: self._channel.exited, limit):
            raise CheckFailed(f"the process still runs {limit:g} s later", expected=f"an end within {limit:g} s")
        # A descendant may hold stdout open for ever; what the process wrote is there by now.
        self._channel.drain()
        code = self._channel.exit_code()
        self.transcript.append(("-", f"it ended with exit code {code}"))
        return code

    def wait_closed(self, but_for: Any) -> None:
        """Read until the plugin has closed its end of the wire, or has ended.

        Raises:
            CheckFailed: neither, or it answered the request with the id `but_for`, so it goes on.
        """
        channel, expected, seconds = self._channel, "the end of the connection", self._limits.answer
        if not channel.pump(lambda: channel.output_ended or channel.exited or self.answered(but_for), seconds):
            raise CheckFailed(f"it keeps the connection open {seconds:g} s later", expected=expected)
        if self.answered(but_for):
            raise CheckFailed("it goes on and answers the next request", expected=expected)

    def outlived(self) -> list[str]:
        """The names of the processes that the plugin, which has ended, has left behind."""
        return self._channel.outlived()

    def close(self) -> None:
        """End the plugin by all means, and look at what came until then."""
        if not self._closed:
            self._closed = True
            self._channel.close()
            self.faults += self._reader.end()

    # ---- Below

    def _write(self, data: bytes) -> None:
        self._channel.write(data)

    def _settle(self) -> None:
        self._channel.settle()

    def _receive(self, data: bytes) -> None:
        for found in self._reader.feed(data):
            if isinstance(found, Fault):
                self.transcript.append(("<", found.text))
                self.faults.append(found)
                continue
            self.transcript.append(("<", shown(found)))
            message = read_message(found)
            if isinstance(message, Fault):
                self.faults.append(message)
            else:
                self._take(message)

    def _take(self, message: Message) -> None:
        self.messages.append(message)
        if message.is_answer:
            self._take_answer(message)
            return
        self._heard.append(message)
        if not self.greeted:
            self.faults.append(Fault("early", f"{message.method} was sent before protocol.hello was answered"))
        if message.id is not MISSING:
            self._serve(message)

    def _take_answer(self, message: Message) -> None:
        key = key_of(message.id)
        self.greeted = self.greeted or key == self._hello
        if not self._take_open(key):
            if key in self._may_answer:
                self._may_answer.discard(key)
            else:
                self.strangers += 1
                self.faults.append(Fault("answer", f"An answer with the id {key}, which no open request has"))
        self._keep(key, message)

    def _serve(self, message: Message) -> None:
        params = message.params if isinstance(message.params, dict) else {}
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id}
        try:
            reply["result"] = self._desk.answer(message.method, params)
        except RpcError as error:
            reply["error"] = {"code": int(error.code), "message": error.message}
            if error.data is not None:
                reply["error"]["data"] = error.data
        body = dumps(reply)
        if self._held is None:
            self._reply(body)
        else:
            self._held.append(body)

    def _reply(self, body: bytes) -> None:
        self.transcript.append((">", shown(body)))
        self._channel.queue(frame(body))
