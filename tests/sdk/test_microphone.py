"""The microphone of a plugin: fast, over a ring that the test writes."""

from __future__ import annotations

import array
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.inherited import RING_VARIABLE, WAKE_VARIABLE
from utter_sdk import Plugin, Stream
from utter_sdk.microphone import Microphone, Overrun
from utter_sdk.testing import AudioRing, PluginHarness, PluginProcess
from utter_sdk.wakening import Wakening

RATE = 1000


def frames(start: int, count: int) -> bytes:
    return array.array("f", range(start, start + count)).tobytes()


def ear() -> tuple[Plugin, list[Microphone]]:
    """A plugin that opens its microphone when it is told to."""
    plugin = Plugin("ear", version="1", kind="bundle", permissions=["microphone"])
    opened: list[Microphone] = []

    @plugin.method("open", blocking="opening")
    def open_it() -> None:
        opened.append(plugin.microphone())

    @plugin.method("wait", blocking="waiting")
    def wait(params: dict[str, Any]) -> dict[str, Any]:
        return {"came": opened[-1].wait(params["position"], params.get("timeout"))}

    @plugin.method("wait_async")
    async def wait_async() -> None:
        opened[-1].wait(0)

    @plugin.stream("ear.positions")
    def positions(_params: dict[str, Any], stream: Stream) -> None:
        with plugin.microphone() as mic:
            while True:
                at = mic.position
                stream.send({"position": at})
                mic.wait(at)

    return plugin, opened


def test_it_reads_what_was_written_and_says_what_is_gone() -> None:
    plugin, opened = ear()
    with AudioRing(1, RATE) as ring, PluginHarness(plugin, host={"fd.pass": ring.passed}) as harness:
        ring.write(frames(0, 100))
        harness.call("open")
        with opened[-1] as mic:
            assert (mic.layout.rate, mic.layout.channels, mic.layout.capacity) == (RATE, 1, RATE)
            assert (mic.position, mic.oldest, mic.generation) == (100, 0, 0)
            assert mic.read(0, 100) == frames(0, 100)
            ring.new_generation()
            ring.write(frames(100, RATE))
            assert (mic.position, mic.oldest, mic.generation) == (RATE + 100, 100, 1)
            with pytest.raises(Overrun) as caught:
                mic.read(99, 2)
            assert caught.value.oldest == 100
            with pytest.raises(ValueError, match="are written"):
                mic.read(RATE, 101)
        mic.close()


def test_it_waits_for_a_frame() -> None:
    plugin, opened = ear()
    with AudioRing(1, RATE) as ring, PluginHarness(plugin, host={"fd.pass": ring.passed}) as harness:
        harness.call("open")
        waiting = harness.send("wait", {"position": 5})
        ring.write(frames(0, 5))
        assert harness.call("plugin.health") == {"status": "ok", "detail": ""}
        ring.write(frames(5, 1))
        assert waiting.result(30) == {"came": True}
        # What is there needs no waiting, and no time at all is enough to say so.
        assert harness.call("wait", {"position": 5, "timeout": 0}) == {"came": True}
        assert harness.call("wait", {"position": 6, "timeout": 0.01}) == {"came": False}
        opened[-1].close()


@pytest.mark.parametrize("how", ["cancelled", "closed", "runner gone"])
def test_waiting_ends(how: str) -> None:
    plugin, opened = ear()
    with AudioRing(1, RATE) as ring, PluginHarness(plugin, host={"fd.pass": ring.passed}) as harness:
        harness.call("open")
        waiting = harness.send("wait", {"position": 0})
        if how == "cancelled":
            waiting.cancel()
        elif how == "closed":
            opened[-1].close()
        else:
            ring.stop_waking()
        with pytest.raises(RpcError) as caught:
            waiting.result(30)
        if how == "cancelled":
            assert caught.value.code == ErrorCode.CANCELLED
        else:
            why = {"closed": "the microphone was closed", "runner gone": "the runner has gone"}[how]
            assert f"MicrophoneClosed: {why}" in caught.value.message
        # Frames that came before the end can be had.
        if how == "runner gone":
            ring.write(frames(0, 1))
            assert harness.call("wait", {"position": 0}) == {"came": True}
        opened[-1].close()


def test_a_stream_that_hears_ends_with_its_subscriber() -> None:
    plugin, _ = ear()
    with AudioRing(1, RATE) as ring, PluginHarness(plugin, host={"fd.pass": ring.passed}) as harness:
        with harness.subscribe("ear.positions") as positions:
            assert positions.get(30) == {"position": 0}
            ring.write(frames(0, 10))
            assert positions.get(30) == {"position": 10}
        # The harness would say that its thread still runs.
        harness.settle()


