"""Holding players on a real session bus: who is paused, and who plays again."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from support.dbus import MediaPlayer, PrivateBus
from support.desktop import PATIENT, SECONDS, give_players
from utter_plugins.desktop import holding
from utter_plugins.desktop.holding import FORGET_S, MediaHolds
from utter_plugins.desktop.mpris import MediaControl
from utter_sdk.testing import PluginProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ARGV = [sys.executable, "-P", "-m", "utter_plugins.desktop"]


@pytest.fixture(autouse=True)
def players_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    give_players(SECONDS, monkeypatch)


@pytest.fixture
def holds(bus: PrivateBus) -> Iterator[MediaHolds]:
    made = MediaHolds({"DBUS_SESSION_BUS_ADDRESS": bus.address})
    yield made
    for session in [*made._sessions]:
        made.release(session)


@pytest.fixture
def player(bus: PrivateBus) -> Iterator[Callable[..., MediaPlayer]]:
    with ExitStack() as stack:
        yield lambda name, *args, **more: stack.enter_context(MediaPlayer(bus.address, name, *args, **more))


def test_what_plays_is_paused_and_plays_again(holds: MediaHolds, player: Callable[..., MediaPlayer]) -> None:
    playing = player("spotify", identity="Spotify")
    others = [player("vlc", "Paused"), player("mpv", "Stopped")]
    assert holds.hold("s1") == ["Spotify"]
    assert playing.status == "Paused"
    assert holds.release("s1") == ["Spotify"]
    assert (playing.status, playing.commands) == ("Playing", ["Pause", "Play"])
    assert [(one.status, one.commands) for one in others] == [("Paused", []), ("Stopped", [])]
    # What is over is over, and what never began resumes nobody.
    playing.press("Paused")
    assert holds.release("s1") == holds.release("unknown") == []
    assert playing.status == "Paused"


@pytest.mark.parametrize("flag", ["CanPause", "CanPlay", "CanControl"])
def test_a_player_that_cannot_be_paused_and_played_again_plays_on(
    holds: MediaHolds, player: Callable[..., MediaPlayer], flag: str
) -> None:
    radio = player("radio", can={flag: False})
    assert holds.hold("s1") == holds.release("s1") == []
    assert (radio.status, radio.commands) == ("Playing", [])


def test_what_only_passes_on_is_not_held_twice(holds: MediaHolds, player: Callable[..., MediaPlayer]) -> None:
    proxy, real = player("playerctld"), player("vlc")
    assert holds.hold("s1") == ["vlc"]
    assert holds.release("s1") == ["vlc"]
    assert (proxy.commands, real.commands) == ([], ["Pause", "Play"])


@pytest.mark.parametrize(
    ("pressed", "left"),
    [
        (["Playing"], "Playing"),
        (["Playing", "Paused"], "Paused"),
        (["Stopped"], "Stopped"),
        (["Playing", "Stopped", "Paused"], "Paused"),
    ],
)
def test_who_used_the_player_meanwhile_wins(
    holds: MediaHolds, player: Callable[..., MediaPlayer], pressed: list[str], left: str
) -> None:
    touched, untouched = player("touched"), player("untouched")
    assert holds.hold("s1") == ["touched", "untouched"]
    touched.press(*pressed)
    assert holds.release("s1") == ["untouched"]
    assert (touched.status, touched.commands) == (left, ["Pause"])
    assert untouched.status == "Playing"


def test_a_player_that_is_gone_or_another_is_left_alone(bus: PrivateBus, holds: MediaHolds) -> None:
    with MediaPlayer(bus.address, "one"), MediaPlayer(bus.address, "two"):
        assert holds.hold("s1") == ["one", "two"]
    with MediaPlayer(bus.address, "two", "Paused") as another:
        assert holds.release("s1") == []
        assert (another.status, another.commands) == ("Paused", [])


def test_only_the_last_of_several_sessions_resumes(holds: MediaHolds, player: Callable[..., MediaPlayer]) -> None:
    first = player("first")
    assert holds.hold("s1") == ["first"]
    second = player("second")
    assert holds.hold("s2") == ["second"]
    assert holds.release("s1") == []
    assert (first.status, second.status) == ("Paused", "Paused")
    assert holds.release("s2") == ["first", "second"]
    assert (first.commands, second.commands) == (["Pause", "Play"], ["Pause", "Play"])


def test_what_was_played_meanwhile_is_paused_again_for_the_next_session(
    holds: MediaHolds, player: Callable[..., MediaPlayer]
) -> None:
    vlc = player("vlc")
    assert holds.hold("s1") == ["vlc"]
    vlc.press("Playing")
    assert holds.hold("s2") == ["vlc"]
    assert holds.release("s1") == []
    assert holds.release("s2") == ["vlc"]
    assert vlc.commands == ["Pause", "Pause", "Play"]


def test_a_player_that_never_answers_holds_up_no_other(
    bus: PrivateBus, holds: MediaHolds, player: Callable[..., MediaPlayer]
) -> None:
    fine, names = player("fine"), []
    with MediaPlayer(bus.address, "a-hung", silent=True) as hung:
        asking = threading.Thread(target=lambda: names.extend(holds.hold("s1")))
        asking.start()
        # Before the time is up that the other one has.
        fine.wait("Paused")
    asking.join()
    assert (names, hung.commands) == (["fine"], [])
    assert holds.release("s1") == ["fine"]


def test_the_time_of_a_player_that_never_answers_is_bounded(
    holds: MediaHolds, player: Callable[..., MediaPlayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, hung = player("hangs"), player("hung", silent=True)
    # All of it goes by, and the other one has to answer within it.
    monkeypatch.setattr(holding, "HOLD_S", 3.0)
    assert holds.hold("s1") == ["hangs"]
    monkeypatch.setattr(holding, "HOLD_S", 0.1)
    hangs.silent = True
    assert holds.release("s1") == []
    assert (hangs.commands, hung.commands) == (["Pause"], [])


def test_a_player_that_pauses_in_its_own_time_is_resumed_all_the_same(
    holds: MediaHolds, player: Callable[..., MediaPlayer]
) -> None:
    slow = player("slow", deaf=True)
    assert holds.hold("s1") == ["slow"]
    assert holds.release("s1") == ["slow"]
    assert slow.commands == ["Pause", "Play"]
    assert holds.hold("s2") == ["slow"]
    slow.obey()
    assert holds.release("s2") == ["slow"]
    assert slow.status == "Playing"


def test_a_hold_that_nobody_released_is_void_after_a_while(
    holds: MediaHolds, player: Callable[..., MediaPlayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    vlc = player("vlc")
    assert holds.hold("forgotten") == ["vlc"]
    now = holding.time.monotonic()
    monkeypatch.setattr(holding.time, "monotonic", lambda: now + FORGET_S + 1)
    other = player("other")
    assert holds.hold("s2") == ["other"]
    assert holds.release("s2") == ["other"]
    assert (vlc.status, other.status) == ("Paused", "Playing")


@pytest.mark.parametrize(
    ("command", "told", "left"),
    [
        ("pause", ["Pause"], "Paused"),
        # It plays as far as the user knows.
        ("toggle", ["Pause"], "Paused"),
        ("stop", ["Stop"], "Stopped"),
        ("play", ["Play"], "Playing"),
        ("next", ["Next", "Play"], "Playing"),
        ("previous", ["Previous", "Play"], "Playing"),
    ],
)
def test_what_a_command_does_to_a_held_player_is_not_undone(
    holds: MediaHolds, player: Callable[..., MediaPlayer], command: Any, told: list[str], left: str
) -> None:
    # Of two that are paused on the bus, the held one is the one that plays.
    other, held = player("a-other", "Paused"), player("held")
    holds.hold("s1")
    used = MediaControl(holds).run(command, None, holds._env)
    assert used.short_name == "held"
    holds.release("s1")
    assert (held.commands, held.status, other.commands) == (["Pause", *told], left, [])


def test_without_a_bus_nothing_is_held() -> None:
    holds = MediaHolds({})
    assert holds.hold("s1") == holds.release("s1") == []


def test_a_bus_that_goes_away_ends_the_hold(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as bus:
        holds = MediaHolds({"DBUS_SESSION_BUS_ADDRESS": bus.address})
        with MediaPlayer(bus.address, "vlc"):
            assert holds.hold("s1") == ["vlc"]
    assert holds.hold("s2") == []
    assert holds.release("s1") == holds.release("s2") == []


def test_over_the_wire(bus: PrivateBus, player: Callable[..., MediaPlayer]) -> None:
    vlc = player("vlc", identity="VLC")
    with PluginProcess(PATIENT, env={"DBUS_SESSION_BUS_ADDRESS": bus.address}) as process:
        assert process.call("media.hold", {"session": "s1"}) == {"held": ["VLC"]}
        process.call("action.invoke", {"op": "media", "args": {"command": "pause"}})
        assert process.call("media.release", {"session": "s1"}) == {"resumed": []}
        assert vlc.status == "Paused"
        vlc.press("Playing")
        assert process.call("media.hold", {"session": "s2"}) == {"held": ["VLC"]}
        assert process.call("media.release", {"session": "s2"}) == {"resumed": ["VLC"]}


def test_a_dry_run_pauses_nobody(bus: PrivateBus, player: Callable[..., MediaPlayer]) -> None:
    vlc = player("vlc")
    with PluginProcess(ARGV, env={"DBUS_SESSION_BUS_ADDRESS": bus.address}, settings={"dry_run": True}) as process:
        assert process.call("media.hold", {"session": "s1"}) == {"held": []}
        assert process.call("media.release", {"session": "s1"}) == {"resumed": []}
    assert vlc.commands == []
