"""Streams through the real daemon: a plugin that was written from the protocol's text, and clients fast and slow."""

from __future__ import annotations

import base64
import io
import json
import socket
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from support.daemon import Daemon, source
from utter_protocol.errors import ErrorCode
from utter_protocol.framing import FrameDecoder, encode_frame

WINDOW = 8
CONFIG = f"""
[runner]
credit_window = {WINDOW}
lossy_queue = 16
"""
SECONDS = 30.0


class Client:
    """A client that keeps everything that it is sent, in order."""

    def __init__(self, daemon: Daemon) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(daemon.socket))
        self.socket.settimeout(SECONDS)
        self.messages: list[dict[str, Any]] = []
        self._decoder = FrameDecoder()
        self._ids = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, method: str, params: Any = None, *, answered: bool = True) -> int:
        self._ids += 1
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}} | ({"id": self._ids} if answered else {})
        self.socket.sendall(encode_frame(json.dumps(message).encode()))
        return self._ids

    def receive(self, most: int = 262_144) -> None:
        data = self.socket.recv(most)
        assert data, "the connection was closed"
        self._decoder.receive(data)
        while (body := self._decoder.next_frame()) is not None:
            self.messages.append(json.loads(body))

    def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            self.receive()

    def answer(self, request_id: int) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def arrived() -> bool:
            found[:] = [one for one in self.messages if one.get("id") == request_id and "method" not in one]
            return bool(found)

        self.until(arrived)
        return found[0]

    def call(self, method: str, params: Any = None) -> Any:
        answer = self.answer(self.send(method, params))
        assert "result" in answer, answer
        return answer["result"]

    def code(self, method: str, params: Any = None) -> int:
        return int(self.answer(self.send(method, params))["error"]["code"])

    def open(self, method: str, *, mode: str | None = None, plugin: str | None = None, **params: Any) -> str:
        wanted = {"method": method, "params": params, "mode": mode, "plugin": plugin}
        stream_id: str = self.call("stream.subscribe", {key: one for key, one in wanted.items() if one is not None})[
            "stream_id"
        ]
        return stream_id

    def items(self, stream_id: str) -> list[dict[str, Any]]:
        return [
            one["params"]
            for one in self.messages
            if "seq" in one.get("params", {}) and one["params"]["stream_id"] == stream_id
        ]

    def seqs(self, stream_id: str) -> list[int]:
        return [one["seq"] for one in self.items(stream_id)]

    def end(self, stream_id: str) -> str:
        """The reason of `stream.closed`, waited for."""
        found: list[str] = []

        def ended() -> bool:
            found[:] = [
                one["params"]["reason"]
                for one in self.messages
                if one.get("method") == "stream.closed" and one["params"]["stream_id"] == stream_id
            ]
            return bool(found)

        self.until(ended)
        assert len(found) == 1
        return found[0]

    def invoke(self, method: str, params: Any = None, plugin: str = "source") -> Any:
        return self.call("runner.invoke", {"plugin": plugin, "method": method, "params": params or {}})

    def seen(self, method: str, plugin: str = "source") -> list[Any]:
        return [params for one, params in self.invoke("seen", plugin=plugin)["seen"] if one == method]

    def wait_seen(self, method: str, count: int = 1, plugin: str = "source") -> list[Any]:
        """What the plugin was sent of a method, once it is so many."""
        while len(found := self.seen(method, plugin)) < count:
            pass
        return found


@contextmanager
def running(tmp_path: Path, *plugins: str, config: str = "", quiet: bool = True) -> Iterator[tuple[Daemon, Client]]:
    with (
        Daemon(tmp_path, CONFIG + config + "".join(plugins or (source(),)), quiet=quiet) as daemon,
        Client(daemon) as client,
    ):
        yield daemon, client


@pytest.mark.parametrize("mode", ["lossy", "reliable"])
def test_a_short_stream_arrives_whole_and_ends(tmp_path: Path, mode: str) -> None:
    with running(tmp_path) as (_, client):
        stream_id = client.open("tick", mode=mode, count=5)
        assert client.end(stream_id) == "end"
        assert client.items(stream_id) == [{"stream_id": stream_id, "seq": n, "data": {"n": n}} for n in range(5)]
        asked = client.seen("stream.subscribe")[0]
        assert asked == {"method": "tick", "params": {"count": 5}, "mode": mode, "window": WINDOW}
        # It has ended: nothing is left at either end.
        assert client.call("stream.stop", {"stream_id": stream_id}) == {}
        assert client.invoke("seen")["open"] == []
        assert client.seen("stream.stop") == []


