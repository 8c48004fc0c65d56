"""Every method of the client API: what it answers, what it refuses, and what it cancels."""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any

import pytest
import trio
from msgspec import Raw

from support.clients import Client, House, house, settle
from support.policy import SESSION
from support.stage import DONE, SILENT, Person, assert_paired
from utter_protocol.capabilities import Deprecation, Entry, Registry
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import encode_frame
from utter_protocol.methods import Candidate, HealthResult
from utter_protocol.versions import Negotiated
from utter_runner.supervision.dialect import Handshake

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

MUTE = {"op": "mute", "provenance": "user"}
WIPE = {"op": "wipe", "args": {"disk": "sda"}, "provenance": "user"}
WAV = base64.b64encode(b"RIFFsound").decode()


def steps(*planned: dict[str, Any]) -> dict[str, Any]:
    return {"steps": [*planned]}


def invoking(method: str, params: Any = None, plugin: str = "desktop", **more: Any) -> dict[str, Any]:
    given = {} if params is None else {"params": params}
    return {"plugin": plugin, "method": method, **given, **more}


# ---- what may not be asked


@pytest.mark.parametrize("method", ["no.such.method", "", "runner.shutdown", "handle.open", "fd.send", "Runner.Status"])
async def test_unknown_methods_are_minus_32601_and_named(tmp_path: Path, method: str) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        error = await client.error(method)
    assert (error.code, error.message) == (ErrorCode.METHOD_NOT_FOUND, f"there is no method {method!r}")
    assert error.data == {"method": method}


INVALID: list[tuple[str, Any, str]] = [
    ("runner.command", {}, "utterance"),
    ("runner.command", {"utterance": 7}, "utterance"),
    ("runner.command", {"utterance": None}, "utterance"),
    ("runner.command", {"utterance": "x", "provenance": "root"}, "provenance"),
    ("runner.command", {"utterance": "x", "provenance": None}, "provenance"),
    ("runner.command", {"utterance": "x", "context": []}, "context"),
    ("runner.command", {"utterance": "x", "timeout_ms": "5"}, "timeout_ms"),
    ("runner.command", {"utterance": "x", "timeout_ms": 1.5}, "timeout_ms"),
    ("runner.command", {"utterance": "x", "timeout_ms": True}, "timeout_ms"),
    ("runner.command", {"utterance": "x", "timeout_ms": 0}, "timeout_ms"),
    ("runner.command", {"utterance": "x", "timeout_ms": -5}, "timeout_ms"),
    ("runner.command", {"utterance": "x" * 4001}, "utterance"),
    ("runner.command", [], ""),
    ("runner.invoke", {"method": "x"}, "plugin"),
    ("runner.invoke", {"plugin": "desktop"}, "method"),
    ("runner.invoke", {"plugin": 1, "method": "x"}, "plugin"),
    ("runner.invoke", invoking("x", timeout_ms=0), "timeout_ms"),
    ("runner.invoke", invoking("x", timeout_ms=-1), "timeout_ms"),
    ("runner.invoke", invoking("x", timeout_ms="1"), "timeout_ms"),
    ("runner.invoke", invoking("x", 5), "params"),
    ("runner.invoke", invoking("x", "text"), "params"),
    ("runner.invoke", {"plugin": "desktop", "method": "x", "params": None}, "params"),
    ("runner.invoke", ["desktop", "x"], ""),
    ("runner.invoke", invoking("action.invoke", {"args": {}, "provenance": "user"}), "op"),
    ("runner.invoke", invoking("action.invoke", {"op": "mute", "provenance": "root"}), "provenance"),
    ("runner.invoke", invoking("action.invoke", {"op": "mute", "args": [], "provenance": "user"}), "args"),
    (
        "runner.invoke",
        invoking("action.invoke", {"op": "mute", "provenance": "user", "arg_provenance": {"a": 1}}),
        "arg_provenance[...]",
    ),
    ("runner.invoke", invoking("action.invoke", [1]), ""),
    ("runner.validate_plugin", {}, "plugin"),
    ("runner.validate_plugin", {"plugin": ["desktop"]}, "plugin"),
    ("runner.listen", {}, "wav_b64"),
    ("runner.listen", {"wav_b64": 7}, "wav_b64"),
    ("runner.listen", {"wav_b64": "not base64!"}, "wav_b64"),
    ("runner.listen", {"wav_b64": "AAA"}, "wav_b64"),
    ("runner.listen", {"wav_b64": "ä"}, "wav_b64"),
    ("runner.listen", {"wav_b64": WAV + "\n"}, "wav_b64"),
    ("runner.listen", {"wav_b64": base64.b64encode(b"no wav").decode()}, "wav_b64"),
    ("runner.listen", {"wav_b64": WAV, "timeout_ms": 0}, "timeout_ms"),
    ("policy.explain", {}, "op"),
    ("policy.explain", {"op": "mute", "args": 1}, "args"),
    ("policy.explain", {"op": "mute", "provenance": "x"}, "provenance"),
    ("stream.subscribe", {}, "method"),
    ("stream.subscribe", {"method": "runner.events", "mode": "certain"}, "mode"),
    ("stream.subscribe", {"method": "runner.events", "params": 1}, "params"),
    ("stream.ack", {"seq": 1}, "stream_id"),
    ("stream.ack", {"stream_id": "x"}, "seq"),
    ("stream.ack", {"stream_id": "x", "seq": "1"}, "seq"),
    ("stream.stop", {}, "stream_id"),
    ("stream.stop", {"stream_id": 1}, "stream_id"),
]


