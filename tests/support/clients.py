"""The runner's side of the socket with fake plugins behind it, and clients that speak to it in the same loop."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from support.stage import Desk, Person
from utter_protocol.capabilities import load_registry
from utter_protocol.control import ReloadResult
from utter_protocol.drift import DriftResult
from utter_protocol.errors import RpcError
from utter_protocol.framing import FrameDecoder, encode_frame
from utter_protocol.kinds import SpeakResult
from utter_protocol.methods import AudioDevice, AudioDevices, HotkeysAsked, SessionReport
from utter_runner.clients.api import ClientApi
from utter_runner.clients.auth import Admission
from utter_runner.clients.events import EventBus
from utter_runner.clients.logs import LogBacklog
from utter_runner.clients.server import ClientServer
from utter_runner.config import RunnerConfig
from utter_runner.dataplane.build import build_data_plane
from utter_runner.dataplane.hub import Hub
from utter_runner.dataplane.ring import RingWriter
from utter_runner.host.context import ContextCache
from utter_runner.host.relay import Relay
from utter_runner.host.subscriptions import Subscriptions
from utter_runner.rpc.endpoint import Endpoint
from utter_runner.rpc.interface import Limits
from utter_runner.rpc.reactor import Reactor
from utter_runner.supervision.sandbox.assurance import Assurance
from utter_runner.voice.fakes import FakeFeed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from utter_runner.clients.tokens import TokenStore
    from utter_runner.config import SocketConfig
    from utter_runner.rpc.requesters import Requester


async def settle() -> None:
    """Let everything happen that can happen by itself."""
    await trio.testing.wait_all_tasks_blocked()


class FakeVoice:
    """A spoken session that remembers what was asked of it."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.requesters: list[frozenset[Requester]] = []
        self.hold = False
        self.cancelled = 0
        self.listening = trio.Event()

    def press(self) -> dict[str, Any]:
        return self._note("press")

    def release(self) -> dict[str, Any]:
        return self._note("release")

    def toggle(self) -> dict[str, Any]:
        return self._note("toggle")

    def cancel(self) -> bool:
        self.called.append("cancel")
        return True

    def _note(self, what: str) -> dict[str, Any]:
        self.called.append(what)
        return {"session": "v1", "state": "listening"}

    async def speak(self, text: str, voice: str = "", *, timeout: float) -> SpeakResult:
        await trio.lowlevel.checkpoint()
        self.called.append(("speak", text, voice, timeout))
        return SpeakResult(spoken=True, duration_ms=7)

    def hush(self) -> bool:
        self.called.append("hush")
        return True

    async def listen_wav(
        self, pcm: bytes, timeout: float, requesters: frozenset[Requester] = frozenset(), *, act: bool = True
    ) -> SessionReport:
        self.acted = act
        self.requesters.append(requesters)
        self.called.append((pcm, timeout))
        self.listening.set()
        try:
            if self.hold:
                await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return SessionReport(session="v1", outcome="done", heard="hello")


