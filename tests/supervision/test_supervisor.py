from __future__ import annotations

import errno
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from support.supervision_tools import QUICK, call, marked_processes, plugin
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import HealthResult
from utter_runner.rpc.interface import Limits
from utter_runner.supervision import instance as instance_module
from utter_runner.supervision.launch import INSTANCE_VARIABLE
from utter_runner.supervision.spec import Timing

House = Callable[..., Any]


async def test_a_plugin_becomes_ready_and_answers(house: House) -> None:
    async with house(plugin("good")) as running:
        instance = running.supervisor.get("good")
        assert (instance.status, instance.epoch) == ("ready", 1)
        assert await call(running, "good", "anything", {"n": 1}) == {"method": "anything", "params": {"n": 1}}
    assert running.history[-2:] == [("good", 1, "stopping"), ("good", 1, "stopped")]
    assert marked_processes("good") == []


async def test_its_environment_is_seven_variables_and_what_is_configured(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "x")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-9")
    spec = plugin("good", env={"MINE": "1"}, pass_env=("WAYLAND_DISPLAY", "NOT_SET_ANYWHERE"))
    async with house(spec) as running:
        seen = await call(running, "good", "pid")
    # LC_CTYPE is the interpreter's own doing (PEP 538).
    names = set(seen["environ"]) - {"LC_CTYPE"}
    needed = {"PATH", "LANG", "TMPDIR", INSTANCE_VARIABLE, "MINE", "WAYLAND_DISPLAY"}
    assert needed <= names <= needed | {"HOME", "USER", "XDG_RUNTIME_DIR"}
    # 0, 1, 2 and the one that lists the directory.
    assert len(seen["fds"]) == 4


async def test_a_killed_plugin_comes_back_in_a_new_epoch_and_its_requests_are_answered_once(house: House) -> None:
    async with house(plugin("good", "hang=slow")) as running:
        instance = running.supervisor.get("good")
        answers: list[RpcError | None] = []
        for _ in range(5):
            instance.request("slow", b"{}", lambda _result, error: answers.append(error), timeout=30)
        os.kill(instance.process.pid, signal.SIGKILL)
        await running.until(lambda: instance.epoch == 2 and instance.running)
        assert [error.code for error in answers if error] == [ErrorCode.PLUGIN_FAILED] * 5
        assert instance.restarts == 1
        assert (await call(running, "good", "again"))["method"] == "again"
    assert ("good", 1, "backoff") in running.history


