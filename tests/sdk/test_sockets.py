"""Tests of the transports `connect` and `listen`: who ends with whom, who waits for whom, and what descriptors do."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import FrameDecoder, encode_frame
from utter_runner.dataplane.ring import RingWriter
from utter_sdk import Plugin
from utter_sdk.sockets import SocketWire, socket_path
from utter_sdk.stdio import FrameTooLargeError
from utter_sdk.testing import Passing, PluginDiedError, PluginProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    RunPlugin = Callable[..., PluginProcess]

BOTH = pytest.mark.parametrize("transport", ["connect", "listen"])

PLUGIN = """
plugin = Plugin("tiny", version="1.2.3", kind="bundle", transport=os.environ["TRANSPORT"])
started: list[dict] = []

@plugin.on_start
def on_start(settings: dict) -> None:
    started.append(settings)
    if settings.get("fail"):
        raise RpcError(ErrorCode.PLUGIN_FAILED, "no lamp")

@plugin.method("started")
def tell() -> list:
    return started

@plugin.method("echo")
def echo(params: dict) -> dict:
    return params

@plugin.method("ask", blocking=True)
def ask() -> Any:
    return plugin.host.context().result()

@plugin.method("wait", blocking="wait")
def wait() -> None:
    stop = threading.Event()
    plugin.on_cancel(stop.set)
    plugin.notify("waiting")
    stop.wait()
    plugin.log("the handler was cancelled" if plugin.cancelled() else "not cancelled")
    raise Cancelled

@plugin.stream("ticks", mode="reliable")
def ticks(params: dict, stream: Stream) -> None:
    try:
        while True:
            stream.send({})
    except StreamClosed as closed:
        plugin.log(f"the stream: {closed.reason}")

@plugin.method("watch", blocking="watch")
def watch() -> None:
    try:
        for event in plugin.subscribe("runner.events"):
            plugin.notify("saw", {"event": event})
    except (StreamClosed, Cancelled) as error:
        plugin.log(f"the subscription: {type(error).__name__}")
        raise Cancelled from None