class Client:
    """One connection, read by a task of its own; use `House.client`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.answers: dict[Any, dict[str, Any]] = {}
        self.unasked: list[dict[str, Any]] = []
        """Answers without an id."""
        self.notifications: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.closed = trio.Event()
        self._ids = count(1)
        self._change = trio.Event()
        self._sending = trio.Lock()

    async def read(self) -> None:
        """Take what arrives until the end."""
        decoder = FrameDecoder()
        try:
            async for data in self.stream:
                decoder.receive(data)
                while (body := decoder.next_frame()) is not None:
                    self._take(json.loads(body))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.closed.set()
        self._wake()

    def _take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            if message["id"] is None:
                self.unasked.append(message)
            else:
                assert message["id"] not in self.answers, "answered twice"
                self.answers[message["id"]] = message
        elif "id" in message:
            self.requests.append(message)
        else:
            self.notifications.append(message)
        self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._change = trio.Event()

    async def until(self, condition: Any) -> None:
        """Wait until something has arrived that makes `condition()` true."""
        with trio.fail_after(100):
            while not condition():
                assert not self.closed.is_set(), "the connection was closed"
                await self._change.wait()

    async def send(self, method: str, params: Any = None, **more: Any) -> int:
        """Send a request; return its id."""
        request_id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}, **more}
        await self._write(message)
        return request_id

    async def notify(self, method: str, params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        await self._write(message)

    async def _write(self, message: dict[str, Any]) -> None:
        async with self._sending:
            await self.stream.send_all(encode_frame(json.dumps(message).encode()))

    async def reply(self, request: dict[str, Any], result: Any) -> None:
        """Answer a request of the runner; an RpcError is answered as one."""
        member = (
            {"error": {"code": int(result.code), "message": result.message}}
            if isinstance(result, RpcError)
            else {"result": result}
        )
        body = {"jsonrpc": "2.0", "id": request["id"], **member}
        await self._write(body)

    async def result(self, request_id: int) -> Any:
        """The result of a request, or its error raised."""
        await self.until(lambda: request_id in self.answers)
        answer = self.answers[request_id]
        if "error" in answer:
            error = answer["error"]
            raise RpcError(error["code"], error["message"], error.get("data"))
        return answer["result"]

    async def call(self, method: str, params: Any = None) -> Any:
        return await self.result(await self.send(method, params))

    async def error(self, method: str, params: Any = None) -> RpcError:
        """The error that a request is answered."""
        try:
            result = await self.call(method, params)
        except RpcError as error:
            return error
        raise AssertionError(f"{method} was answered {result!r}")

    async def subscribe(self, mode: str | None = None) -> str:
        params = {"method": "runner.events"} | ({"mode": mode} if mode else {})
        stream_id: str = (await self.call("stream.subscribe", params))["stream_id"]
        return stream_id

    def items(self, stream_id: str) -> list[tuple[int, Any]]:
        """(seq, data) of what a stream brought."""
        return [
            (one["params"]["seq"], one["params"]["data"])
            for one in self.notifications
            if one["method"] == "runner.events" and one["params"]["stream_id"] == stream_id
        ]


class House(Desk):
    """Endpoint, server, API and events over a fake plugin `desktop` and a fake router."""

    def __init__(
        self,
        directory: Path,
        *persons: Person,
        socket: SocketConfig | None = None,
        tokens: TokenStore | None = None,
        max_clients: int = 64,
        limits: Limits | None = None,
        queue: int = 256,
        window: int = 64,
        config: RunnerConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*persons, **options)
        self.reactor = Reactor()
        self.hub = Hub(queue=queue, window=window)
        self.bus = EventBus(self.hub, self.status)
        self.relay = Relay(self.supervisor, window=window, timeout=30.0)
        self.streams = Subscriptions(self.hub, self.relay, load_registry())
        self.streams.offer(self.bus.method, self.bus)
        self.voice = FakeVoice()
        self.microphone = FakeFeed(opening_s=0.5)
        self.devices = AudioDevices(source="pw-record", inputs=[AudioDevice(name="vmic", chosen=True)])
        self.wavs: list[bytes] = []
        self.refused: list[str] = []
        self.log = LogBacklog()
        self.handles = directory / "handles"
        self.ring = RingWriter.create(seconds=1)
        self.data = build_data_plane(
            config or RunnerConfig(),
            self.handles,
            ring=self.ring,
            reactor=self.reactor,
            deadlines=self.deadlines,
            plugin_known=self.supervisor.get,
            on_broken=self.refused.append,
        )
        self.api = ClientApi(
            supervisor=self.supervisor,
            registry=load_registry(),
            gate=self.gate,
            commands=self.commands,
            confirmer=self.confirmer,
            voice=self.voice,
            speaker=self.voice,
            ask_desktop=lambda: HotkeysAsked(asked=False, detail="There is no desktop here."),
            microphone=self.microphone,
            devices=self.list_devices,
            context=ContextCache(self.supervisor).snapshot,
            streams=self.streams,
            data=self.data,
            status=self.status,
            drift=self.look_for_drift,
            reload=self.reload,
            sandbox=Assurance([], {}, "", lambda: None).describe,
            log=self.log,
            wav_to_pcm=self.wav_to_pcm,
            timeout=30.0,
        )
        self.endpoint = Endpoint(directory / "run" / "runner.sock")
        self.server = ClientServer(
            self.endpoint,
            reactor=self.reactor,
            deadlines=self.deadlines,
            admission=Admission(socket, tokens),
            api=self.api,
            limits=limits or Limits(),
            max_clients=max_clients,
            max_requests_per_s=socket.max_requests_per_s if socket else 0,
            max_bytes_per_s=socket.max_bytes_per_s if socket else 0,
            on_refused=self.refused.append,
        )
        self.confirmer._surfaces = lambda: [*self.persons, *self.server.surfaces()]
        self._nursery: trio.Nursery | None = None

    async def reload(self) -> ReloadResult:
        """The fake of what reads the configuration again."""
        await trio.lowlevel.checkpoint()
        return ReloadResult(ok=True, changed=["voice.language"])

    def emit(self, event: dict[str, Any]) -> None:
        super().emit(event)
        self.bus.emit(event)

    def status(self) -> dict[str, Any]:
        return {"state": "ready", "plugins": [{"id": one.id} for one in self.supervisor.instances]}

    async def list_devices(self) -> AudioDevices:
        await trio.lowlevel.checkpoint()
        return self.devices

    async def look_for_drift(self) -> DriftResult:
        await trio.lowlevel.checkpoint()
        return DriftResult(locked=False, drift=[], announced={})

    def wav_to_pcm(self, wav: bytes) -> bytes:
        self.wavs.append(wav)
        if not wav.startswith(b"RIFF"):
            raise ValueError("it is no WAV file")
        return wav[4:]

    async def client(self, *, deaf: bool = False) -> Client:
        """A connected client, whose messages are read unless it is deaf."""
        sock = trio.socket.socket(trio.socket.AF_UNIX)
        await sock.connect(str(self.endpoint.path))
        client = Client(trio.SocketStream(sock))
        if not deaf:
            self.listen_to(client)
        return client

    def listen_to(self, client: Client) -> None:
        """Read what the runner says to a client, from now on."""
        assert self._nursery is not None
        self._nursery.start_soon(self._read, client)

    @staticmethod
    async def _read(client: Client) -> None:
        async with client.stream:
            await client.read()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[trio.Nursery]:
        """Serve; afterwards nothing of any client is left."""
        try:
            async with self.running() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.reactor.run)
                await nursery.start(self.data.run)
                await nursery.start(self.api.run)
                self.server.start()
                try:
                    yield nursery
                finally:
                    self.server.stop()
                await settle()
            assert self.server.count == 0
            assert self.hub._subscribers == {}
            assert len(self.bus) == 0
        finally:
            self.close()

    def close(self) -> None:
        """Free everything."""
        self.data.close()
        self.ring.close()
        self.endpoint.close()
        self.reactor.close()


@asynccontextmanager
async def house(directory: Path, *persons: Person, **options: Any) -> AsyncIterator[House]:
    made = House(directory, *persons, **options)
    async with made.serving():
        yield made