def test_items_that_are_sent_together_with_the_answer_are_delivered(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        stream_id = client.open("tick", mode="reliable", count=WINDOW, early=True)
        assert client.end(stream_id) == "end"
        assert client.seqs(stream_id) == list(range(WINDOW))


def test_stop_is_idempotent_and_reaches_the_plugin_once(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        stream_id, other = client.open("flow", mode="lossy"), client.open("hold")
        client.until(lambda: len(client.items(stream_id)) > 10)
        for _ in range(3):
            assert client.call("stream.stop", {"stream_id": stream_id}) == {}
        assert client.wait_seen("stream.stop") == [{"stream_id": "up-1"}]
        assert client.invoke("seen")["open"] == ["up-2"]
        count = len(client.items(stream_id))
        client.invoke("do", {"what": "send", "stream_id": "up-2", "count": 1})
        client.until(lambda: client.items(other))
        assert len(client.items(stream_id)) == count
        assert client.seen("stream.stop") == [{"stream_id": "up-1"}]


def test_one_acknowledgement_reopens_a_paused_reliable_stream(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        stream_id = client.open("flow", mode="reliable")
        client.until(lambda: len(client.items(stream_id)) == WINDOW)
        # The plugin is paused: whatever is asked of it meanwhile, no item comes.
        assert client.seen("stream.ack") == []
        assert len(client.items(stream_id)) == WINDOW
        client.send("stream.ack", {"stream_id": stream_id, "seq": WINDOW - 1}, answered=False)
        client.until(lambda: len(client.items(stream_id)) == 2 * WINDOW)
        assert client.seen("stream.ack") == [{"stream_id": "up-1", "seq": WINDOW - 1}]
        for seq in range(WINDOW, 20 * WINDOW):
            client.send("stream.ack", {"stream_id": stream_id, "seq": seq}, answered=False)
            client.until(lambda: len(client.items(stream_id)) > seq + 1)  # noqa: B023 - called at once
        seqs = client.seqs(stream_id)
        assert seqs == list(range(len(seqs)))
        # Not every acknowledgement is one at the plugin.
        assert len(client.seen("stream.ack")) < 15 * WINDOW


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("overrun", f"source broke the stream's rules: it sent item {WINDOW} with credit up to item {WINDOW - 1}"),
        ("disorder", "source broke the stream's rules: item 2 came where item 1 was due"),
        ("repeat", "source broke the stream's rules: item 0 came where item 1 was due"),
    ],
)
def test_a_plugin_that_breaks_the_rules_of_a_stream_loses_that_stream(tmp_path: Path, what: str, reason: str) -> None:
    with running(tmp_path) as (_, client):
        broken, fine = client.open("hold", mode="reliable"), client.open("hold", mode="reliable")
        client.invoke("do", {"what": what, "stream_id": "up-1"})
        assert client.end(broken) == reason
        assert client.wait_seen("stream.stop") == [{"stream_id": "up-1"}]
        client.invoke("do", {"what": "send", "stream_id": "up-2", "count": 3})
        client.until(lambda: client.seqs(fine) == [0, 1, 2])
        assert client.call("runner.plugins")["plugins"][0]["epoch"] == 1


def test_a_plugin_that_is_restarted_ends_its_streams_with_a_reason(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        stream_id, events = client.open("hold"), client.open("runner.events")
        client.invoke("do", {"what": "send", "count": 2})
        client.send("runner.invoke", {"plugin": "source", "method": "do", "params": {"what": "die"}})
        assert client.end(stream_id).startswith("source went away: ")
        assert client.seqs(stream_id) == [0, 1]

        def is_back() -> bool:
            plugins = [one["data"].get("plugin", {}) for one in client.items(events)]
            return any(one.get("epoch") == 2 and one["status"] == "ready" for one in plugins)

        client.until(is_back)
        again = client.open("tick", count=3)
        assert client.end(again) == "end"
        assert client.seqs(again) == [0, 1, 2]


def test_a_client_that_vanishes_stops_its_streams_at_the_plugin(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, client):
        with Client(daemon) as other:
            other.open("flow", mode="lossy")
            other.open("hold", mode="reliable")
        stopped = client.wait_seen("stream.stop", 2)
        assert sorted(one["stream_id"] for one in stopped) == ["up-1", "up-2"]
        assert client.invoke("seen")["open"] == []


def test_an_id_that_nobody_knows_is_stopped_once(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        client.invoke("do", {"what": "unknown", "stream_id": "left over", "count": 50})
        assert client.wait_seen("stream.stop") == [{"stream_id": "left over"}]
        client.invoke("do", {"what": "unknown", "stream_id": "left over", "count": 50})
        client.invoke("do", {"what": "unknown", "stream_id": "another", "count": 1})
        assert client.wait_seen("stream.stop", 2) == [{"stream_id": "left over"}, {"stream_id": "another"}]


def test_a_plugin_says_itself_why_a_stream_ends(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        stream_id = client.open("hold")
        client.invoke("do", {"what": "send", "count": 1})
        client.invoke("do", {"what": "close", "reason": "the sound card is gone"})
        assert client.end(stream_id) == "the sound card is gone"
        assert client.seqs(stream_id) == [0]


def test_what_cannot_be_had_says_why(tmp_path: Path) -> None:
    plugins = (source(), source("shy", "refuse", "streams=input.keys"))
    with running(tmp_path, *plugins) as (_, client):
        for params, code in (
            ({"method": "no.such"}, ErrorCode.METHOD_NOT_FOUND),
            ({"method": "input.keys"}, ErrorCode.NOT_PERMITTED),
            ({"method": "tick", "plugin": "shy"}, ErrorCode.INVALID_PARAMS),
            ({"method": "tick", "plugin": "nobody"}, ErrorCode.CAPABILITY_MISSING),
            ({"method": "audio.level"}, ErrorCode.PLUGIN_FAILED),
        ):
            assert client.code("stream.subscribe", params) == code, params


def test_a_plugin_subscribes_to_what_it_requires(tmp_path: Path) -> None:
    plugins = (
        source("desk", "streams=context.live", "provides=context.live@1"),
        source("asker", "streams=context.live", "requires=context.live@1"),
        source("panel", "kind=ui"),
        source("nosy"),
    )
    with running(tmp_path, *plugins) as (_, client):
        ask = {"what": "ask", "method": "stream.subscribe", "params": {"method": "context.live", "mode": "reliable"}}
        client.invoke("do", ask, plugin="asker")
        (answer,) = client.wait_seen("answer", plugin="asker")
        assert answer["mode"] == "reliable"
        items = client.wait_seen("context.live", WINDOW, plugin="asker")
        assert [one["seq"] for one in items] == list(range(WINDOW))
        assert {one["stream_id"] for one in items} == {answer["stream_id"]}
        ack = {"what": "notify", "method": "stream.ack", "params": {"stream_id": answer["stream_id"], "seq": 3}}
        client.invoke("do", ack, plugin="asker")
        client.wait_seen("context.live", WINDOW + 4, plugin="asker")
        stop = {"what": "ask", "method": "stream.stop", "params": {"stream_id": answer["stream_id"]}}
        client.invoke("do", stop, plugin="asker")
        client.wait_seen("stream.stop", plugin="desk")
        # What a panel draws is the user's; everybody else gets what their requires name, and nothing more.
        ask["params"] = {"method": "runner.events"}
        client.invoke("do", ask, plugin="panel")
        (first,) = client.wait_seen("runner.events", plugin="panel")
        assert first["data"]["event"] == "state"
        for method in ("runner.events", "context.live"):
            ask["params"] = {"method": method}
            client.invoke("do", ask, plugin="nosy")
        assert [one["code"] for one in client.wait_seen("answer", 2, plugin="nosy")] == [ErrorCode.NOT_PERMITTED] * 2


def test_a_plugin_that_is_not_asked_feeds_everybody_who_has_subscribed(tmp_path: Path) -> None:
    with running(tmp_path, source("source", "emit")) as (daemon, client), Client(daemon) as other:

        def emit(data: int, method: str = "tick") -> Any:
            before = len(client.seen("answer"))
            ask = {"what": "ask", "method": "host.emit", "params": {"method": method, "data": data}}
            client.invoke("do", ask)
            return client.wait_seen("answer", before + 1)[-1]

        assert emit(0) == {"subscribers": 0}
        one, two = client.open("tick"), other.open("tick", mode="reliable")
        assert emit(1) == {"subscribers": 2}
        assert client.call("stream.stop", {"stream_id": one}) == {}
        assert emit(2) == {"subscribers": 1}
        assert emit(3, "no.such")["code"] == ErrorCode.INVALID_PARAMS
        other.until(lambda: len(other.items(two)) == 2)
        assert [(item["seq"], item["data"]) for item in other.items(two)] == [(0, 1), (1, 2)]
        assert [(item["seq"], item["data"]) for item in client.items(one)] == [(0, 1)]
        client.send("runner.invoke", {"plugin": "source", "method": "do", "params": {"what": "die"}})
        assert other.end(two).startswith("source went away: ")


# ---- slow clients


def test_a_client_that_never_reads_slows_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, client), Client(daemon) as deaf:
        for mode in ("lossy", "lossy", "reliable"):
            deaf.send("stream.subscribe", {"method": "flow", "params": {"size": 4000}, "mode": mode})
        client.wait_seen("stream.subscribe", 3)
        stream_id = client.open("tick", mode="reliable", count=20 * WINDOW)
        for seq in range(20 * WINDOW):
            client.until(lambda: len(client.items(stream_id)) > seq)  # noqa: B023 - called at once
            client.send("stream.ack", {"stream_id": stream_id, "seq": seq}, answered=False)
        assert client.end(stream_id) == "end"
        # The loop answers, and the plugin was never held up: the deaf client's lossy streams still flow there.
        assert client.call("runner.status")["state"] == "ready"
        assert client.invoke("plugin.health")["status"] == "ok"
        assert sorted(client.invoke("seen")["open"]) == ["up-1", "up-2", "up-3"]


def test_a_client_that_reads_a_byte_at_a_time_gets_whole_items(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        stream_id = client.open("tick", mode="reliable", count=WINDOW, size=100)
        while len(client.items(stream_id)) < WINDOW:
            client.receive(1)
        assert client.seqs(stream_id) == list(range(WINDOW))


def test_many_streams_on_one_connection_and_many_clients_on_one_stream(tmp_path: Path) -> None:
    with running(tmp_path) as (daemon, client):
        streams = [client.open("flow", mode="reliable") for _ in range(64)]
        assert client.code("stream.subscribe", {"method": "flow"}) == ErrorCode.INVALID_REQUEST
        for stream_id in streams:
            client.until(lambda: len(client.items(stream_id)) >= WINDOW)  # noqa: B023 - called at once
            assert client.seqs(stream_id) == list(range(WINDOW))
        others = [Client(daemon) for _ in range(32)]
        try:
            opened = [one.open("tick", mode="reliable", count=WINDOW) for one in others]
            for one, stream_id in zip(others[::2], opened[::2], strict=True):
                assert one.end(stream_id) == "end"
                assert one.seqs(stream_id) == list(range(WINDOW))
        finally:
            for one in others:
                one.socket.close()


# ---- the runner's own


def recording() -> str:
    """Half a second of silence as a WAV file in base64."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(16_000))
    return base64.b64encode(data.getvalue()).decode()


@pytest.mark.parametrize(("behaviour", "confidence"), [("ear", 0.25), ("final", 0.5)])
def test_every_transcript_is_an_item_of_stt_final(tmp_path: Path, behaviour: str, confidence: float) -> None:
    ear = source("ear", behaviour, "kind=stt", "provides=stt.transcribe@1,stt.partial@1,stt.final@1")
    with running(tmp_path, ear) as (_, client):
        final, partial, events = (client.open(one) for one in ("stt.final", "stt.partial", "runner.events"))
        report = client.call("runner.listen", {"wav_b64": recording(), "timeout_ms": 20_000})
        assert report["heard"] == "lights on"
        client.until(lambda: client.items(final))
        heard = {"session": report["session"], "text": "lights on", "confidence": confidence}
        assert client.items(final) == [{"stream_id": final, "seq": 0, "data": heard}]
        (event,) = [one["data"] for one in client.items(events) if one["data"]["event"] == "heard"]
        assert event == {"event": "heard", "session": report["session"], "text": "lights on"}
        partials = [one["data"] for one in client.items(partial)]
        assert partials == ([{"session": report["session"], "text": "lights"}] if behaviour == "final" else [])
        # The session is over at the plugin as well: it was asked to finish, and what it said first counted.
        assert [one for one, _ in client.invoke("seen", plugin="ear")["seen"]] == ["stt.start", "stt.finish"]


def test_the_level_of_the_microphone_is_measured_while_somebody_listens(tmp_path: Path) -> None:
    path = tmp_path / "silence.wav"
    path.write_bytes(base64.b64decode(recording()))
    audio = f"""
[audio]
source = "wav"
wav_path = '{path}'
capture = "always"
cues = false
[hotkeys]
enabled = false
"""
    with running(tmp_path, config=audio, quiet=False) as (_, client):
        stream_id = client.open("audio.level")
        client.until(lambda: len(client.items(stream_id)) >= 3)
        assert client.items(stream_id)[0]["data"] == {"rms_db": -120.0, "peak_db": -120.0, "clipped": False}
        assert client.call("stream.stop", {"stream_id": stream_id}) == {}
