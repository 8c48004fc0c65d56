"""Whatever a desktop does, and whenever: no key sticks, none counts twice, and nobody is asked who has said no."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.rpc.bus import BusError
from utter_runner.voice.hotkeys import Bindings, HotkeyEvent, KeyWatch, Press, Release
from utter_runner.voice.hotkeys.fake import FakeBackend, FakeKeyboard
from utter_runner.voice.hotkeys.fake_portal import FakePortal
from utter_runner.voice.hotkeys.portal import MAX_UNANSWERED
from utter_runner.voice.hotkeys.portal_link import DISMISSED, DONE, Triggers

PTT = "push_to_talk"
NODE = "/dev/input/event0"
F13 = 183

ACTIONS = st.sampled_from(
    [
        *("press", "press", "release", "release", "toggle", "cancel", "strange"),
        *("vanish", "vanish for good", "arrive", "close", "cut", "no bus", "bus again"),
        *("answer", "dismiss", "fail", "stay open", "answers itself", "ask", "other keys"),
        *("plug", "unplug", "type"),
    ]
)
PAUSES = st.sampled_from([0.0, 0.0, 0.1, 2.0, 10.0, 70.0])


class World:
    """A desktop, a keyboard that comes and goes, and what must hold of what the watch makes of them."""

    def __init__(self, version: int, always: bool) -> None:
        self.portal = FakePortal(version=version)
        self.keyboards = FakeBackend()
        self.board: FakeKeyboard | None = None
        self.told: list[type[HotkeyEvent]] = []
        self.refused_at: int | None = None
        self.keys = KeyWatch(
            Bindings.parse(push_to_talk="F13", toggle="F14", cancel="PAUSE"),
            self.keyboards,
            self.portal,
            self.hear,
            always=always,
        )

    @property
    def talking(self) -> bool:
        return self.told.count(Press) > self.told.count(Release)

    def hear(self, event: HotkeyEvent) -> None:
        if isinstance(event, (Press, Release)):
            assert isinstance(event, Release) == self.talking, "Press and Release alternate"
        self.told.append(type(event))

    def do(self, action: str) -> None:
        portal = self.portal
        acts: dict[str, Any] = {
            "press": lambda: portal.press(PTT),
            "release": lambda: portal.release(PTT),
            "toggle": lambda: portal.press("toggle"),
            "cancel": lambda: portal.press("cancel"),
            "strange": lambda: portal.press("somebody.elses"),
            "vanish": portal.vanish,
            "vanish for good": lambda: portal.vanish(stays_away=True),
            "arrive": portal.arrive,
            "close": portal.close_session,
            "cut": portal.cut,
            "no bus": lambda: setattr(portal, "bus_error", BusError("the session bus cannot be reached")),
            "bus again": lambda: setattr(portal, "bus_error", None),
            "answer": lambda: portal.asked and portal.answer(DONE),
            "dismiss": self.dismiss,
            "fail": lambda: portal.answer(2),
            "stay open": lambda: setattr(portal, "response", None),
            "answers itself": lambda: setattr(portal, "response", DONE),
            "ask": self.ask,
            "other keys": lambda: portal.tell(Triggers({PTT: "Ctrl+F1"}, changed=True)),
            "plug": self.plug,
            "unplug": self.unplug,
            "type": self.type,
        }
        acts[action]()

    def ask(self) -> None:
        if self.keys.ask().asked:
            self.refused_at = None

    def dismiss(self) -> None:
        if self.portal.asked and self.portal.connected:
            if self.keys.status()["portal"]["state"] in {"asking", "bound"}:
                self.refused_at = len(self.portal.asked)
            self.portal.answer(DISMISSED)

    def plug(self) -> None:
        if self.board is None:
            self.board = FakeKeyboard("board")
            self.keyboards.plug(NODE, self.board)

    def unplug(self) -> None:
        if self.board is not None:
            self.board = None
            self.keyboards.unplug(NODE)

    def type(self) -> None:
        if self.board is not None:
            self.board.press(F13)
            self.board.release(F13)

    def check(self) -> None:
        status = self.keys.status()
        portal = status["portal"]
        if portal["state"] != "bound":
            assert not portal["bound"]
            assert status["path"] != "portal"
        if portal["state"] in {"absent", "dismissed", "failed"}:
            assert "`utter ptt press`" in portal["detail"]
            assert not self.talking, "nobody would tell that the key went up"
        assert portal["state"] != "dismissed" or self.refused_at is not None
        if self.refused_at is not None:
            assert len(self.portal.asked) == self.refused_at, "who said no is asked again"


async def scenario(version: int, always: bool, steps: list[tuple[str, float]]) -> None:
    world = World(version, always)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keys.run)
        await trio.testing.wait_all_tasks_blocked()
        for action, pause in steps:
            world.do(action)
            await trio.sleep(pause)
            await trio.testing.wait_all_tasks_blocked()
            world.check()
        nursery.cancel_scope.cancel()
    assert not world.talking
    assert not world.portal.connected


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that does not wait would not wait for a thread that looks at devices either."""

    async def inline(work: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    monkeypatch.setattr("utter_runner.voice.hotkeys.service.trio.to_thread.run_sync", inline)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 2]), st.booleans(), st.lists(st.tuples(ACTIONS, PAUSES), max_size=40))
def test_any_sequence(version: int, always: bool, steps: list[tuple[str, float]]) -> None:
    trio.run(scenario, version, always, steps, clock=trio.testing.MockClock(autojump_threshold=0))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["vanish", "cut", "press", "arrive"]), max_size=40))
def test_a_person_who_does_not_answer_is_asked_a_few_times_only(actions: list[str]) -> None:
    async def unanswered() -> None:
        world = World(2, always=True)
        world.portal.response = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.keys.run)
            for action in actions:
                await trio.sleep(100)
                world.do(action)
            nursery.cancel_scope.cancel()
        assert len(world.portal.asked) <= MAX_UNANSWERED
        assert not world.talking

    trio.run(unanswered, clock=trio.testing.MockClock(autojump_threshold=0))