def stand_still_until_exit(pid: int) -> None:
    """Let the loop take no turn until a process is gone, so that nothing of what it sent has been read by then."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("writing", [True, False])
async def test_the_answers_that_a_plugin_sent_before_it_ended_arrive(house: House, writing: bool) -> None:
    """More than one turn handles, whether its end is noticed by reading or by writing."""
    async with house(plugin("good", "hang=wait")) as running:
        instance = running.supervisor.get("good")
        answers: list[RpcError | None] = []
        unanswered: list[RpcError | None] = []
        for _ in range(300):
            instance.request("wait", b"{}", lambda _result, error: answers.append(error), timeout=30)
        instance.request("part", b"{}", lambda _result, error: unanswered.append(error), timeout=30)
        stand_still_until_exit(instance.process.pid)
        if writing:
            instance.request("wait", b"{}", lambda _result, error: unanswered.append(error), timeout=30)
        await running.until(lambda: instance.epoch == 2 and instance.running)
        assert answers == [None] * 300
        assert [error.code for error in unanswered if error] == [ErrorCode.PLUGIN_FAILED] * (1 + writing)


async def test_the_answers_that_a_plugin_sends_when_it_is_stopped_arrive(house: House) -> None:
    answers: list[RpcError | None] = []
    async with house(plugin("good", "hang=wait", "part-at-eof")) as running:
        instance = running.supervisor.get("good")
        for _ in range(300):
            instance.request("wait", b"{}", lambda _result, error: answers.append(error), timeout=30)
    assert answers == [None] * 300


@pytest.mark.parametrize("code", [0, 3])
async def test_one_that_exits_is_restarted_always(house: House, code: int) -> None:
    async with house(plugin("good")) as running:
        with pytest.raises(RpcError) as error:
            await call(running, "good", "exit", {"code": code})
        assert error.value.code == ErrorCode.PLUGIN_FAILED
        await running.until(lambda: running.supervisor.get("good").epoch == 2)


@pytest.mark.parametrize(
    ("restart", "code", "status"),
    [("never", 3, "failed"), ("on-failure", 0, "failed"), ("on-failure", 3, "ready"), ("always", 125, "failed")],
)
async def test_restart_policies(house: House, restart: str, code: int, status: str) -> None:
    async with house(plugin("good", restart=restart)) as running:
        instance = running.supervisor.get("good")
        with pytest.raises(RpcError):
            await call(running, "good", "exit", {"code": code})
        await running.until(lambda: instance.status in {"failed", "backoff"})
        await running.until(lambda: instance.status == status)
        with pytest.raises(RpcError) if status == "failed" else _nothing():
            await call(running, "good", "anything")


class _nothing:  # noqa: N801 - reads as a statement beside pytest.raises
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


async def test_restarts_are_limited(house: House) -> None:
    timing = Timing(backoff_first=0.001, backoff_most=0.002, restarts_in_window=2, stop=0.5)
    async with house(plugin("bad", "exit-at-once", "code=7"), plugin("good"), timing=timing) as running:
        bad = running.supervisor.get("bad")
        await running.until(lambda: bad.status == "failed")
        assert (bad.epoch, bad.restarts) == (3, 2)
        assert "code 7" in bad.detail
        assert "this plugin cannot start" in bad.detail
        assert "limit" in bad.detail
        assert running.supervisor.get("good").running


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        (["bad-hello"], ErrorCode.PLUGIN_FAILED, "protocol.hello"),
        (["protocol=2.0"], ErrorCode.INCOMPATIBLE, "2.0"),
        (["abi=9"], ErrorCode.INCOMPATIBLE, "9"),
    ],
)
async def test_a_bad_handshake_fails_that_plugin_alone(
    house: House, behaviour: list[str], code: int, words: str
) -> None:
    timing = Timing(backoff_first=0.001, backoff_most=0.002, restarts_in_window=1, stop=0.5)
    async with house(plugin("bad", *behaviour), plugin("good"), timing=timing) as running:
        bad = running.supervisor.get("bad")
        await running.until(lambda: bad.status == "failed")
        assert words in bad.detail
        # Who speaks another version is not tried again.
        assert bad.restarts == (0 if code == ErrorCode.INCOMPATIBLE else 1)
        assert running.supervisor.get("good").running


async def test_a_plugin_that_never_answers_hello_is_given_up(house: House) -> None:
    timing = Timing(handshake=0.3, backoff_first=0.001, restarts_in_window=0, stop=0.3)
    async with house(plugin("mute", "hang=protocol.hello"), timing=timing) as running:
        mute = running.supervisor.get("mute")
        assert mute.status == "failed"
        assert "protocol.hello" in mute.detail or "handshake" in mute.detail


async def test_a_program_that_does_not_exist_is_named(house: House) -> None:
    spec = msgspec.structs.replace(plugin("gone"), argv=("no-such-program-anywhere",))
    async with house(spec, plugin("good")) as running:
        gone = running.supervisor.get("gone")
        assert gone.status == "failed"
        assert "no-such-program-anywhere" in gone.detail
        assert running.supervisor.get("good").running


async def test_junk_on_stdout_is_counted_and_skipped(house: House) -> None:
    async with house(plugin("chatty")) as running:
        assert await call(running, "chatty", "junk") == {}
        assert (await call(running, "chatty", "next"))["method"] == "next"
        assert running.supervisor.get("chatty").junk_bytes == len(b"a stray print\x1b[0m\n")
        assert running.supervisor.get("chatty").epoch == 1


async def test_a_flood_of_junk_fails_the_epoch_with_a_message_that_helps(house: House) -> None:
    async with house(plugin("chatty")) as running:
        chatty = running.supervisor.get("chatty")
        with pytest.raises(RpcError, match="stdout is for frames"):
            await call(running, "chatty", "flood")
        await running.until(lambda: chatty.epoch == 2 and chatty.running)


async def test_stderr_of_any_size_and_kind_is_drained_and_kept_as_a_tail(house: House) -> None:
    async with house(plugin("loud")) as running:
        assert await call(running, "loud", "stderr") == {}
        process = running.supervisor.get("loud").process
        with trio.fail_after(10):
            while "last words" not in process.stderr_tail:
                await trio.lowlevel.checkpoint()
        assert len(process.stderr_tail) <= 65536
        assert "\x1b" not in process.stderr_tail


@pytest.mark.parametrize(
    "behaviour",
    [
        ["ignore-eof"],
        ["ignore-eof", "ignore-term"],
        ["grandchild"],
        ["runaway"],
        ["grandchild", "runaway", "ignore-eof"],
    ],
)
async def test_nothing_is_left_of_a_stopped_plugin(house: House, behaviour: list[str]) -> None:
    timing = Timing(stop=0.3, backoff_first=0.01)
    async with house(plugin("clingy", *behaviour), timing=timing):
        assert len(marked_processes("clingy")) == 1 + len({"grandchild", "runaway"} & set(behaviour))
    assert marked_processes("clingy") == []


@pytest.mark.parametrize("behaviour", ["grandchild", "runaway"])
async def test_a_killed_plugin_is_noticed_though_its_child_holds_stdout(house: House, behaviour: str) -> None:
    async with house(plugin("clingy", behaviour)) as running:
        instance = running.supervisor.get("clingy")
        first = set(marked_processes("clingy"))
        os.kill(instance.process.pid, signal.SIGKILL)
        await running.until(lambda: instance.epoch == 2 and instance.running)
        assert not first & set(marked_processes("clingy"))


async def test_a_plugin_that_stops_answering_health_is_restarted(house: House) -> None:
    timing = Timing(health_interval=0.2, health_timeout=0.2, backoff_first=0.01, stop=0.3)
    async with house(plugin("good"), timing=timing) as running:
        instance = running.supervisor.get("good")
        os.kill(instance.process.pid, signal.SIGSTOP)
        await running.until(lambda: instance.epoch == 2 and instance.running)
    assert any(status == "backoff" for _, _, status in running.history)


async def test_admission_does_not_depend_on_the_order_of_the_config(house: House) -> None:
    specs = [
        plugin("third", "requires=experimental/b@1"),
        plugin("second", "provides=experimental/b@1", "requires=experimental/a@1"),
        plugin("first", "provides=experimental/a@1"),
    ]
    async with house(*specs) as running:
        assert [one.status for one in running.supervisor.instances] == ["ready"] * 3
        admitted = [name for name, _, status in running.history if status == "ready"]
        assert admitted == ["first", "second", "third"]
    stopped = [name for name, _, status in running.history if status == "stopped"]
    assert stopped[-1] == "first"
    assert stopped[0] == "third"


async def test_a_gap_and_a_cycle_are_named(house: House) -> None:
    specs = [
        plugin("lonely", "requires=experimental/nowhere@1"),
        plugin("hen", "provides=experimental/hen@1", "requires=experimental/egg@1"),
        plugin("egg", "provides=experimental/egg@1", "requires=experimental/hen@1"),
        plugin("good"),
    ]
    async with house(*specs) as running:
        lonely, hen, egg, good = running.supervisor.instances
        assert (lonely.status, hen.status, egg.status, good.status) == ("failed", "failed", "failed", "ready")
        assert "experimental/nowhere@1" in lonely.detail
        assert "no configured plugin" in lonely.detail
        assert "cycle" in hen.detail
        assert lonely.missing == ("experimental/nowhere@1",)
    assert marked_processes("lonely") == []


async def test_dependents_are_degraded_while_their_provider_is_down(house: House) -> None:
    specs = [plugin("user", "requires=experimental/a@1"), plugin("provider", "provides=experimental/a@1")]
    timing = Timing(backoff_first=0.3, stop=0.5)
    async with house(*specs, timing=timing) as running:
        user, provider = running.supervisor.instances
        os.kill(provider.process.pid, signal.SIGKILL)
        await running.until(lambda: user.status == "degraded")
        assert "experimental/a@1" in user.detail
        await running.until(lambda: user.status == "ready" and provider.epoch == 2)


async def test_a_refused_plugin_starts_again_once_its_provider_is_there(house: House, tmp_path: Path) -> None:
    specs = [
        plugin("user", "requires=experimental/a@1"),
        plugin("provider", "provides=experimental/a@1", "exit-at-once"),
    ]
    timing = Timing(restarts_in_window=0, stop=0.2)
    async with house(*specs, timing=timing) as running:
        user, provider = running.supervisor.instances
        await running.until(lambda: user.status == "failed" and provider.status == "failed")
        provider.spec = plugin("provider", "provides=experimental/a@1")
        running.supervisor.start("provider")
        await running.until(lambda: user.status == "ready" and provider.status == "ready")


async def test_starting_one_that_runs_does_not_cut_short_a_later_pause(house: House) -> None:
    timing = Timing(backoff_first=30.0, stop=0.5)
    async with house(plugin("good"), timing=timing) as running:
        good = running.supervisor.get("good")
        running.supervisor.start("good")
        assert not running.supervisor._lives["good"].wake.is_set()
        os.kill(good.process.pid, signal.SIGKILL)
        await running.until(lambda: good.status == "backoff")
        running.supervisor.start("good")
        await running.until(lambda: good.epoch == 2 and good.running)


async def test_whoever_fails_while_they_are_told_of_a_change_harms_no_plugin(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    class Bomb:
        def set(self) -> None:
            raise RuntimeError("a defect elsewhere")

    async with house(plugin("good"), plugin("other")) as running:
        good, other = running.supervisor.instances
        told = trio.Event()
        running._changed += [told, Bomb()]
        os.kill(good.process.pid, signal.SIGKILL)
        await told.wait()
        await running.until(lambda: good.epoch == 2 and good.running)
        assert (other.status, other.epoch) == ("ready", 1)
    assert "a defect elsewhere" in caplog.text


async def test_an_unwell_plugin_is_admitted_as_degraded(house: House) -> None:
    async with house(plugin("ill", "unwell")) as running:
        ill = running.supervisor.get("ill")
        assert (ill.status, ill.detail) == ("degraded", "unwell")
        assert (await call(running, "ill", "works"))["method"] == "works"


async def test_what_a_plugin_says_of_itself_last_is_what_holds(house: House) -> None:
    walk = [
        HealthResult(status=status, detail=detail) for status in ("ok", "degraded") for detail in ("", "one", "two")
    ]
    async with house(plugin("good")) as running:
        good = running.supervisor.get("good")
        for before, after in itertools.permutations(walk, 2):
            for said in (before, after):
                running.supervisor.note_health(good, said)
            told = after.detail
            if after.status == "degraded":
                told = told or "the plugin reports that it is degraded"
            assert (good.status, good.detail) == ("degraded" if after.status == "degraded" else "ready", told)


async def test_what_it_says_while_it_is_asked_is_newer_than_its_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(plugin("good")) as running:
        good = running.supervisor.get("good")

        async def late() -> HealthResult:
            running.supervisor.note_health(good, HealthResult(status="degraded", detail="no model"))
            return HealthResult(status="degraded", detail="loading")

        monkeypatch.setattr(good, "health", late)
        await running.supervisor.health.check(running.supervisor._lives["good"])
        assert (good.status, good.detail) == ("degraded", "no model")


async def test_many_plugins_stop_side_by_side(house: House) -> None:
    timing = Timing(stop=0.4)
    async with house(*[plugin(f"slow{n}", "ignore-eof", "ignore-term") for n in range(6)], timing=timing) as running:
        before = len(running.history)
    ends = [status for _, _, status in running.history[before:]]
    assert ends == ["stopping"] * 6 + ["stopped"] * 6


async def test_unknown_plugins_are_minus_32005(house: House) -> None:
    async with house() as running:
        with pytest.raises(RpcError) as error:
            running.supervisor.get("nobody")
        assert error.value.code == ErrorCode.CAPABILITY_MISSING


async def test_whoever_can_serve_soonest_provides(house: House) -> None:
    timing = Timing(restarts_in_window=0, stop=0.3)
    specs = [
        plugin("broken", "exit-at-once", provides=("experimental/a@1",)),
        plugin("slow", "hang=protocol.hello", provides=("experimental/a@1",)),
        plugin("good", provides=("experimental/a@1",)),
    ]
    async with house(*specs[::2], timing=timing) as running:
        assert running.supervisor.provider("experimental/a@1").id == "good"
        with trio.fail_after(5):
            assert (await running.supervisor.wait_provider("experimental/a@1", 5)).id == "good"
        os.kill(running.supervisor.get("good").process.pid, signal.SIGKILL)
        await running.until(lambda: running.supervisor.get("good").status == "failed")
        with pytest.raises(RpcError) as error:
            await running.supervisor.wait_provider("experimental/a@1", 5)
        assert error.value.code == ErrorCode.PLUGIN_FAILED


async def test_a_second_provider_that_comes_up_is_not_missed(house: House) -> None:
    timing = Timing(handshake=60.0, backoff_first=60.0, backoff_most=60.0, stop=0.3)
    specs = [plugin(name, provides=("experimental/a@1",)) for name in ("first", "second")]
    async with house(*specs, timing=timing) as running:
        first, second = running.supervisor.instances
        first.spec = plugin("first", "hang=protocol.hello", provides=("experimental/a@1",))
        os.kill(first.process.pid, signal.SIGKILL)
        os.kill(second.process.pid, signal.SIGKILL)
        await running.until(lambda: first.status == second.status == "backoff")
        running.supervisor.start("first")
        running.supervisor.start("second")
        # The first one says nothing for a minute.
        with trio.fail_after(30):
            assert (await running.supervisor.wait_provider("experimental/a@1", 50)).id == "second"


async def test_a_plugin_that_others_ask_too_much_is_not_taken_for_unwell(house: House) -> None:
    async with house(plugin("busy", "hang=slow"), timing=QUICK, limits=Limits(max_in_flight=4)) as running:
        busy = running.supervisor.get("busy")
        for _ in range(4):
            busy.request("slow", b"{}", lambda *_: None, timeout=60)
        life = running.supervisor._lives["busy"]
        await running.supervisor.health.check(life)
        assert (busy.status, life.unwell) == ("ready", "")


async def test_what_cannot_be_watched_over_is_ended_and_the_plugin_fails_alone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptors(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(instance_module, "ChildProcess", no_descriptors)
    async with house(plugin("lost")) as running:
        lost = running.supervisor.get("lost")
        assert lost.status == "failed"
        assert "Too many open files" in lost.detail
        assert marked_processes("lost") == []
