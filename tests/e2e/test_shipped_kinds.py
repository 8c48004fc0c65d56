"""The plugins that ship, in the real daemon: a model behind a server, the desktop's state, speech as samples."""

from __future__ import annotations

import json
import queue
import shutil
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon, hostile
from support.dbus import PrivateBus, mpris_player
from support.llm_server import Exchange, LlmServer, token
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.client import Client

SAID = "I am freezing in here"
ACTOR = hostile("actor", "ops=heat")


def commands(*, requires: str = '["llm.choose@1"]', **settings: Any) -> str:
    # On a busy machine the first answer of a model may take longer than a person would wait.
    settings = {"llm_timeout_ms": 20_000, **settings}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    return f"""
[[plugin]]
id = "commands"
requires = {requires}
[plugin.settings]
use_llm = true
{lines}
[[plugin.settings.phrase]]
say = "turn on the heating"
op = "heat"
args = {{ n = 1 }}
"""


def llm(server: LlmServer) -> str:
    return f'[[plugin]]\nid = "llm"\n[plugin.settings]\nbase_url = "{server.base_url}"\n'


def picks(what: str, probability: float = 0.9) -> Callable[[Exchange], None]:
    """A model that writes the key of a choice."""

    def answer(exchange: Exchange) -> None:
        lines = [json.loads(line) for line in exchange.body["messages"][1]["content"].split("\n")]
        key = next(line["key"] for line in lines if line.get("label") == what)
        exchange.chat(key, logprobs=[token(key, probability)])

    return answer


def command(client: Client, **params: Any) -> dict[str, Any]:
    return dict(client.call("runner.command", {"utterance": SAID, **params}, timeout=30))


def status_of(client: Client, plugin: str) -> str:
    plugins = client.call("runner.plugins", {}, timeout=10)["plugins"]
    return next(str(one["status"]) for one in plugins if one["id"] == plugin)


def test_a_model_picks_a_phrase_and_it_is_done(tmp_path: Path) -> None:
    with LlmServer(picks("turn on the heating")) as server:
        config = ACTOR + commands() + llm(server)
        with Daemon(tmp_path, config) as daemon, daemon.client() as client:
            answer = command(client, context={"window": "secret"})
            assert [(one["op"], one["ok"], one["args"]) for one in answer["results"]] == [("heat", True, {"n": 1})]
            sent = json.dumps(server.asked.get(timeout=5).body)
            assert SAID in sent
            assert "secret" not in sent
            # What is not the user's stays so, whoever chose it.
            (refused,) = command(client, provenance="screen")["results"]
            assert refused["error"]["code"] == ErrorCode.UNTRUSTED_PROVENANCE
        assert SAID not in "".join(daemon.log)


@pytest.mark.parametrize(
    "chat", [picks("turn on the heating", 0.5), picks("none of these"), lambda exchange: exchange.chat("heat!")]
)
def test_doubt_none_and_nonsense_are_not_understood(tmp_path: Path, chat: Callable[[Exchange], None]) -> None:
    with LlmServer(chat) as server, Daemon(tmp_path, ACTOR + commands() + llm(server)) as daemon:
        with daemon.client() as client:
            assert command(client)["understood"] is False
        assert server.asked.qsize() == 1


def test_without_a_server_everything_else_works(tmp_path: Path) -> None:
    with LlmServer(picks("turn on the heating")) as server:
        daemon = Daemon(tmp_path, ACTOR + commands() + llm(server))
        with daemon, daemon.client() as client:
            assert command(client)["results"][0]["ok"] is True
            server.__exit__()
            assert command(client)["understood"] is False
            assert status_of(client, "llm") == "degraded"
            assert command(client, utterance="turn on the heating")["results"][0]["ok"] is True
        assert any("The language model could not be asked: No language model answers at" in line for line in daemon.log)


def test_a_server_that_hangs_costs_the_time_that_the_settings_allow(tmp_path: Path) -> None:
    gone: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with LlmServer(picks("turn on the heating")) as server:
        config = ACTOR + commands(llm_timeout_ms=1000) + llm(server)
        with Daemon(tmp_path, config) as daemon, daemon.client() as client:
            # What is loaded and looked up once is so afterwards, and has no part in that time.
            command(client)
            server.chat = lambda exchange: gone.put(exchange.wait_gone())
            # On a busy machine the time may be over before the server is asked at all.
            for _ in range(5):
                assert command(client)["understood"] is False
                with suppress(queue.Empty):
                    assert gone.get(timeout=3)
                    break
            else:
                pytest.fail("the server was never asked, or never let go")


def test_a_router_that_does_not_require_the_model_gets_none(tmp_path: Path) -> None:
    with LlmServer(picks("turn on the heating")) as server:
        config = ACTOR + commands(requires="[]") + llm(server)
        with Daemon(tmp_path, config) as daemon, daemon.client() as client:
            assert command(client)["understood"] is False
        assert any('use_llm needs requires = ["llm.choose@1"]' in line for line in daemon.log)
        assert server.asked.empty()


def test_clients_read_an_answer_as_it_is_written(tmp_path: Path) -> None:
    def story(exchange: Exchange) -> None:
        exchange.start_stream()
        for word in ("Once", " upon", " a"):
            exchange.piece(word)
        exchange.piece(" time", finish="stop")
        exchange.event("[DONE]")
        exchange.end_stream()

    with LlmServer(story) as server, Daemon(tmp_path, llm(server)) as daemon, daemon.client() as client:
        with client.subscribe("llm.delta", {"prompt": "Tell"}, mode="reliable") as stream:
            items = [item["text"] for item in stream]
        assert items == ["Once", " upon", " a", " time", ""]
        params = {"plugin": "llm", "method": "llm.complete", "params": {"prompt": "Tell"}}
        server.chat = lambda exchange: exchange.json({"error": "no"}, 401)
        with pytest.raises(RpcError) as caught:
            client.call("runner.invoke", params, timeout=10)
        assert "refuses the key" in caught.value.message


def test_what_plays_is_part_of_the_context(tmp_path: Path) -> None:
    (tmp_path / "bus").mkdir()
    with PrivateBus(tmp_path / "bus") as bus:
        desktop = f'[[plugin]]\nid = "desktop"\nenv = {{ DBUS_SESSION_BUS_ADDRESS = "{bus.address}" }}\n'
        with Daemon(tmp_path, desktop) as daemon, daemon.client() as client:
            context = client.call("context.snapshot", {}, timeout=10)
            assert (context["media"], context["meta"]["media"]["source"]) == ([], "desktop")
            with client.subscribe("context.live", mode="reliable") as live:
                assert live.get(10) == {"media": []}
                with mpris_player(bus.address, "demo", status="Playing", identity="Demo"):
                    (player,) = live.get(10)["media"]
                    assert (player["name"], player["status"]) == ("Demo", "playing")
                    # The announcement leaves the plugin right after the item.
                    while not (media := client.call("context.snapshot", {}, timeout=10)["media"]):
                        pass
                    assert media == [player]


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_speech_can_be_had_as_samples(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path, '[[plugin]]\nid = "espeak"\n') as daemon,
        daemon.client() as client,
        client.subscribe("tts.audio", {"text": "Your tea is ready."}, mode="reliable") as stream,
    ):
        items = list(stream)
    assert items[0]["format"]["encoding"] == "s16le"
    seconds = sum(len(b64decode(item["data_b64"])) for item in items) / 2 / items[0]["format"]["rate"]
    assert 0.5 < seconds < 5
