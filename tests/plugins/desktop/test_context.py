"""context.snapshot, context.live and context.changed, with players on a real session bus."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from support.dbus import PrivateBus, Service
from support.desktop import PATIENT
from utter_plugins.desktop.mpris import MAX_TEXT, PATH, PLAYER_INTERFACE, PREFIX
from utter_plugins.desktop.players import MAX_PLAYERS
from utter_sdk.testing import PluginProcess

ARGV = [sys.executable, "-P", "-m", "utter_plugins.desktop"]


class Player:
    """A media player that plays what the test says.

    Args:
        bus: where.
        name: behind the MPRIS prefix.
        status: its PlaybackStatus.
        title: of what it plays.
        artist: any variant.
        identity: its name for people; None for one that does not say.
        silent: it never answers.
    """

    def __init__(
        self,
        bus: PrivateBus,
        name: str,
        status: str = "Stopped",
        *,
        title: str = "",
        artist: tuple[str, Any] = ("as", []),
        identity: str | None = None,
        silent: bool = False,
    ) -> None:
        self.properties: dict[str, tuple[str, Any]] = {"PlaybackStatus": ("s", status), "CanPlay": ("b", True)}
        self.properties["Metadata"] = ("a{sv}", {"xesam:title": ("s", title), "xesam:artist": artist})
        self._identity = identity
        self._silent = silent
        self.service = Service(bus.address, PREFIX + name, self._answer)

    def _answer(self, _interface: str, _member: str, body: tuple[Any, ...]) -> tuple[str, Any] | str | None:
        if self._silent:
            return None
        if body[0] == PLAYER_INTERFACE:
            return "a{sv}", (self.properties,)
        if self._identity is None:
            return "org.freedesktop.DBus.Error.UnknownInterface"
        return "a{sv}", ({"Identity": ("s", self._identity)},)

    def __enter__(self) -> Self:
        self.service.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.__exit__()

    def tell(self, *, ask_again: tuple[str, ...] = (), **changed: tuple[str, Any]) -> None:
        """Change properties, and say so; those in `ask_again` without their values."""
        self.properties |= changed
        told = {name: value for name, value in changed.items() if name not in ask_again}
        body = (PLAYER_INTERFACE, told, list(ask_again))
        self.service.emit(PATH, "org.freedesktop.DBus.Properties", "PropertiesChanged", "sa{sv}as", body)


def entry(player: str, status: str = "stopped", title: str = "", artist: str = "", name: str = "") -> dict[str, str]:
    return {"player": player, "name": name or player, "status": status, "title": title, "artist": artist}


def plugin(bus: PrivateBus, **settings: Any) -> PluginProcess:
    return PluginProcess(PATIENT, env={"DBUS_SESSION_BUS_ADDRESS": bus.address}, settings=settings)


def media(process: PluginProcess) -> Any:
    return process.call("context.snapshot")["media"]


def socket_of(bus: PrivateBus) -> Path:
    return Path(bus.address.partition("path=")[2].partition(",")[0])


def announced(process: PluginProcess) -> Any:
    """The players of the next announcement."""
    (changed,) = process.notification("context.changed").values()
    assert set(changed) == {"media"}
    return changed["media"]


def test_a_snapshot_tells_what_plays(bus: PrivateBus) -> None:
    with (
        Player(bus, "vlc", "Paused", title="Film"),
        Player(bus, "spotify", "Playing", title="Song", artist=("as", ["One", "Two"]), identity="Spotify"),
        Player(bus, "mpv.instance7", title="Clip", artist=("s", "Solo")),
        plugin(bus) as process,
    ):
        expected = [
            entry("spotify", "playing", "Song", "One, Two", "Spotify"),
            entry("vlc", "paused", "Film"),
            entry("mpv.instance7", title="Clip", artist="Solo"),
        ]
        assert process.call("context.snapshot") == {"media": expected}
        assert process.call("context.snapshot", {"sources": ["media", "window"]}) == {"media": expected}
        assert process.call("context.snapshot", {"sources": ["window"]}) == {}
        assert announced(process) == expected


def test_it_says_what_it_offers(bus: PrivateBus) -> None:
    with plugin(bus) as process:
        assert set(process.description.streams) == {"context.live", "context.changed"}
        assert "context.snapshot" in process.description.methods
        assert media(process) == []


def test_changes_are_announced_and_nothing_else_is(bus: PrivateBus) -> None:
    with plugin(bus) as process:
        assert announced(process) == []
        with Player(bus, "vlc", title="One") as vlc:
            assert announced(process) == [entry("vlc", title="One")]
            vlc.tell(PlaybackStatus=("s", "Playing"))
            assert announced(process) == [entry("vlc", "playing", "One")]
            # None of these is a change of what is told.
            vlc.tell(PlaybackStatus=("s", "Playing"))
            vlc.tell(Volume=("d", 0.5))
            vlc.tell(ask_again=("CanPlay",))
            vlc.tell(ask_again=("Metadata",), Metadata=("a{sv}", {"xesam:title": ("s", "Two")}))
            assert announced(process) == [entry("vlc", "playing", "Two")]
            assert media(process) == [entry("vlc", "playing", "Two")]
        assert announced(process) == []


def test_a_name_that_changes_hands_is_asked_anew(bus: PrivateBus) -> None:
    with plugin(bus) as process:
        announced(process)
        for title in ("One", "Two"):
            with Player(bus, "vlc", title=title):
                assert announced(process) == [entry("vlc", title=title)]
            assert announced(process) == []


def test_the_live_stream_begins_whole_and_goes_on_with_changes(bus: PrivateBus) -> None:
    with Player(bus, "vlc", title="One") as vlc, plugin(bus) as process:
        asked = {"method": "context.live", "params": {"sources": ["media"]}, "mode": "reliable"}
        stream_id = process.call("stream.subscribe", asked)["stream_id"]
        other = process.call("stream.subscribe", {"method": "context.live", "params": {"sources": ["window"]}})
        items = {item["stream_id"]: item for item in (process.notification("context.live") for _ in range(2))}
        assert items[stream_id]["data"] == {"media": [entry("vlc", title="One")]}
        assert items[other["stream_id"]]["data"] == {}
        vlc.tell(PlaybackStatus=("s", "Playing"))
        item = process.notification("context.live")
        assert item == {"stream_id": stream_id, "seq": 1, "data": {"media": [entry("vlc", "playing", "One")]}}
        assert process.call("stream.stop", {"stream_id": stream_id}) == {}
        vlc.tell(PlaybackStatus=("s", "Paused"))
        while announced(process) != [entry("vlc", "paused", "One")]:
            pass
        with pytest.raises(TimeoutError):
            process.notification("context.live", 0.05)


def test_a_slow_subscriber_gets_what_is_newest(bus: PrivateBus) -> None:
    with Player(bus, "vlc", title="0") as vlc, plugin(bus) as process:
        announced(process)
        asked = {"method": "context.live", "mode": "reliable", "window": 1}
        stream_id = process.call("stream.subscribe", asked)["stream_id"]
        assert process.notification("context.live")["data"] == {"media": [entry("vlc", title="0")]}
        for title in ("1", "2", "3"):
            vlc.tell(Metadata=("a{sv}", {"xesam:title": ("s", title)}))
            announced(process)
        # One may have been on its way already; what came meanwhile is only worth its last value.
        seen = ["0"]
        while seen[-1] != "3":
            process.notify("stream.ack", {"stream_id": stream_id, "seq": len(seen) - 1})
            seen.append(process.notification("context.live")["data"]["media"][0]["title"])
        assert (seen[0], seen[-1], len(seen) <= 3) == ("0", "3", True)


def test_the_bus_that_goes_away_takes_the_field_with_it(tmp_path: Path) -> None:
    with ExitStack() as session:
        bus = session.enter_context(PrivateBus(tmp_path))
        with plugin(bus) as process:
            assert announced(process) == []
            session.close()
            assert announced(process) is None
            process.wait_stderr("The media players are not watched: The session bus went away")
            assert process.call("context.snapshot") == {}
            assert process.call("plugin.health")["status"] == "ok"
            # It is looked for, because nobody asks a plugin again that announces its changes.
            (tmp_path / "again").mkdir()
            with PrivateBus(tmp_path / "again") as late:
                socket_of(late).rename(socket_of(bus))
                assert announced(process) == []


def test_without_a_bus_there_is_nothing_to_tell(tmp_path: Path) -> None:
    env = {"DBUS_SESSION_BUS_ADDRESS": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    with PluginProcess(PATIENT, env=env) as process:
        assert process.call("context.snapshot") == {}
        process.wait_stderr("The media players are not watched: The session bus at ")
        with PrivateBus(tmp_path) as late:
            (tmp_path / "bus").symlink_to(socket_of(late))
            with Player(late, "vlc", title="Late"):
                assert media(process) == [entry("vlc", title="Late")]


def test_a_player_that_hangs_is_left_out_and_holds_up_nobody(bus: PrivateBus) -> None:
    with (
        Player(bus, "hung", "Playing", silent=True) as hung,
        Player(bus, "fine", "Playing") as fine,
        PluginProcess(ARGV, env={"DBUS_SESSION_BUS_ADDRESS": bus.address}) as process,
    ):
        # One that is slow to answer is announced when it has.
        while announced(process) != [entry("fine", "playing")]:
            pass
        assert media(process) == [entry("fine", "playing")]
        hung.tell(ask_again=("Metadata",))
        fine.tell(PlaybackStatus=("s", "Paused"))
        assert announced(process) == [entry("fine", "paused")]


def test_what_players_say_is_bounded_and_may_be_wrong(bus: PrivateBus) -> None:
    with (
        Player(bus, "a", "Dancing", title="x" * 10_000, artist=("i", 5)),
        Player(bus, "b", title="<b>no\nmarkup</b>", artist=("as", ["", "x" * 200, "y" * 200])) as strange,
        plugin(bus) as process,
    ):
        assert media(process) == [
            entry("a", title="x" * MAX_TEXT),
            entry("b", title="<b>no\nmarkup</b>", artist=("x" * 200 + ", " + "y" * 200)[:MAX_TEXT]),
        ]
        announced(process)
        strange.properties = {"PlaybackStatus": ("u", 7), "Metadata": ("s", "none")}
        strange.tell(Metadata=("as", ["none"]), PlaybackStatus=("b", True))
        strange.service.emit(PATH, "org.freedesktop.DBus.Properties", "PropertiesChanged", "s", (PLAYER_INTERFACE,))
        strange.service.emit(PATH, "org.freedesktop.DBus.Properties", "PropertiesChanged")
        strange.tell(PlaybackStatus=("s", "Playing"))
        while announced(process)[0] != entry("b", "playing"):
            pass
        assert process.stderr == ""


def test_too_many_players(bus: PrivateBus) -> None:
    with ExitStack() as stack:
        for number in range(MAX_PLAYERS + 2):
            stack.enter_context(Player(bus, f"p{number:02}"))
        process = stack.enter_context(plugin(bus))
        assert len(media(process)) == MAX_PLAYERS


def test_a_dry_run_looks_at_nothing(bus: PrivateBus) -> None:
    with Player(bus, "vlc") as vlc, plugin(bus, dry_run=True) as process:
        assert process.call("context.snapshot") == {}
        assert vlc.service.calls.empty()
