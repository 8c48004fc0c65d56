"""What was read from the screen is still the screen's after it was stored, passed on, and read by somebody else.

In each of these the plugin `keeper` reads the screen while it runs an op for the user, and stores something. The plan
that comes afterwards is the user's in all that it says, and whoever wrote it has seen what was stored.
"""

from __future__ import annotations

import hashlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.daemon import Daemon, asking, hostile
from utter_protocol.blobs import handle_of
from utter_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from utter_sdk.client import Client

PASSING = Path(__file__).parents[1] / "support" / "passing_plugin.py"
STORED = handle_of(hashlib.sha256(b"from the screen").hexdigest())
REMEMBER = {"op": "remember", "args": {"n": 1}, "provenance": "user"}
WAVE = {"op": "wave", "args": {"n": 1}, "provenance": "user"}
KEEP = "experimental/Keep@1"
PASSES = "experimental/Pass@1"

ACTOR = hostile("actor", "ops=open_url,wave")
EYES = asking(
    "eyes",
    {
        "kind": "context",
        "hello": {"provides": ["context.snapshot@1"]},
        "on": {"context.snapshot": {"result": {"window": {"app": "foot"}}}},
    },
)
PASSER = "[[plugin]]\nid = 'passer'\ntransport = 'connect'\nentrypoint = [{}]\nprovides = ['{}']\n".format(
    ", ".join(f"'{word}'" for word in (sys.executable, str(PASSING), "passer")), PASSES
)


