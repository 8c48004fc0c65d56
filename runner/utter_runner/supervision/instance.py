"""One plugin over its epochs: the process, the peer, the status, and what it said of itself.

Rules here: the instance owns its process and its peer; `status` changes through the transition table only; a peer lives
exactly one epoch, so that an answer of an old epoch has nobody to reach. Whether and when to start again is the
supervisor's decision; how runner and plugin meet on a socket is the `Meeting`'s.
"""

from __future__ import annotations

import logging
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import EMPTY_OBJECT, encode
from utter_runner.config.log_fields import about
from utter_runner.rpc.credentials import peer_credentials
from utter_runner.rpc.descriptors import close_all
from utter_runner.rpc.interface import guarded
from utter_runner.rpc.peer import Peer
from utter_runner.rpc.replies import wait_reply
from utter_runner.supervision.launch import NOTHING, SpawnError, abandon, launch
from utter_runner.supervision.link import Meeting
from utter_runner.supervision.memory import Memory, is_model
from utter_runner.supervision.process import ChildProcess
from utter_runner.supervision.states import RUNNING, Event, Status, next_status
from utter_runner.supervision.work import LLM, MODEL

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from msgspec import Raw

    from utter_protocol.messages import RequestId, StreamItem
    from utter_protocol.methods import HealthResult
    from utter_runner.rpc.deadlines import Deadlines
    from utter_runner.rpc.interface import Limits, OnReply
    from utter_runner.rpc.reactor import Reactor
    from utter_runner.supervision.dialect import Dialect, Handshake
    from utter_runner.supervision.launch import Inherited, Launched
    from utter_runner.supervision.spec import PluginSpec, Timing
    from utter_runner.supervision.work import Work

logger = logging.getLogger(__name__)