def test_it_does_not_wait_where_it_would_hold_up_the_plugin() -> None:
    plugin, opened = ear()
    with AudioRing(1, RATE) as ring, PluginHarness(plugin, host={"fd.pass": ring.passed}) as harness:
        harness.call("open")
        with pytest.raises(RuntimeError, match="would wait for itself"):
            plugin.microphone()
        with pytest.raises(RuntimeError, match="would wait for itself"):
            opened[-1].wait(0)
        with pytest.raises(RpcError, match="hold up the asyncio loop"):
            harness.call("wait_async")
        opened[-1].close()
    with pytest.raises(RuntimeError, match="the plugin is not running"):
        plugin.microphone()


def test_who_gets_no_ring_is_told_why() -> None:
    plugin, _ = ear()

    def refuse(_params: Any) -> None:
        raise RpcError(ErrorCode.NOT_PERMITTED, "no", {"method": "fd.pass", "transport": "stdio"})

    with PluginHarness(plugin, host={"fd.pass": refuse}) as harness:
        with pytest.raises(RpcError, match="its manifest must require") as caught:
            harness.call("open")
        assert caught.value.code == ErrorCode.NOT_PERMITTED
        harness.on_host("fd.pass", lambda _params: _raise(RpcError(ErrorCode.INVALID_REQUEST, "too many")))
        with pytest.raises(RpcError, match="too many"):
            harness.call("open")


def _raise(error: Exception) -> None:
    raise error


def test_many_threads_wait_on_one_pipe_and_each_gets_its_frame() -> None:
    with AudioRing(1, RATE) as ring, _wakening(ring) as wakening:
        results: dict[int, bool] = {}

        def wait(position: int) -> None:
            results[position] = wakening.wait(lambda: ring.position > position, 60)

        threads = [threading.Thread(target=wait, args=(position,)) for position in range(20)]
        for thread in threads:
            thread.start()
        for at in range(20):
            ring.write(frames(at, 1))
            # The one whose frame it is ends, whoever of them reads the pipe.
            threads[at].join(60)
            assert results[at]
        assert not wakening.wait(lambda: False, 0)


def test_a_wakening_is_closed_when_nobody_waits_any_more() -> None:
    with AudioRing(1, RATE) as ring:
        wakening = _wakening(ring)
        over = threading.Event()
        threads = [threading.Thread(target=wakening.wait, args=(over.is_set, None)) for _ in range(3)]
        for thread in threads:
            thread.start()
        over.set()
        wakening.look_again()
        wakening.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        # However late somebody wants to be sure.
        wakening.look_again()


class _Closing(Wakening):
    def __enter__(self) -> Wakening:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wakening(ring: AudioRing) -> _Closing:
    return _Closing(os.dup(ring.passed().fds[1]))


SCRIPT = """
import os, subprocess, sys
from utter_sdk import Plugin
plugin = Plugin("ear", version="1", kind="bundle")

@plugin.method("hear", blocking=True)
def hear() -> dict:
    with plugin.microphone() as one, plugin.microphone() as other:
        assert one.wait(9, 60) and other.wait(9, 60)
        return {"frames": one.read(0, 10).hex(), "same": one.read(0, 10) == other.read(0, 10)}

@plugin.method("child", blocking=True)
def child() -> dict:
    code = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2))"
    # Whoever starts a program carelessly.
    said = subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, text=True)
    return {"ring": "utter-ring" in said.stdout, "env": [name for name in os.environ if name.startswith("UTTER_AUDIO")]}

plugin.run()
"""


def test_a_process_that_inherits_the_ring_hears_and_passes_nothing_on(tmp_path: Path) -> None:
    script = tmp_path / "ear.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with AudioRing(1, RATE) as ring, PluginProcess([sys.executable, script], fds=ring.fds, timeout=60) as process:
        hearing = process.send("hear")
        ring.write(frames(0, 10))
        assert hearing.result() == {"frames": frames(0, 10).hex(), "same": True}
        assert process.call("child") == {"ring": False, "env": []}


def test_numbers_that_name_nothing_are_said(tmp_path: Path) -> None:
    script = tmp_path / "ear.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, script],
        env={RING_VARIABLE: "three", WAKE_VARIABLE: "4", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert RING_VARIABLE in done.stderr
