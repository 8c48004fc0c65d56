"""Questions on the desktop: what is shown, whose answer counts, and that nothing is left on the screen."""

from __future__ import annotations

import html
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from jeepney import DBusAddress, new_signal
from jeepney.bus import get_connectable_addresses
from jeepney.io.blocking import DBusConnection, prep_socket

from support.dbus import PrivateBus, Service
from support.notifications import NotificationServer, Shown
from support.stage import Person
from utter_protocol.methods import ConfirmParams
from utter_runner.confirm.confirmer import Confirmer, Question, Verdict
from utter_runner.confirm.notifications import (
    MAX_BUTTONS_LINES,
    MAX_BUTTONS_TEXT,
    NAME,
    PATH,
    SUMMARY,
    SUMMARY_ELSEWHERE,
    Notifications,
    fits,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

TEXT = "Run in a terminal: a <b>bold</b> & 'quoted' \"word\""
LONG = "Run in a terminal: " + "x" * MAX_BUTTONS_TEXT


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    with PrivateBus(tmp_path) as made:
        yield made


class Asked:
    """A question that is open, and what became of it."""

    def __init__(self, bus: PrivateBus, *persons: Person, text: str = TEXT, timeout: float = 60.0) -> None:
        self.notifications = Notifications({"DBUS_SESSION_BUS_ADDRESS": bus.address})
        self.confirmer = Confirmer(lambda: [self.notifications, *persons], timeout=timeout, emit=lambda _event: None)
        self.question = Question(text=text, op="terminal", args={}, provenance="user", digest="d" * 64)
        self.verdict: Verdict | None = None
        self.over = trio.Event()

    async def ask(self) -> None:
        self.verdict = await self.confirmer.ask(self.question)
        self.over.set()


@asynccontextmanager
async def asked(bus: PrivateBus, *persons: Person, **more: Any) -> AsyncIterator[Asked]:
    made = Asked(bus, *persons, **more)
    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.ask)
            yield made
            await made.over.wait()


async def shown_by(server: NotificationServer, count: int = 1) -> Shown:
    return await trio.to_thread.run_sync(server.wait_shown, count)


@pytest.mark.parametrize(("key", "approved"), [("allow", True), ("refuse", False)])
async def test_a_button_answers(bus: PrivateBus, key: str, approved: bool) -> None:
    with NotificationServer(bus.address) as server:
        async with asked(bus) as question:
            shown = await shown_by(server)
            assert (shown.summary, html.unescape(shown.body)) == (SUMMARY, TEXT)
            assert "<" not in shown.body
            assert shown.actions == ["allow", "Allow", "refuse", "Don't allow"]
            assert (shown.hints["urgency"], shown.hints["resident"], shown.expires_ms) == (
                ("y", 2),
                ("b", True),
                60_000,
            )
            server.press(shown.number, key)
        assert question.verdict is not None
        assert question.verdict.approved is approved
        await trio.to_thread.run_sync(server.wait_closed, shown.number)


async def test_a_server_that_knows_no_markup_gets_none(bus: PrivateBus) -> None:
    with NotificationServer(bus.address, ("body", "actions")) as server:
        async with asked(bus):
            shown = await shown_by(server)
            assert shown.body == TEXT
            server.press(shown.number, "allow")


async def test_a_strangers_signal_and_another_id_count_for_nothing(bus: PrivateBus) -> None:
    stranger = DBusConnection(prep_socket(next(get_connectable_addresses(bus.address))))
    with NotificationServer(bus.address) as server:
        async with asked(bus) as question:
            shown = await shown_by(server)
            address = DBusAddress(PATH, interface=NAME)
            stranger.send(new_signal(address, "ActionInvoked", "us", (shown.number, "allow")))
            server.press(shown.number + 1, "allow")
            server.press(shown.number, "default")
            server.emit(PATH, NAME, "ActionInvoked", "s", ("allow",))
            server.emit(PATH, NAME, "ActionInvoked", "us", (shown.number, "Allow"))
            server.end(shown.number + 1, 2)
            assert question.verdict is None
            server.press(shown.number, "refuse")
        assert question.verdict == Verdict(approved=False, why="it was declined", surface="notification")
    stranger.close()


@pytest.mark.parametrize(("reason", "answered"), [(1, False), (2, True), (3, False), (4, False)])
async def test_who_takes_it_away_says_no_and_what_goes_by_itself_says_nothing(
    bus: PrivateBus, reason: int, answered: bool
) -> None:
    person = Person()
    with NotificationServer(bus.address) as server:
        async with asked(bus, person) as question:
            shown = await shown_by(server)
            server.end(shown.number, reason)
            if not answered:
                # The others are asked as before.
                await trio.to_thread.run_sync(server.wait_closed, shown.number)
                assert question.verdict is None
                person.say(answer=True)
    assert question.verdict is not None
    assert question.verdict.approved is not answered
    assert person.withdrawn == int(answered)


async def test_what_was_answered_elsewhere_is_taken_away(bus: PrivateBus) -> None:
    person = Person()
    with NotificationServer(bus.address) as server:
        async with asked(bus, person):
            shown = await shown_by(server)
            person.say(answer=True)
        await trio.to_thread.run_sync(server.wait_closed, shown.number)


async def test_what_nobody_answered_is_taken_away(bus: PrivateBus) -> None:
    with NotificationServer(bus.address) as server:
        async with asked(bus, timeout=1.0) as question:
            pass
        assert question.verdict == Verdict(approved=False, why="nobody answered within 1 s", timed_out=True)
        if server.shown:
            await trio.to_thread.run_sync(server.wait_closed, server.shown[0].number)


