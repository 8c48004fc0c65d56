"""Tests of what a plugin asks of the runner: answers, errors, cancellation, and the races between them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from utter_protocol import host as host_params
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import MAX_FRAME, encode_frame
from utter_protocol.messages import Message, decode_message, request_body
from utter_sdk import Cancelled, Plugin
from utter_sdk.calls import Calls
from utter_sdk.lanes import Lanes
from utter_sdk.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from utter_sdk.testing import PluginProcess

    RunPlugin = Callable[..., PluginProcess]

ASK = """
import asyncio

@plugin.method("ask", blocking=True)
def ask(params: dict) -> Any:
    return plugin.host.call("host.context", params).result()

@plugin.method("ask_async")
async def ask_async(params: dict) -> Any:
    return await plugin.host.call("host.context", params)
"""
BOTH = pytest.mark.parametrize("method", ["ask", "ask_async"])


def refusal(process: PluginProcess, method: str, params: Any = None) -> RpcError:
    with pytest.raises(RpcError) as caught:
        process.call(method, params)
    return caught.value


@pytest.mark.parametrize("how", ["def", "async def"])
def test_every_callback_says_what_the_protocol_wants(run_plugin: RunPlugin, how: str) -> None:
    wait = "await {}" if "async" in how else "{}.result()"
    lane = "" if "async" in how else ", blocking=True"
    source = f"""
        class Text(msgspec.Struct):
            text: str

        @plugin.method("all"{lane})
        {how} ask_all() -> Any:
            host = plugin.host
            llm = "llm.complete@1", "llm.complete"
            text = {wait.format('host.invoke(*llm, {"prompt": "x"}, result=Text, timeout=1.5)')}
            plain = {wait.format("host.invoke(*llm)")}
            assert (text, plain) == (Text("hi"), {{"text": "hi"}})
            assert {wait.format('host.context(["app", "title"])')} == {{"app": "x"}}
            assert {wait.format('host.perceive("tabs")')} == {{"tabs": []}}
            assert {wait.format('host.perceive("text", {"handle": "h"}, result=dict, timeout=2)')} == {{"tabs": []}}
            trust = {{"provenance": "user", "arg_provenance": {{"url": "screen"}}}}
            done = {wait.format('host.action("open_url", {"url": "x:"}, **trust)')}
            assert done == ActionResult(ok=True, detail="Done.")
            assert {wait.format('host.action("media")')} == done
            assert {wait.format('host.confirm("Really?")')} is True
            assert {wait.format('host.emit("x.changed", [1, {"a": None}])')} == 2
            return {wait.format('host.call("handle.stat", {"handle": "h"}, result=dict[str, int])')}
    """
    process = run_plugin(source)
    asked: list[tuple[str, Any]] = []

    def answer(method: str, result: Any) -> None:
        process.on_host(method, lambda params: asked.append((method, params)) or result)

    answer("host.invoke", {"text": "hi"})
    answer("host.context", {"app": "x"})
    answer("host.perceive", {"tabs": []})
    answer("host.action", {"ok": True, "detail": "Done."})
    answer("host.confirm", {"approved": True})
    answer("host.emit", {"subscribers": 2})
    answer("handle.stat", {"size": 3})
    pending = process.send("all")
    assert pending.result() == {"size": 3}
    structs = {
        "host.invoke": host_params.HostInvokeParams,
        "host.context": host_params.HostContextParams,
        "host.perceive": host_params.HostPerceiveParams,
        "host.action": host_params.HostActionParams,
        "host.confirm": host_params.HostConfirmParams,
        "host.emit": host_params.HostEmitParams,
    }
    decoded = []
    for method, params in asked:
        if method in structs:
            known = {field.name for field in msgspec.structs.fields(structs[method])}
            assert set(params) <= known
            assert params["request"] == pending.id
            decoded.append(msgspec.json.decode(msgspec.json.encode(params), type=structs[method]))
    invoke, plain, context, tabs, text, action, media, confirm, emit = decoded
    assert (invoke.capability, invoke.method, bytes(invoke.params)) == (
        "llm.complete@1",
        "llm.complete",
        b'{"prompt":"x"}',
    )
    assert (invoke.timeout_ms, plain.timeout_ms, bytes(plain.params)) == (1500, None, b"{}")
    assert context.sources == ["app", "title"]
    assert (tabs.what, bytes(tabs.params), text.what, text.timeout_ms) == ("tabs", b"{}", "text", 2000)
    assert (action.op, action.args, action.provenance) == ("open_url", {"url": "x:"}, "user")
    assert action.arg_provenance == {"url": "screen"}
    assert (media.op, media.args, media.provenance) == ("media", {}, "screen")
    assert confirm.text == "Really?"
    assert (emit.method, bytes(emit.data)) == ("x.changed", b'[1,{"a":null}]')
    # What is stored and read has a request as well: that is how the runner knows where it came from.
    assert asked[-1] == ("handle.stat", {"handle": "h", "request": pending.id})


@BOTH
def test_errors_are_raised_as_they_came(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(ASK)

    def refuse(params: Any) -> None:
        raise RpcError(-32005, "Nobody provides it.", {"missing": ["x@1"]})

    process.on_host("host.context", refuse)
    error = refusal(process, method, {})
    assert (error.code, error.message, error.data) == (-32005, "Nobody provides it.", {"missing": ["x@1"]})
    assert process.stderr == ""


def test_an_answer_that_does_not_fit_is_an_error_that_names_the_method(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("confirm", blocking=True)
        def confirm() -> bool:
            return plugin.host.confirm("x").result()
        """
    )
    process.on_host("host.confirm", lambda _: {"approved": "yes"})
    error = refusal(process, "confirm")
    assert (error.code, error.data) == (ErrorCode.PLUGIN_FAILED, {"method": "host.confirm"})
    assert error.message.startswith("host.confirm: the answer does not fit: Expected `bool`, got `str`")


