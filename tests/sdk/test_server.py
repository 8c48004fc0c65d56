"""Tests of serving: handshake, dispatch, errors, order, cancellation, the end of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import encode_frame
from utter_protocol.messages import Message, decode_error
from utter_sdk.testing import PluginDiedError, PluginProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    RunPlugin = Callable[..., PluginProcess]

WAITING = """
go = threading.Event()

@plugin.notification("go")
def on_go() -> None:
    go.set()

@plugin.method("wait", blocking=True)
def wait(params: dict) -> dict:
    plugin.notify("waiting", params)
    go.wait()
    return {"done": params}

@plugin.method("stuck", blocking="stuck")
def stuck() -> None:
    plugin.notify("stuck")
    threading.Event().wait()
"""


def code_of(process: PluginProcess, method: str, params: object = None) -> RpcError:
    with pytest.raises(RpcError) as caught:
        process.call(method, params)
    return caught.value


def error_of(answer: Message) -> RpcError:
    assert isinstance(answer.error, msgspec.Raw)
    return decode_error(answer.error)


def test_handshake_says_what_was_declared(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        plugin = Plugin("lamp.v2", version="0.3.0", kind="action", provides=["action.invoke@1"],
                        requires=["context.live@1"], permissions=["network"], streams=["lamp.changed"])

        @plugin.action("lamp_on", side_effect="local", needs_confirm=True, schema={"type": "object"},
                       description="Switch the lamp on.")
        def lamp_on() -> ActionResult:
            return ActionResult(ok=True)

        @plugin.method("lamp.colour")
        def colour() -> dict:
            return {"colour": "red"}
        """
    )
    hello = process.call("protocol.hello", {"protocol": "1.0", "abi": 1, "runner": "test", "epoch": 2})
    assert hello == {
        "protocol": "1.0",
        "abi": 1,
        "plugin": {"name": "lamp.v2", "version": "0.3.0", "kind": "action"},
        "transport": "stdio",
        "provides": ["action.invoke@1"],
        "requires": ["context.live@1"],
        "permissions": ["network"],
    }
    assert process.hello.plugin.name == "lamp.v2"
    assert set(process.description.methods) == {
        "protocol.hello",
        "plugin.describe",
        "plugin.health",
        "lamp.colour",
        "action.capabilities",
        "action.invoke",
    }
    assert process.description.streams == ["lamp.changed"]
    assert (process.health.status, process.health.detail) == ("ok", "")
    assert process.call("action.capabilities") == {
        "ops": [
            {
                "op": "lamp_on",
                "side_effect": "local",
                "needs_confirm": True,
                "schema": {"type": "object"},
                "description": "Switch the lamp on.",
            }
        ]
    }


def test_another_protocol_version_is_answered_with_ours(run_plugin: RunPlugin) -> None:
    process = run_plugin(handshake=False)
    hello = process.call("protocol.hello", {"protocol": "9.7", "abi": 42, "runner": "later", "epoch": 1})
    assert (hello["protocol"], hello["abi"]) == ("1.0", 1)


