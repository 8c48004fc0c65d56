"""The keys, whichever way they come: from the keyboards, from the desktop's portal, or from both.

Rules here: it owns the two paths and decides when the portal is wanted; one key that both tell of counts once; the
status says what delivers. It begins with `run` and is over when `run` is cancelled: whoever has another configuration
makes another one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import trio

from utter_protocol.methods import HotkeysAsked
from utter_runner.voice.hotkeys.merge import PathMerger
from utter_runner.voice.hotkeys.portal import PortalKeys, portal_status
from utter_runner.voice.hotkeys.service import Hotkeys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from utter_runner.machine.keys import Bindings
    from utter_runner.voice.hotkeys.backend import InputBackend
    from utter_runner.voice.hotkeys.matcher import HotkeyEvent
    from utter_runner.voice.hotkeys.portal_link import PortalBackend

GRACE_SECONDS = 5.0
"""How long keyboards that were there may be away, as when a switch for several machines turns, before the desktop is
asked in their place."""


class KeyWatch:
    """Watches the chords of `bindings`.

    Args:
        bindings: the chords.
        keyboards: where the devices come from.
        portal: the desktop's portal; None: it is never asked.
        on_event: told every Press, Release, Toggle and Cancel, in order. Press and Release alternate, and a Press is
            always followed by a Release, also when the watch ends.
        always: ask the portal also while a keyboard is watched.
        on_status: told the new `status()`, without `seen`, whenever it changes.
        only: names or paths of the devices to watch; every device when it is empty.
        ignore: names or paths of devices that are not watched.
    """

    def __init__(
        self,
        bindings: Bindings,
        keyboards: InputBackend,
        portal: PortalBackend | None,
        on_event: Callable[[HotkeyEvent], None],
        *,
        always: bool = False,
        on_status: Callable[[dict[str, Any]], None] = lambda _status: None,
        only: Sequence[str] = (),
        ignore: Sequence[str] = (),
    ) -> None:
        self._on_event = on_event
        self._on_status = on_status
        self._always = always
        self._merger = PathMerger()
        self._seen: dict[str, float | None] = {"evdev": None, "portal": None}
        self._looked = False
        self._told: dict[str, Any] = {}
        self._keyboards = Hotkeys(
            bindings,
            keyboards,
            partial(self._take, "evdev"),
            on_status=lambda _status: self._changed(),
            only=only,
            ignore=ignore,
        )
        self._portal = (
            None
            if portal is None or not bindings.codes
            else PortalKeys(bindings, portal, partial(self._take, "portal"), on_status=self._changed)
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._portal is not None:
                nursery.start_soon(self._portal.run)
            try:
                await nursery.start(self._keyboards.run)
                self._looked = True
                self._consider(grace=0.0)
                await trio.sleep_forever()
            finally:
                self._looked = False

    def ask(self) -> HotkeysAsked:
        """Ask the desktop for its shortcuts anew, or to show its settings for them."""
        if self._portal is None:
            detail = 'The desktop is not asked for keys: set [hotkeys] portal to "auto" or "always".'
        elif not self._wants_portal():
            detail = (
                "A keyboard is watched, so the desktop is not asked for keys: "
                'set [hotkeys] portal to "always" to have both.'
            )
        else:
            return HotkeysAsked(asked=True, detail=self._portal.ask())
        return HotkeysAsked(asked=False, detail=detail)

    def status(self) -> dict[str, Any]:
        """`hotkeys` of `runner.status`; the ages in `seen` are seconds."""
        now = trio.current_time()
        ages = {path: None if at is None else round(now - at, 1) for path, at in self._seen.items()}
        return {**self._state(), "seen": ages}

    def _state(self) -> dict[str, Any]:
        """The status without ages."""
        watched = self._keyboards.status()
        live = [path for path, usable in (("evdev", watched["available"]), ("portal", self._bound)) if usable]
        path = self._merger.delivering if self._merger.delivering in live else (live or ["none"])[0]
        portal = portal_status(self._portal)
        details = {"evdev": watched["detail"], "portal": portal["detail"]}
        if path in details and not self._always:
            # What does not work matters only where it is wanted.
            details = {path: details[path]}
        return {
            "available": bool(live),
            "devices": watched["devices"],
            "detail": " ".join(detail for detail in details.values() if detail),
            "path": path,
            "evdev": {"available": watched["available"], "detail": watched["detail"]},
            "portal": portal,
        }

    @property
    def _bound(self) -> bool:
        return self._portal is not None and self._portal.usable

    def _wants_portal(self) -> bool:
        return self._always or not self._keyboards.status()["available"]

    def _consider(self, *, grace: float) -> None:
        if self._portal is not None and self._looked:
            self._portal.want(wanted=self._wants_portal(), grace=grace)

    def _changed(self) -> None:
        self._consider(grace=GRACE_SECONDS)
        self._tell()

    def _tell(self) -> None:
        state = self._state()
        if state != self._told:
            self._told = state
            self._on_status(state)

    def _take(self, path: Literal["evdev", "portal"], event: HotkeyEvent) -> None:
        self._seen[path] = trio.current_time()
        before = self._merger.delivering
        for one in self._merger.take(path, event):
            self._on_event(one)
        if self._merger.delivering != before:
            self._tell()
