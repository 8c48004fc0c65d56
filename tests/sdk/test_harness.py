"""Tests of the harness that runs a plugin inside the test: its time, its order, and that it ends what it started."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from support.threads import running_threads
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk import ActionResult, AsyncStream, Cancelled, Plugin, Stream, StreamClosed
from utter_sdk.testing import Passing, PluginDiedError, PluginHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def plugin() -> Plugin:
    return Plugin("tiny", version="1.2.3", kind="bundle")


@pytest.fixture(autouse=True)
def nothing_sleeps() -> Any:
    """Virtual time costs no real time: each test here is over in a moment."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 20


def test_requests_notifications_and_the_handshake(plugin: Plugin) -> None:
    class Params(msgspec.Struct):
        n: int

    heard: list[Any] = []

    @plugin.on_start
    def started(settings: dict[str, Any]) -> None:
        heard.append(settings)

    @plugin.method("double")
    def double(params: Params) -> Params:
        return Params(params.n * 2)

    @plugin.method("worker", blocking=True)
    def worker() -> dict[str, str]:
        return {"thread": threading.current_thread().name}

    @plugin.method("later")
    async def later() -> dict[str, bool]:
        return {"loop": asyncio.get_running_loop() is not None}

    @plugin.action("lamp", side_effect="local")
    def lamp(args: dict[str, Any]) -> ActionResult:
        return ActionResult(ok=bool(args))

    @plugin.notification("tell")
    def tell(params: dict[str, Any]) -> None:
        plugin.notify("told", params)

    # The annotations of local classes are resolved through the module.
    globals()["Params"] = Params
    with PluginHarness(plugin, settings={"colour": "red"}) as harness:
        assert harness.hello.plugin.name == "tiny"
        assert "double" in harness.description.methods
        assert harness.health.status == "ok"
        assert heard == [{"colour": "red"}]
        assert harness.call("double", {"n": 21}) == {"n": 42}
        assert harness.call("worker") == {"thread": "utter-blocking"}
        assert harness.call("later") == {"loop": True}
        assert harness.call("action.invoke", {"op": "lamp", "args": {}}) == {"ok": False, "detail": "", "data": {}}
        harness.notify("tell", {"n": 1})
        assert harness.notification("told") == {"n": 1}
        with pytest.raises(RpcError) as caught:
            harness.call("double", {"n": "x"})
        assert (caught.value.code, caught.value.data) == (ErrorCode.INVALID_PARAMS, {"field": "n"})
        plugin.health("degraded", "The bulb is broken.")
        assert harness.notification("plugin.health_changed") == {"status": "degraded", "detail": "The bulb is broken."}
    del globals()["Params"]