def test_before_hello_only_describe_and_health_are_answered(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("work")
        def work() -> None: ...

        @plugin.notification("tell")
        def tell() -> None:
            plugin.log("told")
        """,
        handshake=False,
    )
    assert process.call("plugin.health") == {"status": "ok", "detail": ""}
    assert "work" in process.call("plugin.describe")["methods"]
    error = code_of(process, "work")
    assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, "work: protocol.hello comes first")
    process.notify("tell")
    process.shake_hands()
    assert process.call("work") == {}
    process.notify("tell")
    process.call("work")
    assert process.stderr == "told\n"


def test_a_malformed_hello_is_refused_and_may_be_repeated(run_plugin: RunPlugin) -> None:
    process = run_plugin(handshake=False)
    error = code_of(process, "protocol.hello", {"protocol": 1})
    assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": "protocol"})
    process.shake_hands()


def test_params_are_decoded_by_the_annotation_and_errors_name_the_field(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        class Colour(msgspec.Struct):
            red: int

        class Paint(msgspec.Struct):
            where: str
            colours: list[Colour] = []

        @plugin.method("paint")
        def paint(params: Paint) -> Paint:
            return params

        @plugin.method("anything")
        def anything(params) -> Any:
            return params
        """
    )
    assert process.call("paint", {"where": "wall", "colours": [{"red": 3, "new": 1}], "later": 0}) == {
        "where": "wall",
        "colours": [{"red": 3}],
    }
    assert code_of(process, "paint", {"where": 7}).data == {"field": "where"}
    assert code_of(process, "paint", {}).data == {"field": "where"}
    assert code_of(process, "paint", {"where": "", "colours": [{}]}).data == {"field": "colours[0].red"}
    error = code_of(process, "paint", {"where": "", "colours": [{"red": "x"}]})
    assert error.code == ErrorCode.INVALID_PARAMS
    assert error.message == "paint: Expected `int`, got `str` (in colours[0].red)"
    assert code_of(process, "paint", ["wall"]).code == ErrorCode.INVALID_PARAMS
    assert code_of(process, "anything", ["wall"]).code == ErrorCode.INVALID_PARAMS
    assert process.call("anything", {"a": [1, None, "ü"]}) == {"a": [1, None, "ü"]}


def test_what_handlers_raise_is_answered(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        RAISED = {
            "value": ValueError("no such lamp"),
            "rpc": RpcError(ErrorCode.NOT_PERMITTED, "Not this lamp.", {"lamp": "hall"}),
            "odd": Odd(),
            "empty": KeyError(),
            "surrogate": ValueError("\\udc80"),
            "not_json": RpcError(ErrorCode.PLUGIN_FAILED, "no", {"what": object()}),
        }

        @plugin.method("fail")
        def fail(params: dict) -> None:
            raise RAISED[params["how"]]

        @plugin.method("fail_later", blocking=True)
        def fail_later(params: dict) -> None:
            fail(params)

        @plugin.method("fail_async")
        async def fail_async(params: dict) -> None:
            fail(params)

        @plugin.method("nonsense")
        def nonsense() -> Any:
            return object()
        """
    )
    for method in ("fail", "fail_later", "fail_async"):
        error = code_of(process, method, {"how": "value"})
        assert (error.code, error.message) == (ErrorCode.INTERNAL_ERROR, "ValueError: no such lamp")
        assert error.data == {"exception": "ValueError"}
        error = code_of(process, method, {"how": "rpc"})
        assert (error.code, error.message, error.data) == (-32003, "Not this lamp.", {"lamp": "hall"})
        assert code_of(process, method, {"how": "odd"}).message == "Odd: (its message cannot be shown)"
        assert code_of(process, method, {"how": "empty"}).message == "KeyError"
        assert code_of(process, method, {"how": "surrogate"}).message == "ValueError: \\udc80"
        assert code_of(process, method, {"how": "not_json"}).code == ErrorCode.INTERNAL_ERROR
    assert "Encoding objects of type object is unsupported" in code_of(process, "nonsense").message
    assert "Traceback" in process.stderr
    assert "Not this lamp." not in process.stderr


def test_unknown_methods_are_refused_and_unknown_notifications_ignored(run_plugin: RunPlugin) -> None:
    process = run_plugin()
    process.notify("stt.feed", {"session": "x"})
    error = code_of(process, "stt.start")
    assert (error.code, error.data) == (ErrorCode.METHOD_NOT_FOUND, {"method": "stt.start"})
    assert error.message == "tiny has no method stt.start"
    assert code_of(process, "action.invoke").code == ErrorCode.METHOD_NOT_FOUND
    assert process.stderr == ""


def test_actions(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        class Args(msgspec.Struct, forbid_unknown_fields=True):
            url: str

        @plugin.action("open_url", schema={})
        def open_url(args: Args) -> ActionResult:
            return ActionResult(ok=False, detail=args.url, data={"n": 1})

        @plugin.action("action.media")
        def media(args: dict[str, Any]) -> str:
            return "Playing."

        @plugin.action("slow", blocking=True)
        def slow() -> str:
            return threading.current_thread().name

        @plugin.action("later")
        async def later(args: dict) -> str:
            return threading.current_thread().name

        @plugin.action("wrong")
        def wrong() -> Any:
            return {"ok": True}
        """
    )

    def invoke(op: str, **args: object) -> object:
        return process.call("action.invoke", {"op": op, "args": args, "provenance": "user"})

    assert invoke("open_url", url="x:") == {"ok": False, "detail": "x:", "data": {"n": 1}}
    assert invoke("action.open_url", url="x:") == invoke("open_url", url="x:")
    assert invoke("media") == invoke("action.media") == {"ok": True, "detail": "Playing.", "data": {}}
    assert invoke("slow") == {"ok": True, "detail": "utter-blocking", "data": {}}
    assert invoke("later") == {"ok": True, "detail": "utter-asyncio", "data": {}}
    for args, field in (({"url": 1}, "args.url"), ({}, "args.url"), ({"url": "", "tab": 1}, "args.tab")):
        error = code_of(process, "action.invoke", {"op": "open_url", "args": args})
        assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": field})
    error = code_of(process, "action.invoke", {"op": "fly", "args": {}})
    assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": "op"})
    assert error.message == "action.invoke: tiny has no op 'fly' (in op)"
    assert code_of(process, "action.invoke", {"args": {}}).data == {"field": "op"}
    error = code_of(process, "action.invoke", {"op": "wrong"})
    assert error.message == "TypeError: an action returns an ActionResult or a str, not dict"


