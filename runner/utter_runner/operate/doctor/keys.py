"""Checks of the way by which the push-to-talk key arrives: the keyboards, the portal, or the compositor.

Rules here: with the runner up, the way that it says is the one; why a keyboard cannot be read is found out here, from
the node's group, this session's groups, the account's, and those of the process that would read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from utter_runner.machine.keys import Bindings, HotkeyError
from utter_runner.machine.nodes import BY_HAND, USUAL_GROUP, group_may_read, join_group
from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.doctor.words import remedy_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from utter_runner.operate.doctor.look import Look

DIRECTORY = "/dev/input"
_WORD_BITS = 64
_CONFIGURED = "[hotkeys] "
_BIND = "utter hotkeys bind"
_NAMES = {"evdev": "the keyboard (evdev)", "portal": "the desktop's portal", "ptt": "`utter ptt`"}
_WHY = "The key is not heard, and nobody listens when you hold it."
_REPLY_MS = 3_000
_PORTAL = [
    "--dest=org.freedesktop.portal.Desktop",
    "/org/freedesktop/portal/desktop",
    "org.freedesktop.DBus.Properties.Get",
    "string:org.freedesktop.portal.GlobalShortcuts",
    "string:version",
]


class Keyboard(NamedTuple):
    """A device node that has the keys, or whose keys are not known."""

    path: str
    name: str


@check("keys.path")
def path(look: Look) -> Iterator[Finding]:
    """Which way delivers the key, and when it last did."""
    hotkeys: dict[str, Any] = look.status.get("hotkeys") or {}
    if not look.config.hotkeys.enabled:
        yield ok(f"Hotkeys are off; to listen, {BY_HAND}.")
    elif hotkeys.get("available"):
        yield _heard(hotkeys)
    else:
        yield from _unheard(look, hotkeys)


def _heard(hotkeys: Mapping[str, Any]) -> Finding:
    """The runner has a way."""
    way = str(hotkeys.get("path", "evdev"))
    devices = ", ".join(map(str, hotkeys.get("devices", ()))) if way == "evdev" else ""
    what = f"The key is heard through {_NAMES.get(way, way)}{f': {devices}' if devices else ''}. {_last(hotkeys)}"
    detail = str(hotkeys.get("detail") or "")
    if not detail:
        return ok(what)
    return warning(
        f"{what} {detail}",
        "Not every key that you want is heard, or not as you want.",
        _BIND if _BIND in detail else remedy_in(detail) or "utter status",
    )


def _last(hotkeys: Mapping[str, Any]) -> str:
    """When each way has delivered something last."""
    seen = [(age, way) for way, age in (hotkeys.get("seen") or {}).items() if age is not None]
    if not seen:
        return "Nothing was pressed since the runner has started."
    return f"Last pressed: {', '.join(f'{_NAMES.get(way, way)} {_ago(age)}' for age, way in sorted(seen))}."


def _ago(seconds: float) -> str:
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name} ago"
    return f"{seconds:.0f} s ago"


def _unheard(look: Look, hotkeys: Mapping[str, Any]) -> Iterator[Finding]:
    """No keyboard is watched and no shortcut is bound; or there is no runner, and what it would have is found out."""
    shortcuts = str((hotkeys.get("portal") or {}).get("detail") or "")
    # What the runner says of itself is told if nothing better was found out.
    said = str((hotkeys.get("evdev") or {}).get("detail") or hotkeys.get("detail") or "")
    instead, why = "", _WHY
    if (hotkeys.get("seen") or {}).get("ptt") is not None:
        instead, why = _last(hotkeys), "Only what `utter ptt` is called by is heard, and no key besides."
    elif not hotkeys and look.config.hotkeys.portal != "off" and portal_version(look):
        instead = "The desktop has the portal GlobalShortcuts, which a runner asks in that case."
        why = "A key is heard only as far as the desktop gives it, and once you have agreed in its dialog."
    if _BIND in shortcuts:
        yield broken(shortcuts, _WHY, _BIND) if not instead else warning(shortcuts, why, _BIND)
    for finding in _keyboards(look, said):
        if finding.status == "broken" and instead and not finding.what.startswith(_CONFIGURED):
            yield warning(f"{finding.what} {instead}", why, finding.mend)
        else:
            yield finding


def _keyboards(look: Look, said: str) -> Iterator[Finding]:
    if not look.outside.installed("evdev"):
        yield broken("The Python package evdev is not installed, which reads keyboards.", _WHY, "pip install evdev")
        return
    try:
        hotkeys = look.config.hotkeys
        bindings = Bindings.parse(push_to_talk=hotkeys.push_to_talk, toggle=hotkeys.toggle, cancel=hotkeys.cancel)
    except HotkeyError as error:
        yield broken(f"{_CONFIGURED}{error}", _WHY, look.edit(f"{_CONFIGURED}{error.binding}"))
        return
    wanted = [chord.keys for name, chord in bindings if name != "cancel"]
    try:
        nodes = [name for name in look.outside.names(DIRECTORY) if name.startswith("event")]
    except OSError:
        nodes = []
    if not nodes:
        yield broken(
            f"There is no input device in {DIRECTORY}. {said}".rstrip(),
            _WHY,
            f"Edit your compositor's settings: {BY_HAND}",
        )
        return
    able = [one for node in nodes if (one := _keyboard(look, node, wanted)) is not None]
    if not able:
        yield broken(
            "No keyboard here has the keys of [hotkeys] push_to_talk or toggle.",
            _WHY,
            look.edit("[hotkeys] push_to_talk = a key that you have"),
        )
        return
    readable = [one for one in able if look.outside.can_read(one.path)]
    if readable and look.contact().state != "up":
        yield ok(f"The key can be read (evdev): {', '.join(one.name for one in readable)}.")
    elif readable:
        yield _runner_may_not(look, readable[0], said)
    else:
        yield _may_not(look, able[0])


def _keyboard(look: Look, node: str, wanted: list[tuple[frozenset[int], ...]]) -> Keyboard | None:
    """The device of a node, unless it is known to lack the keys. Everybody may read this much of a device."""
    place = f"/sys/class/input/{node}/device"
    try:
        name = look.outside.read(f"{place}/name").strip()
        words = look.outside.read(f"{place}/capabilities/key").split()
    except OSError:
        return Keyboard(f"{DIRECTORY}/{node}", node)
    bits = 0
    for word in words:
        bits = bits << _WORD_BITS | int(word, 16)
    held = any(all(any(bits >> code & 1 for code in codes) for codes in keys) for keys in wanted)
    return Keyboard(f"{DIRECTORY}/{node}", name) if held else None


def _group_of(look: Look, path: str) -> tuple[str, int]:
    """The group that may read a node, and its number; the usual one, and -1, where the node does not say."""
    try:
        node = look.outside.stat(path)
    except OSError:
        return USUAL_GROUP, -1
    if group_may_read(node.mode, node.gid):
        return look.outside.group_name(node.gid), node.gid
    return USUAL_GROUP, -1


def _may_not(look: Look, keyboard: Keyboard) -> Finding:
    group, gid = _group_of(look, keyboard.path)
    what = f"You may not read {keyboard.path} ({keyboard.name})"
    if gid in look.outside.groups():
        return broken(
            f"{what}, though its group {group} is yours: something besides the file's mode forbids it.",
            _WHY,
            f"getfacl {keyboard.path}",
        )
    if gid in look.outside.account_groups():
        return broken(
            f"{what}: you are in the group {group}, and this session was begun before you were.",
            _WHY,
            f"loginctl terminate-user {look.outside.user}",
        )
    return broken(f"{what}: you are not in the group {group}.", _WHY, join_group(group, look.outside.user))


def _runner_may_not(look: Look, keyboard: Keyboard, said: str) -> Finding:
    """This session may read the keyboard, and the runner says that it cannot."""
    group, gid = _group_of(look, keyboard.path)
    process = look.runner_process()
    if process is not None and gid >= 0 and gid not in process.groups:
        manager = next(
            (one for one in look.processes() if one.argv[1:2] == ("--user",) and "systemd" in one.argv[0]), None
        )
        old = manager is not None and gid not in manager.groups and look.is_service()
        return broken(
            f"You may read {keyboard.path} ({keyboard.name}), and the runner may not: it was started before "
            f"you were in the group {group}" + (", and so was systemd's user manager." if old else "."),
            _WHY,
            f"loginctl terminate-user {look.outside.user}" if old else look.restart_command(),
        )
    return broken(
        f"You may read {keyboard.path} ({keyboard.name}), and the runner does not watch it. {said}".rstrip(),
        _WHY,
        look.restart_command(),
    )


@check("keys.portal")
def portal(look: Look) -> Iterator[Finding]:
    """Whether the desktop offers the GlobalShortcuts portal, and what it has bound."""
    if not look.config.hotkeys.enabled:
        return
    told = (look.status.get("hotkeys") or {}).get("portal") or {}
    if told.get("bound"):
        keys = [f"{name} ({words or 'no key'})" for name, words in (told.get("triggers") or {}).items()]
        yield ok(f"The desktop's portal has bound the shortcuts{': ' if keys else ''}{', '.join(keys)}.")
    elif version := portal_version(look):
        yield ok(f"The desktop has the portal GlobalShortcuts (version {version}).")
    else:
        yield ok("The desktop has no portal GlobalShortcuts; the key comes from the keyboards or the compositor.")


def portal_version(look: Look) -> int:
    """The version of the portal's interface on the session bus; 0 for none."""
    try:
        patience = f"--reply-timeout={round(_REPLY_MS * look.outside.pace)}"
        ran = look.outside.run(["dbus-send", "--session", "--print-reply", patience, *_PORTAL])
    except OSError:
        return 0
    # variant       uint32 1
    words = ran.out.split()
    return int(words[-1]) if ran.code == 0 and words and words[-1].isdecimal() else 0