"""


@pytest.fixture
def run(run_plugin: RunPlugin) -> RunPlugin:
    def start(source: str = "", *, transport: str, **options: Any) -> PluginProcess:
        return run_plugin(
            PLUGIN + textwrap.dedent(source), transport=transport, env={"TRANSPORT": transport}, **options
        )

    return start


@BOTH
def test_the_handshake_and_both_directions(run: RunPlugin, transport: str) -> None:
    process = run(transport=transport)
    assert process.hello.transport == transport
    text = {"text": "ü" * 1_000_000}
    assert process.call("echo", text, 30) == text
    process.on_host("host.context", lambda _: {"app": "x"})
    assert process.call("ask") == {"app": "x"}
    with process.subscribe("ticks", window=3) as stream:
        assert [stream.next_item().seq for _ in range(20)] == list(range(20))
    events = process.offer("runner.events")
    process.send("watch")
    events.wait_subscribed()
    events.send(1)
    assert process.notification("saw") == {"event": 1}


@BOTH
def test_prints_go_to_the_log_and_children_get_neither_wire_nor_input(run: RunPlugin, transport: str) -> None:
    process = run(
        """
        @plugin.method("noisy")
        def noisy() -> dict:
            print("printed")
            os.write(1, b"from C\\n")
            code = "import os, sys; print(os.path.realpath('/proc/self/fd/0'), len(os.listdir('/proc/self/fd')))"
            child = subprocess.run([sys.executable, "-c", code], close_fds=False, stdout=subprocess.PIPE, text=True)
            return {"child": child.stdout, "cat": subprocess.run(["cat"], stdout=subprocess.PIPE).stdout.decode()}
        """,
        transport=transport,
    )
    # Its three and the directory itself.
    assert process.call("noisy") == {"child": f"{os.devnull} 4\n", "cat": ""}
    assert process.stderr == "printed\nfrom C\n"


@BOTH
@pytest.mark.parametrize("what", ["the connection", "stdin"])
def test_what_the_runner_started_ends_with_its_connection_or_its_input(
    run: RunPlugin, transport: str, what: str
) -> None:
    process = run(transport=transport)
    process.send("wait")
    process.notification("waiting")
    if what == "stdin":
        process._running().stdin.close()
    else:
        process.hang_up()
    assert process.wait() == 0
    assert process.stderr in ("", "the handler was cancelled\n")


@BOTH
def test_what_the_runner_started_does_not_wait_for_another_one(run: RunPlugin, transport: str) -> None:
    process = run(transport=transport)
    with pytest.raises(PluginDiedError) as caught:
        process.reconnect()
    assert caught.value.code == 0


@pytest.mark.parametrize("spawned", [True, False])
def test_a_bare_connect_to_a_listening_plugin_is_harmless(run: RunPlugin, *, spawned: bool) -> None:
    process = run(transport="listen", spawned=spawned, handshake=False)
    process.reconnect()
    assert process.call("echo", {"n": 1}) == {"n": 1}


@BOTH
def test_broken_framing_ends_what_the_runner_started(run: RunPlugin, transport: str) -> None:
    process = run(transport=transport)
    process.write(b"Content-Length: -5\r\n\r\n")
    assert process.wait() == 1
    assert process.stderr.startswith("the runner broke the framing (bad_length): ")


@BOTH
def test_what_somebody_else_started_serves_the_next_runner(run: RunPlugin, transport: str) -> None:
    process = run(transport=transport, spawned=False, settings={"n": 1})
    assert process.call("started") == [{"n": 1}]
    process.reconnect()
    assert process.call("started") == [{"n": 1}]
    process.reconnect({"n": 2})
    assert process.call("started") == [{"n": 1}, {"n": 2}]
    assert process.hello.plugin.name == "tiny"
    assert process.close() == 0


@BOTH
def test_a_start_that_failed_is_tried_again_with_the_next_runner(run: RunPlugin, transport: str) -> None:
    process = run(transport=transport, spawned=False, settings={"fail": True})
    assert process.health.status == "degraded"
    process.reconnect()
    assert process.health.detail == "tiny could not start: no lamp"
    process.reconnect({"n": 1})
    assert process.health.status == "ok"
    assert process.call("started") == [{"fail": True}, {"fail": True}, {"n": 1}]


@BOTH
def test_everything_of_a_connection_ends_with_it(run: RunPlugin, transport: str) -> None:
    process = run(transport=transport, spawned=False)
    process.hold_host("host.context")
    process.send("ask")
    process.asked("host.context")
    process.send("wait")
    process.notification("waiting")
    process.subscribe("ticks", window=1, acks=False).get()
    events = process.offer("runner.events")
    process.send("watch")
    events.wait_subscribed()
    events.send(1)
    process.notification("saw")
    process.reconnect()
    for line in ("the handler was cancelled", "the stream: the runner has gone", "the subscription: "):
        process.wait_stderr(line)
    # Nothing of the former connection arrives on this one, and its lanes are free.
    process.on_host("host.context", lambda _: {"app": "new"})
    assert process.call("ask") == {"app": "new"}
    process.send("wait")
    process.notification("waiting")
    assert not process._unmatched
    assert "Traceback" not in process.stderr


@BOTH
def test_broken_framing_costs_somebody_elses_plugin_one_connection(run: RunPlugin, transport: str) -> None:
    process = run(transport=transport, spawned=False)
    process.write(b"Content-Length: -5\r\n\r\n")
    process.wait_stderr("the runner broke the framing (bad_length): ")
    process.reconnect()
    assert process.call("echo", {"n": 1}) == {"n": 1}


@BOTH
def test_notifying_between_two_runners_is_a_mistake_that_says_so(run: RunPlugin, transport: str) -> None:
    process = run(
        """
        def work() -> None:
            while True:
                try:
                    plugin.notify("alive")
                except RuntimeError as error:
                    plugin.log(str(error))
                    return
                threading.Event().wait(0.001)

        @plugin.method("start")
        def start() -> None:
            threading.Thread(target=work, daemon=True).start()
        """,
        transport=transport,
        spawned=False,
    )
    process.call("start")
    process.notification("alive")
    process.hang_up()
    process.wait_stderr("notify('alive'): protocol.hello has not been answered yet")
    process.reconnect()


@BOTH
def test_sigterm_ends_somebody_elses_plugin_whether_connected_or_not(run: RunPlugin, transport: str) -> None:
    process = run(transport=transport, spawned=False)
    process.hang_up()
    process.wait_stderr("the runner has gone; waiting for the runner at ")
    assert process.close() == 0


def test_a_listening_plugins_socket_is_its_owners_and_goes_with_it(tmp_path: Path) -> None:
    code = "from utter_sdk import Plugin; Plugin('tiny', version='1', kind='action', transport='listen').run()"
    with PluginProcess([sys.executable, "-c", code], transport="listen", spawned=False) as process:
        assert process._door is not None
        path = Path(process._door.path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert process.call("plugin.health")["status"] == "ok"
        process.kill(15)
        assert process.wait() == 0
        assert not path.exists()


@contextmanager
def by_hand(path: Path, transport: str, **env: str) -> Iterator[PluginProcess]:
    """A plugin that somebody starts on a terminal, and ends with SIGTERM."""
    code = f"from utter_sdk import Plugin; Plugin('tiny', version='1', kind='action', transport={transport!r}).run()"
    env = {"XDG_RUNTIME_DIR": str(path), "UTTER_PLUGIN_SOCKET": "", "UTTER_INSTANCE": "", **env}
    with PluginProcess([sys.executable, "-c", code], env=env, handshake=False, timeout=20) as process:
        yield process
        if process._running().returncode is None:
            process.kill(15)
            assert process.wait() == 0


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Path]:
    """A directory whose name is short enough for a socket below it."""
    link = Path(f"/tmp/utter-{os.getpid()}")  # noqa: S108 - a link with this process's id, removed afterwards
    link.symlink_to(tmp_path, target_is_directory=True)
    yield link
    link.unlink()


def greet(path: Path) -> bool:
    """Dial and ask for the health of whoever listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(encode_frame(b'{"jsonrpc":"2.0","id":1,"method":"plugin.health"}'))
        return b'"status":"ok"' in connection.recv(4096)