def ask(method: str, /, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


def invoke(capability: str, method: str, /, **params: Any) -> dict[str, Any]:
    return ask("host.invoke", capability=capability, method=method, params=params, request="$")


CREATE = ask("handle.create", data="from the screen", request="$")


def keeper(*asks: dict[str, Any]) -> str:
    """It reads the screen and stores something; what is asked then may hand it on."""
    script = {
        "hello": {"provides": ["action.invoke@1", KEEP, "knowledge.catalog@1"]},
        "on": {
            "action.capabilities": {"result": {"ops": [{"op": "remember", "args_schema": {"type": "object"}}]}},
            "action.invoke": {"asks": [ask("host.context", request="$"), CREATE, *asks], "result": {"ok": True}},
            "experimental.keep": {"result": {"handle": STORED}},
            "knowledge.catalog": {
                "asks": [ask("handle.fetch", handle=STORED, request="$")],
                "result": {"candidates": [{"id": "c", "label": "c", "value": "https://example.org/"}]},
            },
        },
    }
    return asking("keeper", script)


def router(*asks: dict[str, Any], plan: tuple[dict[str, Any], ...] = (REMEMBER, WAVE)) -> str:
    requires = [one["params"]["capability"] for one in asks if "capability" in one["params"]]
    script = {
        "kind": "router",
        "hello": {"provides": ["router.plan@1"], "requires": requires},
        "on": {"router.plan": {"asks": asks, "result": {"steps": plan}}},
    }
    return asking("router", script)


def grant(plugin: str) -> dict[str, Any]:
    return ask("handle.grant", handle=STORED, scope=plugin, request="$")


def command(client: Client) -> list[tuple[str, bool, int | None]]:
    """What became of each step: its op, whether it ran, and the error."""
    results = client.call("runner.command", {"utterance": "go"}, timeout=20)["results"]
    return [(one["op"], one["ok"], (one.get("error") or {}).get("code")) for one in results]


DONE = [("remember", True, None), ("wave", True, None)]
UNTRUSTED = ("remember", False, ErrorCode.UNTRUSTED_PROVENANCE)

WAYS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    # What the keeper does with it, and what the router does when it plans.
    "the router fetches it": ([grant("router")], [ask("handle.fetch", handle=STORED, request="$")]),
    "it does not say for what": ([grant("router")], [ask("handle.fetch", handle=STORED)]),
    "it is handed to the router": ([], [invoke(KEEP, "experimental.keep")]),
    "the router only passes it on": ([grant("router")], [invoke(KEEP, "experimental.keep", handle=STORED)]),
    "another plugin reads it from a descriptor": ([grant("passer")], [invoke(PASSES, "read", handle=STORED)]),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_was_stored_in_one_session_taints_the_next_that_reads_it(tmp_path: Path, way: str) -> None:
    stored, read = WAYS[way]
    config = ACTOR + EYES + PASSER + keeper(*stored) + router(*read)
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        assert command(client) == DONE
        assert command(client)[0] == UNTRUSTED


@pytest.mark.parametrize("killed", [False, True])
def test_a_mark_outlives_the_runner(tmp_path: Path, *, killed: bool) -> None:
    config = ACTOR + EYES + keeper(grant("router")) + router(ask("handle.fetch", handle=STORED, request="$"))
    before = Daemon(tmp_path, config)
    before.start()
    try:
        with before.client() as client:
            assert client.call("policy.explain", PICK, timeout=10)["rule"] == "allowed"
            assert command(client) == DONE
    finally:
        before.stop(signal.SIGKILL if killed else signal.SIGTERM)
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        assert command(client)[0] == UNTRUSTED
        # The keeper has read it, too, before it said what may be picked.
        assert client.call("policy.explain", PICK, timeout=10)["rule"] == "unknown-candidate"
        assert any("its catalog is not taken" in line for line in daemon.log)


PICK = {"op": "open_url", "args": {"url": {"select": "c"}}, "provenance": "screen"}


def test_a_step_that_names_what_whoever_runs_it_has_from_the_screen_is_the_screens(tmp_path: Path) -> None:
    named = {**WAVE, "args": {"n": STORED}}
    config = ACTOR + EYES + keeper(grant("actor")) + router(plan=(named, REMEMBER, named))
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        first, second, third = command(client)
        assert (first, second) == (("wave", True, None), ("remember", True, None))
        assert third == ("wave", False, ErrorCode.UNTRUSTED_PROVENANCE)


def test_an_action_that_names_what_was_stored_before_is_the_screens(tmp_path: Path) -> None:
    act = ask("host.action", op="wave", args={"n": STORED}, provenance="user", request="$")
    config = ACTOR + EYES + keeper(grant("router")) + router(act, plan=(REMEMBER,))
    with (
        Daemon(tmp_path, config) as daemon,
        daemon.client() as client,
        client.subscribe("runner.events") as events,
    ):
        assert [command(client)[0][1] for _ in range(2)] == [True, False]
        decisions = (item for item in events if item["event"] == "decision")
        assert [(one["op"], one["rule"]) for _, one in zip(range(4), decisions, strict=False)] == [
            ("wave", "allowed"),
            ("remember", "allowed"),
            ("wave", "screen-authored-argument"),
            ("remember", "screen-authored-argument"),
        ]


def test_a_client_that_passes_on_what_it_got_from_a_plugin_cannot_call_it_the_users(tmp_path: Path) -> None:
    config = ACTOR + EYES + keeper() + router(plan=(REMEMBER,))
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:

        def wave(handle: str) -> str:
            step = {"op": "wave", "args": {"n": handle}, "provenance": "user"}
            params = {"plugin": "actor", "method": "action.invoke", "params": step}
            try:
                client.call("runner.invoke", params, timeout=10)
            except Exception as error:  # noqa: BLE001 - which one, the caller says
                return str(getattr(error, "data", {}).get("rule"))
            return "allowed"

        mine = client.handles.create("mine", provenance="user")
        assert (mine.provenance, wave(mine.handle)) == ("user", "allowed")
        assert wave(client.handles.create("from nowhere").handle) == "screen-authored-argument"
        assert command(client) == DONE[:1]
        asked = {"plugin": "keeper", "method": "experimental.keep"}
        got = client.call("runner.invoke", asked, timeout=10)["handle"]
        assert client.handles.stat(got).provenance == "screen"
        assert wave(got) == "screen-authored-argument"
        # Nor is a sentence that names it.
        client.handles.create("from the screen", provenance="user")
        assert client.handles.stat(got).provenance == "screen"
        params = {"utterance": "go", "context": {"picture": got}}
        (result,) = client.call("runner.command", params, timeout=20)["results"]
        assert result["error"]["code"] == ErrorCode.UNTRUSTED_PROVENANCE


def test_a_plugin_that_has_read_the_screen_has_read_it_for_the_rest_of_the_session(tmp_path: Path) -> None:
    """The second step is the user's, but whoever runs it knows from the first one what is on the screen."""
    act = ask("host.action", op="wave", args={"n": 2}, provenance="user", request="$")
    script = {
        "hello": {"provides": ["action.invoke@1"]},
        "on": {
            "action.capabilities": {"result": {"ops": [{"op": "look"}, {"op": "act"}]}},
            # Asked first, the action is still the user's.
            "action.invoke": {"asks": [act, ask("host.context", request="$")], "result": {"ok": True}},
        },
    }
    plan = tuple({"op": op, "args": {"n": 1}, "provenance": "user"} for op in ("look", "act"))
    config = ACTOR + EYES + asking("looker", script) + router(plan=plan)
    with (
        Daemon(tmp_path, config) as daemon,
        daemon.client() as client,
        client.subscribe("runner.events") as events,
    ):
        for _ in range(2):
            assert [one[1] for one in command(client)] == [True, True]
        waves = (item for item in events if item["event"] == "decision" and item["op"] == "wave")
        decided = [one["decision"] for _, one in zip(range(4), waves, strict=False)]
        # Another session is another one.
        assert decided == ["allow", "deny", "allow", "deny"]


@pytest.mark.parametrize("answers", [True, False], ids=["result", "error"])
def test_a_command_that_a_language_model_had_a_part_in_is_refused(tmp_path: Path, answers: bool) -> None:
    chosen = {"llm.choose": {"result": {"choice_id": None, "probability": 0.0, "distribution": {}}}}
    plan = ({"op": "terminal", "args": {"command": "make"}, "provenance": "user"},)
    model = asking(
        "model",
        {
            "kind": "llm",
            "hello": {"provides": ["llm.choose@1"]},
            "on": chosen if answers else {},
        },
    )
    choose = invoke("llm.choose@1", "llm.choose", utterance="go", candidates=[])
    config = hostile("actor", "ops=terminal") + model + router(choose, plan=plan)
    with Daemon(tmp_path, config + '[policy]\nenabled_ops = ["terminal"]\n') as daemon, daemon.client() as client:
        (result,) = client.call("runner.command", {"utterance": "go"}, timeout=20)["results"]
        assert (result["error"]["code"], result["error"]["data"]["rule"]) == (
            ErrorCode.UNTRUSTED_PROVENANCE,
            "command-from-llm",
        )