def test_requests_are_answered_while_a_blocking_handler_runs(run_plugin: RunPlugin) -> None:
    process = run_plugin(WAITING)
    first = process.send("wait", {"n": 1})
    second = process.send("wait", {"n": 2})
    assert process.notification("waiting") == {"n": 1}
    assert process.call("plugin.health")["status"] == "ok"
    stuck = process.send("stuck")
    process.notification("stuck")
    process.notify("go")
    assert first.result() == {"done": {"n": 1}}
    assert second.result() == {"done": {"n": 2}}
    with pytest.raises(TimeoutError, match=r"the answer to stuck did not come in 0\.01 s"):
        stuck.result(0.01)


def test_notifications_before_a_blocking_request_are_taken_before_it(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        fed: list[int] = []

        @plugin.notification("feed")
        def feed(params: dict) -> None:
            fed.append(params["n"])

        @plugin.method("finish", blocking=True)
        def finish() -> dict:
            return {"fed": list(fed)}
        """
    )
    sent = []
    for n in range(50):
        process.notify("feed", {"n": n})
        sent.append(process.send("finish"))
    assert [len(pending.result()["fed"]) >= n + 1 for n, pending in enumerate(sent)] == [True] * 50
    assert sent[-1].method == "finish"
    assert process.call("finish") == {"fed": list(range(50))}


def test_cancelling_a_running_request(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        import asyncio

        @plugin.method("poll", blocking=True)
        def poll() -> None:
            assert not plugin.cancelled()
            stop = threading.Event()
            plugin.on_cancel(stop.set)
            plugin.notify("running")
            stop.wait()
            assert plugin.cancelled()
            at_once = threading.Event()
            plugin.on_cancel(at_once.set)
            assert at_once.is_set()
            raise Cancelled

        @plugin.method("sleep")
        async def sleep() -> None:
            plugin.notify("running")
            await asyncio.Event().wait()

        @plugin.method("stubborn", blocking=True)
        def stubborn() -> dict:
            stop = threading.Event()
            plugin.on_cancel(stop.set)
            plugin.on_cancel(lambda: 1 / 0)
            plugin.notify("running")
            stop.wait()
            return {"finished": True}
        """
    )
    for method in ("poll", "sleep"):
        pending = process.send(method)
        process.notification("running")
        pending.cancel()
        pending.cancel()
        with pytest.raises(RpcError) as caught:
            pending.result()
        assert (caught.value.code, caught.value.message) == (ErrorCode.CANCELLED, "the request was cancelled")
        pending.cancel()
    pending = process.send("stubborn")
    process.notification("running")
    pending.cancel()
    assert pending.result() == {"finished": True}
    process.wait_stderr("ZeroDivisionError")
    assert process.call("plugin.health")["status"] == "ok"
    assert not process._unmatched