def greet_when_there(path: Path, process: PluginProcess) -> bool:
    """Dial until somebody listens; a socket's file is there a moment before."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return greet(path)
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < deadline, process.stderr
            time.sleep(0.005)


def test_a_plugin_by_hand_listens_where_the_runner_looks(short: Path) -> None:
    path = short / "utter" / "plugins" / "tiny.sock"
    with by_hand(short, "listen") as process:
        assert greet_when_there(path, process)
        assert [stat.S_IMODE(place.stat().st_mode) for place in (path.parent.parent, path.parent)] == [0o700, 0o700]
        # A second one does not take its place.
        with by_hand(short, "listen") as other:
            assert other.wait() == 1
            assert f"{path}: cannot listen: Address already in use." in other.stderr
        assert greet(path)
        process.kill()
        assert process.wait() == -9
    # What a killed one leaves behind is in nobody's way.
    assert path.exists()
    with by_hand(short, "listen") as third:
        assert greet_when_there(path, third)
    assert not path.exists()


def test_a_plugin_that_dials_waits_for_its_runner(short: Path) -> None:
    path = short / "s"
    with by_hand(short, "connect", UTTER_PLUGIN_SOCKET=str(path)) as process:
        process.wait_stderr(f"waiting for the runner at {path}")
        for _ in range(2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.settimeout(20)
                listener.bind(str(path))
                listener.listen()
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(20)
                    connection.sendall(encode_frame(b'{"jsonrpc":"2.0","id":1,"method":"plugin.health"}'))
                    assert b'"status":"ok"' in connection.recv(4096)
            path.unlink()
        assert process.stderr.count("waiting for the runner at") <= 3


def test_a_file_that_is_no_socket_is_left_alone(short: Path) -> None:
    path = short / "utter" / "plugins" / "tiny.sock"
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    with by_hand(short, "listen") as process:
        assert process.wait() == 1
        assert "cannot listen: Address already in use." in process.stderr
    assert path.read_text() == "precious"
    with by_hand(short, "connect") as process:
        process.wait_stderr("waiting for the runner at ")


def test_whoever_connects_and_says_nothing_is_not_waited_for_for_ever(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        """
        import utter_sdk.sockets
        utter_sdk.sockets.GREETING_SECONDS = 3.0
        plugin = Plugin("tiny", version="1", kind="bundle", transport="listen")
        """,
        transport="listen",
        spawned=False,
        handshake=False,
    )
    process.wait_stderr("the connection to the runner broke: nobody said protocol.hello in time")
    process.reconnect()
    # Whoever has said hello may be silent for longer.
    assert process._door is not None
    with pytest.raises(TimeoutError):
        process.notification("nothing", 0.2)
    assert process.call("plugin.health")["status"] == "ok"


def test_a_runner_that_refuses_is_dialled_again_later(run_plugin: RunPlugin) -> None:
    process = run_plugin(
        'plugin = Plugin("tiny", version="1", kind="bundle", transport="connect")',
        transport="connect",
        spawned=False,
        handshake=False,
    )
    process.hang_up()
    process.wait_stderr("the runner closed the connection before it said protocol.hello; its log says why")
    process.reconnect()
    assert process.call("plugin.health")["status"] == "ok"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "neither UTTER_PLUGIN_SOCKET nor XDG_RUNTIME_DIR"),
        ({"XDG_RUNTIME_DIR": "run"}, "neither UTTER_PLUGIN_SOCKET nor XDG_RUNTIME_DIR"),
        ({"UTTER_PLUGIN_SOCKET": "/" + "x" * 107}, "a unix socket's path may have 107 bytes"),
        ({"UTTER_PLUGIN_SOCKET": "/a\0b"}, "a unix socket's path may have 107 bytes"),
    ],
)
def test_a_path_that_is_none_is_said(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        socket_path("tiny", environ)


def test_where_the_socket_is() -> None:
    assert socket_path("tiny", {"XDG_RUNTIME_DIR": "/run/user/1"}) == "/run/user/1/utter/plugins/tiny.sock"
    both = {"XDG_RUNTIME_DIR": "/run/user/1", "UTTER_PLUGIN_SOCKET": "/x"}
    assert socket_path("tiny", both) == "/x"


def test_a_runner_that_cannot_be_reached_is_said(short: Path) -> None:
    (short / "file").write_text("")
    with by_hand(short, "connect", UTTER_PLUGIN_SOCKET=str(short / "file" / "s")) as process:
        assert process.wait() == 1
        assert "cannot connect: Not a directory." in process.stderr


def test_a_transport_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="a plugin's transport is one of stdio, connect, listen, not 'tcp'"):
        Plugin("tiny", version="1", kind="bundle", transport="tcp")  # type: ignore[arg-type]  # the mistake under test


# ---- descriptors

DESCRIPTORS = """
from utter_sdk.ring import RingReader

