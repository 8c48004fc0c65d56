"""Pausing players while somebody speaks, and playing on those that were left alone meanwhile.

Rules here: a player is paused by `Pause` and resumed by `Play`, never by `PlayPause`, and always by its unique name, so
that another program with the same name is not mistaken for it. What a player, a person or an op did to it since wins:
it is then no longer ours. All players are asked side by side, each is acted on as soon as it answers, and one that does
not answer costs nothing but `HOLD_S`. The connection lives from the first hold to the last release and hears meanwhile
what the players say; only one thread uses it.
Source: MPRIS D-Bus Interface Specification 2.2.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from . import mpris
from .bus import SessionBus
from .failure import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jeepney import Message

HOLD_S = 1.0
"""How long players have to answer to a hold, and again to the last release."""
FORGET_S = 90.0
"""After this long a hold that nobody released is void: whoever wanted it is gone."""
MAX_HELD = 32
"""How many players are looked at."""
_PROPERTIES = "org.freedesktop.DBus.Properties"
_NEEDED = ("CanControl", "CanPause", "CanPlay")

Reply = tuple[str, Any] | None
"""Who replied, by its unique name, and with what; None: it refused."""


@dataclass(eq=False)
class Held:
    """A player that was paused.

    Attributes:
        owner: its unique name on the bus.
        bus_name: its well-known one.
        name: for people.
        paused: it has said that it is paused; before that, `Playing` is old news.
        ours: nobody has touched it since.
    """

    owner: str
    bus_name: str
    name: str
    paused: bool = False
    ours: bool = True

    def heard(self, status: str) -> None:
        """Take what the player says of itself."""
        if status == "Paused":
            self.paused = True
        elif self.paused or status != "Playing":
            self.ours = False


class Listener:
    """A connection on which several questions are under way, each with what is done with its reply.

    Args:
        bus: the connection.
        on_signal: takes the signals that arrive: the sender, the member and the body.
    """

    def __init__(self, bus: SessionBus, on_signal: Callable[[str, str, Any], None]) -> None:
        self._bus = bus
        self._on_signal = on_signal
        self._asked: dict[int, Callable[[Reply], None]] = {}

    def ask(self, message: Message, then: Callable[[Reply], None]) -> None:
        """Send a question. Nobody is started by it. Raises Failure: the bus is gone."""
        from jeepney import MessageFlag  # noqa: PLC0415 - optional, see bus

        message.header.flags |= MessageFlag.no_auto_start
        self._asked[self._bus.send(message)] = then

    def wait(self, seconds: float) -> None:
        """Return when every question has its reply, or the time is up. Raises Failure: the bus is gone."""
        deadline = time.monotonic() + seconds
        try:
            while self._asked:
                self._take(self._bus.receive(deadline - time.monotonic()))
        except TimeoutError:
            # What comes later is nobody's answer any more.
            self._asked.clear()

    def close(self) -> None:
        """Let go of the connection."""
        self._bus.__exit__()

    def _take(self, message: Message) -> None:
        from jeepney import HeaderFields, MessageType  # noqa: PLC0415 - optional, see bus

        fields, kind = message.header.fields, message.header.message_type
        sender = fields.get(HeaderFields.sender, "")
        if kind is MessageType.signal:
            self._on_signal(sender, fields.get(HeaderFields.member, ""), message.body)
            return
        then = self._asked.pop(fields.get(HeaderFields.reply_serial, -1), None)
        if then is not None:
            then((sender, message.body) if kind is MessageType.method_return else None)


class MediaHolds:
    """The sessions that want quiet, and the players that are paused for them.

    Args:
        env: names the session bus.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._sessions: dict[str, float] = {}
        self._held: dict[str, Held] = {}
        self._identities: dict[str, str] = {}
        self._listener: Listener | None = None

    def hold(self, session: str) -> list[str]:
        """Pause what plays; return the names of those that were paused. Without a session bus there are none."""
        now = time.monotonic()
        if self._sessions and all(since < now - FORGET_S for since in self._sessions.values()):
            self._forget()
        self._sessions = {name: since for name, since in self._sessions.items() if since >= now - FORGET_S}
        self._sessions[session] = now
        before = [*self._held.values()]
        try:
            listener = self._listening()
            listener.ask(mpris.list_message(), self._found)
            listener.wait(HOLD_S)
        except Failure:
            self._close()
            self._held.clear()
            return []
        return sorted(self._name(held) for held in self._held.values() if held not in before)

    def release(self, session: str) -> list[str]:
        """Play on what is still ours, if no other session holds; return the names of those that play on."""
        if self._sessions.pop(session, None) is None or self._sessions:
            return []
        resumed: list[Held] = []
        try:
            if self._listener is not None and self._held:
                for held in self._held.values():
                    message = mpris.properties_message(held.owner, mpris.PLAYER_INTERFACE)
                    self._listener.ask(message, partial(self._play_on, held, resumed))
                self._listener.wait(HOLD_S)
        except Failure:
            # With the bus, the players are gone.
            resumed.clear()
        names = sorted(self._name(held) for held in resumed)
        self._forget()
        return names

    def as_left(self, players: Sequence[mpris.Player]) -> list[mpris.Player]:
        """The players as the user had left them: one that is held counts as one that plays."""
        ours = {held.bus_name for held in self._held.values() if held.ours}
        return [replace(player, status="Playing") if player.bus_name in ours else player for player in players]

    def holds(self, bus_name: str) -> bool:
        """Whether a player is paused and ours to resume."""
        return any(held.ours and held.bus_name == bus_name for held in self._held.values())

    def let_go(self, bus_name: str) -> None:
        """Somebody has said what the player is to do: it is not resumed."""
        for held in self._held.values():
            if held.bus_name == bus_name:
                held.ours = False

    def _listening(self) -> Listener:
        if self._listener is None:
            from jeepney import MatchRule  # noqa: PLC0415 - optional, see bus
            from jeepney.bus_messages import message_bus  # noqa: PLC0415 - optional, see bus

            self._listener = Listener(SessionBus(self._env), self._signal)
            rule = MatchRule(type="signal", interface=_PROPERTIES, member="PropertiesChanged", path=mpris.PATH)
            rule.add_arg_condition(0, mpris.PLAYER_INTERFACE)
            self._listener.ask(message_bus.AddMatch(rule), lambda _reply: None)
        return self._listener

    def _found(self, reply: Reply) -> None:
        listener = self._listening()
        names = sorted(name for name in reply[1][0] if name.startswith(mpris.PREFIX)) if reply else []
        for name in [name for name in names if not mpris.is_proxy(name)][:MAX_HELD]:
            listener.ask(mpris.properties_message(name, mpris.ROOT_INTERFACE), partial(self._introduced, name))
            listener.ask(mpris.properties_message(name, mpris.PLAYER_INTERFACE), partial(self._pause, name))

    def _introduced(self, bus_name: str, reply: Reply) -> None:
        identity = mpris.values(reply[1][0]).get("Identity") if reply and reply[1] else None
        if isinstance(identity, str) and identity:
            self._identities[bus_name] = identity[: mpris.MAX_TEXT]

    def _pause(self, bus_name: str, reply: Reply) -> None:
        """Pause a player that says that it plays."""
        state = mpris.values(reply[1][0]) if reply and reply[1] else {}
        if not reply or state.get("PlaybackStatus") != "Playing" or any(state.get(one) is False for one in _NEEDED):
            return
        owner = reply[0]
        known = self._held.get(owner)
        if known is not None and known.ours and not known.paused:
            # It has another name besides, or is still about to pause.
            return
        # What it was paused for before, it has been played since.
        self._held.pop(owner, None)
        held = self._held[owner] = Held(owner, bus_name, bus_name.removeprefix(mpris.PREFIX))
        self._listening().ask(mpris.command_message(owner, "pause"), partial(self._paused, held))

    def _paused(self, held: Held, reply: Reply) -> None:
        if reply is None and self._held.get(held.owner) is held:
            del self._held[held.owner]

    def _play_on(self, held: Held, resumed: list[Held], reply: Reply) -> None:
        if reply is None or not reply[1]:
            return
        held.heard(str(mpris.values(reply[1][0]).get("PlaybackStatus")))
        if held.ours:
            # Also where it says that it plays, but has never been seen to pause: the pause may still be under way.
            resumed.append(held)
            self._listening().ask(mpris.command_message(held.owner, "play"), partial(self._played, held, resumed))

    def _played(self, held: Held, resumed: list[Held], reply: Reply) -> None:
        if reply is None:
            resumed.remove(held)

    def _signal(self, sender: str, _member: str, body: Any) -> None:
        held = self._held.get(sender)
        changed = mpris.values(body[1]) if held is not None and len(body) > 1 else {}
        if held is not None and "PlaybackStatus" in changed:
            held.heard(str(changed["PlaybackStatus"]))

    def _name(self, held: Held) -> str:
        return self._identities.get(held.bus_name, held.name)

    def _forget(self) -> None:
        self._sessions.clear()
        self._held.clear()
        self._identities.clear()
        self._close()

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
