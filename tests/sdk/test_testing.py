"""Tests of the harness itself: its waits end, its errors tell, and nothing is left behind."""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
def test_close_ends_it_and_what_it_started(run_plugin: RunPlugin, ignores: str) -> None:
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
    assert process.close(5 if ignores == "nothing" else 0.05) == (-9 if "SIGTERM" in ignores else 0)
    assert process.close() == process.wait()
    ended = select.poll()
    ended.register(child, select.POLLIN)
    assert ended.poll(5000)
    os.close(child)


def test_nothing_leaks(run_plugin: RunPlugin) -> None:
    before = ({*Path("/proc/self/fd").iterdir()}, threading.active_count())
    for _ in range(3):
        run_plugin().close()
    assert ({*Path("/proc/self/fd").iterdir()}, threading.active_count()) == before


def test_it_is_a_context_manager() -> None:
    with pytest.raises(RuntimeError, match="PluginProcess is a context manager"):
        PluginProcess(script("pass")).call("x")