def test_cancelling_a_request_that_waits_answers_at_once(run_plugin: RunPlugin) -> None:
    process = run_plugin(WAITING)
    first = process.send("wait", {"n": 1})
    second = process.send("wait", {"n": 2})
    third = process.send("wait", {"n": 3})
    process.notification("waiting")
    second.cancel()
    with pytest.raises(RpcError, match="the request was cancelled"):
        second.result()
    process.notify("go")
    assert first.result() == {"done": {"n": 1}}
    assert third.result() == {"done": {"n": 3}}
    assert process.notification("waiting") == {"n": 3}
    assert process.call("plugin.health")["status"] == "ok"
    assert not process._unmatched


def test_cancelling_nothing_is_harmless(run_plugin: RunPlugin) -> None:
    process = run_plugin()
    process.notify("$/cancel", {"id": 999})
    process.notify("$/cancel", {"id": [1]})
    process.wait_stderr("$/cancel: Expected `int | str`, got `array` - at `$.id`")
    assert process.call("plugin.health")["status"] == "ok"


def test_an_id_in_use_is_refused(run_plugin: RunPlugin) -> None:
    process = run_plugin(WAITING)
    body = b'{"jsonrpc":"2.0","id":"a","method":"%b","params":{"n":1}}'
    process.write(encode_frame(body % b"wait"))
    process.notification("waiting")
    for method in (b"wait", b"plugin.health"):
        process.write(encode_frame(body % method))
        refused = process.unmatched()
        assert refused.id == "a"
        error = error_of(refused)
        assert (error.code, error.data) == (ErrorCode.INVALID_REQUEST, {"field": "id"})
    process.notify("go")
    assert process.unmatched().result is not None
    process.write(encode_frame(body % b"wait"))
    assert process.notification("waiting") == {"n": 1}


def test_too_many_requests_in_flight_are_refused(run_plugin: RunPlugin) -> None:
    process = run_plugin(WAITING)
    stuck = [process.send("stuck") for _ in range(1024)]
    error = code_of(process, "stuck")
    assert (error.code, error.data) == (ErrorCode.PLUGIN_FAILED, {"bound": "max_in_flight"})
    assert process.call("plugin.health")["status"] == "ok"
    stuck[-1].cancel()
    with pytest.raises(RpcError, match="cancelled"):
        stuck[-1].result()


def test_on_start_gets_the_settings_after_hello(run_plugin: RunPlugin) -> None:
    source = """
        class Settings(msgspec.Struct, forbid_unknown_fields=True):
            colour: str = "red"

        chosen: list[str] = []

        @plugin.on_start
        def started(settings: Settings) -> None:
            chosen.append(settings.colour)
            plugin.notify("started", settings)

        @plugin.on_start(blocking=True)
        def load() -> None:
            chosen.append(threading.current_thread().name)

        @plugin.method("chosen", blocking=True)
        def tell() -> list[str]:
            return chosen
    """
    process = run_plugin(source, settings={"colour": "blue"})
    assert process.notification("started") == {"colour": "blue"}
    process.shake_hands()
    assert process.call("chosen") == ["blue", "utter-blocking"]
    failing = run_plugin(source, settings={"color": "blue"})
    detail = "tiny could not start: settings: Object contains unknown field `color` (in color)"
    assert (failing.health.status, failing.health.detail) == ("degraded", detail)
    error = code_of(failing, "chosen")
    assert (error.code, error.message) == (ErrorCode.PLUGIN_FAILED, detail)
    assert failing.stderr == detail + "\n"


