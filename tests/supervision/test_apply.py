"""What the supervisor does when what it is to run changes: the cases one by one, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
import trio.testing

from support.quick_plugins import QuickHouse, quick, quick_house
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.rpc.interface import Limits
from utter_runner.supervision.life import Changes
from utter_runner.supervision.spec import Timing, same

if TYPE_CHECKING:
    from trio.testing import MockClock

A, B = quick("a", provides=["experimental/a@1"]), quick("b", requires=["experimental/a@1"])
C = quick("c")


def order(house: QuickHouse, status: str) -> list[str]:
    return [name for name, _, one in house.history if one == status]


async def test_only_what_has_changed_is_touched(autojump_clock: MockClock) -> None:
    async with quick_house(A, B, C) as house:
        before = house.incarnations()
        changes = house.supervisor.apply([quick("new"), msgspec.structs.replace(C, version="2"), A, B])
        assert changes == Changes(added=("new",), restarted=("c",))
        # Decided at once, and nothing of it has come about.
        assert house.incarnations() == before
        await trio.sleep(10)
        after = house.incarnations()
        assert list(after) == ["new", "c", "a", "b"]
        assert {name: after[name] for name in "ab"} == {name: before[name] for name in "ab"}
        assert after["c"][0] == 2
        assert house.supervisor.get("c").spec.version == "2"
        assert house.supervisor.apply([quick("new"), msgspec.structs.replace(C, version="2"), A, B]) == Changes()


async def test_dependents_stop_before_those_that_they_depend_on(autojump_clock: MockClock) -> None:
    async with quick_house(A, B) as house:
        house.history.clear()
        house.supervisor.apply([])
        await trio.sleep(10)
        assert [(name, status) for name, _, status in house.history] == [
            ("b", "stopping"),
            ("b", "stopped"),
            ("a", "stopping"),
            ("a", "stopped"),
        ]
        assert house.gone == [("b", 1), ("a", 1)]


async def test_a_provider_that_is_restarted_degrades_its_dependents_meanwhile(autojump_clock: MockClock) -> None:
    async with quick_house(A, B) as house:
        user = house.supervisor.get("b")
        house.history.clear()
        house.supervisor.restart("a")
        await trio.sleep(10)
        assert [status for name, _, status in house.history if name == "b"] == ["degraded", "ready"]
        assert (user.epoch, user.status) == (1, "ready")


async def test_one_that_needs_what_comes_is_started_again(autojump_clock: MockClock) -> None:
    async with quick_house(B) as house:
        assert house.statuses() == {"b": "failed"}
        assert house.supervisor.apply([B, A]).added == ("a",)
        await trio.sleep(10)
        assert house.statuses() == {"b": "ready", "a": "ready"}


async def test_two_that_change_together_wait_for_each_other(autojump_clock: MockClock) -> None:
    async with quick_house(A, B) as house:
        house.supervisor.apply([msgspec.structs.replace(one, version="2") for one in (B, A)])
        await trio.sleep(10)
        # Nobody was refused because the other was on its way.
        assert "failed" not in {status for *_, status in house.history}
        assert house.statuses() == {"b": "ready", "a": "ready"}


async def test_one_that_is_taken_away_and_back_before_it_is_gone_starts_anew(autojump_clock: MockClock) -> None:
    async with quick_house(A) as house:
        assert house.supervisor.apply([]).removed == ("a",)
        await trio.sleep(0.1)
        assert house.statuses() == {"a": "stopping"}
        assert house.supervisor.apply([A]).added == ("a",)
        await trio.sleep(10)
        assert (house.incarnations()["a"][0], house.gone) == (2, [])


async def test_whoever_waits_for_a_provider_waits_while_it_is_restarted(autojump_clock: MockClock) -> None:
    async with quick_house(A) as house:
        house.supervisor.apply([msgspec.structs.replace(A, version="2")])
        await trio.testing.wait_all_tasks_blocked()
        assert house.statuses() == {"a": "stopping"}
        assert (await house.supervisor.wait_provider("experimental/a@1", 30)).epoch == 2
        # And not for one that somebody has stopped.
        house.supervisor.hold("a", "a test")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RpcError, match="a is stop"):
            await house.supervisor.wait_provider("experimental/a@1", 30)


async def test_what_is_wanted_of_a_plugin_is_waited_for(autojump_clock: MockClock) -> None:
    async with quick_house(A) as house:
        supervisor = house.supervisor
        supervisor.restart("a")
        assert (await supervisor.until_at_rest("a", 10)).epoch == 2
        supervisor.hold("a", "a test")
        assert (await supervisor.until_at_rest("a", 10)).status == "stopped"
        supervisor.start("a")
        with pytest.raises(RpcError) as late:
            await supervisor.until_at_rest("a", 0.2)
        assert late.value.code == ErrorCode.TIMED_OUT
        assert late.value.data == {"plugin": "a", "status": "starting", "timeout_ms": 200}
        assert (await supervisor.until_at_rest("a", 10)).epoch == 3
        supervisor.apply([])
        with pytest.raises(RpcError) as gone:
            await supervisor.until_at_rest("a", 10)
        assert gone.value.code == ErrorCode.CAPABILITY_MISSING


async def test_a_restart_forgives_what_has_failed_before(autojump_clock: MockClock) -> None:
    async with quick_house(C, timing=Timing(restarts_in_window=1)) as house:
        instance: Any = house.supervisor.get("c")
        for _ in range(2):
            instance.crash()
            await trio.sleep(2)
        assert house.statuses() == {"c": "failed"}
        house.supervisor.restart("c")
        await trio.sleep(2)
        instance.crash()
        await trio.sleep(2)
        assert house.statuses() == {"c": "ready"}


async def test_one_that_is_stopped_is_no_reason_to_be_refused_late(autojump_clock: MockClock) -> None:
    """Whoever needs it is told at once, because nobody knows when it comes back."""
    async with quick_house(A) as house:
        house.supervisor.hold("a", "a test")
        await trio.sleep(5)
        house.supervisor.apply([A, B])
        await trio.sleep(5)
        assert house.statuses() == {"a": "stopped", "b": "failed"}
        house.supervisor.start("a")
        await trio.sleep(5)
        assert house.statuses() == {"a": "ready", "b": "ready"}


async def test_bounds_change_for_what_begins(autojump_clock: MockClock) -> None:
    async with quick_house(C) as house:
        instance = house.supervisor.get("c")
        house.supervisor.reconfigure(Timing(handshake=1.5), Limits(max_in_flight=7))
        assert (instance._timing.handshake, instance._limits.max_in_flight) == (1.5, 7)
        house.supervisor.apply([msgspec.structs.replace(C, version="2"), A])
        await trio.sleep(10)
        for name in "ac":
            assert house.supervisor.get(name)._limits.max_in_flight == 7


async def test_another_interval_of_health_holds_at_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    async with quick_house(C, timing=Timing(health_interval=3600.0)) as house:
        health = type(house.supervisor.get("c")).health

        async def noted(self: Any) -> Any:
            asked.append(trio.current_time())
            return await health(self)

        monkeypatch.setattr(type(house.supervisor.get("c")), "health", noted)
        began = trio.current_time()
        house.supervisor.reconfigure(Timing(health_interval=2.0), Limits())
        await trio.sleep(7)
    assert [round(at - began) for at in asked] == [2, 4, 6]


def test_settings_are_compared_as_a_plugin_sees_them() -> None:
    def spec(**settings: Any) -> Any:
        return msgspec.structs.replace(C, settings=settings)

    assert same(spec(n=1, m="x"), spec(m="x", n=1))
    assert not same(spec(n=1), spec(n=True))
    assert not same(spec(n=1), spec(n=1.0))
    assert same(spec(n=float("nan")), spec(n=float("nan")))
    assert not same(C, msgspec.structs.replace(C, env={"KEY": "x"}))


async def test_another_warning_is_no_reason_to_restart_it(autojump_clock: MockClock) -> None:
    async with quick_house(C) as house:
        instance = house.supervisor.get("c")
        for warnings in (("careful",), ("careful", "very"), ()):
            assert house.supervisor.apply([msgspec.structs.replace(C, warnings=warnings)]) == Changes()
            assert instance.spec.warnings == warnings
            assert instance.handshake is not None
            assert tuple(instance.handshake.warnings) == warnings
        assert house.incarnations()["c"][0] == 1
