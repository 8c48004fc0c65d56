"""A plugin that the runner starts and meets on a socket: who is let in, and what may be in the way."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.lowlevel
import trio.testing

from support.daemon import External
from support.endpoints import another_runner
from support.supervision_tools import call, house, marked_processes
from support.transports import Way, pid_of, quick
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.supervision import link
from utter_runner.supervision.launch import INSTANCE_VARIABLE, SOCKET_VARIABLE


@pytest.fixture(params=["connect", "listen"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    return Way(request.param, tmp_path)


@pytest.fixture
def connect(tmp_path: Path) -> Way:
    return Way("connect", tmp_path)


@pytest.fixture
def listen(tmp_path: Path) -> Way:
    return Way("listen", tmp_path)


@contextmanager
def stranger(path: Path) -> Iterator[socket.socket]:
    """A connection of this process, which is no plugin."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.settimeout(20)
        yield connection


async def ends(connection: socket.socket) -> bool:
    """Wait until the other side closes; whether it said nothing before."""
    with trio.fail_after(20):
        return await trio.to_thread.run_sync(connection.recv, 100) == b""


def stale(path: Path) -> None:
    """What a killed listener leaves behind."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen()


# ---- what the plugin gets


async def test_it_is_told_where_its_socket_is_and_inherits_no_other(way: Way) -> None:
    async with way.house(way.plugin("good", env={SOCKET_VARIABLE: "/elsewhere"})) as running:
        seen = await call(running, "good", "pid")
        assert seen["environ"][SOCKET_VARIABLE] == str(way.directory / "good.sock")
        assert seen["environ"][INSTANCE_VARIABLE].startswith("good/1/")


async def test_what_it_prints_is_logged_and_does_not_disturb(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with way.house(way.plugin("chatty")) as running:
        chatty = running.supervisor.get("chatty")
        assert await call(running, "chatty", "print") == {}
        assert await call(running, "chatty", "stderr") == {}
        assert (await call(running, "chatty", "next"))["method"] == "next"
        with trio.fail_after(10):
            while "last words" not in chatty.process.stderr_tail:
                await trio.lowlevel.checkpoint()
        assert (chatty.junk_bytes, chatty.epoch) == (0, 1)
    assert "chatty: a stray print\\x1b[0m" in caplog.text


async def test_directory_and_socket_are_the_users_alone(connect: Way) -> None:
    connect.directory = connect.directory / "run" / "plugins"
    before = os.umask(0)
    try:
        async with connect.house(connect.plugin("good")):
            modes = [
                stat.S_IMODE(one.stat().st_mode)
                for one in (connect.directory.parent, connect.directory, connect.directory / "good.sock")
            ]
    finally:
        os.umask(before)
    assert modes == [0o700, 0o700, 0o600]
    assert not (connect.directory / "good.sock").exists()


async def test_the_directory_is_made_for_one_that_listens(listen: Way) -> None:
    listen.directory = listen.directory / "run" / "plugins"
    async with listen.house(listen.plugin("good")) as running:
        assert running.supervisor.get("good").running
    assert stat.S_IMODE(listen.directory.stat().st_mode) == 0o700


async def test_end_of_input_stops_one_that_has_not_connected(way: Way, tmp_path: Path) -> None:
    # The relaying process waits for the end of its stdin, and the talking one for a gate that stays shut.
    farewell = tmp_path / "farewell"
    behaviour = ["relay=orphan", f"gate={tmp_path / 'gate'}", f"farewell={farewell}"]
    timing = quick(handshake=0.5, restarts_in_window=0, stop=20)
    async with house(way.plugin("shy", *behaviour), timing=timing) as running:
        shy = running.supervisor.get("shy")
        assert shy.status == "failed"
        assert str(way.directory / "shy.sock") in shy.detail
    assert farewell.exists()
    assert marked_processes("shy") == []


# ---- who is let in


@pytest.mark.parametrize("relay", ["child", "orphan"])
async def test_its_family_may_speak_for_it(way: Way, relay: str) -> None:
    async with way.house(way.plugin("good", f"relay={relay}")) as running:
        good = running.supervisor.get("good")
        seen = await call(running, "good", "pid")
        assert seen["pid"] != pid_of(good)
        # A child shows no mark and descends from the plugin; an orphan is the other way round.
        assert (INSTANCE_VARIABLE in seen["environ"]) == (relay == "orphan")
        assert good.status_report()["refused_connections"] == 0
    # Nothing marks the child; it went with its connection.
    assert marked_processes("good") == []


async def test_a_stranger_that_dials_first_is_refused_and_the_plugin_is_not(
    connect: Way, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = tmp_path / "gate"
    async with house(connect.plugin("good", f"gate={gate}"), wait=False) as running:
        good = running.supervisor.get("good")
        await running.until(lambda: good.status == "starting" and good.epoch == 1)
        with stranger(connect.directory / "good.sock") as connection:
            assert await ends(connection)
        gate.touch()
        await running.until(lambda: good.running)
        assert (good.epoch, good.status_report()["refused_connections"]) == (1, 1)
        assert (await call(running, "good", "works"))["method"] == "works"
    assert f"good: a connection with pid {os.getpid()} was refused: the runner did not start it" in caplog.text


@pytest.mark.parametrize("mark", [None, "good/1/0123456789abcdef", "", "good/1/"])
async def test_one_with_the_right_id_and_without_the_mark_is_a_stranger(
    connect: Way, tmp_path: Path, mark: str | None
) -> None:
    """It would answer the handshake like the plugin itself."""
    gate = tmp_path / "gate"
    env = {**os.environ, SOCKET_VARIABLE: str(connect.directory / "good.sock")}
    env |= {} if mark is None else {INSTANCE_VARIABLE: mark}
    with External("good", env=env) as imitator:
        async with house(connect.plugin("good", f"gate={gate}"), wait=False) as running:
            good = running.supervisor.get("good")
            with trio.fail_after(20):
                while good.status_report()["refused_connections"] < 3:
                    await trio.lowlevel.checkpoint()
            gate.touch()
            await running.until(lambda: good.running)
            assert pid_of(good) != imitator.pid
            assert (await call(running, "good", "pid"))["pid"] == pid_of(good)


async def test_a_stranger_that_listens_before_the_plugin_is_started_keeps_it_from_starting(listen: Way) -> None:
    path = listen.directory / "good.sock"
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(str(path))
        squatter.listen()
        async with house(listen.plugin("good")) as running:
            good = running.supervisor.get("good")
            assert good.status == "failed"
            assert f"Another program listens on {path}" in good.detail
    assert path.exists()
    assert marked_processes("good") == []


async def test_a_stranger_that_listens_before_the_plugin_does_is_refused(
    listen: Way, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, gate = listen.directory / "good.sock", tmp_path / "gate"
    async with house(listen.plugin("good", f"gate={gate}"), wait=False) as running:
        good = running.supervisor.get("good")
        await running.until(lambda: good.status == "starting" and good.epoch == 1)
        with socket.socket(socket.AF_UNIX) as squatter:
            squatter.bind(str(path))
            squatter.listen()
            squatter.settimeout(20)
            for _ in range(2):
                connection = await trio.to_thread.run_sync(lambda: squatter.accept()[0])
                with connection:
                    assert await ends(connection)
            assert good.status_report()["refused_connections"] >= 2
            # The plugin removes what lies at its path, and listens itself.
            gate.touch()
            await running.until(lambda: good.running)
        assert (await call(running, "good", "pid"))["pid"] == pid_of(good)
    assert "the runner did not start it" in caplog.text


async def test_a_second_connection_is_refused_while_the_first_lives(connect: Way) -> None:
    async with connect.house(connect.plugin("good")) as running:
        good = running.supervisor.get("good")
        # Even one of the plugin itself: its key is spent.
        assert await call(running, "good", "dial again") == {"received": ""}
        with stranger(connect.directory / "good.sock") as connection:
            assert await ends(connection)
        assert good.status_report()["refused_connections"] == 2
        assert (good.epoch, (await call(running, "good", "works"))["method"]) == (1, "works")


async def test_strangers_are_many_and_logged_once(
    connect: Way, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, gate = connect.directory / "good.sock", tmp_path / "gate"
    async with house(connect.plugin("good", f"gate={gate}"), wait=False) as running:
        good = running.supervisor.get("good")
        await running.until(lambda: good.status == "starting" and good.epoch == 1)
        with ExitStack() as stack:
            # More than the kernel lets wait: it turns some of them away itself.
            crowd = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(300)]
            for one in crowd:
                one.settimeout(0)
                try:
                    one.connect(str(path))
                except BlockingIOError:
                    break
            gate.touch()
            await running.until(lambda: good.running)
            while_starting = good.status_report()["refused_connections"]
            assert while_starting >= 100
            again = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(100)]
            for one in again:
                one.connect(str(path))
                one.settimeout(20)
            assert (await call(running, "good", "works"))["method"] == "works"
            for one in again:
                assert await ends(one)
            assert good.status_report()["refused_connections"] == while_starting + 100
        assert good.epoch == 1
    assert caplog.text.count("was refused") == 1


async def test_what_waited_while_nobody_was_expected_is_looked_at_then(connect: Way) -> None:
    """Between two epochs whoever connects waits; a stranger is refused when the next begins."""
    async with connect.house(connect.plugin("good"), timing=quick(backoff_first=60, backoff_most=60)) as running:
        good = running.supervisor.get("good")
        connect.kill(good)
        await running.until(lambda: good.status == "backoff")
        with trio.fail_after(20):
            while good.process is not None:
                await trio.lowlevel.checkpoint()
        with stranger(connect.directory / "good.sock") as connection:
            await trio.testing.wait_all_tasks_blocked()
            assert (good.status, good.status_report()["refused_connections"]) == ("backoff", 0)
            running.supervisor.start("good")
            assert await ends(connection)
        await running.until(lambda: good.epoch == 2 and good.running)
        assert good.status_report()["refused_connections"] == 1


async def test_one_that_failed_leaves_no_socket_to_connect_to(connect: Way) -> None:
    async with connect.house(connect.plugin("good", restart="never")) as running:
        good = running.supervisor.get("good")
        connect.kill(good)
        await running.until(lambda: good.status == "failed")
        assert not (connect.directory / "good.sock").exists()
        running.supervisor.start("good")
        await running.until(lambda: good.running)


async def test_one_is_restarted_and_changed_on_its_socket(way: Way) -> None:
    async with way.house(way.plugin("good")) as running:
        running.supervisor.restart("good")
        with trio.fail_after(30):
            assert (await running.supervisor.until_at_rest("good", 30)).epoch == 2
        changed = msgspec.structs.replace(way.plugin("good"), env={"COLOUR": "red"})
        assert running.supervisor.apply([changed]).restarted == ("good",)
        good = await running.supervisor.until_at_rest("good", 30)
        assert (good.epoch, good.status) == (3, "ready")
        assert (await call(running, "good", "pid"))["environ"]["COLOUR"] == "red"
        assert running.supervisor.apply([]).removed == ("good",)
        await running.until(lambda: good.status == "stopped")
        assert marked_processes("good") == []


# ---- what may be in the way


async def test_one_that_is_slow_is_waited_for(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    tries: list[Path] = []
    plain = link._connect

    def connect(path: Path) -> socket.socket:
        tries.append(path)
        if len(tries) == 5:
            gate.touch()
        return plain(path)

    monkeypatch.setattr(link, "_connect", connect)
    async with house(way.plugin("slow", f"gate={gate}"), timing=quick(dial_most=0.02), wait=False) as running:
        slow = running.supervisor.get("slow")
        await running.until(lambda: slow.status == "starting" and slow.epoch == 1)
        if way.transport == "connect":
            gate.touch()
        await running.until(lambda: slow.running)
        assert (slow.epoch, len(tries) >= 5) == (1, way.transport == "listen")


async def test_pauses_between_two_tries_grow(listen: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    enough = trio.Event()
    plain = trio.sleep

    async def sleep(seconds: float) -> None:
        if seconds <= 0.1:
            pauses.append(seconds)
        if len(pauses) == 6:
            enough.set()
        await plain(seconds)

    monkeypatch.setattr(trio, "sleep", sleep)
    timing = quick(handshake=60, dial_first=0.01, dial_most=0.1, stop=0.2)
    async with house(listen.plugin("mute", "gate=/nonexistent"), timing=timing, wait=False):
        with trio.fail_after(30):
            await enough.wait()
    assert pauses[:6] == [0.01, 0.02, 0.04, 0.08, 0.1, 0.1]


async def test_one_that_never_listens_is_given_up_and_the_path_is_named(listen: Way) -> None:
    timing = quick(handshake=0.3, restarts_in_window=0, stop=0.2)
    async with house(listen.plugin("mute", "gate=/nonexistent"), timing=timing) as running:
        mute = running.supervisor.get("mute")
        assert mute.status == "failed"
        assert f"nobody listens on {listen.directory / 'mute.sock'}" in mute.detail
        assert "300 ms" in mute.detail


async def test_one_that_never_connects_is_ended_and_the_path_is_named(connect: Way) -> None:
    timing = quick(handshake=0.3, restarts_in_window=1, stop=0.2)
    async with house(connect.plugin("mute", "gate=/nonexistent"), timing=timing) as running:
        mute = running.supervisor.get("mute")
        await running.until(lambda: mute.status == "failed")
        assert mute.epoch == 2
        assert f"it has not connected to {connect.directory / 'mute.sock'}" in mute.detail
    assert marked_processes("mute") == []


async def test_one_that_exits_before_it_connects_is_told_from_one_that_is_slow(way: Way) -> None:
    timing = quick(handshake=60, restarts_in_window=0)
    with trio.fail_after(20):
        async with house(way.plugin("bad", "exit-at-once", "code=7"), timing=timing) as running:
            bad = running.supervisor.get("bad")
            assert bad.status == "failed"
            assert "exited with code 7" in bad.detail
            assert "this plugin cannot start" in bad.detail


async def test_a_stale_socket_file_is_replaced(way: Way) -> None:
    stale(way.directory / "good.sock")
    async with way.house(way.plugin("good")) as running:
        assert running.supervisor.get("good").running


async def test_the_socket_of_a_killed_listener_does_not_keep_the_next_from_listening(listen: Way) -> None:
    async with listen.house(listen.plugin("good")) as running:
        good = running.supervisor.get("good")
        left = (listen.directory / "good.sock").stat().st_ino
        listen.kill(good)
        await running.until(lambda: good.epoch == 2 and good.running)
        assert (await call(running, "good", "works"))["method"] == "works"
        assert (listen.directory / "good.sock").exists(), left


@pytest.mark.parametrize("what", ["file", "directory", "symlink"])
async def test_what_is_no_socket_is_left_alone_and_named(way: Way, what: str) -> None:
    path = way.directory / "good.sock"
    target = way.directory / "precious"
    target.write_text("precious")
    if what == "file":
        path.write_text("precious")
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to(target)
    async with house(way.plugin("good"), way.plugin("other")) as running:
        good = running.supervisor.get("good")
        assert good.status == "failed"
        assert f"{path} exists and is not a socket" in good.detail
        assert running.supervisor.get("other").running
        # Once it is out of the way the plugin can be started.
        path.rename(way.directory / "moved")
        running.supervisor.start("good")
        await running.until(lambda: good.running)
    assert target.read_text() == "precious"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
async def test_a_socket_of_somebody_else_is_left_alone_and_named(way: Way) -> None:
    path = way.directory / "good.sock"
    stale(path)
    os.chown(path, 12345, -1)
    async with house(way.plugin("good")) as running:
        assert running.supervisor.get("good").status == "failed"
        assert f"{path} belongs to uid 12345" in running.supervisor.get("good").detail
    assert path.exists()


@pytest.mark.parametrize("mode", [0o770, 0o702])
async def test_a_directory_that_others_can_write_is_refused(way: Way, mode: int) -> None:
    way.directory = way.directory / "d"
    way.directory.mkdir()
    way.directory.chmod(mode)
    async with house(way.plugin("good")) as running:
        assert f"chmod 700 {way.directory}" in running.supervisor.get("good").detail


async def test_a_second_runner_does_not_take_the_plugin_socket_of_the_first(connect: Way) -> None:
    path = connect.directory / "good.sock"
    with another_runner(path) as process:
        async with house(connect.plugin("good")) as running:
            good = running.supervisor.get("good")
            assert good.status == "failed"
            assert f"Another runner (pid {process.pid}) already serves {path}" in good.detail
        with stranger(path):
            pass


async def test_a_socket_file_that_was_removed_is_made_anew_for_the_next_epoch(connect: Way) -> None:
    async with connect.house(connect.plugin("good")) as running:
        good = running.supervisor.get("good")
        (connect.directory / "good.sock").unlink()
        connect.kill(good)
        await running.until(lambda: good.epoch == 2 and good.running)
        assert (connect.directory / "good.sock").is_socket()


async def test_a_program_that_cannot_be_started_leaves_no_socket(connect: Way) -> None:
    spec = connect.plugin("gone", cwd="/nonexistent")
    async with house(spec) as running:
        assert "/nonexistent" in running.supervisor.get("gone").detail
        assert not (connect.directory / "gone.sock").exists()


async def test_without_descriptors_it_is_accepted_later(
    connect: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2
    plain = socket.socket.accept

    def accept(listener: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return plain(listener)

    async with house(connect.plugin("good", f"gate={gate}"), wait=False) as running:
        good = running.supervisor.get("good")
        await running.until(lambda: good.status == "starting" and good.epoch == 1)
        monkeypatch.setattr(socket.socket, "accept", accept)
        gate.touch()
        await running.until(lambda: good.running)
        assert not failures
        # And so are strangers, to be turned away.
        failures.append(OSError(errno.EMFILE, "Too many open files"))
        with stranger(connect.directory / "good.sock") as connection:
            assert await ends(connection)
        assert not failures
        assert (await call(running, "good", "works"))["method"] == "works"


async def test_a_request_finds_out_that_the_plugin_is_not_connected_yet(connect: Way) -> None:
    async with house(connect.plugin("mute", "gate=/nonexistent"), timing=quick(stop=0.2), wait=False) as running:
        mute = running.supervisor.get("mute")
        await running.until(lambda: mute.status == "starting" and mute.epoch == 1)
        with pytest.raises(RpcError) as error:
            await call(running, "mute", "anything")
        assert error.value.code == ErrorCode.PLUGIN_FAILED
        assert error.value.data == {"plugin": "mute", "status": "starting", "epoch": 1}
