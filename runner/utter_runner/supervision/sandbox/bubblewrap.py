"""The arguments of `bwrap`: a file system that holds what the rules name, and namespaces of its own for the rest.

Rules here: pure composition, but for asking which paths are links. A mount that lies inside another comes after it. The
process group stays the runner's, so that signals reach the plugin; standard streams and inherited descriptors pass.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from utter_runner.supervision.sandbox.permissions import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from utter_runner.supervision.sandbox.permissions import Rules

NOBODY = "65534"
# From this version on it can forbid user namespaces inside.
_NO_NESTING = (0, 8)


_READ, _WRITE = "--ro-bind-try", "--bind-try"
_SAME = (_READ, _WRITE)


class _Mount(NamedTuple):
    place: str
    kind: str
    options: tuple[str, ...]


def bubblewrap_argv(
    program: str, version: tuple[int, ...], rules: Rules, argv: Sequence[str], directory: str, *, root: bool
) -> list[str]:
    """Return what starts `argv` inside.

    Args:
        program: path of bwrap.
        version: its version.
        rules: what is there inside.
        argv: the program, found inside by its absolute path.
        directory: where it runs; it is made if it is not there.
        root: whether the runner is root, whose plugins are nobody inside and have none of its capabilities.
    """
    line = [program, "--unshare-user", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL"]
    if root:
        line += ["--uid", NOBODY, "--gid", NOBODY]
    if not rules.screen:
        line.append("--unshare-ipc")
    if not rules.network:
        line.append("--unshare-net")
    if not rules.spawn:
        # All that was ever started ends with it, whatever session it has put itself into.
        line += ["--unshare-pid", "--die-with-parent"]
        if version >= _NO_NESTING:
            line.append("--disable-userns")
    line += ["--proc", "/proc", "--dev", "/dev"]
    for mount in _in_order(_mounts(rules)):
        line += mount.options
    return [*line, "--dir", directory, "--chdir", directory, "--", *argv]


def _in_order(mounts: Iterable[_Mount]) -> Iterator[_Mount]:
    """Outer places before inner ones, without those that change nothing where they lie."""
    done: dict[Path, str] = {}
    # A stable sort: what is listed last for a place wins.
    for mount in sorted(mounts, key=lambda one: len(Path(one.place).parts)):
        place = Path(mount.place)
        around = next((done[one] for one in place.parents if one in done), "")
        if around in _SAME and (mount.kind == around or place.is_symlink()):
            # It is there already. A link is there with what it lies in, and nothing can be mounted on it.
            continue
        done[place] = mount.kind
        yield mount


def _mounts(rules: Rules) -> Iterator[_Mount]:
    for place in rules.private:
        yield _Mount(place, "", ("--perms", "0700", "--tmpfs", place))
    for place in rules.read:
        if place in SYSTEM and Path(place).is_symlink():
            yield _Mount(place, "", ("--symlink", str(Path(place).readlink()), place))
        else:
            yield _Mount(place, _READ, (_READ, place, place))
    for place in rules.write:
        yield _Mount(place, _WRITE, (_WRITE, place, place))
    for place in rules.sockets:
        yield _Mount(place, _READ, (_READ, place, place))
    for place in rules.devices:
        yield _Mount(place, "", ("--dev-bind-try", place, place))
    for place in rules.hidden:
        over = ("--tmpfs", place) if Path(place).is_dir() else ("--ro-bind", os.devnull, place)
        yield _Mount(place, "", over)
