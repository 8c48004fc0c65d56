"""Confirmations in the real daemon: who is asked, over what, and what whoever asked for an action is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from support.daemon import Daemon, asking, environment, hostile
from support.dbus import PrivateBus
from support.notifications import NotificationServer
from support.terminal import UTTER, Terminal
from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from pathlib import Path

    from utter_sdk.client import Client

POLICY = '[policy]\nenabled_ops = ["terminal", "input"]\n'
ACTOR = hostile("actor", "ops=terminal")
LS = {"plugin": "actor", "method": "action.invoke"}
STEP = {"op": "terminal", "args": {"command": "ls -la"}, "provenance": "user"}
TEXT = "Run in a terminal: ls -la"


def act(client: Client) -> Any:
    return client.call("runner.invoke", {**LS, "params": STEP}, timeout=60)


class Acting(threading.Thread):
    """Asks for the action on a connection of its own, while the test answers elsewhere."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._daemon = daemon
        self.result: Any = None
        self.error: RpcError | None = None
        self.told: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []

    def run(self) -> None:
        with self._daemon.client() as client:
            client.on_notification("confirm.elsewhere", self.told.append)
            client.on_request("host.confirm", lambda params: self.asked.append(params) or {"approved": True})
            try:
                self.result = act(client)
            except RpcError as error:
                self.error = error

    def end(self) -> None:
        self.join(60)
        assert not self.is_alive()
        # Whoever asks is not asked.
        assert self.asked == []


def test_whoever_asks_is_not_asked_nor_is_another_connection_of_the_same_process(tmp_path: Path) -> None:
    with Daemon(tmp_path, POLICY + ACTOR) as daemon, daemon.client() as client, daemon.client() as twin:
        asked: list[Any] = []
        for one in (client, twin):
            one.on_request("host.confirm", lambda params: asked.append(params) or {"approved": True})
        assert twin.call("confirm.attend", {}, timeout=10) == {"questions": []}
        with pytest.raises(RpcError) as error:
            act(client)
        assert error.value.code == ErrorCode.NOT_PERMITTED
        assert error.value.data == {"op": "terminal", "rule": "always-confirm", "confirmed": False}
        assert "run `utter confirm` in another terminal" in error.value.message
        assert "[policy] self_confirm = true" in error.value.message
        twin.call("runner.status", {}, timeout=10)
        assert asked == []


def test_a_plugins_question_is_no_action_and_may_be_answered_where_it_came_from(tmp_path: Path) -> None:
    ask = {"method": "host.confirm", "params": {"text": "Another timer?", "request": "$"}}
    plugin = asking("asker", {"kind": "action", "on": {"ask": {"asks": [ask]}}})
    with Daemon(tmp_path, plugin) as daemon, daemon.client() as client:
        asked: list[Any] = []
        client.on_request("host.confirm", lambda params: asked.append(params["text"]) or {"approved": True})
        client.call("runner.invoke", {"plugin": "asker", "method": "ask"}, timeout=30)
        assert asked == ['The plugin asker asks: "Another timer?"']


def test_what_a_plugin_does_for_a_client_is_the_clients(tmp_path: Path) -> None:
    act = {"method": "host.action", "params": {**STEP, "request": "$"}}
    plugin = asking(
        "asker",
        {
            "kind": "router",
            "hello": {"provides": ["router.plan@1"]},
            "on": {"router.plan": {"asks": [act], "result": {"steps": []}}},
        },
    )
    with Daemon(tmp_path, POLICY + ACTOR + plugin) as daemon, daemon.client() as client:
        asked: list[Any] = []
        client.on_request("host.confirm", lambda params: asked.append(params) or {"approved": True})
        with client.subscribe("runner.events") as events:
            client.call("runner.command", {"utterance": "x"}, timeout=30)
            ended = next(one for one in events if one["event"] == "confirm" and one["state"] != "asked")
        assert (ended["state"], asked) == ("denied", [])


