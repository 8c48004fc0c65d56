"""A plugin that somebody else starts: waited for without end, let in by its executable, and left alone."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import stat
import sys
from pathlib import Path

import msgspec
import pytest
import trio
import trio.lowlevel

from support.daemon import External
from support.supervision_tools import call, house, plugin
from support.transports import Way, pid_of, quick
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.supervision.launch import SOCKET_VARIABLE

PYTHON = os.path.realpath(sys.executable)


@pytest.fixture(params=["connect-external", "listen-external"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    return Way(request.param, tmp_path)


@pytest.fixture
def connect(tmp_path: Path) -> Way:
    return Way("connect-external", tmp_path)


@pytest.fixture
def listen(tmp_path: Path) -> Way:
    return Way("listen-external", tmp_path)


# ---- its absence


async def test_the_start_does_not_wait_for_it(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    spec = way.plugin("late", provides=("experimental/a@1",))
    async with house(spec, plugin("good"), timing=quick()) as running:
        late, good = running.supervisor.instances
        assert (late.status, late.epoch, good.status) == ("waiting", 0, "ready")
        assert str(way.directory / "late.sock") in late.detail
        with pytest.raises(RpcError) as error:
            await call(running, "late", "anything")
        assert error.value.code == ErrorCode.PLUGIN_FAILED
        assert error.value.data == {"plugin": "late", "status": "waiting", "epoch": 0}
        # Nobody knows when it comes, so nobody waits.
        began = trio.current_time()
        with pytest.raises(RpcError, match="late is waiting"):
            await running.supervisor.wait_provider("experimental/a@1", 30)
        assert trio.current_time() - began < 5
        with way.externals["late"]:
            await running.until(lambda: late.running)
            assert (late.epoch, pid_of(late)) == (1, way.externals["late"].pid)
            assert await running.supervisor.wait_provider("experimental/a@1", 5) is late
    # Said once, however often it was looked for.
    assert caplog.text.count("late is waiting") == 1


async def test_its_dependents_fail_and_are_started_when_it_comes(way: Way) -> None:
    specs = [
        plugin("user", "requires=experimental/a@1"),
        way.plugin("late", provides=("experimental/a@1",)),
        plugin("good"),
    ]
    async with house(*specs, timing=quick()) as running:
        user, late, good = running.supervisor.instances
        await running.until(lambda: user.status == "failed")
        assert "experimental/a@1 of late, which is not running" in user.detail
        assert user.missing == ("experimental/a@1",)
        assert good.running
        with way.externals["late"]:
            await running.until(lambda: user.running)
            assert late.running
            way.kill(late)
            await running.until(lambda: user.status == "degraded" and late.status == "waiting")
            way.begin(late)
            await running.until(lambda: user.status == "ready" and late.epoch == 2)


async def test_one_that_declares_itself_only_in_the_handshake_starts_its_dependents_too(way: Way) -> None:
    specs = [plugin("user", "requires=experimental/a@1"), way.plugin("late", "provides=experimental/a@1")]
    async with house(*specs, timing=quick()) as running:
        user = running.supervisor.get("user")
        await running.until(lambda: user.status == "failed")
        assert "no configured plugin provides" in user.detail
        with way.externals["late"]:
            await running.until(lambda: user.running)


async def test_one_that_requires_something_comes_back_once_it_is_there(way: Way) -> None:
    specs = [way.plugin("user", "requires=experimental/a@1"), plugin("giver", "provides=experimental/a@1")]
    timing = quick(restarts_in_window=0)
    async with house(*specs, timing=timing) as running:
        user, giver = running.supervisor.instances
        os.kill(pid_of(giver), signal.SIGKILL)
        await running.until(lambda: giver.status == "failed")
        with way.externals["user"]:
            await running.until(lambda: user.status == "failed")
            assert "experimental/a@1 of giver, which is not running" in user.detail
            assert ("user", 1, "waiting") not in running.history
            running.supervisor.start("giver")
            await running.until(lambda: user.running)


async def test_one_that_is_restarted_is_waited_for_and_one_that_is_stopped_is_not(way: Way) -> None:
    async with house(way.plugin("late"), timing=quick()) as running:
        supervisor = running.supervisor
        with way.externals["late"]:
            await running.until(lambda: supervisor.get("late").running)
            supervisor.restart("late")
            assert supervisor._lives["late"].at_rest is False
            await running.until(lambda: supervisor.get("late").running and supervisor.get("late").epoch == 2)
            supervisor.hold("late", "a test")
            assert (await supervisor.until_at_rest("late", 30)).status == "stopped"
            supervisor.start("late")
            await running.until(lambda: supervisor.get("late").running and supervisor.get("late").epoch == 3)


async def test_one_that_listens_finds_the_directory_for_its_socket(listen: Way) -> None:
    listen.directory = listen.directory / "run" / "plugins"
    async with house(listen.plugin("late"), timing=quick()) as running:
        assert running.supervisor.get("late").status == "waiting"
        with listen.externals["late"]:
            await running.until(lambda: running.supervisor.get("late").running)
    assert stat.S_IMODE(listen.directory.stat().st_mode) == 0o700


async def test_a_defect_while_it_is_waited_for_is_that_plugins_end_alone(
    connect: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen_for(_spec: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("utter_runner.supervision.link.listen_for", listen_for)
    async with house(connect.plugin("late"), plugin("good"), timing=quick()) as running:
        late, good = running.supervisor.instances
        assert (late.status, good.status) == ("failed", "ready")
        assert late.detail == "internal error: can't start new thread"
        monkeypatch.undo()
        running.supervisor.start("late")
        with connect.externals["late"]:
            await running.until(lambda: late.running)


async def test_stopping_does_not_wait_for_it(way: Way) -> None:
    with trio.fail_after(10):
        async with house(way.plugin("late"), timing=quick()) as running:
            assert running.supervisor.get("late").status == "waiting"
    assert running.history[-2:] == [("late", 0, "stopping"), ("late", 0, "stopped")]
    assert not (way.directory / "late.sock").exists()


async def test_it_may_come_and_go_as_often_as_it_likes(way: Way) -> None:
    timing = quick(restarts_in_window=2, backoff_first=0.01, backoff_most=60)
    async with way.house(way.plugin("restless", restart="never"), timing=timing) as running:
        restless = running.supervisor.get("restless")
        for epoch in range(2, 9):
            with pytest.raises(RpcError):
                await call(running, "restless", "hang up")
            await running.until(lambda epoch=epoch: restless.epoch == epoch and restless.running)  # type: ignore[misc]  # bound now
        assert restless.restarts == 7
    assert ("restless", 8, "failed") not in running.history


async def test_pauses_grow_while_it_is_of_no_use(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    timing = quick(backoff_first=0.02, backoff_most=0.2, restarts_in_window=1)
    async with way.house(way.plugin("old", "protocol=2.0"), timing=timing) as running:
        old = running.supervisor.get("old")
        await running.until(lambda: old.epoch >= 5 and "2.0" in old.detail)
    # Whoever starts it may start a newer one at any time.
    assert "failed" not in {status for _, _, status in running.history}
    assert "it is waited for again in 0.2 s" in caplog.text


async def test_a_debugger_that_starts_it_anew_finds_the_runner_at_once(way: Way) -> None:
    timing = quick(backoff_first=0.02, backoff_most=60)
    async with way.house(way.plugin("good"), timing=timing) as running:
        good = running.supervisor.get("good")
        for epoch in range(2, 6):
            way.kill(good)
            way.begin(good)
            await running.until(lambda epoch=epoch: good.epoch == epoch and good.running)  # type: ignore[misc]  # bound now


async def test_the_runner_may_be_started_anew_while_it_lives(way: Way) -> None:
    spec = way.plugin("good")
    with way.externals["good"] as process:
        for _ in range(3):
            async with house(spec, timing=quick()) as running:
                good = running.supervisor.get("good")
                await running.until(lambda good=good: good.running)  # type: ignore[misc]  # bound now
                assert (good.epoch, pid_of(good)) == (1, process.pid)
                assert (await call(running, "good", "works"))["method"] == "works"
        assert process.process is not None
        assert process.process.poll() is None


async def test_one_that_does_not_take_its_leave_is_disconnected(way: Way) -> None:
    timing = quick(stop=0.2)
    async with way.house(way.plugin("rude"), timing=timing) as running:
        pid = pid_of(running.supervisor.get("rude"))
        os.kill(pid, signal.SIGSTOP)
        began = trio.current_time()
        await running.supervisor.stop()
        assert 0.2 <= trio.current_time() - began < 5
        os.kill(pid, signal.SIGCONT)


async def test_its_last_state_says_how_it_ended(way: Way) -> None:
    async with way.house(way.plugin("good")) as running:
        good = running.supervisor.get("good")
        way.kill(good)
        await running.until(lambda: good.status == "waiting" and "before that" in good.detail)
        assert "the connection ended" in good.detail
        assert good.status_report()["pid"] is None


# ---- who may be it


async def test_without_allow_binaries_any_program_of_the_user_may(way: Way) -> None:
    async with way.house(way.plugin("good")) as running:
        assert running.supervisor.get("good").running


async def test_the_executables_that_are_allowed_are_let_in_and_no_others(way: Way, tmp_path: Path) -> None:
    spec = way.plugin("good", allow_binaries=("/nonexistent", "/bin/true", "~nobody-at-all/x"))
    with way.externals["good"]:
        async with house(spec, timing=quick()) as running:
            good = running.supervisor.get("good")
            with trio.fail_after(20):
                while good.status_report()["refused_connections"] < 3:
                    await trio.lowlevel.checkpoint()
            assert (good.status, good.epoch) == ("waiting", 0)
    spec = msgspec.structs.replace(spec, allow_binaries=("/bin/true", PYTHON))
    with way.externals["good"]:
        async with house(spec, timing=quick()) as running:
            good = running.supervisor.get("good")
            await running.until(lambda: good.running)
            assert good.status_report()["refused_connections"] == 0


async def test_a_copy_of_an_allowed_executable_is_another_one(connect: Way, tmp_path: Path) -> None:
    allowed = tmp_path / "python3"
    shutil.copy2(PYTHON, allowed)
    spec = connect.plugin("good", allow_binaries=(str(allowed),))
    with connect.externals["good"]:
        async with house(spec, timing=quick()) as running:
            good = running.supervisor.get("good")
            with trio.fail_after(20):
                while not good.status_report()["refused_connections"]:
                    await trio.lowlevel.checkpoint()
            assert good.status == "waiting"
            # The very file, by another name; but links are followed when the runner starts, and not later.
            allowed.unlink()
            allowed.symlink_to(PYTHON)
            before = good.status_report()["refused_connections"]
            with trio.fail_after(20):
                while good.status_report()["refused_connections"] < before + 2:
                    await trio.lowlevel.checkpoint()
            assert good.status == "waiting"
        async with house(spec, timing=quick()) as running:
            good = running.supervisor.get("good")
            await running.until(lambda: good.running)


async def test_who_is_refused_is_logged_with_the_reason(connect: Way, caplog: pytest.LogCaptureFixture) -> None:
    spec = connect.plugin("good", allow_binaries=("/bin/true",))
    async with house(spec, timing=quick()) as running:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(spec.socket_path)
            assert await trio.to_thread.run_sync(stranger.recv, 1) == b""
        assert running.supervisor.get("good").status == "waiting"
    assert f"a connection with pid {os.getpid()} was refused: its executable {PYTHON} is not in allow_binaries" in (
        caplog.text
    )


async def test_a_second_one_is_refused_while_the_first_is_connected(connect: Way) -> None:
    env = {**os.environ, SOCKET_VARIABLE: str(connect.directory / "good.sock")}
    async with connect.house(connect.plugin("good")) as running:
        good = running.supervisor.get("good")
        first = pid_of(good)
        with External("good", env=env) as second:
            with trio.fail_after(20):
                while not good.status_report()["refused_connections"]:
                    await trio.lowlevel.checkpoint()
            assert (pid_of(good), good.epoch) == (first, 1)
            # When the first is gone the place is free.
            connect.kill(good)
            await running.until(lambda: good.epoch == 2 and good.running)
            assert pid_of(good) == second.pid


# ---- handshakes that are none


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Content-Le",
        b"Content-Length: 100\r\n\r\n{",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 70_000,
        b"Content-Length: -1\r\n\r\n",
    ],
    ids=["silence", "half a header", "half a frame", "another protocol", "junk", "no length"],
)
async def test_whoever_attaches_and_does_not_greet_is_given_up_and_the_next_one_is_let_in(
    connect: Way, data: bytes, leaves: bool
) -> None:
    spec = connect.plugin("good")
    async with house(spec, timing=msgspec.structs.replace(quick(), handshake=0.3)) as running:
        good = running.supervisor.get("good")
        with socket.socket(socket.AF_UNIX) as broken:
            broken.connect(spec.socket_path)
            broken.settimeout(20)
            await running.until(lambda: good.epoch == 1)
            broken.sendall(data)
            if not leaves:
                # It is closed from the other side.
                await trio.to_thread.run_sync(_read_all, broken)
        await running.until(lambda: good.status in {"waiting", "backoff"})
        assert not good.running
    async with house(spec, timing=quick()) as running:
        with connect.externals["good"]:
            good = running.supervisor.get("good")
            await running.until(lambda: good.running)


def _read_all(connection: socket.socket) -> None:
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        # What it had sent was not read.
        pass


# ---- what may be in the way


@pytest.mark.parametrize("what", ["file", "other user", "listener"])
async def test_what_is_in_the_way_is_named_until_it_is_gone(connect: Way, what: str) -> None:
    path = connect.directory / "good.sock"
    with socket.socket(socket.AF_UNIX) as other:
        if what == "file":
            path.write_text("precious")
        else:
            other.bind(str(path))
        if what == "other user":
            if os.getuid():
                pytest.skip("only root can give a file away")
            os.chown(path, 12345, -1)
        elif what == "listener":
            other.listen()
        async with house(connect.plugin("good"), timing=quick()) as running:
            good = running.supervisor.get("good")
            await running.until(lambda: str(path) in good.detail)
            assert good.status == "waiting"
            with connect.externals["good"]:
                assert path.exists()
                path.unlink()
                await running.until(lambda: good.running)


@pytest.mark.parametrize(
    ("what", "words"),
    [("file", "it is not a socket"), ("other user", "it belongs to uid 12345"), ("full", "does not accept")],
)
async def test_what_cannot_be_dialled_is_named_until_it_can(listen: Way, what: str, words: str) -> None:
    path = listen.directory / "good.sock"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
        if what == "file":
            path.write_text("precious")
        else:
            other.bind(str(path))
        if what == "other user":
            if os.getuid():
                pytest.skip("only root can give a file away")
            os.chown(path, 12345, -1)
        elif what == "full":
            other.listen(0)
            waiting.connect(str(path))
        async with house(listen.plugin("good"), timing=quick()) as running:
            good = running.supervisor.get("good")
            await running.until(lambda: words in good.detail)
            assert (good.status, str(path) in good.detail) == ("waiting", True)
            assert path.exists()
            # It removes what lies at its path itself.
            with listen.externals["good"]:
                await running.until(lambda: good.running)
