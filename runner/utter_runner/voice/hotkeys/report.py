"""The hotkey status in words: which keyboards are watched, and what to do when none is.

Rules here: text only. Every sentence that reports a problem ends in a remedy.
"""

from __future__ import annotations

import grp
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from utter_runner.machine.nodes import BY_HAND, USUAL_GROUP, group_may_read, join_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from utter_runner.machine.keys import Bindings, Chord


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a look at the devices brought.

    Attributes:
        directory: where the device nodes are.
        devices: names of the watched keyboards.
        keys: the codes that they can produce, together.
        nodes: how many device nodes there are.
        errors: the nodes that could not be opened.
        directory_error: why the directory could not be listed.
        hot_plug_error: why new devices are not noticed.
    """

    directory: str
    devices: Sequence[str] = ()
    keys: frozenset[int] = frozenset()
    nodes: int = 0
    errors: Mapping[str, OSError] = field(default_factory=dict)
    directory_error: OSError | None = None
    hot_plug_error: OSError | None = None


def describe(bindings: Bindings, found: Findings) -> dict[str, Any]:
    """The status `{available, devices, detail}`: available when a watched keyboard can start a session."""
    missing = [chord for _, chord in bindings if not _can_be_held(chord, found.keys)]
    starting = [chord for name, chord in bindings if name != "cancel"]
    return {
        "available": any(chord not in missing for chord in starting),
        "devices": list(found.devices),
        "detail": " ".join(text for text in _sentences(found, missing) if text),
    }


def _can_be_held(chord: Chord, keys: frozenset[int]) -> bool:
    return all(codes & keys for codes in chord.keys)


def _sentences(found: Findings, missing: Sequence[Chord]) -> Iterable[str]:
    problem = _about_directory(found)
    if problem:
        yield problem
    else:
        if missing:
            chords = ", ".join(dict.fromkeys(chord.text for chord in missing))
            yield f"No watched keyboard has the keys of {chords}: choose other keys in [hotkeys], or {BY_HAND}."
        yield _about_errors(found)
    if found.hot_plug_error is not None:
        yield (
            f"Keyboards that are plugged in later are not noticed ({_why(found.hot_plug_error)}): restart the runner "
            "after plugging one in, or raise fs.inotify.max_user_instances."
        )


def _about_directory(found: Findings) -> str:
    """What is wrong when nothing at all can be watched."""
    if isinstance(found.directory_error, FileNotFoundError):
        return f"There is no {found.directory}, so no key can be watched: {BY_HAND}."
    if found.directory_error is not None:
        return f"{found.directory} cannot be listed ({_why(found.directory_error)}): {BY_HAND}."
    if found.nodes == 0:
        return f"There is no input device in {found.directory}: plug a keyboard in, or {BY_HAND}."
    denied = [path for path, error in found.errors.items() if isinstance(error, PermissionError)]
    if len(denied) == found.nodes:
        return (
            f"None of the {found.nodes} input devices in {found.directory} may be read by this user: run "
            f"`{_join_group(denied[0])}` and log in again, or {BY_HAND}."
        )
    return ""


def _about_errors(found: Findings) -> str:
    if not found.errors:
        return ""
    path, error = next(iter(found.errors.items()))
    more = f" and {len(found.errors) - 1} more" if len(found.errors) > 1 else ""
    text = f"{path}{more} cannot be opened ({_why(error)})."
    if isinstance(error, PermissionError):
        text += f" If a keyboard is missing, run `{_join_group(path)}` and log in again."
    return text


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _join_group(path: str) -> str:
    """The command that lets this user read the node."""
    group = USUAL_GROUP
    try:
        node = os.stat(path)  # noqa: PTH116 - one call for mode and group
        if group_may_read(node.st_mode, node.st_gid):
            group = grp.getgrgid(node.st_gid).gr_name
    except (OSError, KeyError):
        pass
    return join_group(group)
