"""Plugins without processes, for tests and programs built on the rooms above this one.

Rules here: they keep the promises of `Supervisor` and `Instance` that those rooms rely on. A request is answered once,
later than it was sent unless it cannot be sent; ids begin anew with each epoch; what a dead epoch left unanswered is
-32000. They remember what reached them, parsed.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import trio
from msgspec import Raw

from utter_protocol import ABI, PROTOCOL
from utter_protocol.capabilities import load_registry
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_protocol.methods import HealthResult
from utter_protocol.versions import Negotiated
from utter_runner.rpc.interface import TIMEOUT_CAP
from utter_runner.supervision.dialect import Handshake
from utter_runner.supervision.instance import wait_for_reply
from utter_runner.supervision.memory import Memory, is_model
from utter_runner.supervision.spec import PluginSpec
from utter_runner.supervision.states import RUNNING, is_gone, readiness
from utter_runner.supervision.work import LLM, MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from utter_protocol.messages import RequestId
    from utter_runner.rpc.deadlines import Deadline, Deadlines
    from utter_runner.rpc.interface import OnReply
    from utter_runner.rpc.peer import Peer
    from utter_runner.supervision.states import Status
    from utter_runner.supervision.work import Work

# What is answered: a result, an error, or what a function of the params returns or raises.
Answer: TypeAlias = "object | RpcError | Callable[[Any], object]"


class FakeRequest(msgspec.Struct, kw_only=True):
    """A request that reached a fake plugin. `timeout` is in seconds, `cancelled` whether `$/cancel` followed."""

    id: RequestId
    epoch: int
    method: str
    params: Any
    timeout: float
    cancelled: bool = False
    work: Work | None = None
    on_reply: OnReply | None
    deadline: Deadline | None = None


class FakeInstance:
    """A plugin that answers from a script.

    Args:
        plugin: its id.
        answers: by method; a method that is not there is never answered, until the test says `answer`.
        provides: capabilities.
        requires: capabilities.
        permissions: what it may do.
        deadlines: where time-outs are kept; without it requests have none.
    """

    def __init__(
        self,
        plugin: str,
        answers: Mapping[str, Answer] | None = None,
        *,
        provides: Iterable[str] = (),
        requires: Iterable[str] = (),
        permissions: Iterable[str] = (),
        deadlines: Deadlines | None = None,
    ) -> None:
        self.id = plugin
        self.answers = dict(answers or {})
        self.spec = PluginSpec(
            id=plugin,
            argv=("fake",),
            provides=tuple(provides),
            requires=tuple(requires),
            permissions=tuple(permissions),
        )
        self.handshake: Handshake | None = None
        self.epoch = 1
        self.status: Status = "ready"
        self.detail = ""
        self.refusal: RpcError | None = None
        self.returning = False
        self.peer: Peer | None = None
        self.received: list[FakeRequest] = []
        self.notified: list[tuple[str, Any]] = []
        self.takes_notifications = True
        self.deadlines = deadlines
        self._open: dict[RequestId, FakeRequest] = {}
        self.memory = Memory(plugin)
        self._next_id = count(1).__next__
        self._changed: Callable[[], None] = _nobody
        self._arrived = trio.Event()

    @property
    def running(self) -> bool:
        """Whether requests may be sent to it."""
        return self.status in RUNNING

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

    def describe(self, *, methods: Iterable[str] = (), streams: Iterable[str] = (), kind: str = "bundle") -> None:
        """Say in a handshake what it answers and sends."""
        self.handshake = Handshake(
            version="1.0.0",
            kind=kind,
            negotiated=Negotiated(PROTOCOL, ABI, ()),
            provides=self.spec.provides,
            requires=self.spec.requires,
            permissions=self.spec.permissions,
            methods=tuple(methods),
            streams=tuple(streams),
            health=HealthResult(),
            warnings=(),
        )

    async def wait_received(self, count: int = 1) -> FakeRequest:
        """Wait until so many requests have reached it; return the last of them."""
        while len(self.received) < count:
            await self._arrived.wait()
        return self.received[count - 1]

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the status is another."""
        self._changed = changed

    # ---- what the plugin does

    def answer(self, request: FakeRequest, answer: Answer) -> None:
        """Answer a request; nothing happens when it has ended."""
        if self._open.get(request.id) is not request:
            return
        try:
            value = answer(request.params) if callable(answer) else answer
        except RpcError as error:
            value = error
        if isinstance(value, RpcError):
            value.answered = True
            self._end(request, None, value)
        else:
            self._end(request, Raw(encode(value)), None)

    def die(self, status: Status = "backoff", detail: str = "it died") -> None:
        """The process ends: requests in flight are answered -32000."""
        self.status = status
        self.detail = detail
        for request in list(self._open.values()):
            self._end(request, None, self.unavailable())
        self._changed()

    def start(self) -> None:
        """The process of the next epoch runs and is admitted."""
        self.epoch += 1
        self.memory = Memory(self.id)
        self.status = "ready"
        self.detail = ""
        self._next_id = count(1).__next__
        self._changed()

    # ---- what Instance offers

    def request(
        self, method: str, params: bytes | Raw, on_reply: OnReply, *, timeout: float, work: Work | None = None
    ) -> RequestId | None:
        """Send a request; see `Instance.request`."""
        if not self.running:
            on_reply(None, self.unavailable())
            return None
        request = FakeRequest(
            id=self._next_id(),
            epoch=self.epoch,
            method=method,
            params=msgspec.json.decode(params),
            timeout=min(timeout, TIMEOUT_CAP),
            on_reply=on_reply,
            work=work,
        )
        if work is not None:
            self.memory.begin(work, method, model=self._is_model())
            self.memory.works[request.id] = work
        self.received.append(request)
        self._open[request.id] = request
        self._arrived.set()
        self._arrived = trio.Event()
        if self.deadlines is not None:
            request.deadline = self.deadlines.add(trio.current_time() + request.timeout, lambda: self._expire(request))
        if method in self.answers:
            token = trio.lowlevel.current_trio_token()
            token.run_sync_soon(self.answer, request, self.answers[method])
        return request.id

    def notify(self, method: str, params: bytes | Raw) -> bool:
        """Send a notification; see `Instance.notify`."""
        sent = self.running and self.takes_notifications
        if sent:
            self.notified.append((method, msgspec.json.decode(params)))
        return sent

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request of the running epoch; see `Instance.cancel`."""
        request = self._open.get(request_id)
        if request is not None:
            request.cancelled = True
            self._end(request, None, RpcError(ErrorCode.CANCELLED, "the request was cancelled"))

    async def call(self, method: str, params: object = None, *, timeout: float, work: Work | None = None) -> Raw:
        """Send a request and wait for the answer; see `Instance.call`. Raises RpcError."""
        if not self.running:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise self.unavailable()
        return await wait_for_reply(self, method, params, timeout, work)

    def reads(self, source: str) -> None:
        """The plugin reads the screen all the time from now on; see `Instance.reads`."""
        self.memory.reads(source)

    def work_of(self, request_id: RequestId | None) -> Work:
        """Return the work that a request of the plugin belongs to; see `Instance.work_of`. Raises RpcError."""
        if request_id is None:
            return self.memory.unnamed()
        request = self._open.get(request_id)
        if request is None:
            raise RpcError(ErrorCode.INVALID_PARAMS, f"no request {request_id!r}", {"field": "request"})
        return request.work or self.memory.stray()

    def unavailable(self) -> RpcError:
        """The error for a request to a plugin that does not run."""
        detail = f": {self.detail}" if self.detail else ""
        return RpcError(
            ErrorCode.PLUGIN_FAILED,
            f"{self.id} is {self.status}{detail}",
            {"plugin": self.id, "status": self.status, "epoch": self.epoch},
        )

    def _is_model(self) -> bool:
        return is_model(self.handshake.kind if self.handshake else self.spec.kind, self.provides)

    def _expire(self, request: FakeRequest) -> None:
        request.cancelled = True
        milliseconds = round(request.timeout * 1000)
        text = f"{self.id} did not answer within {milliseconds} ms"
        self._end(request, None, RpcError(ErrorCode.TIMED_OUT, text, {"timeout_ms": milliseconds}))

    def _end(self, request: FakeRequest, result: Raw | None, error: RpcError | None) -> None:
        if self._open.get(request.id) is request:
            del self._open[request.id]
        if request.deadline is not None:
            request.deadline.cancel()
        on_reply, request.on_reply = request.on_reply, None
        if request.work is not None:
            self.memory.works.pop(request.id, None)
            if (error is None or error.answered) and (self._is_model() or request.method.startswith(MODEL)):
                request.work.taint(LLM)
            request.work.cancel()
        if on_reply is not None:
            on_reply(result, error)


class FakeSupervisor:
    """Knows fake plugins, in the order of the config."""

    def __init__(self, *instances: FakeInstance) -> None:
        self._instances = {instance.id: instance for instance in instances}
        self._registry = load_registry()
        self._change = trio.Event()
        for instance in instances:
            instance.watch(self._changed)

    @property
    def instances(self) -> list[FakeInstance]:
        """All plugins."""
        return [*self._instances.values()]

    def get(self, plugin: str) -> FakeInstance:
        """Return a plugin by id; see `Supervisor.get`. Raises RpcError."""
        instance = self._instances.get(plugin)
        if instance is None:
            raise RpcError(
                ErrorCode.CAPABILITY_MISSING,
                f"there is no plugin {plugin!r}",
                {"plugin": plugin, "known": [*self._instances]},
            )
        return instance

    def provider(self, capability: str, *, besides: str = "") -> FakeInstance | None:
        """Return who provides `capability`; see `Supervisor.provider`."""
        providers = [
            instance
            for instance in self._instances.values()
            if instance.id != besides and any(self._registry.satisfies(one, capability) for one in instance.provides)
        ]
        return min(providers, key=readiness, default=None)

    async def wait_provider(self, capability: str, timeout: float) -> FakeInstance:
        """Return a running provider, waiting for one that comes back; see `Supervisor.wait_provider`."""
        instance = self.provider(capability)
        with trio.move_on_after(timeout):
            while instance is not None and not instance.running:
                if is_gone(instance):
                    raise instance.unavailable()
                await self._change.wait()
                instance = self.provider(capability)
        if instance is None:
            raise RpcError(ErrorCode.CAPABILITY_MISSING, f"no plugin provides {capability}", {"capability": capability})
        if not instance.running:
            raise instance.unavailable()
        return instance

    def missing(self, instance: FakeInstance) -> list[str]:
        """The requires of a plugin that nobody covers now."""
        others = {one for other in self._instances.values() if other.running for one in other.provides}
        return self._registry.missing(instance.requires, instance.provides, others)

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()


def _nobody() -> None:
    """Nobody watches."""
