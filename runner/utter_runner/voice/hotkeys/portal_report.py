"""The state of the portal's shortcuts in words.

Rules here: text only. Every sentence that reports a problem ends in a remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from utter_runner.config.desktop_entry import APP_ID
from utter_runner.machine.nodes import BY_HAND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

State = Literal["off", "standby", "absent", "asking", "dismissed", "failed", "bound"]

AGAIN = "run `utter hotkeys bind` to be asked again"
SETTINGS = "choose one in the desktop's settings for shortcuts, or run `utter hotkeys bind`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of the portal.

    Attributes:
        state: `off` by the config; `standby`, not wanted now; `absent`: there are no shortcuts here; `asking`: the
            person has to answer; `dismissed` by the person; `failed`; `bound`.
        version: of the portal's shortcuts; None as long as it is not known.
        triggers: the words for each shortcut's key, by id.
        detail: what is wrong, and what to do.
    """

    state: State = "standby"
    version: int | None = None
    triggers: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""

    def status(self) -> dict[str, Any]:
        """`{state, available, version, bound, triggers, detail}`, as in `runner.status`."""
        return {
            "state": self.state,
            "available": self.version is not None,
            "version": self.version,
            "bound": self.state == "bound",
            "triggers": dict(self.triggers),
            "detail": self.detail,
        }


def no_bus(why: str) -> str:
    """The session bus cannot be used."""
    return f"The desktop cannot be asked for keys, because {why}: mend that and restart the runner, or {BY_HAND}."


def no_portal() -> str:
    """Nobody has the portal's name."""
    return (
        "There is no portal on the session bus: install xdg-desktop-portal and the backend of your desktop, "
        f"or {BY_HAND}."
    )


def no_shortcuts() -> str:
    """The portal has other interfaces only."""
    return f"The portal of this desktop has no shortcuts, which takes GNOME 48, Plasma 5.27 or Hyprland: {BY_HAND}."


def no_application() -> str:
    """The portal wants an application id that it can look up."""
    return (
        f"The desktop gives shortcuts to installed applications only, and {APP_ID} is none: "
        f"run `utter hotkeys bind`, which installs it, or {BY_HAND}."
    )


def asking(notes: Sequence[str]) -> str:
    """The desktop shows a dialog, or does not."""
    return " ".join(
        [
            f"The desktop was asked for shortcuts: answer its dialog; if there is none, {AGAIN}, or {BY_HAND}.",
            *(f"{note}: change it in that dialog or in the desktop's settings." for note in notes),
        ]
    )


def dismissed() -> str:
    """The person said no."""
    return f"The desktop's dialog for shortcuts was dismissed, so none is bound: {AGAIN}, or {BY_HAND}."


def refused(why: str) -> str:
    """The portal said no."""
    return f"The desktop bound no shortcuts ({why}): {AGAIN}, or {BY_HAND}."


def away(why: str) -> str:
    """It is tried again."""
    return (
        f"The desktop's portal is lost ({why}) and is tried again in a while: if it stays so, run "
        f"`systemctl --user restart xdg-desktop-portal`, or {BY_HAND}."
    )


def closed() -> str:
    """The desktop ended what it had given."""
    return f"The desktop ended the shortcuts soon after it had bound them: {AGAIN}, or {BY_HAND}."


def bound(wanted: Sequence[str], triggers: Mapping[str, str], *, one_sided: bool) -> str:
    """What is still to be said of shortcuts that are bound."""
    sentences = []
    starting = [name for name in wanted if name != "cancel"]
    if not any(name in triggers for name in starting):
        sentences.append(f"The desktop names no key for {' or '.join(starting)}: if it has none, {SETTINGS}.")
    if one_sided:
        sentences.append(
            "The desktop does not tell when a key goes up, so one press starts and the next one stops: "
            f"for a key that is held, {BY_HAND}."
        )
    return " ".join(sentences)