@BOTH
def test_a_malformed_answer_ends_the_call(run_plugin: RunPlugin, method: str) -> None:
    process = run_plugin(ASK)
    process.hold_host("host.context")
    pending = process.send(method, {})
    asked = process.asked("host.context")
    process.write(encode_frame(b'{"jsonrpc":"1.0","id":%d,"result":{}}' % asked.id))
    with pytest.raises(RpcError, match=r"host\.context: not a JSON-RPC 2\.0 message") as caught:
        pending.result()
    assert caught.value.code == ErrorCode.PLUGIN_FAILED


def test_where_waiting_would_wait_for_itself_it_is_a_mistake_that_says_so(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("inline")
        def inline() -> Any:
            return plugin.host.context().result()

        @plugin.method("on_loop")
        async def on_loop() -> Any:
            return plugin.host.context().result()

        @plugin.notification("noted")
        def noted() -> None:
            plugin.host.context().result()
        """
    )
    process.on_host("host.context", lambda _: {})
    error = refusal(process, "inline")
    assert error.message.startswith("RuntimeError: host.context: the answer arrives on this thread")
    assert "declare the handler with blocking=True" in error.message
    assert "in an `async def` handler use await" in refusal(process, "on_loop").message
    process.notify("noted")
    process.wait_stderr("the answer arrives on this thread")
    assert process.call("plugin.health")["status"] == "ok"


def test_an_inline_handler_may_ask_without_waiting(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        calls = []

        @plugin.method("ask")
        def ask() -> None:
            calls.append(plugin.host.context())

        @plugin.method("look")
        def look() -> Any:
            return {"done": calls[0].done, **calls[0].result()}

        @plugin.method("look_on_loop")
        async def look_on_loop() -> Any:
            got = await calls[0]
            try:
                calls[0].result()
            except RuntimeError:
                return got
        """
    )
    process.hold_host("host.context")
    pending = process.send("ask")
    assert pending.result() == {}
    asked = process.asked("host.context")
    assert asked.params["request"] == pending.id
    asked.answer({"app": "x"})
    assert process.call("look") == {"done": True, "app": "x"}
    # Whether the answer is there already does not decide whether something is a mistake.
    assert process.call("look_on_loop") == {"app": "x"}


def test_asking_before_the_runner_has_greeted_is_a_mistake_that_says_so() -> None:
    plugin = Plugin("tiny", version="1", kind="bundle")
    with pytest.raises(RuntimeError, match=r"host\.context: the plugin is not running"):
        plugin.host.context()
    with pytest.raises(RuntimeError, match=r"subscribe\('runner\.events'\): the plugin is not running"):
        plugin.subscribe("runner.events")