@pytest.mark.parametrize(
    "how", ["@plugin.on_start\ndef", "@plugin.on_start(blocking=True)\ndef", "@plugin.on_start\nasync def"]
)
def test_a_failing_start_is_degraded_health(run_plugin: RunPlugin, how: str) -> None:
    process = run_plugin(f"{how} started():\n    raise OSError('no lamp there')\n")
    process.wait_stderr("Traceback")
    assert process.call("plugin.health") == {
        "status": "degraded",
        "detail": "tiny could not start: OSError: no lamp there",
    }


def test_health_is_what_the_plugin_says(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("break")
        def break_() -> None:
            plugin.health("degraded", "The bulb is broken; replace it.")

        @plugin.method("mend")
        def mend() -> None:
            plugin.health("ok")
        """
    )
    process.call("break")
    assert process.call("plugin.health") == {"status": "degraded", "detail": "The bulb is broken; replace it."}
    process.call("mend")
    assert process.call("plugin.health") == {"status": "ok", "detail": ""}


def test_failing_notifications_are_logged_and_survived(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.notification("fail")
        def fail(params: dict) -> None:
            raise ValueError("sync")

        @plugin.notification("fail_async")
        async def fail_async() -> None:
            raise ValueError("async")
        """
    )
    process.notify("fail")
    process.notify("fail_async")
    process.notify("fail", [1])
    process.wait_stderr("ValueError: sync")
    process.wait_stderr("ValueError: async")
    process.wait_stderr("notification fail: Expected `object`, got `array`")
    assert process.call("plugin.health")["status"] == "ok"


@pytest.mark.parametrize("lane", ["stuck", "idle"])
def test_eof_ends_the_process_whatever_runs(run_plugin: RunPlugin, lane: str) -> None:
    process = run_plugin(WAITING)
    if lane == "stuck":
        process.send("stuck")
        process.notification("stuck")
    process.close_stdin()
    assert process.wait() == 0
    assert process.stderr == ""


def test_eof_calls_the_cancel_callbacks(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("speak", blocking=True)
        def speak() -> None:
            plugin.on_cancel(lambda: 1 / 0)
            plugin.on_cancel(lambda: plugin.log("child killed"))
            plugin.notify("running")
            threading.Event().wait()
        """
    )
    process.send("speak")
    process.notification("running")
    assert process.close() == 0
    assert process.stderr == "child killed\n"


def test_sigterm_ends_it_and_sigint_is_the_terminals(run_plugin: RunPlugin) -> None:
    process = run_plugin(WAITING)
    process.send("stuck")
    process.notification("stuck")
    process.kill(signal.SIGINT)
    assert process.call("plugin.health")["status"] == "ok"
    process.kill(signal.SIGTERM)
    assert process.wait() == 0


def test_sigterm_ends_a_handler_that_holds_the_reading_thread(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("stuck")
        def stuck() -> None:
            plugin.notify("stuck")
            threading.Event().wait()
        """
    )
    process.send("stuck")
    process.notification("stuck")
    process.kill(signal.SIGTERM)
    assert process.wait() == 0


def test_sigint_in_a_terminals_foreground_ends_it(tmp_path: os.PathLike[str]) -> None:
    leader, follower = os.openpty()
    try:
        # A session leader without a terminal that opens one gets it, and its group becomes the foreground group.
        code = (
            "import os, sys; os.open(sys.argv[1], os.O_RDWR);"
            "from utter_sdk import Plugin; Plugin('tiny', version='1', kind='action').run()"
        )
        with PluginProcess([sys.executable, "-c", code, os.ttyname(follower)]) as process:
            os.write(leader, b"\x03")
            assert process.wait() == 0
            assert process.stderr == ""
    finally:
        os.close(leader)
        os.close(follower)


