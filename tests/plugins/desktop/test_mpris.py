from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.dbus import PrivateBus, mpris_player
from support.desktop import SECONDS, give_players
from utter_plugins.desktop.failure import Failure
from utter_plugins.desktop.holding import MediaHolds
from utter_plugins.desktop.mpris import METHODS, PREFIX, MediaControl, Player, choose_player

if TYPE_CHECKING:
    from pathlib import Path

    from support.dbus import Service


@pytest.fixture(autouse=True)
def players_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    give_players(SECONDS, monkeypatch)


def control() -> MediaControl:
    return MediaControl(MediaHolds({}))


def player(name: str, status: str = "Stopped", *refuses: str) -> Player:
    return Player(PREFIX + name, name.partition(".")[0].title(), status, frozenset(refuses))


@pytest.mark.parametrize(
    ("players", "wanted", "last", "expected"),
    [
        ([player("a", "Paused"), player("b", "Playing")], None, None, "b"),
        ([player("a", "Paused"), player("b", "Playing")], None, PREFIX + "a", "b"),
        ([player("a"), player("b", "Paused")], None, None, "b"),
        ([player("a"), player("b")], None, PREFIX + "b", "b"),
        ([player("a", "Paused"), player("playerctld", "Paused")], None, None, "playerctld"),
        ([player("a", "Playing", "CanControl"), player("b")], None, None, "b"),
        ([player("a", "Playing"), player("b")], "B", None, "b"),
        ([player("firefox.instance_1_2")], "firefox", None, "firefox.instance_1_2"),
        ([player("a", "strange"), player("b", "Stopped")], None, None, "b"),
    ],
)
def test_choice(players: list[Player], wanted: str | None, last: str | None, expected: str) -> None:
    assert choose_player(players, wanted, last).short_name == expected


@pytest.mark.parametrize(
    ("players", "wanted", "complaint"),
    [
        ([], None, r"^No media player is running\. Start one and try again\.$"),
        ([], "vlc", r"^The media player vlc is not running\. No media player is running\.$"),
        ([player("b"), player("a")], "vlc", r"^The media player vlc is not running\. These run: A, B\.$"),
        ([player("a", "Playing", "CanControl")], None, r"A does not let itself be controlled"),
    ],
)
def test_no_choice(players: list[Player], wanted: str | None, complaint: str) -> None:
    with pytest.raises(Failure, match=complaint):
        choose_player(players, wanted, None)


def commands(service: Service) -> list[str]:
    """The player methods that have arrived; each `GetAll` was answered before, so nothing is under way."""
    found = []
    while not service.calls.empty():
        member, _ = service.calls.get()
        if member != "GetAll":
            found.append(member)
    return found


@pytest.mark.parametrize("command", METHODS)
def test_each_command_reaches_the_player(bus: PrivateBus, command: Any) -> None:
    with mpris_player(bus.address, "demo", status="Playing", identity="Demo Player") as service:
        used = control().run(command, None, {"DBUS_SESSION_BUS_ADDRESS": bus.address})
        assert (used.short_name, used.identity) == ("demo", "Demo Player")
        assert commands(service) == [METHODS[command]]


def test_the_one_that_plays_is_driven_and_remembered(bus: PrivateBus) -> None:
    driver, env = control(), {"DBUS_SESSION_BUS_ADDRESS": bus.address}
    with mpris_player(bus.address, "a", status="Paused") as a, mpris_player(bus.address, "b", status="Paused") as b:
        driver.run("pause", "b", env)
        driver.run("play", None, env)
        assert (commands(a), commands(b)) == ([], ["Pause", "Play"])


@pytest.mark.parametrize(
    ("command", "flag", "complaint"),
    [
        ("next", "CanGoNext", r"^Demo has no next track\.$"),
        ("previous", "CanGoPrevious", r"^Demo has no previous track\.$"),
        ("pause", "CanPause", r"^Demo cannot be paused\.$"),
        ("play", "CanPlay", r"^Demo has nothing to play\.$"),
    ],
)
def test_what_a_player_says_it_cannot_do_is_not_asked_of_it(
    bus: PrivateBus, command: Any, flag: str, complaint: str
) -> None:
    with mpris_player(bus.address, "demo", identity="Demo", can={flag: False}) as service:
        with pytest.raises(Failure, match=complaint):
            control().run(command, None, {"DBUS_SESSION_BUS_ADDRESS": bus.address})
        assert commands(service) == []


def test_a_player_that_hangs_does_not_hold_up_the_others(bus: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> None:
    # All of it goes by, and the other one has to answer within it.
    give_players(3, monkeypatch)
    with (
        mpris_player(bus.address, "hung", status="Playing", silent=True),
        mpris_player(bus.address, "fine", status="Paused") as fine,
    ):
        assert control().run("play", None, {"DBUS_SESSION_BUS_ADDRESS": bus.address}).identity == "fine"
        assert commands(fine) == ["Play"]


def test_without_a_player(bus: PrivateBus) -> None:
    with pytest.raises(Failure, match=r"No media player is running"):
        control().run("play", None, {"DBUS_SESSION_BUS_ADDRESS": bus.address})


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({}, r"There is no session bus: DBUS_SESSION_BUS_ADDRESS is not set"),
        ({"DBUS_SESSION_BUS_ADDRESS": "tcp:host=localhost,port=1"}, r"is not usable"),
        ({"DBUS_SESSION_BUS_ADDRESS": "nonsense"}, r"is not usable"),
    ],
)
def test_without_a_bus(env: dict[str, str], complaint: str) -> None:
    with pytest.raises(Failure, match=complaint):
        control().run("play", None, env)


def test_with_a_bus_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"The session bus at unix:path=.*/bus cannot be reached"):
        control().run("play", None, {"XDG_RUNTIME_DIR": str(tmp_path)})