def test_on_start_hooks_may_ask_and_name_no_request(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        got = []

        @plugin.on_start(blocking=True)
        def started() -> None:
            got.append(plugin.host.context().result())

        @plugin.method("got", blocking=True)
        def tell() -> list:
            return got
        """,
        handshake=False,
    )
    asked: list[Any] = []
    process.on_host("host.context", lambda params: asked.append(params) or {"app": "x"})
    process.shake_hands()
    assert process.call("got") == [{"app": "x"}]
    assert asked == [{"sources": []}]


def test_a_local_timeout_does_not_end_the_call(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("patient", blocking=True)
        def patient() -> Any:
            call = plugin.host.context()
            try:
                call.result(0.001)
            except TimeoutError as error:
                plugin.notify("late", {"text": str(error)})
            return [call.result(), call.result(0)]
        """
    )
    process.hold_host("host.context")
    pending = process.send("patient")
    assert process.notification("late") == {"text": "host.context was not answered within 0.001 s"}
    asked = process.asked("host.context")
    assert not asked.cancelled
    asked.answer({"n": 1})
    assert pending.result() == [{"n": 1}, {"n": 1}]


def test_wait_for_cancels_the_call(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        import asyncio

        @plugin.method("impatient")
        async def impatient() -> Any:
            try:
                async with asyncio.timeout(0.001):
                    await plugin.host.context()
            except TimeoutError:
                return "too late"
        """
    )
    process.hold_host("host.context")
    assert process.call("impatient") == "too late"
    asked = process.asked("host.context")
    asked.wait_cancelled()
    asked.answer({})
    assert process.call("plugin.health")["status"] == "ok"
    assert process.stderr == ""


@BOTH
def test_cancelling_a_handler_cancels_its_calls_and_a_late_answer_is_nothing(
    run_plugin: RunPlugin, method: str
) -> None:
    process = run_plugin(ASK)
    process.hold_host("host.context")
    for late in ("result", "error", "cancelled", "twice"):
        pending = process.send(method, {})
        asked = process.asked("host.context")
        pending.cancel()
        with pytest.raises(RpcError) as caught:
            pending.result()
        assert caught.value.code == ErrorCode.CANCELLED
        asked.wait_cancelled()
        if late == "result":
            asked.answer({})
        else:
            asked.refuse(RpcError(ErrorCode.CANCELLED if late == "cancelled" else -32000, "the request was cancelled"))
        assert process.call("plugin.health")["status"] == "ok"
        assert process.stderr == ""
    # Only the second answer to one call is news.
    asked.answer({})
    process.wait_stderr(f"an answer to a request that was never sent (id {asked.id})")


def test_only_the_cancelled_handlers_calls_are_cancelled(run_plugin: RunPlugin) -> None:
    process = run_plugin(ASK)
    process.hold_host("host.context")
    first, second = process.send("ask_async", {"n": 1}), process.send("ask_async", {"n": 2})
    one, two = sorted(
        (process.asked("host.context"), process.asked("host.context")), key=lambda asked: asked.params["n"]
    )
    first.cancel()
    one.wait_cancelled()
    assert not two.cancelled
    two.answer({"n": 2})
    assert second.result() == {"n": 2}
    with pytest.raises(RpcError, match="cancelled"):
        first.result()


def test_all_calls_of_a_handler_are_cancelled(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("many", blocking=True)
        def many() -> None:
            calls = [plugin.host.context([str(n)]) for n in range(20)]
            raised = 0
            for call in calls:
                try:
                    call.result()
                except Cancelled:
                    raised += 1
            plugin.notify("raised", {"count": raised})
            try:
                plugin.host.context(["afterwards"]).result()
            except Cancelled:
                plugin.notify("afterwards")
            raise Cancelled
        """
    )
    process.hold_host("host.context")
    pending = process.send("many")
    asked = [process.asked("host.context") for _ in range(20)]
    pending.cancel()
    for one in asked:
        one.wait_cancelled()
    assert process.notification("raised") == {"count": 20}
    process.notification("afterwards")
    with pytest.raises(RpcError, match="cancelled"):
        pending.result()
    # What was asked after the cancellation was not even sent.
    with pytest.raises(TimeoutError):
        process.asked("host.context", 0.05)