@pytest.mark.parametrize(("text", "able"), [(LONG, ("actions", "body", "body-markup")), (TEXT, ("body",))])
async def test_without_buttons_it_is_shown_and_somebody_else_answers(
    bus: PrivateBus, text: str, able: tuple[str, ...]
) -> None:
    person = Person()
    with NotificationServer(bus.address, able) as server:
        async with asked(bus, person, text=text) as question:
            shown = await shown_by(server)
            assert (shown.summary, html.unescape(shown.body), shown.actions) == (SUMMARY_ELSEWHERE, text, [])
            # Nor does a button that was not offered do anything.
            server.press(shown.number, "allow")
            assert server.closed == []
            person.say(answer=False)
        assert question.verdict == Verdict(approved=False, why="it was declined", surface="person")
        await trio.to_thread.run_sync(server.wait_closed, shown.number)


async def test_what_is_only_shown_does_not_keep_a_question_open(bus: PrivateBus) -> None:
    with NotificationServer(bus.address, ("body",)) as server:
        async with asked(bus, Person(answer=None)) as question:
            pass
        assert question.verdict is not None
        assert question.verdict.why == "nobody who is connected can ask a person"
        await trio.to_thread.run_sync(server.wait_closed, server.shown[0].number)


NONSENSE: list[dict[str, Any]] = [
    {"Notify": ("s", ("seven",))},
    {"Notify": ("", ())},
    {"Notify": "org.example.No"},
    {"GetCapabilities": ("s", ("actions",))},
    {"GetCapabilities": ("as", (["actions"],))},
    {"GetCapabilities": "org.example.No"},
]


@pytest.mark.parametrize("answers", NONSENSE)
async def test_a_server_that_talks_nonsense_abstains(bus: PrivateBus, answers: dict[str, Any]) -> None:
    person = Person()
    with NotificationServer(bus.address, answers=answers):
        async with asked(bus, person) as question:
            await person.wait_asked()
            person.say(answer=True)
    assert question.verdict == Verdict(approved=True, why="it was approved", surface="person")


async def test_a_server_that_hangs_does_not_hold_up_whoever_answers(
    bus: PrivateBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utter_runner.rpc.bus.CALL_SECONDS", 1000.0)
    person = Person()
    with NotificationServer(bus.address, answers={"Notify": None}) as server:
        async with asked(bus, person) as question:
            await shown_by(server)
            person.say(answer=True)
    assert question.verdict == Verdict(approved=True, why="it was approved", surface="person")


async def test_a_server_that_dies_abstains(bus: PrivateBus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "utter_runner.confirm")
    async with asked(bus) as question:
        with NotificationServer(bus.address) as server:
            await shown_by(server)
    assert question.verdict == Verdict(approved=False, why="nobody who is connected can ask a person")
    # Which of its ends is noticed depends on whether it had answered by then.
    assert caplog.text.count("are not shown as notifications") == 1


async def test_a_bus_that_dies_abstains(bus: PrivateBus) -> None:
    person = Person()
    with NotificationServer(bus.address) as server:
        async with asked(bus, person) as question:
            await shown_by(server)
            bus._daemon.kill()
            person.say(answer=True)
    assert question.verdict == Verdict(approved=True, why="it was approved", surface="person")


async def test_without_a_server_it_abstains_with_one_line_and_finds_one_that_comes_later(
    bus: PrivateBus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "utter_runner.confirm")
    surface = Notifications({"DBUS_SESSION_BUS_ADDRESS": bus.address})
    params = ConfirmParams(id="q", text=TEXT, op="x", args={}, provenance="user", digest="d", timeout_ms=1000)
    for _ in range(3):
        assert await surface.ask(params, lambda: None) is None
    assert caplog.text.count("are not shown as notifications") == 1
    with NotificationServer(bus.address) as server:
        async with trio.open_nursery() as nursery:
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await surface.ask(params, lambda: None))

            nursery.start_soon(ask)
            shown = await shown_by(server)
            server.press(shown.number, "allow")
    assert (answers[0].approved, answers[0].digest) == (True, "d")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"DBUS_SESSION_BUS_ADDRESS": "nonsense"},
        {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere/bus"},
        {"DBUS_SESSION_BUS_ADDRESS": "tcp:host=localhost,port=1"},
        {"XDG_RUNTIME_DIR": "/nowhere"},
    ],
)
async def test_without_a_bus_it_abstains(environ: dict[str, str]) -> None:
    params = ConfirmParams(id="q", text=TEXT, op="x", args={}, provenance="user", digest="d", timeout_ms=1000)
    assert await Notifications(environ).ask(params, lambda: None) is None


async def test_a_server_by_another_name_is_none(bus: PrivateBus) -> None:
    with Service(bus.address, "org.example.Notifications", lambda *_: ("as", (["body", "actions"],))) as other:
        async with asked(bus) as question:
            pass
        assert question.verdict is not None
        assert other.calls.empty()


def test_what_fits() -> None:
    assert fits("x" * MAX_BUTTONS_TEXT)
    assert not fits("x" * (MAX_BUTTONS_TEXT + 1))
    assert fits("\n".join("x" * MAX_BUTTONS_LINES))
    assert not fits("\n" * MAX_BUTTONS_LINES)
