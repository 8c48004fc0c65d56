"""What holds for a plugin however it is connected."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from support.supervision_tools import call, marked_processes
from support.transports import Way, pid_of, quick, wait_gone
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.rpc.interface import Limits


def count_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def test_it_is_greeted_and_answers(way: Way) -> None:
    async with way.house(way.plugin("good", "provides=experimental/a@1")) as running:
        good = running.supervisor.get("good")
        assert (good.status, good.epoch, good.provides) == ("ready", 1, ("experimental/a@1",))
        assert await call(running, "good", "anything", {"n": 1}) == {"method": "anything", "params": {"n": 1}}
        seen = await call(running, "good", "pid")
        report = good.status_report()
        # Inside a sandbox processes have other numbers.
        pid = seen["pid"] if way.sandbox is None else good.process.pid
        assert (report["transport"], report["pid"], report["restarts"]) == (way.transport, pid, 0)
        assert report["refused_connections"] == 0
        # 0, 1, 2, the one that lists the directory, and the sockets.
        assert len(seen["fds"]) == 4 + {"stdio": 0, "connect": 1, "listen": 2}[way.transport]
        assert not [warning for warning in good.handshake.warnings if "transport" in warning or "speaks" in warning]
    assert running.history[-2:] == [("good", 1, "stopping"), ("good", 1, "stopped")]
    assert good.status_report()["pid"] is None


async def test_messages_of_a_megabyte_go_both_ways(way: Way) -> None:
    async with way.house(way.plugin("good")) as running:
        text = "ü" * 500_000
        assert (await call(running, "good", "echo", {"text": text}))["params"] == {"text": text}


async def test_many_requests_are_each_answered_once(way: Way) -> None:
    async with way.house(way.plugin("good"), way.plugin("other")) as running:
        answers: list[Any] = []
        for _ in range(200):
            for name in ("good", "other"):
                running.supervisor.get(name).request("x", b"{}", lambda *answer: answers.append(answer), timeout=10)
        await call(running, "good", "last")
        await call(running, "other", "last")
        assert len(answers) == 400
        assert not [error for _, error in answers if error is not None]


async def test_a_killed_one_comes_back_in_a_new_epoch_and_its_requests_are_answered_once(way: Way) -> None:
    async with way.house(way.plugin("good", "hang=slow")) as running:
        good = running.supervisor.get("good")
        answers: list[RpcError | None] = []
        for _ in range(5):
            good.request("slow", b"{}", lambda _result, error: answers.append(error), timeout=30)
        way.kill(good)
        await running.until(lambda: good.status not in {"ready", "degraded"})
        with pytest.raises(RpcError) as refused:
            await call(running, "good", "too early")
        assert refused.value.code == ErrorCode.PLUGIN_FAILED
        way.begin(good)
        await running.until(lambda: good.epoch == 2 and good.running)
        assert [error.code for error in answers if error] == [ErrorCode.PLUGIN_FAILED] * 5
        assert good.restarts == 1
        assert (await call(running, "good", "after"))["method"] == "after"
        assert len(answers) == 5
    assert ("good", 1, "backoff") in running.history
    assert ("good", 1, "waiting") in running.history or not way.external


async def test_an_answer_belongs_to_the_epoch_that_was_asked(way: Way) -> None:
    """Ids begin anew with each epoch; whoever asked the second is not answered by the first."""
    async with way.house(way.plugin("good", "hang=slow")) as running:
        good = running.supervisor.get("good")
        old: list[RpcError | None] = []
        seen = await call(running, "good", "pid")
        first = seen["environ"].get("UTTER_INSTANCE") or f'"pid": {seen["pid"]},'
        old_id = good.request("slow", b"{}", lambda _result, error: old.append(error), timeout=30)
        way.kill(good)
        way.begin(good)
        await running.until(lambda: good.epoch == 2 and good.running)
        new: list[Any] = []
        done = trio.Event()

        def on_reply(result: Any, _error: RpcError | None) -> None:
            new.append(result)
            done.set()

        new_id = good.request("pid", b"{}", on_reply, timeout=30)
        assert (new_id, len(old)) == ((old_id or 0) - 1, 1)
        with trio.fail_after(10):
            await done.wait()
        second = good.process.mark if good.process else f'"pid": {pid_of(good)},'
        assert first.encode() not in bytes(new[0])
        assert second.encode() in bytes(new[0])


async def test_an_answer_that_comes_too_late_is_dropped_and_counted(way: Way) -> None:
    async with way.house(way.plugin("good")) as running:
        good = running.supervisor.get("good")
        answers: list[Any] = []
        request = good.request("x", b"{}", lambda *answer: answers.append(answer), timeout=10)
        assert request is not None
        good.cancel(request)
        await call(running, "good", "next")
        assert [error.code for _, error in answers] == [ErrorCode.CANCELLED]
        assert good.status_report()["late_replies"] == 1


@pytest.mark.parametrize("method", ["hang up", "half close"])
async def test_an_epoch_ends_with_its_connection_whatever_the_process_does(way: Way, method: str) -> None:
    async with way.house(way.plugin("good", "hang=slow", "ignore-eof")) as running:
        good = running.supervisor.get("good")
        first = pid_of(good)
        answers: list[RpcError | None] = []
        good.request("slow", b"{}", lambda _result, error: answers.append(error), timeout=30)
        with pytest.raises(RpcError) as error:
            await call(running, "good", method)
        assert error.value.code == ErrorCode.PLUGIN_FAILED
        await running.until(lambda: good.epoch == 2 and good.running)
        assert [error.code for error in answers if error] == [ErrorCode.PLUGIN_FAILED]
        # What the runner has started it ends; what it has not comes back.
        assert (pid_of(good) == first) == way.external
        assert (await call(running, "good", "after"))["method"] == "after"


async def test_one_that_does_not_answer_health_is_given_another_epoch(way: Way) -> None:
    timing = quick(health_interval=0.2, health_timeout=0.2, stop=0.3)
    async with way.house(way.plugin("good"), timing=timing) as running:
        good = running.supervisor.get("good")
        first = pid_of(good)
        way.suspend(good)
        await running.until(lambda: good.status == "backoff")
        assert "plugin.health" in good.detail
        if way.external:
            os.kill(first, signal.SIGCONT)
        await running.until(lambda: good.epoch >= 2 and good.running)
        assert (pid_of(good) == first) == way.external


async def test_health_is_asked_for_and_noted(way: Way) -> None:
    async with way.house(way.plugin("ill", "unwell"), way.plugin("good")) as running:
        ill = running.supervisor.get("ill")
        assert (ill.status, ill.detail) == ("degraded", "unwell")
        assert (await call(running, "ill", "works"))["method"] == "works"


async def test_a_stopped_one_is_told_so_and_may_take_its_leave(way: Way, tmp_path: Path) -> None:
    farewell = tmp_path / "farewell"
    # Enough that nobody is killed for being slow on a busy machine.
    timing = quick(stop=20.0)
    behaviour = [] if way.external else [f"farewell={farewell}"]
    async with way.house(way.plugin("good", "hang=slow", *behaviour), timing=timing) as running:
        good = running.supervisor.get("good")
        answers: list[RpcError | None] = []
        good.request("slow", b"{}", lambda _result, error: answers.append(error), timeout=30)
        pidfd = os.pidfd_open(pid_of(good))
        began = trio.current_time()
        await running.supervisor.stop()
        assert trio.current_time() - began < 10
        assert [error.code for error in answers if error] == [ErrorCode.PLUGIN_FAILED]
        # One that somebody else started is left alone.
        assert farewell.exists() != way.external
        if way.external:
            signal.pidfd_send_signal(pidfd, 0)
    await wait_gone(pidfd)


async def test_what_is_in_flight_when_it_is_stopped_is_still_answered(way: Way, tmp_path: Path) -> None:
    async with way.house(way.plugin("good")) as running:
        good = running.supervisor.get("good")
        answers: list[Any] = []
        good.request("x", b"{}", lambda *answer: answers.append(answer), timeout=10)
        # The plugin finds the request and behind it the end.
        await running.supervisor.stop()
        assert [error for _, error in answers] == [None]


async def test_dependents_are_stopped_before_their_providers(way: Way) -> None:
    specs = [
        way.plugin("first", "provides=experimental/a@1"),
        way.plugin("second", "provides=experimental/b@1", "requires=experimental/a@1"),
        way.plugin("third", "requires=experimental/b@1"),
    ]
    async with way.house(*specs) as running:
        await running.until(lambda: all(one.running for one in running.supervisor.instances))
    stopped = [name for name, _, status in running.history if status == "stopped"]
    assert stopped == ["third", "second", "first"]


async def test_dependents_are_degraded_while_their_provider_is_down(way: Way) -> None:
    specs = [way.plugin("user", "requires=experimental/a@1"), way.plugin("giver", "provides=experimental/a@1")]
    async with way.house(*specs) as running:
        user, giver = running.supervisor.instances
        await running.until(lambda: user.status == giver.status == "ready")
        way.kill(giver)
        await running.until(lambda: user.status == "degraded")
        assert "experimental/a@1" in user.detail
        way.begin(giver)
        await running.until(lambda: user.status == "ready" and giver.epoch == 2)


@pytest.mark.parametrize(
    ("behaviour", "words"), [("bad-hello", "protocol.hello"), ("protocol=2.0", "2.0"), ("abi=9", "9")]
)
async def test_a_bad_handshake_is_its_own_affair(way: Way, behaviour: str, words: str) -> None:
    async with way.house(way.plugin("bad", behaviour), way.plugin("good")) as running:
        bad = running.supervisor.get("bad")
        await running.until(lambda: words in bad.detail)
        assert not bad.running
        assert (await call(running, "good", "works"))["method"] == "works"
    assert not any(status == "ready" for name, _, status in running.history if name == "bad")


async def test_one_that_never_answers_hello_is_given_up_for_now(way: Way) -> None:
    # Long enough for an interpreter to start on a busy machine.
    timing = quick(handshake=2.0, restarts_in_window=0, stop=0.3)
    async with way.house(way.plugin("mute", "hang=protocol.hello"), timing=timing) as running:
        mute = running.supervisor.get("mute")
        await running.until(lambda: "protocol.hello" in mute.detail or "handshake" in mute.detail)
        assert ("mute", 1, "failed") in running.history or way.external


async def test_a_flood_of_junk_ends_the_epoch_with_a_message_that_helps(way: Way) -> None:
    async with way.house(way.plugin("chatty")) as running:
        chatty = running.supervisor.get("chatty")
        assert await call(running, "chatty", "junk") == {}
        assert chatty.junk_bytes == len(b"a stray print\x1b[0m\n")
        with pytest.raises(RpcError, match="stdout is for frames"):
            await call(running, "chatty", "flood")
        await running.until(lambda: chatty.epoch == 2 and chatty.running)


async def test_a_flood_of_messages_holds_up_nobody_else(way: Way) -> None:
    async with way.house(way.plugin("loud"), way.plugin("good")) as running:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, running, "loud", "spam", {"count": 20_000}, 30)
            for _ in range(20):
                assert (await call(running, "good", "works"))["method"] == "works"
        assert running.supervisor.get("loud").epoch == 1


async def test_one_that_does_not_read_has_its_requests_refused_with_the_bound(way: Way) -> None:
    limits = Limits(max_queued_bytes=256 * 1024)
    async with way.house(way.plugin("deaf"), limits=limits) as running:
        deaf = running.supervisor.get("deaf")
        pid = pid_of(deaf)
        os.kill(pid, signal.SIGSTOP)
        answers: list[RpcError | None] = []
        all_answered = trio.Event()

        def on_reply(_result: Any, error: RpcError | None) -> None:
            answers.append(error)
            if len(answers) == 100:
                all_answered.set()

        for _ in range(100):
            deaf.request("x", b'{"x":"' + b"x" * 20_000 + b'"}', on_reply, timeout=30)
        assert {error.data["bound"] for error in answers if error is not None} == {"max_queued_bytes"}
        os.kill(pid, signal.SIGCONT)
        with trio.fail_after(20):
            await all_answered.wait()
        assert (await call(running, "deaf", "last"))["method"] == "last"


async def test_nothing_is_left_after_many_epochs(way: Way) -> None:
    timing = quick(restarts_in_window=100, backoff_first=0.01, backoff_most=0.02)
    # What one that somebody else started leaves behind is not the runner's business.
    behaviour = [] if way.external else ["grandchild", "runaway"]
    async with way.house(way.plugin("good", *behaviour), timing=timing) as running:
        good = running.supervisor.get("good")
        before = count_descriptors()
        for _ in range(5):
            epoch = good.epoch
            way.kill(good)
            way.begin(good)
            await running.until(lambda epoch=epoch: good.epoch == epoch + 1 and good.running)  # type: ignore[misc]  # bound early
            assert (await call(running, "good", "works"))["method"] == "works"
        assert count_descriptors() == before
        # Of a sandbox two more belong to it, which wait for it.
        assert len(marked_processes("good")) == (0 if way.external else 3 if way.sandbox is None else 5)
    assert marked_processes("good") == []