class PluginRequests(Protocol):
    """Who answers what plugins ask (`host.*`) and hears what they announce."""

    def on_request(self, instance: Instance, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        """Answer through `peer`, or raise RpcError."""

    def on_notification(self, instance: Instance, method: str, params: Raw) -> None:
        """Take note."""

    @property
    def on_item(self) -> Callable[[Instance, str, StreamItem], None]:
        """Who takes the items of plugins' streams."""


class Requestable(Protocol):
    """Who can be sent requests."""

    def request(
        self, method: str, params: bytes | Raw, on_reply: OnReply, *, timeout: float, work: Work | None = None
    ) -> RequestId | None:
        """As `Instance.request`."""

    def cancel(self, request_id: RequestId) -> None:
        """As `Instance.cancel`."""


async def wait_for_reply(
    instance: Requestable, method: str, params: object, timeout: float, work: Work | None = None
) -> Raw:
    """Send a request to a plugin and wait for its answer; cancelling the wait cancels the request. Raises RpcError."""

    def start(on_reply: OnReply) -> Callable[[], object]:
        raw = EMPTY_OBJECT if params is None else encode(params)
        request_id = instance.request(method, raw, on_reply, timeout=timeout, work=work)
        # One that could not be sent has been answered.
        return partial(instance.cancel, request_id) if request_id is not None else _nothing

    return await wait_reply(start)


def _nothing() -> None:
    """There is nothing to withdraw."""


class Instance:
    """A plugin. (id, epoch) names one incarnation of it.

    `launched` is the process of the first epoch, if it runs already; `inherit` makes what a process inherits whose spec
    says that it inherits the ring.
    """

    def __init__(
        self,
        spec: PluginSpec,
        *,
        reactor: Reactor,
        deadlines: Deadlines,
        dialect: Dialect,
        timing: Timing,
        limits: Limits,
        environ: Mapping[str, str],
        requests: PluginRequests,
        on_change: Callable[[Instance], None],
        launched: Launched | None = None,
        inherit: Callable[[], Inherited] | None = None,
    ) -> None:
        self.spec = spec
        self.epoch = 0
        self.status: Status = "stopped"
        self.detail = ""
        self.handshake: Handshake | None = None
        self.admitted = False
        self.returning = True
        """It is stopped only to be started again at once."""
        self.restarts = 0
        self.junk_bytes = 0
        self.late_replies = 0
        self.missing: tuple[str, ...] = ()
        self.refusal: RpcError | None = None
        """Why the last epoch was not admitted, if that was decided."""
        self.started_at = 0.0
        self.peer: Peer | None = None
        self.process: ChildProcess | None = None
        self.ended = trio.Event()
        self._warned: set[str] = set()
        self.memory = Memory(spec.id)
        """What it has learned in this epoch."""
        self._model = is_model(spec.kind, spec.provides)
        self.said: HealthResult | None = None
        """What it said last in this epoch of how it is."""
        self._reactor = reactor
        self._deadlines = deadlines
        self._dialect = dialect
        self._timing = timing
        self._limits = limits
        self._environ = environ
        self._requests = requests
        self._on_change = on_change
        self._launched = launched
        self._inherit = inherit
        self._inherited = NOTHING
        self._meeting = Meeting(spec, timing, reactor, deadlines)
        self._other_pid: int | None = None

    @property
    def id(self) -> str:
        """The plugin's id."""
        return self.spec.id

    @property
    def pid(self) -> int | None:
        """Its process, if it has one that is known."""
        return self.process.pid if self.process else self._other_pid

    @property
    def running(self) -> bool:
        """Whether requests may be sent to it: not from the moment on that its wire is closed."""
        return self.status in RUNNING and self.peer is not None and not self.peer.closed

    @property
    def provides(self) -> tuple[str, ...]:
        """What it provides: by its handshake, or by its declaration before one."""
        return self.handshake.provides if self.handshake else self.spec.provides

    @property
    def requires(self) -> tuple[str, ...]:
        """What it requires."""
        return self.handshake.requires if self.handshake else self.spec.requires

    @property
    def permissions(self) -> tuple[str, ...]:
        """What it may do."""
        return self.handshake.permissions if self.handshake else self.spec.permissions

    def reconfigure(self, timing: Timing, limits: Limits) -> None:
        """Have other bounds from now on; the limits hold from the next connection on."""
        self._timing, self._limits = timing, limits
        self._meeting.timing = timing

    def move(self, event: Event, detail: str = "") -> None:
        """Go through one transition and tell whoever wants to know."""
        self.status = next_status(self.status, event)
        self.detail = detail
        why = f": {detail}" if detail else ""
        logger.debug("%s#%d is %s%s", self.id, self.epoch, self.status, why, extra=about(self))
        # What fails over there is no reason for this plugin, or for whose task this is, to end.
        guarded(self._on_change, self)

    # ---- one epoch

    async def wait_other(self) -> socket.socket:
        """Wait until a plugin that somebody else starts is there, however long that takes; return its connection."""
        before = f"; before that: {self.detail}" if self.detail else ""

        def say(why: str) -> None:
            if self.detail != why + before:
                self.detail = why + before
                logger.info("%s is %s: %s", self.id, self.status, self.detail, extra=about(self))
                guarded(self._on_change, self)

        return await self._meeting.wait(say)

    def start(self, connection: socket.socket | None = None) -> None:
        """Begin the next epoch: spawn the process, or take the connection of one that somebody else started.

        Raises:
            SpawnError: the process cannot be started.
        """
        self.epoch += 1
        self.admitted = False
        self.returning = False
        self.handshake = None
        self.missing = ()
        self.memory = Memory(self.id)
        self.said = None
        self.ended = trio.Event()
        self.started_at = trio.current_time()
        if connection is not None:
            self._attach_socket(connection)
            return
        launched, self._launched = self._launched, None
        launched = launched or self._launch()
        self._meeting.take(launched.endpoint)
        try:
            process = ChildProcess(launched, self._reactor, self._on_stderr, self.spec.secrets)
        except OSError as error:
            abandon(launched)
            self._end_inherited()
            raise SpawnError(f"the runner cannot watch over it: {error.strerror}") from error
        self.process = process
        if self.spec.transport == "stdio":
            self._attach(process.stdout_fd, process.stdin_fd)

    def _launch(self) -> Launched:
        inherited = NOTHING
        if self.spec.inherits_ring and self._inherit is not None:
            try:
                inherited = self._inherit()
            except OSError as error:
                raise SpawnError(f"the audio ring cannot be opened for it: {error.strerror}") from error
        try:
            launched = launch(self.spec, self.epoch, self._environ, self._meeting.endpoint, inherited.fds)
        except BaseException:
            inherited.end()
            raise
        finally:
            close_all(inherited.fds.values())
        self._inherited = inherited
        return launched

    def _end_inherited(self) -> None:
        inherited, self._inherited = self._inherited, NOTHING
        inherited.end()

    async def connect(self) -> None:
        """Wait until runner and process are connected. Raises RpcError when they are not in time."""
        if self.peer is None and self.process is not None:
            self._attach_socket(await self._meeting.expect(self.process.pid, self.process.mark))

    def close(self) -> None:
        """Let nobody connect any more, until the next epoch."""
        self._meeting.close()

    def _attach_socket(self, connection: socket.socket) -> None:
        self._other_pid = peer_credentials(connection).pid
        self._meeting.occupied(by_plugin=True)
        fd = connection.detach()
        self._attach(fd, fd)

    def _attach(self, read_fd: int, write_fd: int) -> None:
        self.peer = Peer(
            self._reactor,
            self._deadlines,
            read_fd,
            write_fd,
            self,
            name=self.id,
            limits=self._limits,
            log_fields=about(self),
        )
        self.peer.on_item = partial(self._requests.on_item, self)

    async def greet(self) -> None:
        """Do the handshake. Raises RpcError."""
        if self.peer is None:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"{self.id} is not running")
        self.handshake = await self._dialect.handshake(self.peer, self.spec, self.epoch, self._timing.handshake)
        self._model = is_model(self.handshake.kind, self.handshake.provides)
        if self.said is not None:
            # It changed while the handshake was under way.
            self.note_health(self.said)
        for warning in self.handshake.warnings:
            # Said once, and not again by every epoch.
            if warning not in self._warned:
                self._warned.add(warning)
                logger.warning("%s: %s", self.id, warning, extra=about(self))

    async def health(self) -> HealthResult:
        """Ask whether it is well. Raises RpcError."""
        if self.peer is None:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"{self.id} is not running")
        return await self._dialect.health(self.peer, self._timing.health_timeout)

    def note_health(self, health: HealthResult) -> None:
        """Keep what the plugin said last of how it is."""
        self.said = health
        if self.handshake is not None:
            self.handshake = msgspec.structs.replace(self.handshake, health=health)

    def warn_of(self, warnings: tuple[str, ...]) -> None:
        """Other things are to be known of its spec, which is the same otherwise."""
        before = self.spec.warnings
        self.spec = msgspec.structs.replace(self.spec, warnings=warnings)
        if self.handshake is not None:
            said = (one for one in self.handshake.warnings if one not in before)
            self.handshake = msgspec.structs.replace(self.handshake, warnings=(*warnings, *said))

    def kill(self, reason: str) -> None:
        """End this epoch at once; what somebody else started is only disconnected."""
        if self.process is not None:
            self.process.signal_group(signal.SIGKILL)
        elif self.peer is not None:
            self.peer.close(reason)

    async def wait_end(self) -> None:
        """Wait until the process is gone or the wire is closed, whichever comes first."""
        process = self.process
        if process is None:
            await self.ended.wait()
            return
        async with trio.open_nursery() as nursery:

            async def first(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(first, process.exited)
            nursery.start_soon(first, self.ended)

    async def tear_down(self, reason: str) -> int | None:
        """End process and peer of this epoch, whatever state they are in; return the exit code."""
        process, peer = self.process, self.peer
        with trio.CancelScope(shield=True):
            try:
                if process is None:
                    await self._part()
                elif process.exited.is_set():
                    # Its last words may still be on their way.
                    if peer is not None:
                        await peer.finish(reason)
                    await process.clean_up()
                else:
                    await process.stop(self._end_input, grace=self._timing.stop)
                    if peer is not None:
                        await peer.finish(reason)
            finally:
                if peer is not None:
                    peer.close(reason)
                    self.late_replies += peer.late_replies
                self._end_inherited()
                self.process = self.peer = self._other_pid = None
                self._meeting.occupied(by_plugin=False)
        return process.returncode if process is not None else None

    def _end_input(self) -> None:
        if self.peer is not None:
            self.peer.channel.close_writing()

    async def _part(self) -> None:
        """Take leave of what somebody else started: it may finish what it is at."""
        if self.peer is not None and not self.peer.closed:
            self._end_input()
            with trio.move_on_after(self._timing.stop):
                await self.ended.wait()

    # ---- requests to the plugin

    def request(
        self, method: str, params: bytes | Raw, on_reply: OnReply, *, timeout: float, work: Work | None = None
    ) -> RequestId | None:
        """Send a request to the running epoch; `on_reply` is called exactly once. None when it could not be sent.

        `work` is what the request is part of, for what the plugin asks meanwhile.
        """
        if self.peer is None or not self.running:
            on_reply(None, self.unavailable())
            return None
        if work is None:
            return self.peer.request(method, params, on_reply, timeout=timeout)
        model = self._model
        self.memory.begin(work, method, model=model)
        works = self.memory.works
        ended = False

        def ends(result: Raw | None, error: RpcError | None) -> None:
            nonlocal ended
            ended = True
            works.pop(request_id, None)
            # In an error it can say whatever it can in a result.
            if (error is None or error.answered) and (model or method.startswith(MODEL)):
                work.taint(LLM)
            # Whatever it still asks for, nobody waits for any more, and it may not serve another request.
            work.cancel()
            on_reply(result, error)

        request_id: RequestId = 0
        request_id = self.peer.request(method, params, ends, timeout=timeout)
        if not ended:
            works[request_id] = work
        return request_id

    def reads(self, source: str) -> None:
        """The plugin reads the screen all the time from now on: that taints whatever it works on in this epoch."""
        self.memory.reads(source)

    def work_of(self, request_id: RequestId | None) -> Work:
        """Return the work that a plugin's own request belongs to.

        Args:
            request_id: the runner's request that the plugin says it is working on; None when it does not say. Then it
                counts as the deepest one in flight, and as `screen`. What is read for one that the runner sent on
                nobody's behalf is known to the plugin for the rest of its epoch.

        Raises:
            RpcError: -32602, no such request is in flight.
        """
        if request_id is None:
            return self.memory.unnamed()
        work = self.memory.works.get(request_id)
        if work is not None:
            return work
        if self.peer is not None and self.peer.waits_for(request_id):
            return self.memory.stray()
        raise RpcError(
            ErrorCode.INVALID_PARAMS,
            f"the runner waits for no answer to a request {request_id!r}",
            {"field": "request"},
        )

    def notify(self, method: str, params: bytes | Raw) -> bool:
        """Send a notification to the running epoch; False when it could not be sent."""
        return self.peer is not None and self.running and self.peer.notify(method, params)

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request of the running epoch."""
        if self.peer is not None:
            self.peer.cancel(request_id)

    async def call(self, method: str, params: object = None, *, timeout: float, work: Work | None = None) -> Raw:
        """Send a request and wait for the answer; `work` as in `request`. Raises RpcError."""
        if self.peer is None or not self.running:
            raise self.unavailable()
        if work is None:
            return await self.peer.call(method, params, timeout=timeout)
        return await wait_for_reply(self, method, params, timeout, work)

    def unavailable(self) -> RpcError:
        """The error for a request to a plugin that does not run."""
        detail = f": {self.detail}" if self.detail else ""
        return RpcError(
            ErrorCode.PLUGIN_FAILED,
            f"{self.id} is {self.status}{detail}",
            {"plugin": self.id, "status": self.status, "epoch": self.epoch},
        )

    # ---- what the plugin sends (rpc.peer.Handler)

    def on_request(self, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        """Hand a plugin's request on."""
        self._requests.on_request(self, peer, request_id, method, params)

    def on_notification(self, peer: Peer, method: str, params: Raw) -> None:
        """Hand a plugin's notification on."""
        if peer is self.peer:
            self._requests.on_notification(self, method, params)

    def on_junk(self, peer: Peer, junk: bytes) -> None:
        """Count and log what the plugin printed between frames."""
        self.junk_bytes += len(junk)
        peer.complaints.warn(
            logger,
            "%s wrote %d bytes to stdout that are no frame; stdout is for frames, log to stderr",
            self.id,
            len(junk),
            extra=about(self),
        )

    def on_closed(self, peer: Peer, reason: str) -> None:
        """The wire of an epoch is closed."""
        if peer is self.peer:
            if not self.detail or self.running:
                self.detail = reason
            self.ended.set()

    def _on_stderr(self, line: str) -> None:
        logger.info("%s: %s", self.id, line, extra=about(self))

    def status_report(self) -> dict[str, Any]:
        """What `runner.plugins` says of it."""
        handshake = self.handshake
        process = self.process
        return {
            "id": self.id,
            "kind": handshake.kind if handshake else self.spec.kind,
            "version": handshake.version if handshake else self.spec.version,
            "epoch": self.epoch,
            "status": self.status,
            "detail": self.detail,
            "pid": self.pid,
            "transport": self.spec.transport,
            "provides": list(self.provides),
            "requires": list(self.requires),
            "missing_requires": list(self.missing),
            "permissions": list(self.permissions),
            "negotiated": (
                {"protocol": handshake.negotiated.protocol, "abi": handshake.negotiated.abi} if handshake else None
            ),
            "methods": list(handshake.methods) if handshake else [],
            "streams": list(handshake.streams) if handshake else [],
            "restarts": self.restarts,
            "junk_bytes": self.junk_bytes,
            "refused_connections": self._meeting.refused,
            "late_replies": self.late_replies + (self.peer.late_replies if self.peer else 0),
            "stderr_tail": process.stderr_tail[-2000:] if process else "",
            "warnings": list(handshake.warnings) if handshake else list(self.spec.warnings),
        }