def test_children_do_not_inherit_an_ignored_sigint(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("child")
        def child() -> dict:
            code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
            return {"out": subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout}
        """
    )
    assert process.call("child") == {"out": "True\n"}


@pytest.mark.parametrize("how", ["", "blocking=True", "async"])
def test_system_exit_ends_the_process_with_its_code(run_plugin: RunPlugin, how: str) -> None:
    define, option = ("async def", "") if how == "async" else ("def", how)
    process = run_plugin(f'@plugin.method("leave", {option})\n{define} leave():\n    sys.exit(125)\n')
    with pytest.raises(PluginDiedError, match=r"its stdout ended \(exit code 125\)") as caught:
        process.call("leave")
    assert caught.value.code == 125


def test_a_runner_that_stops_reading_and_closes_ends_it(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("flood", blocking=True)
        def flood() -> None:
            plugin.notify("running")
            while True:
                plugin.notify("noise", {"data": "x" * 10_000})
        """
    )
    process.send("flood")
    process.notification("running")
    process.close_stdin()
    assert process.wait() == 0


def test_started_by_hand_on_a_terminal_it_explains_itself() -> None:
    leader, follower = os.openpty()
    try:
        code = "from utter_sdk import Plugin; Plugin('tiny', version='1', kind='action').run()"
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=follower, capture_output=True, text=True, timeout=20, check=False
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("tiny is a plugin for utter-runner.")


def test_a_mistake_in_an_annotation_is_said_at_start(run_plugin: RunPlugin) -> None:
    with pytest.raises(PluginDiedError, match="import it at module level, outside `if TYPE_CHECKING`") as caught:
        run_plugin('@plugin.method("paint")\ndef paint(params: Colour) -> None: ...\n')
    assert caught.value.code == 1
    with pytest.raises(PluginDiedError, match="paint: the params of paint"):
        run_plugin('@plugin.method("paint")\ndef paint(params: dict[object, int, 3]) -> None: ...\n')


def test_broken_framing_ends_it_with_an_explanation(run_plugin: RunPlugin) -> None:
    process = run_plugin()
    process.write(b"Content-Length: -5\r\n\r\n")
    answer = process.unmatched()
    assert isinstance(answer.error, msgspec.Raw)
    assert (answer.id, decode_error(answer.error).data) == (None, {"framing": "bad_length"})
    assert process.wait() == 1
    assert process.stderr.startswith("the runner broke the framing (bad_length): ")


def test_a_stream_that_ends_inside_a_frame_is_said(run_plugin: RunPlugin) -> None:
    process = run_plugin()
    process.write(b"Content-Length: 50\r\n\r\n{")
    assert process.close() == 1
    assert "(truncated)" in process.stderr


def test_frames_that_are_no_messages_are_answered(run_plugin: RunPlugin) -> None:
    process = run_plugin()
    for body, code, request_id in (
        (b"{", ErrorCode.PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","id":5,"method":"\xff"}', ErrorCode.PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","id":5,"params":%b}' % (b"[" * 9999 + b"]" * 9999), ErrorCode.PARSE_ERROR, None),
        (b"[]", ErrorCode.INVALID_REQUEST, None),
        (b'{"jsonrpc":"1.0","id":"q","method":"plugin.health"}', ErrorCode.INVALID_REQUEST, "q"),
        (b'{"jsonrpc":"2.0","id":-5,"method":7}', ErrorCode.INVALID_REQUEST, -5),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"plugin.health"}', ErrorCode.INVALID_REQUEST, None),
    ):
        process.write(encode_frame(body))
        answer = process.unmatched()
        assert (answer.id, error_of(answer).code) == (request_id, code)
    process.write(encode_frame(b'{"jsonrpc":"2.0","id":77,"result":{}}'))
    process.wait_stderr("an answer to a request that was never sent (id 77)")
    process.write(b"junk!\n" + encode_frame(b'{"jsonrpc":"2.0","method":"x"}'))
    process.wait_stderr("skipped 6 bytes from the runner that belong to no frame: b'junk!\\n'")
    assert process.call("plugin.health")["status"] == "ok"