def inode(fd: int) -> int:
    return os.fstat(fd).st_ino

@plugin.method("fetch", blocking=True)
def fetch(params: dict) -> dict:
    with plugin.host.fd_pass(params["kind"], params["meta"]).result() as received:
        return {"result": received.result, "inode": inode(received.fd), "inheritable": os.get_inheritable(received.fd)}

@plugin.method("fetch_async")
async def fetch_async(params: dict) -> dict:
    with await plugin.host.fd_pass(params["kind"], params["meta"]) as received:
        return {"result": received.result, "inode": inode(received.fd), "inheritable": os.get_inheritable(received.fd)}

@plugin.method("listen", blocking=True)
def listen() -> dict:
    with plugin.host.fd_pass("memfd.ring").result() as received, RingReader(received.fd) as ring:
        received.close()
        return {"frames": len(ring.read(0, ring.position)) // 4, "rate": ring.layout.rate}

@plugin.method("ring", blocking=True)
def ring() -> dict:
    with plugin.host.fd_pass("memfd.ring", {"wake": True}).result() as received:
        return {"inodes": [inode(fd) for fd in received.fds]}

@plugin.method("hand_in", blocking=True)
def hand_in() -> Any:
    from utter_sdk.handles import sealed_memfd
    fd = sealed_memfd(b"x" * 100_000)
    try:
        return plugin.host.call("handle.create", {"fd": True}, fds=[fd]).result()
    finally:
        os.close(fd)

@plugin.method("fds")
def fds() -> list:
    import gc
    gc.collect()
    return sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
"""


@pytest.fixture
def memfd() -> Iterator[int]:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    yield fd
    os.close(fd)


def inode(fd: int) -> int:
    return os.fstat(fd).st_ino


@BOTH
@pytest.mark.parametrize("method", ["fetch", "fetch_async"])
def test_a_descriptor_comes_with_the_answer(run: RunPlugin, transport: str, method: str, memfd: int) -> None:
    process = run(DESCRIPTORS, transport=transport)
    asked: list[Any] = []
    process.on_host("fd.pass", lambda params: asked.append(params) or Passing({"size": 3}, (memfd,)))
    # asyncio has descriptors of its own from its first use on.
    process.call(method, {"kind": "memfd", "meta": {"size": 3}})
    asked.clear()
    before = process.call("fds")
    answer = process.call(method, {"kind": "memfd", "meta": {"size": 3}})
    assert answer == {"result": {"size": 3}, "inode": inode(memfd), "inheritable": False}
    (params,) = asked
    assert (params["kind"], params["meta"], type(params["request"])) == ("memfd", {"size": 3}, int)
    assert process.call("fds") == before


@BOTH
def test_a_ring_that_wakes_comes_with_two(run: RunPlugin, transport: str, memfd: int) -> None:
    process = run(DESCRIPTORS, transport=transport)
    waker, other = os.pipe()
    asked: list[Any] = []
    process.on_host("fd.pass", lambda params: asked.append(params) or Passing({"rate": 16_000}, (memfd, waker)))
    before = process.call("fds")
    try:
        assert process.call("ring") == {"inodes": [inode(memfd), inode(waker)]}
        (params,) = asked
        assert (params["kind"], params["meta"], type(params["request"])) == ("memfd.ring", {"wake": True}, int)
        process.on_host("fd.pass", lambda _: Passing({}, (memfd,)))
        with pytest.raises(RpcError, match="fewer than 2 descriptors came with the answer"):
            process.call("ring")
    finally:
        os.close(waker)
        os.close(other)
    assert process.call("fds") == before


@BOTH
def test_a_descriptor_rides_on_a_request(run: RunPlugin, transport: str) -> None:
    process = run(DESCRIPTORS, transport=transport)
    before = process.call("fds")

    def create(params: dict[str, Any]) -> dict[str, Any]:
        assert params.keys() == {"fd", "request"}
        assert params["fd"] is True
        fd = process.descriptors.pop(0)
        try:
            return {"handle": "h", "size": os.fstat(fd).st_size}
        finally:
            os.close(fd)

    process.on_host("handle.create", create)
    assert process.call("hand_in") == {"handle": "h", "size": 100_000}
    assert process.call("hand_in") == {"handle": "h", "size": 100_000}
    assert process.call("fds") == before
    # What a test does not take is closed with the process.
    process.on_host("handle.create", lambda _: {"handle": "h", "size": 0})
    process.call("hand_in")
    assert len(process.descriptors) == 1


@BOTH
def test_the_ring_comes_as_a_descriptor(run: RunPlugin, transport: str) -> None:
    writer = RingWriter.create(seconds=0.1)
    try:
        writer.write(b"\0" * 4 * 100)
        process = run(DESCRIPTORS, transport=transport)
        process.on_host("fd.pass", lambda _: Passing({"rate": 16_000}, (writer.fd,)))
        assert process.call("listen") == {"frames": 100, "rate": 16_000}
    finally:
        writer.close()


@BOTH
def test_a_descriptor_that_nobody_asked_for_is_closed(run: RunPlugin, transport: str, memfd: int) -> None:
    process = run(DESCRIPTORS, transport=transport)
    before = process.call("fds")
    process.send_body(b'{"jsonrpc":"2.0","method":"x"}', (memfd, memfd))
    process.call("plugin.health")
    process.on_host("host.context", lambda _: Passing({}, (memfd,)))
    process.call("ask")
    process.on_host("fd.pass", lambda _: Passing({}, (memfd, memfd)))
    assert process.call("fetch", {"kind": "memfd", "meta": {}})["inode"] == inode(memfd)
    assert process.call("fds") == before
    line = "closed descriptors that came from the runner although nothing asked for them\n"
    assert process.stderr == line * 3


@BOTH
def test_an_answer_without_its_descriptor_is_an_error(run: RunPlugin, transport: str) -> None:
    process = run(DESCRIPTORS, transport=transport)
    process.on_host("fd.pass", lambda _: {"size": 1})
    with pytest.raises(RpcError, match=r"fd\.pass: no descriptor came with the answer") as caught:
        process.call("fetch", {"kind": "memfd", "meta": {}})
    assert caught.value.code == ErrorCode.PLUGIN_FAILED


def test_a_descriptor_that_comes_after_the_call_was_given_up_is_closed(run: RunPlugin, memfd: int) -> None:
    process = run(DESCRIPTORS, transport="connect")
    before = process.call("fds")
    process.hold_host("fd.pass")
    pending = process.send("fetch", {"kind": "memfd", "meta": {}})
    asked = process.asked("fd.pass")
    pending.cancel()
    with pytest.raises(RpcError, match="cancelled"):
        pending.result()
    asked.answer({}, (memfd,))
    assert process.call("fds") == before
    assert process.stderr == ""


def test_a_descriptor_waits_for_the_rest_of_its_frame_and_for_its_call(run: RunPlugin, memfd: int) -> None:
    process = run(DESCRIPTORS, transport="connect")
    process.hold_host("fd.pass")
    first = process.send("fetch_async", {"kind": "memfd", "meta": {"n": 1}})
    second = process.send("fetch_async", {"kind": "memfd", "meta": {"n": 2}})
    one, two = sorted((process.asked("fd.pass") for _ in range(2)), key=lambda asked: asked.params["meta"]["n"])
    frame = encode_frame(b'{"jsonrpc":"2.0","id":%d,"result":{"n":2}}' % two.id)
    process.write(frame[:7], fds=(memfd,))
    # What comes in between belongs to others.
    assert process.stderr == ""
    process.write(frame[7:])
    assert second.result()["inode"] == inode(memfd)
    one.refuse(RpcError(-32602, "no such kind"))
    with pytest.raises(RpcError, match="no such kind"):
        first.result()
    assert process.call("plugin.health")["status"] == "ok"
    assert process.stderr == ""


def test_an_answer_that_nobody_takes_leaves_no_descriptor(run: RunPlugin, memfd: int) -> None:
    process = run(
        DESCRIPTORS
        + textwrap.dedent("""
        @plugin.method("forget")
        def forget() -> None:
            plugin.host.fd_pass("memfd")

        @plugin.method("keep", blocking=True)
        def keep() -> None:
            received = plugin.host.fd_pass("memfd").result()
            os.close(received.detach())
            received.close()
        """),
        transport="connect",
    )
    process.on_host("fd.pass", lambda _: Passing({}, (memfd,)))
    before = process.call("fds")
    process.call("forget")
    process.call("keep")
    process.call("keep")
    assert process.call("fds") == before
    assert process.stderr == ""


def test_stdio_carries_no_descriptors(run_plugin: RunPlugin) -> None:
    process = run_plugin(DESCRIPTORS)
    process.on_host("fd.pass", lambda _: {})
    with pytest.raises(RpcError, match="no descriptor came with the answer"):
        process.call("fetch", {"kind": "memfd", "meta": {}})
    with pytest.raises(RpcError, match="ValueError: descriptors travel on sockets only; the transport must be"):
        process.call("hand_in")


@pytest.fixture
def pair() -> Iterator[tuple[SocketWire, socket.socket]]:
    ours, theirs = socket.socketpair()
    wire = SocketWire(ours)
    with theirs:
        theirs.settimeout(20)
        yield wire, theirs
    wire.close()


def test_a_wire_gives_descriptors_in_order_and_closes_what_nobody_takes(
    pair: tuple[SocketWire, socket.socket], memfd: int
) -> None:
    wire, theirs = pair
    other = os.memfd_create("other", os.MFD_CLOEXEC)
    theirs.sendall(b"first ")
    socket.send_fds(theirs, [b"second "], [memfd, other])
    theirs.sendall(b"third")
    data = b""
    while len(data) < len(b"first second third"):
        data += wire.read()
    assert data == b"first second third"
    (taken,) = wire.take(1)
    assert inode(taken) == inode(memfd)
    assert not os.get_inheritable(taken)
    os.close(taken)
    # `nothing_is_left_behind` sees whether closing the wire closes the other one.
    os.close(other)


def test_a_wire_sends_whole_frames_and_returns_when_it_is_hung_up(pair: tuple[SocketWire, socket.socket]) -> None:
    wire, theirs = pair
    body = b'"' + b"x" * 3_000_000 + b'"'
    failed: list[BaseException] = []

    def send() -> None:
        try:
            while True:
                wire.send(body)
        except OSError as error:
            failed.append(error)

    senders = [threading.Thread(target=send) for _ in range(3)]
    for sender in senders:
        sender.start()
    decoder = FrameDecoder()
    for _ in range(4):
        while (received := decoder.next_frame()) is None:
            decoder.receive(theirs.recv(262144))
        assert received == body
    wire.hang_up()
    for sender in senders:
        sender.join()
    assert [error.errno for error in failed] == [errno.EPIPE] * 3
    assert wire.read() == b""
    with pytest.raises(FrameTooLargeError):
        wire.send(b"x" * (16 * 1024 * 1024 + 1))


def test_descriptors_that_did_not_fit_end_the_connection(run: RunPlugin, memfd: int) -> None:
    process = run(
        """
        import resource

        @plugin.method("full")
        def full() -> None:
            highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
        """,
        transport="connect",
    )
    process.call("full")
    process.send_body(b'{"jsonrpc":"2.0","method":"x"}', (memfd,) * 20)
    assert process.wait() == 0
    process.wait_stderr("descriptors were lost: this process has too many files open")


def test_a_connection_of_another_user_is_refused(tmp_path: Path, short: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    path = short / "s"
    with by_hand(short, "listen", UTTER_PLUGIN_SOCKET=str(path)) as process:
        assert greet_when_there(path, process)
        path.chmod(0o666)
        tmp_path.chmod(0o755)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(str(path))
                    code = 0 if connection.recv(1) == b"" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, 1)
        assert greet(path)