def test_a_terminal_that_waits_answers_and_says_what_became(tmp_path: Path) -> None:
    with Daemon(tmp_path, POLICY + ACTOR) as daemon:
        env = {**daemon.env, "UTTER_SOCKET": str(daemon.socket)}
        with Terminal([*UTTER, "confirm"], env) as terminal, Terminal([*UTTER, "confirm", "--once"], env) as other:
            terminal.wait_for("Waiting for questions")
            other.wait_for("Waiting for questions")
            acting = Acting(daemon)
            acting.start()
            terminal.wait_for("[y/N] ")
            other.wait_for("[y/N] ")
            assert TEXT in terminal.shown
            terminal.type("y\n")
            terminal.wait_for("Approved.")
            code, _ = other.finish()
            assert code == 0
            assert "Approved elsewhere." in other.shown
            acting.end()
            assert acting.result["ok"] is True
            assert [one["text"] for one in acting.told] == [TEXT]
            # It goes on waiting.
            again = Acting(daemon)
            again.start()
            terminal.wait_for(f"Approved.\r\nThe runner asks before it acts:\r\n  {TEXT}\r\nDo it?")
            terminal.wait_for("[y/N] ", after="Approved.")
            terminal.type("n\n")
            terminal.wait_for("Declined.")
            again.end()
            assert again.error is not None


def test_say_tells_that_it_is_asked_elsewhere(tmp_path: Path) -> None:
    script = {
        "kind": "router",
        "hello": {"provides": ["router.plan@1"]},
        "on": {"router.plan": {"result": {"steps": [STEP]}}},
    }
    router = asking("router", script)
    with Daemon(tmp_path, POLICY + ACTOR + router) as daemon:
        env = {**daemon.env, "UTTER_SOCKET": str(daemon.socket), "TERM": "dumb"}
        with Terminal([*UTTER, "confirm"], env) as there:
            there.wait_for("Waiting for questions")
            with Terminal([*UTTER, "say", "list the files"], env) as here:
                there.wait_for("[y/N] ")
                here.wait_for("asks elsewhere")
                here.wait_for(TEXT)
                there.type("y\n")
                assert here.finish()[0] == 0
                assert "[y/N]" not in here.shown
            done = subprocess.run(
                [*UTTER, "confirm", "--list"], env=env, capture_output=True, text=True, timeout=60, check=False
            )
            assert (done.returncode, done.stdout) == (0, "")
            there.wait_for("Approved.")


def test_the_desktop_is_asked_and_a_terminal_that_comes_late(tmp_path: Path) -> None:
    (tmp_path / "bus").mkdir()
    (tmp_path / "run").mkdir(mode=0o700)
    with PrivateBus(tmp_path / "bus") as bus:
        env = environment(tmp_path / "run", DBUS_SESSION_BUS_ADDRESS=bus.address)
        with NotificationServer(bus.address) as server, Daemon(tmp_path, POLICY + ACTOR, env=env) as daemon:
            first = Acting(daemon)
            first.start()
            shown = server.wait_shown()
            assert shown.body == TEXT
            server.press(shown.number, "allow")
            first.end()
            assert first.result["ok"] is True
            second = Acting(daemon)
            second.start()
            shown = server.wait_shown(2)
            with Terminal([*UTTER, "confirm", "--once"], {**env, "UTTER_SOCKET": str(daemon.socket)}) as late:
                late.wait_for("[y/N] ")
                with daemon.client() as client:
                    (open_now,) = client.call("confirm.list", {}, timeout=10)["questions"]
                assert (open_now["text"], open_now["state"], open_now["op"]) == (TEXT, "asked", "terminal")
                assert 0 < open_now["left_ms"] <= 30_000
                late.type("n\n")
                assert late.finish()[0] == 3
            server.wait_closed(shown.number)
            second.end()
            assert second.error is not None
            assert "it was declined" in second.error.message


def test_notifications_can_be_off(tmp_path: Path) -> None:
    (tmp_path / "bus").mkdir()
    (tmp_path / "run").mkdir(mode=0o700)
    with PrivateBus(tmp_path / "bus") as bus:
        env = environment(tmp_path / "run", DBUS_SESSION_BUS_ADDRESS=bus.address)
        config = POLICY + "notify = false\n" + ACTOR
        with NotificationServer(bus.address) as server, Daemon(tmp_path, config, env=env) as daemon:
            acting = Acting(daemon)
            acting.start()
            acting.end()
            assert acting.error is not None
            assert (server.shown, server.calls.empty()) == ([], True)


def test_a_question_needs_a_terminal(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR) as daemon:
        argv = [sys.executable, *UTTER[1:], "confirm", "--socket", str(daemon.socket)]
        done = subprocess.run(argv, input="y\n", capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert "at a terminal" in done.stderr
