"""Finds and reads the desktop entry of an application by its desktop file id.

Rules here: reads files, starts nothing; every look-up takes the environment as an argument. Source: Desktop Entry
Specification 1.5 and XDG Base Directory Specification 0.8.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .execline import ExecError, FieldValues, expand_exec
from .failure import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_ENTRY_BYTES = 1 << 20
MAX_ID_CHARS = 255
_GROUP = "Desktop Entry"
_ESCAPES = {"s": " ", "n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A desktop entry that may be launched.

    Attributes:
        app: the desktop file id without `.desktop`.
        path: the file that it came from.
        name: the translated name, or `app` when the file has none.
        argv: the expanded Exec line; empty for an entry that is only started over D-Bus.
        terminal: it wants a terminal emulator around it.
        dbus: `DBusActivatable=true`.
        cwd: the `Path` key, or None.
    """

    app: str
    path: Path
    name: str
    argv: list[str]
    terminal: bool = False
    dbus: bool = False
    cwd: str | None = None


def data_dirs(env: Mapping[str, str]) -> list[Path]:
    """The XDG data directories, the user's own first; relative entries are ignored, as the specification asks."""
    home = env.get("XDG_DATA_HOME", "")
    if not home.startswith("/"):
        home = str(Path(env.get("HOME") or "~").expanduser() / ".local/share")
    dirs = env.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    return [Path(home), *(Path(item) for item in dirs.split(":") if item.startswith("/"))]


def check_id(app: str) -> str:
    """The id without a trailing `.desktop`.

    Raises:
        Failure: it is empty, too long, or could be a path.
    """
    app = app.removesuffix(".desktop")
    if not app or len(app) > MAX_ID_CHARS:
        raise Failure(f"The application's id must have 1 to {MAX_ID_CHARS} characters.")
    if "/" in app or app.startswith(".") or not app.isprintable():
        raise Failure(f"{app!r} is not an application's id. Use a name like org.mozilla.firefox.")
    return app


def _kind(path: Path) -> int:
    """What a path is (`stat.S_IFREG`, ...), or 0 when that cannot be told: missing, forbidden, too long a name."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return 0


def _relative_paths(app: str, base: Path) -> Iterator[Path]:
    """`a-b-c` is a-b-c.desktop, or lies in a subdirectory: a/b-c.desktop, a-b/c.desktop, a/b/c.desktop."""
    yield base / f"{app}.desktop"
    for index, char in enumerate(app):
        folder = app[:index]
        if char == "-" and folder not in {"", ".", ".."} and _kind(base / folder) == stat.S_IFDIR:
            yield from _relative_paths(app[index + 1 :], base / folder)


def find_file(app: str, env: Mapping[str, str]) -> Path | None:
    """The desktop file of an id in the first data directory that has it, or None."""
    for directory in data_dirs(env):
        for path in _relative_paths(app, directory / "applications"):
            if _kind(path) == stat.S_IFREG:
                return path
    return None


def parse_group(text: str) -> dict[str, str]:
    """The raw `key=value` pairs of the [Desktop Entry] group; comments, other groups and broken lines are skipped."""
    pairs: dict[str, str] = {}
    inside = False
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            inside = stripped[1:-1] == _GROUP
            continue
        key, equals, value = stripped.partition("=")
        if inside and equals and not stripped.startswith("#"):
            pairs[key.rstrip()] = value.lstrip()
    return pairs


def unescape(value: str) -> str:
    r"""Undo the escapes of a string value: \s \n \t \r \\; any other backslash stays as it is."""
    out: list[str] = []
    chars = iter(value)
    for char in chars:
        if char != "\\":
            out.append(char)
            continue
        code = next(chars, "")
        out.append(_ESCAPES.get(code, "\\" + code))
    return "".join(out)


def locale_suffixes(env: Mapping[str, str]) -> list[str]:
    """The key suffixes that match the user's locale, best first ("[de_DE@euro]", ..., "")."""
    value = env.get("LC_ALL") or env.get("LC_MESSAGES") or env.get("LANG") or ""
    head, _, modifier = value.partition("@")
    language, _, country = head.partition(".")[0].partition("_")
    if language in {"", "C", "POSIX"}:
        return [""]
    wanted = []
    if country and modifier:
        wanted.append(f"[{language}_{country}@{modifier}]")
    if country:
        wanted.append(f"[{language}_{country}]")
    if modifier:
        wanted.append(f"[{language}@{modifier}]")
    return [*wanted, f"[{language}]", ""]


def is_program(name: str, env: Mapping[str, str]) -> bool:
    """Whether an absolute path, or a name on PATH, is an executable file."""
    return shutil.which(name, path=env.get("PATH", os.defpath)) is not None


def _read_pairs(app: str, path: Path) -> dict[str, str]:
    """The pairs of a file that is an application's entry; raises as `read_entry`."""
    try:
        if path.stat().st_size > MAX_ENTRY_BYTES:
            raise Failure(f"{path} is not a desktop entry: it has more than {MAX_ENTRY_BYTES} bytes.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"The desktop entry {path} cannot be read: {error}.") from error
    if "\0" in text:
        raise Failure(f"{path} is not a desktop entry: it is no text.")
    pairs = parse_group(text)
    if pairs.get("Type") != "Application":
        raise Failure(f"{path} is not an application that can be started (its Type is {pairs.get('Type', 'missing')}).")
    if pairs.get("Hidden") == "true":
        # The specification: treated as if the file did not exist at all, also in the later directories.
        raise Failure(f"No application {app} is installed.")
    return pairs


def read_entry(app: str, path: Path, env: Mapping[str, str]) -> Entry:
    """Read one desktop file and check that it can be launched.

    Raises:
        Failure: unreadable, not an application, hidden, its program missing, or a wrong Exec line; the sentence names
            the file where the file is at fault.
    """
    pairs = _read_pairs(app, path)
    name = next(
        (unescape(pairs[key]) for key in (f"Name{suffix}" for suffix in locale_suffixes(env)) if key in pairs), app
    )
    probe = unescape(pairs.get("TryExec", ""))
    if probe and not is_program(probe, env):
        raise Failure(f"{name} is not installed: its program {probe} is missing.")
    dbus = pairs.get("DBusActivatable") == "true"
    argv: list[str] = []
    if not (dbus and "Exec" not in pairs):
        fields = FieldValues(name=name, location=str(path), icon=unescape(pairs.get("Icon", "")))
        try:
            argv = expand_exec(unescape(pairs.get("Exec", "")), fields)
        except ExecError as error:
            raise Failure(f"The Exec line of {path} is wrong: {error}.") from error
        if not dbus and not is_program(argv[0], env):
            raise Failure(f"{name} cannot be started: its program {argv[0]} is missing.")
    cwd = unescape(pairs.get("Path", "")) or None
    if cwd is not None and _kind(Path(cwd)) != stat.S_IFDIR:
        raise Failure(f"{name} cannot be started: its folder {cwd} does not exist.")
    return Entry(
        app=app,
        path=path,
        name=name,
        argv=argv,
        terminal=pairs.get("Terminal") == "true",
        dbus=dbus,
        cwd=cwd,
    )


def find_entry(app: str, env: Mapping[str, str]) -> Entry:
    """Look an application up by its desktop file id, as `launch_app {app}` names it.

    Raises:
        Failure: see `check_id` and `read_entry`; also when there is no such file.
    """
    app = check_id(app)
    path = find_file(app, env)
    if path is None:
        raise Failure(f"No application {app} is installed.")
    return read_entry(app, path, env)
