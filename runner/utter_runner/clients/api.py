"""The client API: one table from method to function (PROTOCOL.md, "The client API").

Rules here: a method that can answer at once is a plain function; only those that must wait get a task, which `$/cancel`
and the end of the connection cancel. `runner.invoke` forwards params and result unparsed, except for methods with side
effects: those go through the gate or not at all.
"""

from __future__ import annotations

import base64
import binascii
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio
from msgspec import Raw

from utter_protocol import ABI, PROTOCOL
from utter_protocol.audit import AuditSource
from utter_protocol.contracts import FOR_THE_RUNNER
from utter_protocol.control import ControlParams
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.kinds import SnapshotParams, SpeakResult
from utter_protocol.messages import encode
from utter_protocol.methods import (
    CommandParams,
    ExplainParams,
    ListenParams,
    LogsParams,
    PlannedStep,
    PolicyListResult,
    Provenance,
    QuestionsResult,
    RunnerInvokeParams,
    SessionReport,
    SpeakRequest,
    ValidateParams,
    ValidateResult,
    WireError,
)
from utter_runner.actions.gate import explained
from utter_runner.clients.microphone import Listeners
from utter_runner.confirm.surfaces import Surface
from utter_runner.dataplane.asked import HANDLE
from utter_runner.policy import Origin, lower
from utter_runner.policy.marks import provenance_of
from utter_runner.rpc.credentials import program_of
from utter_runner.rpc.interface import TIMEOUT_CAP
from utter_runner.rpc.params import decode_params, relay, require_structured, seconds_of
from utter_runner.rpc.tasks import RequestTasks
from utter_runner.supervision.work import Work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from utter_protocol.capabilities import Registry
    from utter_protocol.messages import RequestId
    from utter_protocol.methods import HotkeysAsked, SandboxState
    from utter_runner.actions.commands import Commands
    from utter_runner.actions.gate import ActionGate, GatePhase
    from utter_runner.clients.logs import LogBacklog
    from utter_runner.clients.microphone import Microphone
    from utter_runner.confirm.confirmer import Confirmer
    from utter_runner.dataplane.service import DataPlane
    from utter_runner.host.subscriptions import Subscriptions
    from utter_runner.rpc.credentials import Credentials
    from utter_runner.rpc.peer import Peer
    from utter_runner.rpc.requesters import Requester
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor

# Methods that do something to the world when they are called; the gate knows the one, nobody may call the others.
_GATED = "action.invoke"
_SOMEBODY = AuditSource(kind="client")
_FORBIDDEN_PREFIXES = ("protocol.", "stream.", "$/", *FOR_THE_RUNNER)


class Speaker(Protocol):
    """What the API needs to speak."""

    async def speak(self, text: str, voice: str = "", *, timeout: float) -> SpeakResult:
        """Speak a text and wait. Raises RpcError."""

    def hush(self) -> bool:
        """End what is spoken; whether anything was."""


class Party(Surface, Protocol):
    """What the API needs of a connection."""

    @property
    def requester(self) -> Requester:
        """Who is at its other end."""

    def attend(self) -> None:
        """Ask the person behind it from now on."""


class Voice(Protocol):
    """What the API needs of the spoken session."""

    def press(self) -> dict[str, Any]:
        """The key went down."""

    def release(self) -> dict[str, Any]:
        """The key went up."""

    def toggle(self) -> dict[str, Any]:
        """Start listening, or stop."""

    def cancel(self) -> bool:
        """Give the session up; whether there was one."""

    async def listen_wav(
        self, pcm: bytes, timeout: float, requesters: frozenset[Requester], *, act: bool
    ) -> SessionReport:
        """One session from f32le 16 kHz mono audio."""


class _GatedParams(msgspec.Struct, kw_only=True):
    op: str
    args: dict[str, Any] = {}
    provenance: Provenance | None = None
    arg_provenance: dict[str, Provenance] = {}


