"""Plugins that ask the real daemon for things, and each other through it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon, asking, hostile
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.client import Client

ACTOR = hostile("actor", "ops=open_url,wave")
WAVE = {"op": "wave", "args": {"n": 1}, "provenance": "user"}
CHOOSE = {
    "method": "host.invoke",
    "params": {
        "capability": "llm.choose@1",
        "method": "llm.choose",
        "params": {"utterance": "x", "candidates": []},
        "request": "$",
    },
}
CONTEXT = {"method": "host.context", "params": {"request": "$"}}


def router(*asks: dict[str, Any], requires: tuple[str, ...] = (), plan: tuple[dict[str, Any], ...] = (WAVE,)) -> str:
    script = {
        "kind": "router",
        "hello": {"provides": ["router.plan@1"], "requires": list(requires)},
        "on": {"router.plan": {"asks": asks, "result": {"steps": plan}}, "kept": {"asks": asks}},
    }
    return asking("router", script)


def llm(*asks: dict[str, Any], requires: tuple[str, ...] = (), **more: Any) -> str:
    chosen = {"choice_id": None, "probability": 0.0, "distribution": {}}
    script = {
        "kind": "llm",
        "hello": {"provides": ["llm.choose@1"], "requires": list(requires)},
        "on": {"llm.choose": {"asks": asks, "result": chosen}},
        **more,
    }
    return asking("llm", script)


def desktop(extra: str = "") -> str:
    on = {"context.snapshot": {"result": {"window": {"app": "foot"}}}}
    return asking("eyes", {"kind": "context", "hello": {"provides": ["context.snapshot@1"]}, "on": on}, extra)


def command(client: Client, **params: Any) -> dict[str, Any]:
    return dict(client.call("runner.command", {"utterance": "wave", **params}, timeout=10))


def test_a_router_asks_a_model_and_its_plan_is_still_the_users(tmp_path: Path) -> None:
    config = ACTOR + router(CHOOSE, requires=("llm.choose@1",)) + llm()
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        answer = command(client)
        assert [one["ok"] for one in answer["results"]] == [True]


@pytest.mark.parametrize("who", ["router", "llm"])
def test_a_plan_for_which_the_screen_was_read_is_the_screens(tmp_path: Path, who: str) -> None:
    asks = [CONTEXT] if who == "router" else [CHOOSE]
    config = ACTOR + desktop() + router(*asks, requires=("llm.choose@1",)) + llm(*([CONTEXT] if who == "llm" else []))
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        (result,) = command(client)["results"]
        assert result["error"]["code"] == ErrorCode.UNTRUSTED_PROVENANCE


def test_an_action_for_a_command_runs_and_one_for_nobody_does_not(tmp_path: Path) -> None:
    act = {"method": "host.action", "params": {**WAVE, "request": "$"}}
    config = ACTOR + router(act, plan=())
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        with client.subscribe("runner.events") as events:
            assert command(client)["results"] == []
            decision = next(item for item in events if item["event"] == "decision")
            assert (decision["op"], decision["decision"]) == ("wave", "allow")
        # A request that a client made says nothing about the user.
        (answer,) = client.call("runner.invoke", {"plugin": "router", "method": "kept"}, timeout=10)["answers"]
        assert answer["code"] == ErrorCode.UNTRUSTED_PROVENANCE


def test_cancelling_a_command_reaches_the_plugin_behind_the_plugin(tmp_path: Path) -> None:
    config = ACTOR + router(CHOOSE, requires=("llm.choose@1",)) + llm(hold=["llm.choose"])
    with Daemon(tmp_path, config) as daemon, daemon.client() as client, daemon.client() as other:
        ids: list[Any] = []
        # On a busy machine the time may be over before the second plugin has been asked.
        for seconds in (2, 5, 10):
            with pytest.raises(RpcError) as error:
                command(client, timeout_ms=seconds * 1000)
            assert error.value.code == ErrorCode.TIMED_OUT
            ids = other.call("runner.invoke", {"plugin": "llm", "method": "cancellations"}, timeout=10)["ids"]
            if ids:
                break
        assert len(ids) == 1


def test_what_is_asked_before_the_admission_is_answered_after_it(tmp_path: Path) -> None:
    early = asking("early", {"start": [{"method": "host.context", "params": {}}, {"method": "host.nothing"}]})
    with Daemon(tmp_path, early + desktop()) as daemon, daemon.client() as client:
        answers: list[Any] = []
        while len(answers) < 2:
            answers = client.call("runner.invoke", {"plugin": "early", "method": "early"}, timeout=10)["answers"]
        assert "meta" in answers[0]
        assert answers[1]["code"] == ErrorCode.METHOD_NOT_FOUND


def test_the_context_is_kept_and_goes_with_its_plugin(tmp_path: Path) -> None:
    with Daemon(tmp_path, desktop('restart = "never"') + ACTOR) as daemon, daemon.client() as client:
        context = client.call("context.snapshot", {}, timeout=10)
        assert context["window"] == {"app": "foot"}
        assert context["meta"]["window"]["provenance"] == "screen"
        (plugin,) = [one for one in client.call("runner.plugins", {}, timeout=5)["plugins"] if one["id"] == "eyes"]
        with client.subscribe("runner.events") as events:
            os.kill(plugin["pid"], signal.SIGKILL)
            next(item for item in events if item["event"] == "plugin" and item["plugin"]["status"] == "failed")
            assert client.call("context.snapshot", {}, timeout=10) == {"meta": {}}


def test_a_plugins_question_reaches_a_person(tmp_path: Path) -> None:
    ask = {"method": "host.confirm", "params": {"text": "Another timer?", "request": "$"}}
    with Daemon(tmp_path, router(ask)) as daemon, daemon.client() as client:
        asked: list[dict[str, Any]] = []

        def confirm(params: dict[str, Any]) -> dict[str, bool]:
            asked.append(params)
            return {"approved": True}

        client.on_request("host.confirm", confirm)
        answers = client.call("runner.invoke", {"plugin": "router", "method": "kept"}, timeout=10)["answers"]
        assert answers == [{"approved": True}]
        assert [one["text"] for one in asked] == ['The plugin router asks: "Another timer?"']


def test_an_input_plugin_types_what_was_allowed_and_confirmed(tmp_path: Path) -> None:
    typist = asking("typist", {"kind": "input", "on": {"input.inject": {"result": {}}}})
    config = typist + '[policy]\nenabled_ops = ["input"]\nself_confirm = true\n'
    step = {"op": "input", "args": {"text": "Dear all,"}, "provenance": "user"}
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        shown: list[str] = []

        def confirm(params: dict[str, Any]) -> dict[str, bool]:
            shown.append(params["text"])
            return {"approved": True}

        client.on_request("host.confirm", confirm)
        params = {"plugin": "typist", "method": "action.invoke", "params": step}
        assert client.call("runner.invoke", params, timeout=10) == {"ok": True, "detail": "Typed."}
        assert shown == ["Type this text: Dear all,"]
        with pytest.raises(RpcError) as error:
            client.call("runner.invoke", {"plugin": "typist", "method": "input.inject"}, timeout=10)
        assert error.value.code == ErrorCode.NOT_PERMITTED
