"""Tests of the harness itself: its waits end, its errors tell, and nothing is left behind."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from support.threads import running_threads
from utter_protocol.errors import RpcError
from utter_sdk.testing import PluginDiedError, PluginProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    RunPlugin = Callable[..., PluginProcess]


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_wait_names_what_did_not_come_and_shows_stderr(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("stuck", blocking=True)
        def stuck() -> None:
            plugin.log("no lamp answers")
            plugin.notify("running")
            threading.Event().wait()
        """
    )
    pending = process.send("stuck")
    process.notification("running")
    with pytest.raises(TimeoutError, match=r"the answer to stuck did not come in 0\.01 s\nstderr:\nno lamp answers"):
        pending.result(0.01)
    with pytest.raises(TimeoutError, match="a notification x did not come"):
        process.notification("x", 0.01)
    with pytest.raises(TimeoutError, match="an answer to no request did not come"):
        process.unmatched(0.01)
    with pytest.raises(TimeoutError, match="'wrong' on stderr did not come"):
        process.wait_stderr("wrong", 0.01)
    with pytest.raises(TimeoutError, match="did not end in"):
        process.wait(0.01)


def test_a_plugin_that_dies_is_told_with_its_code_and_stderr() -> None:
    code = "import sys; sys.stdin.buffer.readline(); print('no model', file=sys.stderr); sys.exit(3)"
    with pytest.raises(PluginDiedError) as caught, PluginProcess(script(code)):
        pytest.fail("the handshake succeeded")
    assert caught.value.code == 3
    text = str(caught.value)
    assert "the answer to protocol.hello cannot come any more: its stdout ended (exit code 3)" in text
    assert text.endswith("stderr:\nno model")


def test_a_plugin_that_writes_no_frames_is_told() -> None:
    code = "import sys; sys.stdout.write('Content-Length: x\\r\\n\\r\\n'); sys.stdout.flush(); sys.stdin.read()"
    with PluginProcess(script(code), handshake=False) as process:
        with pytest.raises(PluginDiedError, match="its stdout is no frames: Content-Length is not a decimal"):
            process.unmatched()
        assert process.close() == 0


def test_junk_is_kept_apart(run_plugin: RunPlugin) -> None:
    process = run_plugin("os.write(1, b'loading the model\\n')")
    assert process.junk == b"loading the model\n"


def test_a_plugin_that_does_not_read_does_not_hold_the_test() -> None:
    code = "import sys, time; sys.stdout.close(); time.sleep(600)"
    with PluginProcess(script(code), handshake=False, timeout=5) as process:
        with pytest.raises(TimeoutError, match=r"did not read its stdin in 0\.05 s"):
            process.write(b"x" * 1_000_000, 0.05)
        assert process.close(0.05) == -15


def test_a_plugin_that_closes_stdin_is_told() -> None:
    code = "import os; os.close(0); os.write(2, b'closed'); os.read(os.pipe()[0], 1)"
    with PluginProcess(script(code), handshake=False) as process:
        process.wait_stderr("closed")
        with pytest.raises(PluginDiedError, match="it closed stdin"):
            process.notify("x")
        assert process.close(0.05) == -15


def test_requests_of_the_plugin_are_refused_not_ignored() -> None:
    code = (
        "import sys; from utter_protocol.framing import encode_frame;"
        'sys.stdout.buffer.write(encode_frame(b\'{"jsonrpc":"2.0","id":1,"method":"host.context"}\'));'
        "sys.stdout.flush(); os.write(2, os.read(0, 1000))"
    )
    with PluginProcess(script("import os; " + code), handshake=False) as process:
        process.wait_stderr("host.context: the test serves no such request")


def test_errors_are_raised(run_plugin: RunPlugin) -> None:
    with pytest.raises(RpcError, match="tiny has no method x"):
        run_plugin().call("x")


def test_env_cwd_and_settings_arrive(run_plugin: RunPlugin, tmp_path: os.PathLike[str]) -> None:
    process = run_plugin(
        """
        got = {}

        @plugin.on_start
        def started(settings: dict) -> None:
            got.update(settings)

        @plugin.method("got")
        def tell() -> dict:
            return {"cwd": os.getcwd(), "lamp": os.environ["LAMP"], **got}
        """,
        env={"LAMP": "hall"},
        cwd=tmp_path,
        settings={"colour": "red"},
    )
    assert process.call("got") == {"cwd": str(tmp_path), "lamp": "hall", "colour": "red"}