class ClientApi:
    """Answers authenticated clients.

    Args:
        supervisor: the plugins.
        registry: the capability registry.
        gate: the way to actions.
        commands: the way from text to actions.
        confirmer: knows which questions are open.
        voice: the spoken session.
        speaker: speaks texts.
        ask_desktop: asks the desktop for the hotkeys' shortcuts; returns what `hotkeys.bind` answers.
        microphone: what `audio.open` holds.
        devices: returns what `audio.devices` answers.
        context: returns the desktop's state, of the sources named or of all.
        streams: answers `stream.*`.
        data: answers `handle.*` and `fd.pass`.
        status: returns what `runner.status` answers.
        drift: looks at the plugins on disk, and returns what `runner.drift` answers.
        reload: reads the configuration again; returns what `runner.reload` answers.
        sandbox: says of a plugin, given its id and its permissions, what holds it.
        log: what was logged.
        wav_to_pcm: decodes a WAV file; raises ValueError with a sentence for a person.
        timeout: seconds, where a request names none.

    Attributes:
        ptt_at: when a client was the key for the last time, by trio's clock; None: never yet.
    """

    def __init__(
        self,
        *,
        supervisor: Supervisor,
        registry: Registry,
        gate: ActionGate,
        commands: Commands,
        confirmer: Confirmer,
        voice: Voice,
        speaker: Speaker,
        ask_desktop: Callable[[], HotkeysAsked],
        microphone: Microphone,
        devices: Callable[[], Awaitable[object]],
        context: Callable[[list[str]], Awaitable[object]],
        streams: Subscriptions,
        data: DataPlane,
        status: Callable[[], dict[str, Any]],
        drift: Callable[[], Awaitable[object]],
        reload: Callable[[], Awaitable[object]],
        sandbox: Callable[[str, Iterable[str]], SandboxState],
        log: LogBacklog,
        wav_to_pcm: Callable[[bytes], bytes],
        timeout: float,
    ) -> None:
        self._supervisor = supervisor
        self._registry = registry
        self._gate = gate
        self._commands = commands
        self._confirmer = confirmer
        self._parties: dict[Peer, Party] = {}
        self._voice = voice
        self._speaker = speaker
        self._listeners = Listeners(microphone)
        self._devices = devices
        self._context = context
        self._streams = streams
        self._data = data
        self._status = status
        self._sandbox = sandbox
        self._log = log
        self._wav_to_pcm = wav_to_pcm
        self._timeout = timeout
        self._tasks = RequestTasks()
        self._sessions = 0
        self.ptt_at: float | None = None
        self._sources: dict[Peer, AuditSource] = {}
        self._at_once: Mapping[str, Callable[[Peer, RequestId, Raw], None]] = {
            "runner.invoke": self._invoke,
            "runner.command": self._start_command,
            "runner.listen": self._start_listen,
            "confirm.list": self._questions,
            "confirm.attend": self._attend,
            "runner.status": lambda peer, request_id, _params: peer.reply_object(request_id, self._status()),
            "runner.plugins": self._plugins,
            "runner.logs": self._logs,
            "runner.validate_plugin": self._validate,
            "policy.explain": self._explain,
            "policy.list": lambda peer, request_id, _params: peer.reply_object(
                request_id, PolicyListResult(ops=gate.overview())
            ),
            "ptt.press": self._key(voice.press),
            "ptt.release": self._key(voice.release),
            "ptt.toggle": self._key(voice.toggle),
            "hotkeys.bind": self._answering(ask_desktop),
            "runner.hush": self._answering(lambda: {"stopped": speaker.hush()}),
            "ptt.cancel": self._key(lambda: {"cancelled": voice.cancel()}),
            "runner.control": self._start_control,
            "audio.open": self._open_audio,
            "audio.close": self._close_audio,
            "stream.subscribe": streams.subscribe,
            "stream.ack": lambda peer, request_id, params: streams.acknowledge(peer, params, request_id),
            "stream.stop": streams.stop,
            **{method: partial(self._on_data, method) for method in data.methods},
        }
        self._waiting: Mapping[str, Callable[[Raw], Awaitable[object]]] = {
            "context.snapshot": self._snapshot,
            "runner.speak": self._speak,
            "runner.drift": lambda _params: drift(),
            "audio.devices": lambda _params: self._devices(),
            "runner.reload": lambda _params: reload(),
        }

    def reconfigure(self, *, timeout: float) -> None:
        """Have another time-out, in seconds, for requests that name none, from now on."""
        self._timeout = timeout

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the tasks of methods that wait."""
        await self._tasks.run(task_status)

    def on_request(self, peer: Peer, request_id: RequestId, method: str, params: Raw) -> None:
        """Answer one request, now or later. Raises RpcError."""
        at_once = self._at_once.get(method)
        if at_once is not None:
            at_once(peer, request_id, params)
            return
        waiting = self._waiting.get(method)
        if waiting is None:
            raise RpcError(ErrorCode.METHOD_NOT_FOUND, f"there is no method {method!r}", {"method": method})
        self._tasks.start(peer, request_id, method, partial(waiting, params))

    def welcome(self, peer: Peer, party: Party, credentials: Credentials) -> None:
        """A connection is there: take note of who it is, while the process is; it counts for what it asks for."""
        self._parties[peer] = party
        program = program_of(credentials.pid)
        self._sources[peer] = AuditSource(kind="client", pid=credentials.pid, program=program)

    def forget(self, peer: Peer) -> None:
        """A connection is gone."""
        self._parties.pop(peer, None)
        self._sources.pop(peer, None)
        self._listeners.close(peer)
        self._streams.forget(peer)
        self._data.forget(peer)

    def _on_data(self, method: str, peer: Peer, request_id: RequestId, params: Raw) -> None:
        self._data.request(self._data.client(peer), peer, request_id, method, params)

    def acknowledge(self, peer: Peer, raw: Raw) -> None:
        """`stream.ack` as a notification. Raises RpcError."""
        self._streams.acknowledge(peer, raw)

    # ---- forwarding

    def _invoke(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, RunnerInvokeParams)
        instance = self._supervisor.get(params.plugin)
        timeout = seconds_of(params.timeout_ms, self._timeout)
        require_structured(params.params)
        if params.method == _GATED:
            self._invoke_gated(peer, request_id, instance, params.params, timeout)
            return
        if params.method.startswith(_FORBIDDEN_PREFIXES):
            raise RpcError(
                ErrorCode.NOT_PERMITTED,
                f"{params.method} cannot be called through runner.invoke",
                {"method": params.method},
            )
        # What a client asks of a plugin by itself says nothing about the user.
        work = Work("screen", requesters=self._requesters(peer)).below(instance.id, params.method)
        self._data.carry(params.params, peer, instance.id, work.mark)
        on_reply = partial(self._bring_back, instance.id, work, peer, request_id)
        sent = instance.request(params.method, params.params, on_reply, timeout=timeout, work=work)
        if sent is not None:
            peer.on_cancel(request_id, partial(instance.cancel, sent))

    def _invoke_gated(self, peer: Peer, request_id: RequestId, instance: Instance, raw: Raw, timeout: float) -> None:
        params = decode_params(raw, _GatedParams)
        if params.provenance is None:
            raise RpcError(
                ErrorCode.NOT_PERMITTED,
                'action.invoke needs "provenance" in its params: "user" or "screen"',
                {"field": "provenance"},
            )
        step = PlannedStep(
            op=params.op, args=params.args, provenance=params.provenance, arg_provenance=params.arg_provenance
        )
        work = Work(params.provenance, requesters=self._requesters(peer))
        work.receive(self._data.mark_in(encode(params.args), peer), HANDLE)
        origin = Origin(provenance=params.provenance, plugin=instance.id, sources=work.sources, llm=work.llm)

        def on_phase(phase: GatePhase) -> None:
            # Before it may run, the plugin gets nothing.
            if phase == "acting":
                self._data.carry(raw, peer, instance.id, work.mark)

        on_reply = partial(self._bring_back, instance.id, work, peer, request_id)
        submission = self._gate.submit(
            step, origin, on_reply, timeout=timeout, on_phase=on_phase, work=work, source=self._sources.get(peer)
        )
        peer.on_cancel(request_id, submission.cancel)

    def _bring_back(  # noqa: PLR0917 - the last two are a reply's
        self, plugin: str, work: Work, peer: Peer, request_id: RequestId, result: Raw | None, error: RpcError | None
    ) -> None:
        """Answer a client with what a plugin answered, and the handles in it."""
        if result is not None:
            self._data.carry(result, plugin, peer, work.mark)
        relay(peer, request_id, result, error)

    # ---- who asks, and who is asked

    def _requesters(self, peer: Peer) -> frozenset[Requester]:
        return frozenset({self._parties[peer].requester})

    def _questions(self, peer: Peer, request_id: RequestId, _params: Raw) -> None:
        peer.reply_object(request_id, QuestionsResult(questions=self._confirmer.questions()))

    def _attend(self, peer: Peer, request_id: RequestId, params: Raw) -> None:
        self._parties[peer].attend()
        self._questions(peer, request_id, params)
        self._confirmer.join(self._parties[peer])

    # ---- looking

    def _plugins(self, peer: Peer, request_id: RequestId, _params: Raw) -> None:
        peer.reply_object(request_id, {"plugins": self._status()["plugins"]})

    def _logs(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, LogsParams)
        found = self._log.answer(params, room=peer.limits.max_frame // 2)
        if not found.lines and params.plugin is not None:
            # Nothing of a plugin that there is, or a name that is misspelt.
            self._supervisor.get(params.plugin)
        peer.reply_object(request_id, found)

    def _validate(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        instance = self._supervisor.get(decode_params(raw, ValidateParams).plugin)
        handshake = instance.handshake
        declared = (*instance.provides, *instance.requires)
        findings = self._registry.classify(declared)
        missing = self._supervisor.missing(instance)
        refusal = None if instance.running else instance.refusal
        sandbox = self._sandbox(instance.id, instance.permissions)
        error = None
        if refusal is not None:
            error = WireError(code=refusal.code, message=refusal.message, data=refusal.data)
        peer.reply_object(
            request_id,
            ValidateResult(
                ok=handshake is not None and not missing and instance.running,
                negotiated=(
                    {"protocol": handshake.negotiated.protocol, "abi": handshake.negotiated.abi}
                    if handshake
                    else {"protocol": PROTOCOL, "abi": ABI}
                ),
                status=instance.status,
                detail=instance.detail,
                error=error,
                unknown_capabilities=[*findings.unknown, *findings.malformed],
                missing_requires=missing,
                deprecations=[
                    {"capability": one, **msgspec.structs.asdict(deprecation)}
                    for one in findings.deprecated
                    if (deprecation := self._registry.deprecation(one)) is not None
                ],
                warnings=list(handshake.warnings if handshake else (*instance.spec.warnings, *findings.warnings)),
                permissions=sandbox.permissions,
                sandbox=sandbox,
            ),
        )

    def _explain(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        params = decode_params(raw, ExplainParams)
        step = PlannedStep(
            op=params.op, args=params.args, provenance=params.provenance, arg_provenance=params.arg_provenance
        )
        origin = Origin(
            provenance=params.provenance, session=params.session, sources=tuple(params.sources), llm=params.llm
        )
        peer.reply_object(request_id, explained(self._gate.explain(step, origin)))

    # ---- what runs

    def _start_control(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        source = self._sources.get(peer, _SOMEBODY)
        self._tasks.start(peer, request_id, "runner.control", partial(self._control, source, raw))

    async def _control(self, source: AuditSource, raw: Raw) -> object:
        params = decode_params(raw, ControlParams)
        timeout = seconds_of(params.timeout_ms, self._timeout)
        plugin, changed = params.plugin, True
        if params.action == "start":
            changed = self._supervisor.start(plugin)
        elif params.action == "stop":
            changed = self._supervisor.hold(plugin, f"pid {source.pid} ({source.program or 'a program'})")
        else:
            self._supervisor.restart(plugin)
        await self._supervisor.until_at_rest(plugin, timeout)
        found = next(one for one in self._status()["plugins"] if one["id"] == plugin)
        return {**found, "changed": changed}

    # ---- the microphone

    def _open_audio(self, peer: Peer, request_id: RequestId, _params: Raw) -> None:
        self._tasks.start(peer, request_id, "audio.open", partial(self._listeners.open, peer))

    def _close_audio(self, peer: Peer, request_id: RequestId, _params: Raw) -> None:
        self._listeners.close(peer)
        peer.reply_object(request_id, {})

    # ---- doing

    def _start_command(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        requesters, source = self._requesters(peer), self._sources.get(peer, _SOMEBODY)
        self._tasks.start(peer, request_id, "runner.command", partial(self._command, peer, requesters, source, raw))

    async def _command(self, peer: Peer, requesters: frozenset[Requester], source: AuditSource, raw: Raw) -> object:
        params = decode_params(raw, CommandParams)
        self._sessions += 1
        mark = self._data.mark_in(encode(params), peer)
        return await self._commands.command(
            params.utterance,
            session=f"command-{os.getpid()}-{self._sessions}",
            provenance=lower(params.provenance, provenance_of(mark)),
            llm=mark == "llm",
            context=params.context,
            timeout=seconds_of(params.timeout_ms, self._timeout),
            requesters=requesters,
            source=source,
        )

    async def _snapshot(self, raw: Raw) -> object:
        return await self._context(decode_params(raw, SnapshotParams).sources)

    async def _speak(self, raw: Raw) -> object:
        params = decode_params(raw, SpeakRequest)
        return await self._speaker.speak(params.text, params.voice, timeout=seconds_of(params.timeout_ms, TIMEOUT_CAP))

    def _start_listen(self, peer: Peer, request_id: RequestId, raw: Raw) -> None:
        self._tasks.start(peer, request_id, "runner.listen", partial(self._listen, self._requesters(peer), raw))

    async def _listen(self, requesters: frozenset[Requester], raw: Raw) -> object:
        params = decode_params(raw, ListenParams)
        timeout = seconds_of(params.timeout_ms, self._timeout)
        try:
            pcm = await trio.to_thread.run_sync(self._audio_of, params.wav_b64)
        except binascii.Error as error:
            raise RpcError(ErrorCode.INVALID_PARAMS, f"wav_b64 is not base64: {error}", {"field": "wav_b64"}) from None
        except ValueError as error:
            raise RpcError(ErrorCode.INVALID_PARAMS, f"wav_b64: {error}", {"field": "wav_b64"}) from None
        return await self._voice.listen_wav(pcm, timeout, requesters, act=params.act)

    def _audio_of(self, wav_b64: str) -> bytes:
        """Decode on a thread: a minute of audio takes the loop's time for too long."""
        return self._wav_to_pcm(base64.b64decode(wav_b64, validate=True))

    def _key(self, act: Callable[[], dict[str, Any]]) -> Callable[[Peer, RequestId, Raw], None]:
        def noted() -> dict[str, Any]:
            self.ptt_at = trio.current_time()
            return act()

        return self._answering(noted)

    @staticmethod
    def _answering(act: Callable[[], object]) -> Callable[[Peer, RequestId, Raw], None]:
        def answer(peer: Peer, request_id: RequestId, _params: Raw) -> None:
            peer.reply_object(request_id, act())

        return answer