async def test_invalid_params_are_minus_32602_and_name_the_field(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        for method, params, field in INVALID:
            request = await client.send(method, None)  # an id to use up
            await client.until(lambda request=request: request in client.answers)
            body = {"jsonrpc": "2.0", "id": f"q{request}", "method": method, "params": params}
            await client.stream.send_all(encode_frame(_json(body)))
            with pytest.raises(RpcError) as error:
                await client.result(f"q{request}")
            assert error.value.code == ErrorCode.INVALID_PARAMS, (method, params, error.value)
            assert error.value.data["field"] == field, (method, params, error.value)
            assert field.partition("[")[0] in error.value.message
        assert made.bus._streams == {}
    assert made.plugin.received == []
    assert made.router.received == []
    assert made.voice.called == []


def _json(value: Any) -> bytes:
    import json  # noqa: PLC0415 - here alone

    return json.dumps(value).encode()


async def test_params_that_only_look_like_json_are_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        for params in (b'{"plugin":"\\ud800","method":"x"}', b'{"plugin":"a","method":"x","params":{"a":NaN}}'):
            await client.stream.send_all(
                encode_frame(b'{"jsonrpc":"2.0","id":"q","method":"runner.invoke","params":%b}' % params)
            )
            await client.until(lambda: client.answers or client.unasked)
            (answer,) = [*client.answers.values(), *client.unasked]
            assert answer["error"]["code"] == ErrorCode.PARSE_ERROR
            client.answers.clear()
            client.unasked.clear()
        assert (await client.call("runner.status"))["state"] == "ready"


# ---- looking


async def test_status_and_plugins(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        assert await client.call("runner.status") == made.status()
        assert await client.call("runner.plugins") == {"plugins": [{"id": "desktop"}, {"id": "router"}]}


async def test_explain_says_what_would_be_decided_and_does_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, Person(answer=True)) as made:
        client = await made.client()
        explained = [
            await client.call("policy.explain", params)
            for params in (
                {"op": "action.open_url", "args": {"url": "HTTP://a.b"}},
                {"op": "open_url", "args": {"url": "http://a.b"}, "provenance": "screen"},
                {"op": "wipe", "args": {"disk": "sda"}},
            )
        ]
        assert [(one["op"], one["decision"], one["rule"]) for one in explained] == [
            ("open_url", "allow", "allowed"),
            ("open_url", "deny", "screen-authored-argument"),
            ("wipe", "confirm", "destructive"),
        ]
        assert [one["args"] for one in explained] == [{"url": "http://a.b/"}, {}, {"disk": "sda"}]
        assert all(one["detail"] for one in explained)
        assert [one["rules"] for one in explained] == [["allowed"], ["screen-authored-argument"], ["destructive"]]
        assert [one["plugin"] for one in explained] == ["desktop", None, "desktop"]
        assert [one["text"] for one in explained] == ["", "", 'Do "wipe" with disk = "sda"']
        assert [one["data"].get("field") for one in explained] == [None, "url", None]
    assert (made.plugin.received, made.persons[0].asked, made.events) == ([], [], [])


async def test_explain_takes_where_a_step_comes_from(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        fresh: dict[str, Any] = {
            "source": "user",
            "owner": "x",
            "session": SESSION,
            "ttl_s": 600.0,
            "plugin": "desktop",
        }
        made.candidates.record([Candidate(id="new", value="https://a.org/")], now=trio.current_time(), **fresh)
        mine = {"op": "open_url", "args": {"url": {"select": "new"}}, "provenance": "screen"}
        pick = {"op": "open_url", "args": {"url": {"select": "youtube"}}}
        command = {"op": "terminal", "args": {"command": "ls"}}
        expected = [
            ({**pick, "arg_provenance": {"url": "screen"}}, "allowed"),
            ({**pick, "sources": ["clipboard"]}, "allowed"),
            (pick, "arguments"),
            ({**pick, "arg_provenance": {"app": "screen"}}, "arg-provenance"),
            ({**mine, "session": SESSION}, "allowed"),
            (mine, "unknown-candidate"),
            ({**command, "sources": ["user", "config"]}, "always-confirm"),
            ({**command, "sources": ["context.snapshot"]}, "command-from-screen"),
            ({**command, "llm": True}, "command-from-llm"),
        ]
        for params, rule in expected:
            assert (await client.call("policy.explain", params))["rule"] == rule, params
    assert made.plugin.received == []


async def test_the_list_of_ops(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        ops = (await client.call("policy.list"))["ops"]
        assert [one["op"] for one in ops] == sorted(one["op"] for one in ops)
        assert {"op": "wipe", "plugin": "desktop", "provider": True, "side_effect": "destructive"}.items() <= next(
            one for one in ops if one["op"] == "wipe"
        ).items()


def handshake(**fields: Any) -> Handshake:
    known = {"version": "1", "kind": "action", "negotiated": Negotiated("1.0", 1, ()), "health": HealthResult()}
    empty = dict.fromkeys(("provides", "requires", "permissions", "methods", "streams", "warnings"), ())
    return Handshake(**known, **(empty | fields))


async def test_validate_says_what_is_wrong_with_a_plugin(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()

        async def validate() -> Any:
            return await client.call("runner.validate_plugin", {"plugin": "desktop"})

        before = await validate()
        assert (before["ok"], before["negotiated"]) == (False, {"protocol": "1.0", "abi": 1})
        made.plugin.handshake = handshake(
            provides=("action.invoke@1", "made.up@1", "No Capability"),
            requires=("router.plan@1", "tts.speak@1"),
            permissions=("network", "gpu"),
            warnings=("A warning.",),
        )
        answer = await validate()
        assert answer == {
            "ok": False,
            "negotiated": {"protocol": "1.0", "abi": 1},
            "status": "ready",
            "detail": "",
            "error": None,
            "unknown_capabilities": ["made.up@1", "No Capability"],
            "missing_requires": ["tts.speak@1"],
            "deprecations": [],
            "warnings": ["A warning."],
            "permissions": [
                {"name": "network", "enforced": False, "advisory": True},
                {"name": "gpu", "enforced": False, "advisory": True},
            ],
            "sandbox": {
                "wrappers": [],
                "permissions": answer["permissions"],
                "besides": [],
                "reasons": dict.fromkeys(("network", "gpu"), "no sandbox holds it: it has all of your rights"),
            },
        }
        made.plugin.handshake = handshake(requires=("router.plan@1", "fs.tmp@1"))
        assert (await validate())["ok"] is True
        made.plugin.die("failed", "it crashed")
        made.plugin.refusal = RpcError(ErrorCode.INCOMPATIBLE, "another major", {"axis": "protocol"})
        answer = await validate()
        assert (answer["ok"], answer["status"], answer["detail"]) == (False, "failed", "it crashed")
        assert answer["error"] == {"code": -32004, "message": "another major", "data": {"axis": "protocol"}}
        error = await client.error("runner.validate_plugin", {"plugin": "nobody"})
        assert (error.code, error.data["known"]) == (ErrorCode.CAPABILITY_MISSING, ["desktop", "router"])


async def test_a_deprecated_capability_is_named_with_its_replacement(tmp_path: Path) -> None:
    old = Deprecation(since="1.0", replacement="router.plan@2")
    entries = [
        Entry(name="router.plan", version=1, summary="x", deprecated=old),
        Entry(name="router.plan", version=2, summary="x"),
    ]
    async with house(tmp_path) as made:
        made.api._registry = Registry(entries, ["1.0"])
        made.plugin.handshake = handshake(provides=("router.plan@1",))
        client = await made.client()
        answer = await client.call("runner.validate_plugin", {"plugin": "desktop"})
    expected = {"capability": "router.plan@1", "since": "1.0", "replacement": "router.plan@2", "removed": ""}
    assert answer["deprecations"] == [expected]
    assert answer["unknown_capabilities"] == []


# ---- runner.invoke


async def test_params_and_results_pass_as_they_are(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        made.plugin.answers.update({"echo": lambda params: params, "fails": RpcError(-32099, "mine", {"a": [1]})})
        client = await made.client()
        for params in ({}, {"a": [1, 2.5, None, "ü\u2028"], "b": {"c": {}}}, [1, 2], {"id": 10**17}):
            assert await client.call("runner.invoke", invoking("echo", params)) == params
        assert await client.call("runner.invoke", {"plugin": "desktop", "method": "echo"}) == {}
        error = await client.error("runner.invoke", invoking("fails"))
        assert (error.code, error.message, error.data) == (-32099, "mine", {"a": [1]})


async def test_a_plugin_that_is_not_there_or_not_running_is_named(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        error = await client.error("runner.invoke", invoking("x", plugin="nobody"))
        assert error.code == ErrorCode.CAPABILITY_MISSING
        assert error.data == {"plugin": "nobody", "known": ["desktop", "router"]}
        made.plugin.die("backoff", "it crashed")
        error = await client.error("runner.invoke", invoking("x"))
        assert (error.code, error.data) == (
            ErrorCode.PLUGIN_FAILED,
            {"plugin": "desktop", "status": "backoff", "epoch": 1},
        )


@pytest.mark.parametrize(
    "method", ["protocol.hello", "protocol.", "input.type", "input.keys", "media.hold", "$/cancel", "$/x"]
)
async def test_methods_that_nobody_may_call(tmp_path: Path, method: str) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        error = await client.error("runner.invoke", invoking(method, {"provenance": "user"}))
        assert (error.code, error.data) == (ErrorCode.NOT_PERMITTED, {"method": method})
    assert made.plugin.received == []


async def test_an_action_goes_through_the_gate(tmp_path: Path) -> None:
    async with house(tmp_path, Person(answer=False)) as made:
        client = await made.client()

        def action(op: str, args: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
            return invoking("action.invoke", {"op": op, "args": args or {}, **more})

        assert await client.call("runner.invoke", action("open_url", {"url": "HTTP://a.b"}, provenance="user")) == DONE
        assert made.plugin.received[0].params == {
            "op": "action.open_url",
            "args": {"url": "http://a.b/"},
            "provenance": "user",
        }
        for params, code in (
            (action("mute"), ErrorCode.NOT_PERMITTED),
            (action("open_url", {"url": "http://a.b"}, provenance="screen"), ErrorCode.UNTRUSTED_PROVENANCE),
            (
                action("open_url", {"url": "http://a.b"}, provenance="user", arg_provenance={"url": "screen"}),
                ErrorCode.UNTRUSTED_PROVENANCE,
            ),
            (action("terminal", {"command": "ls"}, provenance="screen"), ErrorCode.UNTRUSTED_PROVENANCE),
            (action("terminal", {"command": "ls"}, provenance="user"), ErrorCode.NOT_PERMITTED),
            (action("wipe", {"disk": "sda"}, provenance="user"), ErrorCode.NOT_PERMITTED),
            (action("nobody", provenance="user"), ErrorCode.CAPABILITY_MISSING),
            # The op is another plugin's.
            ({**action("mute", provenance="user"), "plugin": "router"}, ErrorCode.CAPABILITY_MISSING),
        ):
            error = await client.error("runner.invoke", params)
            assert error.code == code, params
        error = await client.error("runner.invoke", action("mute"))
        assert error.data == {"field": "provenance"}
        assert len(made.plugin.received) == 1
        assert made.router.received == []


async def test_extra_fields_of_an_action_do_not_reach_the_plugin(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        params = {
            "op": "mute",
            "args": {},
            "provenance": "user",
            "confirm": False,
            "approved": True,
            "session": SESSION,
        }
        await client.call("runner.invoke", invoking("action.invoke", params))
    assert made.plugin.received[0].params == {"op": "mute", "args": {}, "provenance": "user"}


@pytest.mark.parametrize(
    ("asked", "seconds"), [(None, 30.0), (1, 0.001), (59_999, 59.999), (60_000, 60.0), (60_001, 60.0), (10**15, 60.0)]
)
async def test_time_outs_are_what_was_asked_for_and_capped(tmp_path: Path, asked: int | None, seconds: float) -> None:
    more = {} if asked is None else {"timeout_ms": asked}
    async with house(tmp_path, plan=SILENT, invoke=SILENT) as made:
        client = await made.client()
        await client.send("runner.invoke", invoking("x", **more))
        await client.send("runner.invoke", invoking("action.invoke", MUTE, **more))
        await client.send("runner.command", {"utterance": "x", **more})
        await client.send("runner.listen", {"wav_b64": WAV, **more})
        await made.voice.listening.wait()
        await settle()
        sent = [*made.plugin.received, *made.router.received]
        assert [one.method for one in sent] == ["x", "action.invoke", "router.plan"]
        assert [one.timeout for one in sent] == [pytest.approx(seconds)] * 3
        assert made.voice.called == [(b"sound", pytest.approx(seconds))]


async def test_a_time_out_is_answered_and_passed_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        error = await client.error("runner.invoke", invoking("slow", timeout_ms=250))
        assert (error.code, error.data) == (ErrorCode.TIMED_OUT, {"timeout_ms": 250})
        assert made.plugin.received[0].cancelled


# ---- cancelling


async def cancel(client: Client, request: int) -> RpcError:
    await client.notify("$/cancel", {"id": request})
    with pytest.raises(RpcError) as error:
        await client.result(request)
    return error.value


@pytest.mark.parametrize("params", [invoking("slow"), invoking("action.invoke", MUTE)])
async def test_cancelling_an_invoke_reaches_the_plugin(tmp_path: Path, params: dict[str, Any]) -> None:
    async with house(tmp_path, invoke=SILENT) as made:
        client = await made.client()
        request = await client.send("runner.invoke", params)
        await settle()
        assert (await cancel(client, request)).code == ErrorCode.CANCELLED
        assert made.plugin.received[0].cancelled
        # Again, and one that never was: nothing.
        await client.notify("$/cancel", {"id": request})
        await client.notify("$/cancel", {"id": 4711})
        made.plugin.answer(made.plugin.received[0], DONE)
        assert (await client.call("runner.status"))["state"] == "ready"


async def test_cancelling_an_invoke_that_is_to_be_confirmed_withdraws_the_question(tmp_path: Path) -> None:
    person = Person()
    async with house(tmp_path, person) as made:
        client = await made.client()
        request = await client.send("runner.invoke", invoking("action.invoke", WIPE))
        await settle()
        assert (await cancel(client, request)).code == ErrorCode.CANCELLED
        assert person.withdrawn == 1
        assert [state for _, state in made.questions] == ["asked", "denied"]
    assert made.plugin.received == []


async def test_cancelling_a_command_reaches_whatever_it_waits_for(tmp_path: Path) -> None:
    async with house(tmp_path, plan=SILENT) as made:
        client = await made.client()
        request = await client.send("runner.command", {"utterance": "x"})
        await settle()
        assert (await cancel(client, request)).code == ErrorCode.CANCELLED
        assert made.router.received[0].cancelled
    person = Person()
    async with house(tmp_path, person, plan=steps(WIPE)) as made:
        client = await made.client()
        request = await client.send("runner.command", {"utterance": "x"})
        await settle()
        assert (await cancel(client, request)).code == ErrorCode.CANCELLED
        assert (person.withdrawn, made.plugin.received) == (1, [])
    async with house(tmp_path, plan=steps(MUTE, MUTE), invoke=SILENT) as made:
        client = await made.client()
        request = await client.send("runner.command", {"utterance": "x"})
        await settle()
        assert (await cancel(client, request)).code == ErrorCode.CANCELLED
        assert [one.cancelled for one in made.plugin.received] == [True]


async def test_cancelling_a_listen_cancels_the_session(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        made.voice.hold = True
        client = await made.client()
        request = await client.send("runner.listen", {"wav_b64": WAV})
        await made.voice.listening.wait()
        assert (await cancel(client, request)).code == ErrorCode.CANCELLED
        assert made.voice.cancelled == 1


async def test_what_a_connection_waits_for_is_cancelled_when_it_dies(tmp_path: Path) -> None:
    person = Person()
    async with house(tmp_path, person, plan=SILENT, invoke=SILENT) as made:
        client, other = await made.client(), await made.client()
        await client.send("runner.command", {"utterance": "x"})
        await client.send("runner.invoke", invoking("slow"))
        await client.send("runner.invoke", invoking("action.invoke", MUTE))
        await client.send("runner.invoke", invoking("action.invoke", WIPE))
        kept = await other.send("runner.invoke", invoking("slow"))
        await settle()
        assert len(made.plugin.received) == 3
        await client.stream.aclose()
        await settle()
        mine, theirs = made.plugin.received[:2], made.plugin.received[2]
        assert [one.cancelled for one in [*mine, *made.router.received]] == [True] * 3
        assert person.withdrawn == 1
        assert_paired(made.questions)
        assert not theirs.cancelled
        made.plugin.answer(theirs, DONE)
        assert await other.result(kept) == DONE


async def test_a_plan_does_not_go_on_after_its_connection_died(tmp_path: Path) -> None:
    async with house(tmp_path, plan=steps(MUTE, MUTE, MUTE), invoke=SILENT) as made:
        client = await made.client()
        await client.send("runner.command", {"utterance": "x"})
        await settle()
        await client.stream.aclose()
        await settle()
        made.plugin.answer(made.plugin.received[0], DONE)
        await settle()
        assert len(made.plugin.received) == 1


async def test_a_plugin_that_dies_is_answered_once_and_cancels_nothing_of_the_next_epoch(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        first = await client.send("runner.invoke", invoking("slow"))
        await settle()
        made.plugin.die("backoff", "it crashed")
        made.plugin.start()
        with pytest.raises(RpcError) as error:
            await client.result(first)
        assert error.value.code == ErrorCode.PLUGIN_FAILED
        second = await client.send("runner.invoke", invoking("slow"))
        await settle()
        old, new = made.plugin.received
        assert old.id == new.id
        await client.notify("$/cancel", {"id": first})
        await client.stream.send_all(b"")
        await settle()
        assert not new.cancelled
        made.plugin.answer(new, DONE)
        assert await client.result(second) == DONE


# ---- runner.command and runner.listen


async def test_a_command_answers_what_was_done(tmp_path: Path) -> None:
    async with house(tmp_path, plan=steps(MUTE)) as made:
        client = await made.client()
        answers = [await client.call("runner.command", {"utterance": "x", "context": {"a": 1}}) for _ in range(2)]
        assert [one["results"][0]["ok"] for one in answers] == [True, True]
        assert set(answers[0]["latency_ms"]) == {"router", "policy", "action"}
        assert made.router.received[0].params == {"utterance": "x", "context": {"a": 1}}
        sessions = {one["session"] for one in made.events}
        assert len(sessions) == 2
        # mute takes nothing, so choosing it is all that the screen can do, and a person is asked: somebody else.
        params = {"utterance": "x", "provenance": "screen"}
        (refused,) = (await client.call("runner.command", params))["results"]
        assert (refused["error"]["code"], refused["decision"]) == (ErrorCode.NOT_PERMITTED, "confirm")
        assert "[policy] self_confirm" in refused["detail"]
        assert client.requests == []


async def test_two_commands_of_one_connection_run_side_by_side(tmp_path: Path) -> None:
    async with house(tmp_path, plan=SILENT) as made:
        client = await made.client()
        first = await client.send("runner.command", {"utterance": "first"})
        second = await client.send("runner.command", {"utterance": "second"})
        await settle()
        asked = {one.params["utterance"]: one for one in made.router.received}
        made.router.answer(asked["second"], {"steps": []})
        assert (await client.result(second))["understood"] is False
        assert first not in client.answers
        made.router.answer(asked["first"], {"steps": []})
        assert (await client.result(first))["understood"] is False


async def test_listen_is_a_session_from_a_recording(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        answer = await client.call("runner.listen", {"wav_b64": WAV, "timeout_ms": 5000})
        assert (answer["session"], answer["outcome"], answer["heard"]) == ("v1", "done", "hello")
        assert (made.wavs, made.voice.called) == ([b"RIFFsound"], [(b"sound", 5.0)])
        error = await client.error("runner.listen", {"wav_b64": base64.b64encode(b"nothing").decode()})
        assert error.message == "wav_b64: it is no WAV file"


async def test_a_defect_is_minus_32603_and_leaves_the_others_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with house(tmp_path, plan=steps(MUTE)) as made:
        client = await made.client()
        for broken in (_raising, _unspeakable):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(made.commands, "command", broken)
                error = await client.error("runner.command", {"utterance": "x"})
                assert error.code == ErrorCode.INTERNAL_ERROR
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made.api, "_status", dict)
            assert (await client.error("runner.plugins")).code == ErrorCode.INTERNAL_ERROR
        assert (await client.call("runner.command", {"utterance": "x"}))["understood"]


async def _raising(*_: Any, **__: Any) -> None:
    raise ValueError("boom")


async def _unspeakable(*_: Any, **__: Any) -> object:
    return object()


async def test_while_the_runner_stops_methods_that_wait_are_refused(tmp_path: Path) -> None:
    made = House(tmp_path)
    try:
        with pytest.raises(RpcError) as error:
            made.api.on_request(None, 1, "runner.speak", Raw(b'{"text":"x"}'))
        assert (error.value.code, error.value.message) == (ErrorCode.NOT_PERMITTED, "the runner is stopping")
    finally:
        made.close()


# ---- ptt and streams


async def test_ptt_reaches_the_voice(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        for method in ("press", "release", "toggle"):
            assert await client.call(f"ptt.{method}") == {"session": "v1", "state": "listening"}
        assert await client.call("ptt.cancel") == {"cancelled": True}
    assert made.voice.called == ["press", "release", "toggle", "cancel"]


async def test_when_a_client_was_the_key_is_known(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        await client.call("hotkeys.bind")
        assert made.api.ptt_at is None
        before = trio.current_time()
        await client.call("ptt.cancel")
        assert before <= (made.api.ptt_at or 0) <= trio.current_time()
        assert await client.call("hotkeys.bind") == {"asked": False, "detail": "There is no desktop here."}


async def test_an_unknown_stream_is_minus_32601(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        error = await client.error("stream.subscribe", {"method": "context.live"})
        assert (error.code, error.data) == (ErrorCode.METHOD_NOT_FOUND, {"method": "context.live"})
        answers = [
            await client.call("stream.subscribe", {"method": "runner.events", **more})
            for more in ({}, {"mode": None}, {"mode": "lossy"}, {"mode": "reliable"}, {"params": {"x": 1}})
        ]
        assert [one["mode"] for one in answers] == ["lossy", "lossy", "lossy", "reliable", "lossy"]


async def test_notifications_that_mean_nothing_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with house(tmp_path) as made:
        client = await made.client()
        for method, params in (("stream.ack", {}), ("stream.ack", {"stream_id": 1}), ("what", {}), ("ptt.press", {})):
            await client.notify(method, params)
        assert (await client.call("runner.status"))["state"] == "ready"
        assert client.unasked == []
    assert made.voice.called == []


# ---- speaking, and the desktop's state


async def test_texts_are_spoken_and_silenced(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        client = await made.client()
        answer = await client.call("runner.speak", {"text": "Tea.", "voice": "alto", "timeout_ms": 1500})
        assert answer == {"spoken": True, "duration_ms": 7}
        await client.call("runner.speak", {"text": "Tea.", "timeout_ms": 99_000})
        assert await client.call("runner.hush") == {"stopped": True}
        error = await client.error("runner.speak", {"voice": "alto"})
    assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": "text"})
    assert made.voice.called == [("speak", "Tea.", "alto", 1.5), ("speak", "Tea.", "", 60.0), "hush"]


async def test_the_context_is_that_of_all_context_plugins(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        made.plugin.answers["context.snapshot"] = {"window": {"app": "foot"}, "workspace": 2}
        made.plugin.describe(methods=["context.snapshot"])
        client = await made.client()
        context = await client.call("context.snapshot", {"sources": ["window"]})
        assert context["window"] == {"app": "foot"}
        assert context["meta"]["window"]["source"] == "desktop"
        assert context.keys() == {"window", "meta"}
        assert (await client.call("context.snapshot")).keys() == {"window", "workspace", "meta"}
        error = await client.error("context.snapshot", {"sources": "window"})
    assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": "sources"})