def test_time_jumps_when_everything_waits(plugin: Plugin) -> None:
    @plugin.method("sleep")
    async def sleep(params: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(params["seconds"])
        return {"time": asyncio.get_running_loop().time()}

    with PluginHarness(plugin) as harness:
        assert harness.time == 0
        assert harness.call("sleep", {"seconds": 3600}) == {"time": 3600}
        # Longer than the longest wait of asyncio's selector.
        assert harness.call("sleep", {"seconds": 1_000_000}) == {"time": 1_003_600}
        started = [harness.send("sleep", {"seconds": seconds}) for seconds in (30, 10, 20)]
        assert [pending.result()["time"] - 1_003_600 for pending in started] == [30, 10, 20]
        assert harness.time == 1_003_630


def test_time_outs_are_virtual_too(plugin: Plugin) -> None:
    @plugin.method("patient")
    async def patient() -> str:
        try:
            async with asyncio.timeout(60):
                await plugin.host.context()
        except TimeoutError:
            return "async"
        return "?"

    @plugin.method("patient_worker", blocking=True)
    def patient_worker() -> str:
        try:
            plugin.host.context().result(60)
        except TimeoutError:
            return "worker"
        return "?"

    with PluginHarness(plugin) as harness:
        harness.hold_host("host.context")
        assert harness.call("patient") == "async"
        assert harness.time == 60
        harness.asked("host.context").wait_cancelled()
        assert harness.call("patient_worker") == "worker"
        assert harness.time == 120
        assert not harness.asked("host.context").cancelled


def test_time_does_not_jump_while_a_worker_thread_works(plugin: Plugin) -> None:
    go = threading.Event()

    @plugin.method("work", blocking=True)
    def work() -> None:
        plugin.notify("working")
        go.wait()

    @plugin.method("sleep")
    async def sleep() -> None:
        await asyncio.sleep(5)

    with PluginHarness(plugin) as harness:
        working = harness.send("work")
        sleeping = harness.send("sleep")
        harness.notification("working")
        # What needs no time happens all the same.
        assert harness.call("plugin.health")["status"] == "ok"
        assert harness.time == 0
        go.set()
        working.result()
        sleeping.result()
        assert harness.time == 5


def test_advance_lets_timers_fire_in_order(plugin: Plugin) -> None:
    @plugin.on_start
    async def tick() -> None:
        while True:
            await asyncio.sleep(60)
            plugin.notify("tick", {"at": asyncio.get_running_loop().time()})

    with PluginHarness(plugin) as harness:
        harness.advance(59)
        with pytest.raises(TimeoutError, match=r"tiny: a notification tick did not come in 0\.5 s of virtual time"):
            harness.notification("tick", 0.5)
        harness.advance(3600)
        ticks = [harness.notification("tick")["at"] for _ in range(60)]
        assert ticks == [60.0 * n for n in range(1, 61)]
        assert harness.time == 3659.5
        assert harness.notification("tick") == {"at": 3660.0}


def test_host_calls_are_answered_by_functions(plugin: Plugin) -> None:
    @plugin.method("ask")
    async def ask() -> Any:
        return [await plugin.host.context(), await plugin.host.confirm("Really?")]

    @plugin.method("ask_worker", blocking=True)
    def ask_worker() -> Any:
        return [plugin.host.context().result(), plugin.host.confirm("Really?").result()]

    asked: list[Any] = []

    def confirm(params: Any) -> dict[str, bool]:
        asked.append(params)
        return {"approved": True}

    with PluginHarness(plugin, host={"host.context": lambda _: {"app": "x"}, "host.confirm": confirm}) as harness:
        for method in ("ask", "ask_worker"):
            pending = harness.send(method)
            assert pending.result() == [{"app": "x"}, True]
            assert asked.pop() == {"text": "Really?", "request": pending.id}
        call = plugin.host.emit("x", {})
        harness.settle()
        with pytest.raises(RpcError, match=r"host\.emit: the test serves no such request; see on_host"):
            call.result()


def test_a_mistake_in_a_tests_function_fails_the_test(plugin: Plugin) -> None:
    @plugin.method("ask")
    async def ask() -> None:
        await plugin.host.context()

    def check(params: dict[str, Any]) -> None:
        assert params["sources"] == ["app"]

    with PluginHarness(plugin, host={"host.context": check}) as harness:
        with pytest.raises(AssertionError):
            harness.call("ask")
        assert harness.call("plugin.health")["status"] == "ok"


def test_cancelling(plugin: Plugin) -> None:
    @plugin.method("sleep")
    async def sleep() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            plugin.notify("ended")

    @plugin.method("wait", blocking=True)
    def wait() -> None:
        stop = threading.Event()
        plugin.on_cancel(stop.set)
        plugin.notify("waiting")
        stop.wait()
        raise Cancelled

    with PluginHarness(plugin) as harness:
        for method in ("sleep", "wait"):
            pending = harness.send(method)
            if method == "wait":
                harness.notification("waiting")
            else:
                harness.advance(10)
            pending.cancel()
            with pytest.raises(RpcError) as caught:
                pending.result()
            assert caught.value.code == ErrorCode.CANCELLED
        harness.notification("ended")
        assert harness.time == 10


def test_streams_of_the_plugin(plugin: Plugin) -> None:
    ended: list[str] = []

    @plugin.stream("minutes")
    async def minutes(params: dict[str, Any], stream: AsyncStream) -> None:
        for n in range(params["count"]):
            await asyncio.sleep(60)
            await stream.send(n)

    @plugin.stream("numbers", mode="reliable")
    def numbers(params: dict[str, Any], stream: Stream) -> None:
        n = 0
        try:
            while True:
                stream.send(n)
                n += 1
        except StreamClosed as closed:
            ended.append(f"{closed.reason} after {n}")

    with PluginHarness(plugin) as harness:
        with harness.subscribe("minutes", {"count": 100}) as stream:
            assert list(stream) == list(range(100))
        assert harness.time == 6000
        with harness.subscribe("numbers", window=5, acks=False) as stream:
            assert [stream.get() for _ in range(5)] == list(range(5))
            with pytest.raises(TimeoutError, match="did not come: every handler waits, and no timer is set"):
                stream.get()
            stream.acknowledge(2)
            assert [stream.get() for _ in range(3)] == [5, 6, 7]
        harness.settle()
        assert ended == ["the subscriber has stopped the stream after 8"]


def test_streams_of_others(plugin: Plugin) -> None:
    @plugin.method("watch", blocking=True)
    def watch() -> list[Any]:
        with plugin.subscribe("runner.events", mode="reliable") as events:
            return [events.get(), events.get()]

    @plugin.method("watch_async")
    async def watch_async() -> list[Any]:
        async with plugin.subscribe("runner.events") as events:
            return [event async for event in events]

    with PluginHarness(plugin) as harness:
        events = harness.offer("runner.events")
        pending = harness.send("watch")
        events.wait_subscribed()
        events.send("a")
        events.wait_acknowledged(0)
        events.send("b")
        assert pending.result() == ["a", "b"]
        events.wait_stopped()
        pending = harness.send("watch_async")
        events.wait_subscribed()
        events.send("c")
        events.close()
        assert pending.result() == ["c"]


def test_a_descriptor_comes_with_the_answer(plugin: Plugin) -> None:
    @plugin.method("fetch", blocking=True)
    def fetch() -> dict[str, Any]:
        with plugin.host.fd_pass("memfd").result() as received:
            return {"inode": os.fstat(received.fd).st_ino, **received.result}

    @plugin.method("hand_in", blocking=True)
    def hand_in() -> Any:
        return plugin.host.call("handle.create", {"fd": True}, fds=[memfd]).result()

    memfd = os.memfd_create("test")
    inode = os.fstat(memfd).st_ino
    try:
        with PluginHarness(plugin, host={"fd.pass": lambda _: Passing({"size": 0}, (memfd, memfd))}) as harness:
            # The second one is nobody's, and is closed.
            assert harness.call("fetch") == {"inode": inode, "size": 0}
            harness.on_host("handle.create", lambda _: {"inode": os.fstat(harness.descriptors[0]).st_ino})
            assert harness.call("hand_in") == {"inode": inode}
    finally:
        os.close(memfd)


def test_it_says_why_nothing_comes(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    @plugin.method("wait", blocking="hall")
    def wait() -> None:
        go.wait()

    @plugin.method("spin")
    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    @plugin.method("read")
    async def read() -> None:
        reader, writer = await asyncio.open_connection(sock=ours)
        await reader.read(1)
        writer.close()

    import socket  # noqa: PLC0415 - one test's

    ours, theirs = socket.socketpair()
    with theirs, PluginHarness(plugin) as harness:

        @contextmanager
        def in_vain(why: str) -> Iterator[None]:
            with monkeypatch.context() as patch:
                patch.setattr(harness, "_timeout", 0.3)
                with pytest.raises(TimeoutError, match=why):
                    yield

        pending = harness.send("wait")
        with in_vain("the answer to wait did not come: still runs: hall"):
            pending.result()
        with in_vain("tiny does not come to rest: still runs: hall"):
            harness.settle()
        go.set()
        pending.result()
        spinning = harness.send("spin")
        with in_vain("the answer to spin did not come: timers went on and on"):
            spinning.result()
        spinning.cancel()
        with pytest.raises(RpcError, match="cancelled"):
            spinning.result()
        reading = harness.send("read")
        with in_vain("the answer to read did not come: a handler waits for a socket"):
            reading.result()
        theirs.send(b"x")
        reading.result()


def test_real_sockets_and_executors_are_waited_for(plugin: Plugin) -> None:
    @plugin.method("fetch")
    async def fetch() -> dict[str, Any]:
        async with asyncio.timeout(3600):
            text = await asyncio.to_thread(Path(__file__).read_text)
            program = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('hi')", stdout=subprocess.PIPE)
            out, _ = await program.communicate()
        return {"text": text[:9], "out": out.decode()}

    with PluginHarness(plugin) as harness:
        assert harness.call("fetch") == {"text": '"""Tests ', "out": "hi\n"}
        # Time passed as it really does, and did not jump to the end of the time-out.
        assert harness.time < 20


def test_threads_of_the_plugins_own_are_waited_for_when_nothing_else_is_left(plugin: Plugin) -> None:
    go = threading.Event()

    @plugin.method("start")
    def start() -> None:
        def work() -> None:
            go.wait()
            plugin.notify("done")

        threading.Thread(target=work, name="own", daemon=True).start()

    with PluginHarness(plugin, timeout=0.3) as harness:
        harness.call("start")
        with pytest.raises(TimeoutError, match="nothing came from the plugin's own threads: own"):
            harness.notification("done")
        go.set()
        harness.notification("done", None)


@pytest.mark.parametrize("how", ["inline", "worker", "async", "stream", "hook"])
def test_a_handler_that_ends_the_process_ends_the_plugin(plugin: Plugin, how: str) -> None:
    def leave(params: dict[str, Any], stream: Stream) -> None:
        raise SystemExit(125)

    go = threading.Event()

    def leave_hook() -> None:
        go.wait()
        raise SystemExit(125)

    async def leave_async() -> None:
        raise SystemExit(125)

    if how == "stream":
        plugin.stream("leave")(leave)
    elif how == "hook":
        plugin.on_start(blocking=True)(leave_hook)
    else:
        plugin.method("leave", blocking=how == "worker")(leave_async if how == "async" else leave_hook)
    with PluginHarness(plugin) as harness:
        go.set()
        use: dict[str, Callable[[], Any]] = {
            "stream": lambda: harness.subscribe("leave").get(),
            "hook": lambda: harness.notification("never"),
        }
        with pytest.raises(PluginDiedError, match="it has ended with 125") as caught:
            use.get(how, lambda: harness.call("leave"))()
        assert (caught.value.code, harness.exit_code) == (125, 125)
        with pytest.raises(PluginDiedError, match="nothing can be sent"):
            harness.call("plugin.health")


def test_start_hooks_have_begun_when_the_test_begins(plugin: Plugin) -> None:
    began: list[str] = []

    @plugin.on_start
    async def first() -> None:
        began.append("async")
        await asyncio.sleep(1)
        began.append("later")

    @plugin.on_start
    def second() -> None:
        began.append("inline")

    with PluginHarness(plugin) as harness:
        assert sorted(began) == ["async", "inline"]
        harness.advance(1)
        assert began[-1] == "later"


def test_a_failing_start_is_degraded_health(plugin: Plugin) -> None:
    @plugin.on_start(blocking=True)
    def started() -> None:
        raise OSError("no lamp there")

    with PluginHarness(plugin) as harness:
        harness.settle()
        why = "tiny could not start: OSError: no lamp there"
        # The runner need not wait for its next question to hear of it.
        assert harness.notification("plugin.health_changed") == {"status": "degraded", "detail": why}
        assert harness.call("plugin.health")["detail"] == why


def test_the_next_runner(plugin: Plugin) -> None:
    started: list[Any] = []
    ended: list[str] = []

    @plugin.on_start
    def on_start(settings: dict[str, Any]) -> None:
        started.append(settings)

    @plugin.method("sleep")
    async def sleep() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with PluginHarness(plugin, settings={"n": 1}) as harness:
        harness.send("sleep")
        harness.settle()
        harness.reconnect()
        harness.settle()
        assert (started, ended) == ([{"n": 1}], ["cancelled"])
        harness.reconnect({"n": 2})
        assert started == [{"n": 1}, {"n": 2}]
        with pytest.raises(TimeoutError):
            harness.unmatched()


def test_closing_ends_everything(plugin: Plugin) -> None:
    ended: list[str] = []
    # What has not begun is only withdrawn.
    sleeps, waits = threading.Event(), threading.Event()

    @plugin.method("sleep")
    async def sleep() -> None:
        try:
            sleeps.set()
            await asyncio.sleep(100)
        finally:
            ended.append("task")

    @plugin.method("ask", blocking="ask")
    def ask() -> None:
        try:
            plugin.host.context().result()
        finally:
            ended.append("call")

    @plugin.method("wait", blocking="wait")
    def wait() -> None:
        stop = threading.Event()
        plugin.on_cancel(stop.set)
        waits.set()
        stop.wait()
        ended.append("callback")
        raise Cancelled

    @plugin.stream("blocked", mode="reliable")
    def blocked(params: dict[str, Any], stream: Stream) -> None:
        try:
            while True:
                stream.send(params)
        finally:
            ended.append("stream")

    harness = PluginHarness(plugin)
    with harness:
        harness.hold_host("host.context")
        for method in ("sleep", "ask", "wait"):
            harness.send(method)
        harness.asked("host.context")
        harness.subscribe("blocked", window=1, acks=False).get()
        assert sleeps.wait(30)
        assert waits.wait(30)
    assert sorted(ended) == ["call", "callback", "stream", "task"]
    harness.close()
    assert plugin.served_by is None
    # The same plugin can be run again, with its health as at the start.
    with PluginHarness(plugin) as again:
        assert again.call("plugin.health")["status"] == "ok"


def test_a_handler_that_ends_the_process_while_it_is_cancelled_is_closed_all_the_same(plugin: Plugin) -> None:
    @plugin.method("leave")
    async def leave() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise SystemExit(3)

    with PluginHarness(plugin) as harness:
        harness.send("leave")
        harness.settle()
    assert harness.exit_code == 3


def test_a_thread_that_does_not_end_is_said(plugin: Plugin) -> None:
    go = threading.Event()

    @plugin.method("deaf", blocking="deaf")
    def deaf() -> None:
        plugin.notify("running")
        go.wait()

    harness = PluginHarness(plugin)
    try:
        harness.__enter__()
        harness.send("deaf")
        harness.notification("running")
        # Only what is not going to happen gets little time.
        harness._timeout = 0.05
        with pytest.raises(RuntimeError, match="tiny: still running after it was cancelled: deaf"):
            harness.close()
    finally:
        go.set()


def test_one_harness_at_a_time(plugin: Plugin) -> None:
    with PluginHarness(plugin), pytest.raises(RuntimeError, match="tiny is being served already"):
        PluginHarness(plugin).__enter__()
    with pytest.raises(RuntimeError, match="PluginHarness is a context manager"):
        PluginHarness(plugin).call("x")


def test_a_mistake_in_an_annotation_is_said_and_leaves_nothing(plugin: Plugin) -> None:
    @plugin.method("paint")
    def paint(params: Colour) -> None: ...  # noqa: F821 - the mistake under test

    with pytest.raises(TypeError, match="import it at module level"):
        PluginHarness(plugin).__enter__()
    assert plugin.served_by is None


def test_without_a_handshake(plugin: Plugin) -> None:
    plugin.method("work")(lambda: None)
    with PluginHarness(plugin, handshake=False) as harness:
        with pytest.raises(RpcError, match=r"work: protocol\.hello comes first"):
            harness.call("work")
        harness.shake_hands()
        assert harness.call("work") == {}


def test_what_is_too_large_is_refused_as_on_the_wire(plugin: Plugin) -> None:
    plugin.method("huge")(lambda: {"data": "x" * (16 * 1024 * 1024)})
    with PluginHarness(plugin) as harness, pytest.raises(RpcError, match="the answer is too large"):
        harness.call("huge")


def run_many(plugin: Plugin, log: list[Any]) -> None:
    with PluginHarness(plugin, host={"host.context": lambda params: {"n": params["sources"][0]}}) as harness:
        pending = [harness.send("mixed", {"n": n}) for n in range(20)]
        log += [one.result() for one in pending]
        log.append(harness.time)


def test_async_handlers_run_in_the_same_order_every_time(plugin: Plugin) -> None:
    order: list[Any] = []

    @plugin.method("mixed")
    async def mixed(params: dict[str, Any]) -> Any:
        n = params["n"]
        await asyncio.sleep(n % 7)
        order.append(("slept", n))
        got = await plugin.host.context([str(n)])
        order.append(("asked", got["n"]))
        await asyncio.sleep(n % 3)
        order.append(("ended", n))
        return n

    runs = []
    for _ in range(5):
        order.clear()
        log: list[Any] = []
        run_many(plugin, log)
        runs.append((list(order), log))
    assert all(run == runs[0] for run in runs)
    assert runs[0][1] == [*range(20), 7.0]


def test_nothing_leaks(plugin: Plugin) -> None:
    @plugin.method("work", blocking=True)
    def work() -> None: ...

    @plugin.method("later")
    async def later() -> None:
        await asyncio.sleep(1)

    def use() -> tuple[set[Path], set[threading.Thread]]:
        with PluginHarness(plugin) as harness:
            harness.call("work")
            harness.call("later")
        return {*Path("/proc/self/fd").iterdir()}, running_threads()

    before = use()
    for _ in range(3):
        assert use() == before


def test_it_works_for_every_kind_of_call_at_once(plugin: Plugin) -> None:
    """Workers, tasks, streams and host calls in one plugin, with time passing between them."""

    @plugin.method("chain", blocking=True)
    def chain(params: dict[str, Any]) -> int:
        n: int = params["n"]
        while n < 100:
            n = plugin.host.call("next", {"n": n}).result()["n"]
        return n

    @plugin.method("poll")
    async def poll() -> int:
        n = 0
        while n < 50:
            await asyncio.sleep(10)
            n = (await plugin.host.call("next", {"n": n}))["n"]
        return n

    with PluginHarness(plugin, host={"next": lambda params: {"n": params["n"] + 1}}) as harness:
        polling = harness.send("poll")
        chains = [harness.send("chain", {"n": n}) for n in (0, 50, 99)]
        assert [one.result() for one in chains] == [100, 100, 100]
        assert polling.result() == 50
        assert harness.time == 500
