"""Which media players there are and what they play, kept up to date by what the session bus says.

Rules here: `PlayerTable` is told every message of the bus and says what to ask next; it does no I/O, and one player
that never answers holds up nothing. `PlayerWatch` moves the messages, on a thread that sleeps until there are any. What
players say of themselves is data of unknown origin: it is cut to a bound and never interpreted.
Source: MPRIS D-Bus Interface Specification 2.2.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import mpris
from .bus import SessionBus
from .watch import KNOWN_S, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from jeepney import Message

MAX_PLAYERS = 32
_STATUS = {"Playing": "playing", "Paused": "paused"}
_RANK = {"playing": 0, "paused": 1, "stopped": 2}
_BUS = "org.freedesktop.DBus"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_WANTED = ("PlaybackStatus", "Metadata")
# Interface, changed properties, names of those that must be asked for.
_CHANGED = 3

Media = list[dict[str, str]]


@dataclass
class _Player:
    """What one player has said so far. `owner` is its unique name, by which the bus names the sender of a signal."""

    owner: str = ""
    identity: str = ""
    status: str = "stopped"
    title: str = ""
    artist: str = ""


@dataclass
class PlayerTable:
    """The players on one connection to the bus.

    `begin` and `take` yield what to ask next: the message, whom it is about, and what for. Each is sent, and told to
    `sent`, before the next one is taken.

    Attributes:
        complete: everybody who was there at the beginning has answered, or was given time to.
    """

    complete: bool = False
    _players: dict[str, _Player] = field(default_factory=dict)
    _asked: dict[int, tuple[str, str]] = field(default_factory=dict)
    _first: set[int] = field(default_factory=set)

    def begin(self) -> Iterator[tuple[Message, str, str]]:
        """What to ask first."""
        from jeepney import MatchRule  # noqa: PLC0415 - optional, see bus
        from jeepney.bus_messages import message_bus  # noqa: PLC0415 - optional, see bus

        owners = MatchRule(type="signal", sender=_BUS, interface=_BUS, member="NameOwnerChanged")
        owners.add_arg_condition(0, mpris.PREFIX.rstrip("."), kind="namespace")
        changes = MatchRule(type="signal", interface=_PROPERTIES, member="PropertiesChanged", path=mpris.PATH)
        for rule in (owners, changes):
            yield message_bus.AddMatch(rule), "", "match"
        yield mpris.list_message(), "", "names"

    def sent(self, serial: int, name: str, what: str) -> None:
        """Remember a question by its serial."""
        self._asked[serial] = name, what
        if not self.complete:
            self._first.add(serial)

    def take(self, message: Message) -> Iterator[tuple[Message, str, str]]:
        """Take a message of the bus."""
        from jeepney import HeaderFields, MessageType  # noqa: PLC0415 - optional, see bus

        fields = message.header.fields
        sender = fields.get(HeaderFields.sender, "")
        if message.header.message_type is MessageType.signal:
            yield from self._signal(sender, fields.get(HeaderFields.member, ""), message.body)
            return
        serial = fields.get(HeaderFields.reply_serial, -1)
        name, what = self._asked.pop(serial, ("", ""))
        if message.header.message_type is MessageType.method_return:
            if what == "names":
                for found in sorted(name for name in message.body[0] if name.startswith(mpris.PREFIX)):
                    yield from self._appeared(found)
            elif name in self._players and message.body:
                self._learn(self._players[name], sender, what, message.body[0])
        self._first.discard(serial)
        self.complete = self.complete or not self._first

    def media(self) -> Media:
        """The players, those that play first."""
        found = [
            {
                "player": name.removeprefix(mpris.PREFIX),
                "name": player.identity or name.removeprefix(mpris.PREFIX),
                "status": player.status,
                "title": player.title,
                "artist": player.artist,
            }
            for name, player in self._players.items()
            if player.owner
        ]
        return sorted(found, key=lambda entry: (_RANK[entry["status"]], entry["player"]))

    def _signal(self, sender: str, member: str, body: Any) -> Iterator[tuple[Message, str, str]]:
        if member == "NameOwnerChanged" and sender == _BUS:
            name, _, owner = body
            self._players.pop(name, None)
            if owner and name.startswith(mpris.PREFIX):
                yield from self._appeared(name)
        elif member == "PropertiesChanged" and len(body) == _CHANGED and body[0] == mpris.PLAYER_INTERFACE:
            for name, player in self._players.items():
                if player.owner == sender:
                    self._learn(player, sender, "state", body[1])
                    # One that is asked already will answer with what is newest.
                    if set(_WANTED).intersection(body[2]) and (name, "state") not in self._asked.values():
                        yield self._ask(name, mpris.PLAYER_INTERFACE), name, "state"

    def _appeared(self, name: str) -> Iterator[tuple[Message, str, str]]:
        if len(self._players) >= MAX_PLAYERS:
            return
        self._players[name] = _Player()
        yield self._ask(name, mpris.ROOT_INTERFACE), name, "about"
        yield self._ask(name, mpris.PLAYER_INTERFACE), name, "state"

    def _ask(self, name: str, interface: str) -> Message:
        from jeepney import MessageFlag  # noqa: PLC0415 - optional, see bus

        message = mpris.properties_message(name, interface)
        # A player that has just gone must not be started again by being asked.
        message.header.flags |= MessageFlag.no_auto_start
        return message

    def _learn(self, player: _Player, sender: str, what: str, properties: Any) -> None:
        known = mpris.values(properties)
        if what == "about":
            player.identity = _text(known.get("Identity"))
            return
        player.owner = sender
        if "PlaybackStatus" in known:
            player.status = _STATUS.get(str(known["PlaybackStatus"]), "stopped")
        if "Metadata" in known:
            metadata = mpris.values(known["Metadata"])
            player.title = _text(metadata.get("xesam:title"))
            player.artist = _text(metadata.get("xesam:artist"))


def _text(value: Any) -> str:
    """What a player said, as one bounded text: some say a text where a list belongs, some the reverse."""
    parts = value if isinstance(value, list) else [value]
    return ", ".join(part for part in parts if isinstance(part, str) and part)[: mpris.MAX_TEXT]


class PlayerWatch(Watch[SessionBus]):
    """Watches the players as long as there is a session bus.

    Args:
        env: names the bus.
        changed: is called on the watch's thread with the players whenever they are others than before; None: nobody
            knows any more, because the bus is gone.
        log: takes a line that says why they are not watched.
    """

    def __init__(
        self, env: Mapping[str, str], changed: Callable[[Media | None], None], log: Callable[[str], None]
    ) -> None:
        super().__init__("The media players", log)
        self._env = env
        self._changed = changed

    def connect(self) -> SessionBus:
        """Return a connection to the session bus."""
        return SessionBus(self._env)

    def lost(self) -> None:
        """Tell that nobody knows the players."""
        self._changed(None)

    def watch(self, source: SessionBus) -> None:
        """Tell the players, and each change."""
        table, last = PlayerTable(), None
        questions = table.begin()
        deadline = time.monotonic() + KNOWN_S
        while True:
            for message, name, what in questions:
                table.sent(source.send(message), name, what)
            if table.complete:
                media = table.media()
                if media != last:
                    self._changed(media)
                    last = media
                self.known()
            try:
                questions = table.take(source.receive(None if table.complete else deadline - time.monotonic()))
            except TimeoutError:
                questions, table.complete = iter(()), True