def test_a_call_can_be_withdrawn(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("withdraw", blocking=True)
        def withdraw() -> Any:
            call = plugin.host.context()
            call.cancel()
            call.cancel()
            try:
                call.result()
            except Cancelled:
                return {"done": call.done, "cancelled": plugin.cancelled()}
        """
    )
    process.hold_host("host.context")
    assert process.call("withdraw") == {"done": True, "cancelled": False}
    process.asked("host.context").wait_cancelled()


def test_stopping_a_stream_cancels_its_calls(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.stream("asking")
        def asking(params: dict, stream: Stream) -> None:
            try:
                plugin.host.context().result()
            except Cancelled:
                plugin.notify("ended")
                raise

        @plugin.stream("asking_async")
        async def asking_async(params: dict, stream: AsyncStream) -> None:
            try:
                await plugin.host.context()
            finally:
                plugin.notify("ended")
        """
    )
    process.hold_host("host.context")
    for method in ("asking", "asking_async"):
        stream = process.subscribe(method)
        asked = process.asked("host.context")
        # The request that opened the stream has been answered.
        assert "request" not in asked.params
        stream.stop()
        asked.wait_cancelled()
        process.notification("ended")
    assert process.stderr == ""


def test_a_finished_request_is_not_named(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        import asyncio
        tasks = []
        go = None

        @plugin.method("start")
        async def start() -> None:
            global go
            go = asyncio.Event()

            async def later() -> None:
                await go.wait()
                plugin.notify("got", await plugin.host.context())

            tasks.append(asyncio.create_task(later()))

        @plugin.method("let")
        async def let() -> None:
            go.set()
        """
    )
    process.hold_host("host.context")
    process.call("start")
    process.call("let")
    asked = process.asked("host.context")
    assert "request" not in asked.params
    asked.answer({"n": 1})
    assert process.notification("got") == {"n": 1}


def test_threads_of_the_plugins_own_may_ask(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("start")
        def start() -> None:
            def work() -> None:
                plugin.notify("got", plugin.host.context().result())

            threading.Thread(target=work, daemon=True).start()
        """
    )
    process.on_host("host.context", lambda params: {"named": "request" in params})
    process.call("start")
    assert process.notification("got") == {"named": False}


