"""Tests of the wire's descriptors: nothing that prints can corrupt it, frames stay whole, nothing leaks to children."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import MAX_FRAME, FrameDecoder
from utter_sdk.stdio import FrameTooLargeError, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_sdk.testing import PluginProcess

    RunPlugin = Callable[..., PluginProcess]


def test_stray_prints_go_to_stderr(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        print("before run")

        @plugin.method("noisy")
        def noisy() -> dict:
            print("printed \\udc80")
            sys.stdout.write("no newline")
            sys.stdout.flush()
            os.write(1, b" from C\\n")
            subprocess.run(["sh", "-c", "echo from a child"], check=True)
            subprocess.run(["sh", "-c", "echo Content-Length: 5"], check=True, stdout=None)
            plugin.log("two\\nlines \\udc80\\n")
            return {"stdin": sys.stdin.read(), "child": subprocess.run(["cat"], capture_output=True).stdout.decode()}
        """,
        env={"PYTHONUNBUFFERED": ""},
    )
    assert process.call("noisy") == {"stdin": "", "child": ""}
    assert process.junk == b""
    assert process.stderr.splitlines() == [
        "before run",
        "printed \\udc80",
        "no newline from C",
        "from a child",
        "Content-Length: 5",
        "two",
        "lines \\udc80",
    ]


def test_children_do_not_inherit_the_wire(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        CODE = "import os; print([os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')])"

        @plugin.method("open_fds")
        def open_fds() -> dict:
            child = subprocess.run([sys.executable, "-c", CODE], close_fds=False, stdout=subprocess.PIPE, text=True)
            own = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
            return {"child": child.stdout, "own": str(own)}
        """
    )
    answer = process.call("open_fds")
    popen = process._popen
    assert popen is not None
    for stream in (popen.stdin, popen.stdout):
        assert stream is not None
        pipe = f"pipe:[{os.fstat(stream.fileno()).st_ino}]"
        assert pipe in answer["own"]
        assert pipe not in answer["child"]
    assert os.devnull in answer["child"]


def test_frames_from_many_threads_stay_whole(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("burst", blocking=True)
        def burst(params: dict) -> dict:
            def send(thread: int) -> None:
                for n in range(params["count"]):
                    plugin.notify("burst.item", {"thread": thread, "n": n, "pad": "x" * (997 * thread)})

            threads = [threading.Thread(target=send, args=(thread,)) for thread in range(params["threads"])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return {}
        """
    )
    pending = process.send("burst", {"threads": 8, "count": 50})
    health = [process.send("plugin.health") for _ in range(50)]
    assert [one.result()["status"] for one in health] == ["ok"] * 50
    assert pending.result(30) == {}
    seen: dict[int, list[int]] = {}
    for _ in range(8 * 50):
        item = process.notification("burst.item")
        assert len(item["pad"]) == 997 * item["thread"]
        seen.setdefault(item["thread"], []).append(item["n"])
    assert seen == {thread: list(range(50)) for thread in range(8)}
    assert process.junk == b""


def test_large_frames_both_ways_and_too_large_ones_refused(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        @plugin.method("echo")
        def echo(params: dict) -> dict:
            return params

        @plugin.method("huge")
        def huge(params: dict) -> dict:
            return {"data": "x" * params["size"]}

        @plugin.method("tell")
        def tell(params: dict) -> None:
            plugin.notify("told", {"data": "x" * params["size"]})
        """
    )
    data = {"data": "ü" * 2_000_000}
    assert process.call("echo", data, 30) == data
    with pytest.raises(RpcError, match=r"the answer is too large: a frame of \d+ bytes exceeds max_frame") as caught:
        process.call("huge", {"size": MAX_FRAME})
    assert (caught.value.code, caught.value.data) == (ErrorCode.TOO_LARGE_INLINE, {"bound": "max_frame"})
    with pytest.raises(RpcError, match="FrameTooLargeError"):
        process.call("tell", {"size": MAX_FRAME})
    assert process.call("plugin.health")["status"] == "ok"


def test_non_blocking_descriptors_are_served_too() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    wire = Wire(ours, theirs)
    body = b'"' + b"x" * 1_000_000 + b'"'
    sender = threading.Thread(target=wire.send, args=(body,))
    sender.start()
    decoder = FrameDecoder()
    while (received := decoder.next_frame()) is None:
        decoder.receive(wire.read())
    sender.join()
    assert received == body
    with pytest.raises(FrameTooLargeError, match=f"exceeds max_frame \\({MAX_FRAME} bytes\\)"):
        wire.send(b"x" * (MAX_FRAME + 1))
    os.close(theirs)
    assert wire.read() == b""
    os.close(ours)
