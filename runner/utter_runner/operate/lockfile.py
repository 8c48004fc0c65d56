"""The record of what was installed and of what was agreed to, `install.lock`.

Rules here: the file is TOML and is written as a whole, into a new file that takes the old one's place; one that cannot
be read, or that somebody else could have written, is an error that names file and line, and is left as it is. Whoever
changes it holds `locked`. Files of every earlier version are read, and lose nothing when they are written again.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tomllib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from utter_protocol.drift import Announced, Digest  # noqa: TC001 - the Struct below needs them to read a file
from utter_protocol.toml_lines import line_of
from utter_runner.operate.contents import open_regular
from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAX_BYTES: Final = 4 * 2**20
_VERSION: Final = 2
_READ: Final = (1, _VERSION)
_HEAD: Final = (
    "# What `utter plugins install` has installed and `utter plugins lock` has agreed to. They write it, and\n"
    "# it is not meant to be changed by hand.\n\n"
)


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One plugin: what its manifest says, what it is made of, where it came from, and what it says when it runs.

    Without a manifest `version` and `protocol` are empty and `abi` is 0.
    """

    version: str
    protocol: str
    abi: Annotated[int, Meta(ge=0)]
    digest: Digest
    """Of the package, or of the command that the configuration gives (`found.py`)."""
    permissions: list[str]
    """Those that its manifest asks for."""
    source: str = ""
    """The absolute path of the directory or archive that it was installed from; empty if it was not installed."""
    signed_by: str = ""
    """The minisign public key that it was signed with; empty if nobody has."""
    code: Digest | Literal[""] = ""
    """The digest of the package without its manifest, by which it is known again under another name."""
    process: Announced | None = None
    """What its process said when it was agreed to; None if that has not been."""


def read(path: Path) -> dict[str, Entry]:
    """The entries by the plugins' ids; none if there is no file.

    Raises:
        OperateError: it cannot be read, or is none.
    """
    try:
        data = _bytes_of(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OperateError(f"{path}:1: The record of plugins cannot be read: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise OperateError(f"{path}:1: The record of plugins is longer than {MAX_BYTES} bytes (max_lockfile).")
    return _parsed(data, path)


def _bytes_of(path: Path) -> bytes:
    """Up to one byte more than is allowed of a file that this user, or root, alone can write."""
    with open_regular(path) as file:
        if file is None:
            raise OperateError(f"{path}:1: The record of plugins cannot be read: it is no file.")
        found = os.fstat(file.fileno())
        if found.st_uid not in {0, os.geteuid()}:
            raise OperateError(
                f"{path}:1: The record of plugins is owned by user {found.st_uid}, who could write anything there: "
                "move it away, and run `utter plugins lock`."
            )
        if found.st_mode & stat.S_IWOTH:
            raise OperateError(
                f"{path}:1: The record of plugins can be changed by every user: look through it, and run "
                f"chmod 600 {path}"
            )
        return file.read(MAX_BYTES + 1)


def _parsed(data: bytes, path: Path) -> dict[str, Entry]:
    try:
        text = data.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _wrong(path, line, "it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # The message says the line itself, except at the end.
        what, _, place = str(error).partition(" (at ")
        number = place.removeprefix("line ").partition(",")[0]
        line = int(number) if number.isdecimal() else data.count(b"\n") + 1
        raise _wrong(path, line, what) from None
    except RecursionError:
        raise _wrong(path, 1, "it is nested too deeply") from None
    version = document.get("version")
    if type(version) is not int or version not in _READ:
        what = f"version must be {' or '.join(map(str, _READ))}; a newer utter may have written it"
        raise _wrong(path, line_of(text, ["version"]), what)
    if odd := document.keys() - {"version", "plugins"}:
        raise _wrong(path, line_of(text, [min(odd)]), f"there is no key {min(odd)}")
    plugins = document.get("plugins", {})
    if not isinstance(plugins, dict):
        raise _wrong(path, line_of(text, ["plugins"]), "plugins must be tables [plugins.ID]")
    return {name: _entry(name, value, text, path) for name, value in plugins.items()}


def _entry(name: str, value: Any, text: str, path: Path) -> Entry:
    try:
        return msgspec.convert(value, Entry)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        keys = [key for key in place.partition("`")[0].partition("[")[0].split(".") if key]
        line = line_of(text, ["plugins", name, *keys])
        raise _wrong(path, line, f"{'.'.join(['plugins', name, *keys])}: {what}") from None


def _wrong(path: Path, line: int, what: str) -> OperateError:
    return OperateError(
        f"{path}:{line}: The record of plugins cannot be used: {what}. Mend it, or move it away, run `utter plugins "
        "lock`, and install again what was installed."
    )


def write(path: Path, entries: Mapping[str, Entry]) -> None:
    """Put a new record in the place of the old one.

    Raises:
        OperateError: it would be too long to be read again.
        OSError: it cannot be written. In both cases the old one is still there.
    """
    import tomli_w  # noqa: PLC0415 - whoever only reads does not need it

    plugins = {name: msgspec.to_builtins(entries[name]) for name in sorted(entries)}
    data = (_HEAD + tomli_w.dumps({"version": _VERSION, "plugins": plugins})).encode()
    if len(data) > MAX_BYTES:
        raise OperateError(f"{path}: The record of plugins would be longer than {MAX_BYTES} bytes (max_lockfile).")
    replace_file(path, data)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file that is either there with all of `data`, or as it was, whenever the machine stops.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.rename(temporary, path)  # noqa: PTH104 - the tests end the process at each change that `os` makes
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108 - see above
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Have the names in a directory survive the loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(*directories: Path) -> Iterator[None]:
    """Hold directories, which are made where they are missing, against everybody else who does; waits for them.

    Raises:
        OSError: one cannot be made or opened.
    """
    held: list[int] = []
    try:
        for directory in directories:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            held.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            fcntl.flock(held[-1], fcntl.LOCK_EX)
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