def test_a_thousand_calls_of_which_the_runner_takes_64(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        import asyncio

        @plugin.method("flood")
        async def flood() -> Any:
            calls = [plugin.host.context([str(n)]) for n in range(1000)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            refused = [one for one in answers if isinstance(one, RpcError)]
            return {
                "answered": [one["n"] for one in answers if isinstance(one, dict)],
                "refused": len(refused),
                "codes": sorted({one.code for one in refused}),
                "data": refused[0].data,
            }
        """
    )
    open_ids: list[str] = []
    enough = threading.Event()

    def take(params: Any) -> Any:
        if len(open_ids) == host_params.MAX_HOST_CALLS:
            enough.set()
            bound = {"bound": "max_host_calls", "limit": host_params.MAX_HOST_CALLS}
            raise RpcError(ErrorCode.INVALID_REQUEST, "too many host calls are in flight", bound)
        open_ids.append(params["sources"][0])
        return {"n": params["sources"][0]}

    process.on_host("host.context", take)
    answer = process.call("flood", timeout=30)
    assert enough.is_set()
    assert answer["answered"] == open_ids
    assert (answer["refused"], answer["codes"]) == (936, [ErrorCode.INVALID_REQUEST])
    assert answer["data"] == {"bound": "max_host_calls", "limit": 64}


def test_the_runner_vanishes_while_a_call_waits(run_plugin: RunPlugin) -> None:
    process = run_plugin(ASK)
    process.hold_host("host.context")
    for method in ("ask", "ask_async"):
        process.send(method, {})
        process.asked("host.context")
    assert process.close() == 0
    assert process.stderr == ""


def test_a_request_that_is_too_large_is_not_sent(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("huge", blocking=True)
        def huge(params: dict) -> Any:
            try:
                plugin.host.emit("x", "x" * params["size"])
            except ValueError as error:
                plugin.notify("refused", {"text": str(error)})
            return plugin.host.context().result()
        """
    )
    process.on_host("host.context", lambda _: {"n": 1})
    assert process.call("huge", {"size": MAX_FRAME}) == {"n": 1}
    assert "exceeds max_frame" in process.notification("refused")["text"]


def test_a_failure_that_nobody_looks_at_is_logged(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("emit")
        def emit() -> None:
            plugin.host.emit("x", {})
        """
    )
    process.call("emit")
    process.wait_stderr("host.emit failed, and nobody looked at its answer: host.emit: the test serves no such request")


def test_an_answer_and_a_cancellation_at_once_end_a_call_once(run_plugin: RunPlugin) -> None:
    process = run_plugin(ASK)
    process.hold_host("host.context")
    outcomes = []
    for n in range(200):
        pending = process.send("ask" if n % 2 else "ask_async", {"n": n})
        asked = process.asked("host.context")
        first, second = (asked.answer, pending.cancel) if n % 3 else (pending.cancel, asked.answer)
        if n % 5:
            first()
            second()
        else:
            threads = [threading.Thread(target=target) for target in (first, second)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        try:
            assert pending.result() == {}
            outcomes.append("answered")
        except RpcError as error:
            outcomes.append(str(error.code))
    assert set(outcomes) <= {"answered", "-32002"}
    assert process.call("plugin.health")["status"] == "ok"
    assert process.stderr == ""
    assert not process._unmatched


# ---- the table of calls by itself


def make_calls(sent: list[bytes], on_send: Callable[[bytes], None] = lambda _: None) -> tuple[Calls, Requests]:
    requests = Requests()

    def send(body: bytes, _fds: Sequence[int] = ()) -> None:
        on_send(body)
        sent.append(body)

    return Calls(send, Lanes(), requests), requests


def answer_to(call_id: int, result: bytes = b"{}") -> Message:
    return decode_message(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (call_id, result))


def test_a_call_that_is_cancelled_while_it_is_sent_is_withdrawn_after_it() -> None:
    sent: list[bytes] = []

    def cancel(body: bytes) -> None:
        if b"host.context" in body:
            for callback in requests.cancel(7)[1]:
                callback()

    calls, requests = make_calls(sent, cancel)
    request = requests.add(7)
    requests.start(request)
    call = calls.start("host.context", {}, lambda raw: raw, request=request)
    assert sent == [
        request_body(1, "host.context", b"{}"),
        b'{"jsonrpc":"2.0","method":"$/cancel","params":{"id":1}}',
    ]
    with pytest.raises(Cancelled):
        call.result()
    assert calls.answer(answer_to(1), lambda _: [])
    assert not calls.answer(answer_to(1), lambda _: [])


def test_a_call_of_a_cancelled_request_is_not_sent() -> None:
    sent: list[bytes] = []
    calls, requests = make_calls(sent)
    request = requests.add(7)
    requests.start(request)
    requests.cancel(7)
    call = calls.start("host.context", {}, lambda raw: raw, request=request)
    with pytest.raises(Cancelled):
        call.result()
    assert sent == []


def test_a_finished_call_is_forgotten_by_its_request() -> None:
    calls, requests = make_calls([])
    request = requests.add(7)
    requests.start(request)
    for n in range(1, 101):
        calls.start("host.context", {}, lambda raw: raw, request=request)
        calls.answer(answer_to(n), lambda _: [])
    assert request.waits == {}
    assert requests.cancel(7) == (False, [])


def test_what_was_given_up_is_bounded() -> None:
    calls, _ = make_calls([])
    for _ in range(2000):
        calls.start("host.context", {}, lambda raw: raw).cancel()
    assert not calls.answer(answer_to(1), lambda _: [])
    assert calls.answer(answer_to(2000), lambda _: [])
    assert len(calls._given_up) < 1024


def test_the_end_of_the_connection_ends_all_calls() -> None:
    sent: list[bytes] = []
    calls, _ = make_calls(sent)
    open_call = calls.start("host.context", {}, lambda raw: raw)
    calls.end("the runner has gone")
    late = calls.start("host.confirm", {}, lambda raw: raw)
    assert len(sent) == 1
    for call, method in ((open_call, "host.context"), (late, "host.confirm")):
        with pytest.raises(RpcError, match=f"{method}: the runner has gone") as caught:
            call.result()
        assert caught.value.code == ErrorCode.PLUGIN_FAILED
