from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from support.service_manager import notifications
from utter_runner.operate.notify import (
    MAX_STATUS,
    ServiceManager,
    notification,
    socket_address,
    status_text,
    take_manager,
)
from utter_runner.operate.reporting import STATUS_SECONDS, Reporter


@dataclass
class Plugin:
    id: str
    status: str
    detail: str = ""

    @property
    def running(self) -> bool:
        return self.status in {"ready", "degraded"}


@given(fields=st.lists(st.tuples(st.sampled_from(["STATUS", "READY", "X_A"]), st.text()), min_size=1))
def test_a_value_adds_no_field(fields: list[tuple[str, str]]) -> None:
    lines = notification(fields).decode().split("\n")
    assert [line.partition("=")[0] for line in lines] == [name for name, _ in fields]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("address", "name"),
    [("/run/x", "/run/x"), ("@x", "\0x"), ("", None), ("@", None), ("relative", None), ("vsock:2:1", None)],
)
def test_addresses(address: str, name: str | None) -> None:
    assert socket_address(address) == name
    assert ServiceManager(address).present == (name is not None)


@pytest.mark.parametrize("abstract", [False, True])
def test_everything_arrives(tmp_path: Path, *, abstract: bool) -> None:
    address = f"@{tmp_path}/notify" if abstract else str(tmp_path / "notify")
    manager = ServiceManager(address)
    with notifications(address) as told:
        assert manager.ready("fine\nREADY=0")
        assert told.receive() == {"READY": "1", "STATUS": "fine\\nREADY=0"}
        assert manager.stopping("Stopping", 1.5)
        assert told.receive() == {"STOPPING": "1", "STATUS": "Stopping", "EXTEND_TIMEOUT_USEC": "1500000"}
        assert manager.reloading()
        message = told.receive()
        assert message["RELOADING"] == "1"
        assert int(message["MONOTONIC_USEC"]) > 0
        assert manager.status("x" * 10_000)
        assert told.receive() == {"STATUS": "x" * MAX_STATUS}
    assert not manager.alive()


def test_without_a_manager_nothing_is_told_and_nothing_fails() -> None:
    manager = ServiceManager()
    assert manager.ready("fine")
    assert manager.watchdog is None


def test_a_manager_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    with notifications(tmp_path / "notify"):
        manager = ServiceManager(str(tmp_path / "notify"))
        while manager.status("x" * MAX_STATUS):
            pass


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({}, None),
    ],
)
def test_the_variables_are_read_and_taken_out(variables: dict[str, str], seconds: float | None) -> None:
    environ = {"HOME": "/", "NOTIFY_SOCKET": "/run/x", **variables}
    assert take_manager(environ, 7).watchdog == seconds
    assert environ == {"HOME": "/"}
    assert take_manager({**variables}, 7).watchdog is None


@pytest.mark.parametrize(
    ("state", "plugins", "text"),
    [
        ("ready", [], "No plugins are configured"),
        ("ready", [Plugin("a", "ready"), Plugin("b", "ready")], "2 of 2 plugins run"),
        (
            "ready",
            [Plugin("a", "ready"), Plugin("b", "failed", "no\nmodel")],
            "1 of 2 plugins run; b failed: no\\nmodel",
        ),
        (
            "ready",
            [Plugin("w", "waiting"), Plugin("d", "degraded"), Plugin("b", "backoff"), Plugin("f", "failed")],
            "1 of 4 plugins run; f failed; b starts again; d is degraded; 1 more do not run well",
        ),
        ("starting", [Plugin("a", "starting")], "Starting: 0 of 1 plugins run; a is starting"),
        ("stopping", [Plugin("a", "ready")], "Stopping; 1 of 1 plugins run"),
        ("stopping", [Plugin("a", "stopped")], "Stopping"),
    ],
)
def test_the_status_in_words(state: str, plugins: list[Plugin], text: str) -> None:
    assert status_text(plugins, state) == text


def test_a_long_reason_is_cut() -> None:
    assert status_text([Plugin("a", "failed", "x" * 500)], "ready").endswith("x…")


# ---- the reporter


async def turn() -> None:
    await trio.lowlevel.checkpoint()


async def test_changes_are_told_together(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    texts = ["one"]
    with notifications(tmp_path / "notify") as told:
        reporter = Reporter(ServiceManager(str(tmp_path / "notify")), lambda: texts[0], turn)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reporter.run)
            await trio.testing.wait_all_tasks_blocked()
            for texts[0] in ("two", "three", "four"):
                reporter.changed()
            await trio.sleep(2 * STATUS_SECONDS)
            # The same once more is no change.
            reporter.changed()
            await trio.sleep(2 * STATUS_SECONDS)
            reporter.ready()
            with reporter.reloading():
                pass
            nursery.cancel_scope.cancel()
        assert [told.receive() for _ in range(3)] == [
            {"STATUS": "one"},
            {"STATUS": "four"},
            {"READY": "1", "STATUS": "four"},
        ]
        assert "RELOADING" in told.receive()
        assert told.receive() == {"READY": "1", "STATUS": "four"}


async def test_being_ready_is_told_again_until_it_is_heard(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    manager = ServiceManager(str(tmp_path / "notify"))
    reporter = Reporter(manager, lambda: "fine", turn)
    reporter.ready()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporter.run)
        await trio.sleep(10)
        with notifications(tmp_path / "notify") as told:
            await trio.sleep(2 * STATUS_SECONDS)
            assert told.receive() == {"READY": "1", "STATUS": "fine"}
        nursery.cancel_scope.cancel()


async def test_the_watchdog_is_fed_at_half_its_time_and_not_without_a_pulse(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    pulses = 0

    async def pulse() -> None:
        nonlocal pulses
        pulses += 1
        if pulses > 3:
            # As if the reactor's task had ended.
            await trio.sleep_forever()

    with notifications(tmp_path / "notify") as told:
        reporter = Reporter(ServiceManager(str(tmp_path / "notify"), 20.0), lambda: "", pulse)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reporter.run)
            await trio.sleep(25)
            assert [told.receive() for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
            await trio.sleep(1000)
            with pytest.raises(TimeoutError):
                told.receive(timeout=0.01)
            nursery.cancel_scope.cancel()


async def test_without_a_manager_nothing_wakes() -> None:
    with trio.fail_after(60):
        await Reporter(ServiceManager(), lambda: "", turn).run()