@pytest.mark.parametrize("ignores", ["nothing", "EOF", "EOF and SIGTERM"])
def test_close_ends_it_and_what_it_started(
    run_plugin: RunPlugin, ignores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "SIGTERM" in ignores:
        monkeypatch.setattr("utter_sdk.testing.process._GRACE", 2.0)
    code = f"""
        import signal

        child = subprocess.Popen(["sleep", "600"])

        @plugin.method("child")
        def child_pid() -> dict:
            if {ignores!r} != "nothing":
                os.dup2(os.pipe()[0], plugin.served_by.connection._wire._read_fd)
            if "SIGTERM" in {ignores!r}:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return {{"pid": child.pid}}
    """
    process = run_plugin(code)
    child = os.pidfd_open(process.call("child")["pid"])
    assert process.close(None if ignores == "nothing" else 0.05) == (-9 if "SIGTERM" in ignores else 0)
    assert process.close() == process.wait()
    ended = select.poll()
    ended.register(child, select.POLLIN)
    assert ended.poll(5000)
    os.close(child)


def test_nothing_leaks(run_plugin: RunPlugin) -> None:
    before = ({*Path("/proc/self/fd").iterdir()}, running_threads())
    for _ in range(3):
        run_plugin().close()
    assert ({*Path("/proc/self/fd").iterdir()}, running_threads()) == before


def test_it_is_a_context_manager() -> None:
    with pytest.raises(RuntimeError, match="PluginProcess is a context manager"):
        PluginProcess(script("pass")).call("x")


ASKING = """
@plugin.method("ask", blocking=True)
def ask(params: dict) -> Any:
    return plugin.host.call("host.context", params).result()

@plugin.stream("numbers")
def numbers(params: dict, stream: Stream) -> None:
    for n in range(params["count"]):
        stream.send(n)
"""


def test_functions_answer_the_plugins_requests(run_plugin: RunPlugin) -> None:
    process = run_plugin(ASKING)
    process.on_host("host.context", lambda params: {"got": params["n"]})
    assert process.call("ask", {"n": 3}) == {"got": 3}
    process.on_host("host.context", lambda _: None)
    assert process.call("ask", {"n": 3}) == {}


def test_a_mistake_in_a_function_is_raised_in_the_test(run_plugin: RunPlugin) -> None:
    process = run_plugin(ASKING)
    process.on_host("host.context", lambda params: params["missing"])
    pending = process.send("ask", {})
    with pytest.raises(KeyError, match="missing"):
        pending.result()
    # The plugin has been answered all the same.
    with pytest.raises(RpcError, match="KeyError: 'missing'"):
        pending.result()
    assert process.call("plugin.health")["status"] == "ok"


def test_requests_can_be_held_and_answered_in_any_order(run_plugin: RunPlugin) -> None:
    again = ASKING.replace('"ask", blocking=True', '"ask2", blocking="two"').replace("numbers", "others")
    process = run_plugin(ASKING + again)
    process.hold_host("host.context")
    first, second = process.send("ask", {"n": 1}), process.send("ask2", {"n": 2})
    one, two = process.asked("host.context"), process.asked("host.context")
    assert (one.method, {one.params["n"], two.params["n"]}) == ("host.context", {1, 2})
    for asked in (two, one):
        asked.answer({"n": asked.params["n"]})
    assert (first.result(), second.result()) == ({"n": 1}, {"n": 2})
    with pytest.raises(TimeoutError, match=r"a request host\.context of the plugin's did not come in 0\.01 s"):
        process.asked("host.context", 0.01)
    with pytest.raises(TimeoutError, match=r"\$/cancel of host\.context did not come"):
        one.wait_cancelled(0.01)


def test_a_stream_is_read_however_early_its_items_come(run_plugin: RunPlugin) -> None:
    process = run_plugin(ASKING)
    for count in (0, 1, 500):
        stream = process.subscribe("numbers", {"count": count})
        assert list(stream) == list(range(count))
        assert stream.wait_closed() == "end"
        with pytest.raises(EOFError, match="numbers is closed: end"):
            stream.get()
        stream.stop()


def test_a_stream_that_is_not_offered_is_refused(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("watch", blocking=True)
        def watch() -> Any:
            return plugin.subscribe("runner.events").get()
        """
    )
    with pytest.raises(RpcError, match=r"stream\.subscribe: the test serves no such request; see on_host"):
        process.call("watch")
    with pytest.raises(TimeoutError, match=r"a subscription to runner\.events did not come"):
        process.offer("runner.events").wait_subscribed(0.01)


def test_there_is_nothing_to_talk_to_before_it_was_entered() -> None:
    process = PluginProcess(script("pass"))
    for use in (process.hang_up, process.reconnect, process.close_stdin, process.close, process.wait):
        with pytest.raises(RuntimeError, match="PluginProcess is a context manager"):
            use()


def test_a_program_that_does_not_exist_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PluginProcess([tmp_path / "missing"], transport="connect").__enter__()


@pytest.mark.parametrize("transport", ["connect", "listen"])
def test_a_plugin_that_does_not_come_is_said(transport: Literal["connect", "listen"]) -> None:
    code = "import sys; sys.stdin.read()"
    with pytest.raises(TimeoutError, match=r"no connection in 0\.05 s"):
        PluginProcess(script(code), transport=transport, timeout=0.05).__enter__()
    with pytest.raises(PluginDiedError, match="it ended before there was a connection") as caught:
        PluginProcess(script("import sys; sys.exit(3)"), transport=transport).__enter__()
    assert caught.value.code == 3


def test_what_was_logged_before_an_answer_is_there_with_it(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("log")
        def log(params: dict) -> None:
            plugin.log(f"line {params['n']}")
        """
    )
    for n in range(300):
        process.call("log", {"n": n})
        assert process.stderr.endswith(f"line {n}\n")
