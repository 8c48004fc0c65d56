"""Drives media players over MPRIS on the session bus.

Rules here: the choice of a player is a pure function of what the players say about themselves; the only state is the
name of the player that was driven last. What is held (`holding`) is driven as if it played. What players say of
themselves is data of unknown origin. Source: MPRIS D-Bus Interface Specification 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .bus import BusError, SessionBus
from .failure import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jeepney import Message

    from .holding import MediaHolds

PREFIX = "org.mpris.MediaPlayer2."
PATH = "/org/mpris/MediaPlayer2"
PLAYER_INTERFACE = "org.mpris.MediaPlayer2.Player"
ROOT_INTERFACE = "org.mpris.MediaPlayer2"
Command = Literal["play", "pause", "toggle", "next", "previous", "stop"]
MAX_TEXT = 300
"""How many characters of a title, a name or the artists are kept."""
METHODS: dict[Command, str] = {
    "play": "Play",
    "pause": "Pause",
    "toggle": "PlayPause",
    "next": "Next",
    "previous": "Previous",
    "stop": "Stop",
}
# The property that must not be false for a command, and what to say when it is.
_NEEDS: dict[Command, tuple[str, str]] = {
    "play": ("CanPlay", "has nothing to play"),
    "pause": ("CanPause", "cannot be paused"),
    "next": ("CanGoNext", "has no next track"),
    "previous": ("CanGoPrevious", "has no previous track"),
}
# Whoever asks for another track wants to hear it.
_KEEPS_PLAYING = frozenset({"next", "previous"})
_STATUS_RANK = {"Playing": 0, "Paused": 1, "Stopped": 2}
# Its "player" stands for whichever player was used last, which is what MPRIS itself cannot tell.
_RECENT_PROXY = "playerctld"


@dataclass(frozen=True, slots=True)
class Player:
    """What one player says about itself.

    Attributes:
        bus_name: the whole well-known name.
        identity: the name for people, such as "Spotify".
        status: Playing, Paused or Stopped.
        refuses: properties (CanControl, CanGoNext, ...) that are false; one that is missing counts as true.
    """

    bus_name: str
    identity: str
    status: str
    refuses: frozenset[str] = frozenset()

    @property
    def short_name(self) -> str:
        """The part of the bus name behind the MPRIS prefix."""
        return self.bus_name.removeprefix(PREFIX)

    def is_called(self, wanted: str) -> bool:
        """Whether `wanted` is its identity, or its bus name with or without the instance, in any case."""
        names = {self.identity, self.short_name, self.short_name.partition(".")[0]}
        return wanted.casefold() in {name.casefold() for name in names}


def choose_player(players: Sequence[Player], wanted: str | None, last_used: str | None) -> Player:
    """The player that a command is for: the named one, else one that plays, else the one used last, else any.

    Raises:
        Failure: there is no such player, or none that can be controlled.
    """
    if wanted is not None:
        named = [player for player in players if player.is_called(wanted)]
        if not named:
            others = ", ".join(sorted({player.identity for player in players}))
            hint = f"These run: {others}." if others else "No media player is running."
            raise Failure(f"The media player {wanted} is not running. {hint}")
        players = named
    elif not players:
        raise Failure("No media player is running. Start one and try again.")
    willing = [player for player in players if "CanControl" not in player.refuses]
    if not willing:
        raise Failure(f"{players[0].identity} does not let itself be controlled by other programs.")
    return min(
        willing,
        key=lambda player: (
            _STATUS_RANK.get(player.status, len(_STATUS_RANK)),
            player.bus_name != last_used,
            player.short_name != _RECENT_PROXY,
            player.bus_name,
        ),
    )


def is_proxy(bus_name: str) -> bool:
    """Whether it only passes on what it is told to a player that is on the bus itself."""
    return bus_name == PREFIX + _RECENT_PROXY


def values(variants: Any) -> dict[str, Any]:
    """The values of a table of variants; nothing of what is none."""
    if not isinstance(variants, dict):
        return {}
    return {key: pair[1] for key, pair in variants.items() if isinstance(pair, tuple)}


def list_message() -> Message:
    """`ListNames` on the bus."""
    from jeepney.bus_messages import message_bus  # noqa: PLC0415 - jeepney is optional

    return message_bus.ListNames()


def properties_message(bus_name: str, interface: str) -> Message:
    """`GetAll` of one of a player's interfaces."""
    from jeepney import DBusAddress, Properties  # noqa: PLC0415 - jeepney is optional

    return Properties(DBusAddress(PATH, bus_name=bus_name, interface=interface)).get_all()


def command_message(bus_name: str, command: Command) -> Message:
    """The method call for one of `METHODS`."""
    from jeepney import DBusAddress, new_method_call  # noqa: PLC0415 - jeepney is optional

    return new_method_call(DBusAddress(PATH, bus_name=bus_name, interface=PLAYER_INTERFACE), METHODS[command])


def list_players(bus: SessionBus) -> list[Player]:
    """Every player on the bus that answers in time.

    Raises:
        Failure: the bus itself does not answer.
    """
    try:
        (names,) = bus.call(list_message())
    except BusError as error:
        raise Failure(f"The session bus does not answer: {error}.") from error
    found = sorted(name for name in names if name.startswith(PREFIX))
    messages = [
        properties_message(name, interface) for name in found for interface in (PLAYER_INTERFACE, ROOT_INTERFACE)
    ]
    replies = bus.call_all(messages)
    players = []
    for index, name in enumerate(found):
        state, root = replies[2 * index], replies[2 * index + 1]
        if isinstance(state, BusError):
            continue
        properties = values(state[0])
        about = {} if isinstance(root, BusError) else values(root[0])
        refuses = frozenset(key for key, value in properties.items() if key.startswith("Can") and value is False)
        identity = str(about.get("Identity") or name.removeprefix(PREFIX))
        players.append(Player(name, identity, str(properties.get("PlaybackStatus", "Stopped")), refuses))
    return players


class MediaControl:
    """Sends commands to players and remembers which one was driven last.

    Args:
        holds: the players that are only paused for now.
    """

    def __init__(self, holds: MediaHolds) -> None:
        self._holds = holds
        self._last_used: str | None = None

    def run(self, command: Command, wanted: str | None, env: Mapping[str, str]) -> Player:
        """Choose a player, send it a command, and say which it was.

        Raises:
            Failure: no session bus, no player, or the player cannot do it.
        """
        with SessionBus(env) as bus:
            player = choose_player(self._holds.as_left(list_players(bus)), wanted, self._last_used)
            if command == "toggle" and self._holds.holds(player.bus_name):
                # It counts as playing, and so it shall not.
                command = "pause"
            needed, complaint = _NEEDS.get(command, ("", ""))
            if needed in player.refuses:
                raise Failure(f"{player.identity} {complaint}.")
            try:
                bus.call(command_message(player.bus_name, command))
            except BusError as error:
                raise Failure(f"{player.identity} did not do it: {error}.") from error
        self._last_used = player.bus_name
        if command not in _KEEPS_PLAYING:
            self._holds.let_go(player.bus_name)
        return player
