"""The record of the packages that were installed, `install.lock`.

Rules here: the file is TOML and is written as a whole, into a new file that takes the old one's place; one that cannot
be read is an error that names file and line, and is left as it is. Whoever changes it holds `locked`.
"""

from __future__ import annotations

import fcntl
import os
import tomllib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from utter_protocol.toml_lines import line_of
from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAX_BYTES: Final = 4 * 2**20
_VERSION: Final = 1
_HEAD: Final = "# What `utter plugins` has installed. It is written by that command and is not meant to be changed.\n\n"


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One installed package: what its manifest said, and where it came from."""

    version: Annotated[str, Meta(min_length=1)]
    protocol: Annotated[str, Meta(min_length=1)]
    abi: Annotated[int, Meta(ge=1)]
    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    permissions: list[str]
    source: Annotated[str, Meta(min_length=1)]
    """The absolute path of the directory or archive."""
    signed_by: str = ""
    """The minisign public key that it was signed with; empty if nobody has."""


def read(path: Path) -> dict[str, Entry]:
    """The entries by the plugins' ids; none if there is no file.

    Raises:
        OperateError: it cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OperateError(f"{path}: The record of installed plugins cannot be read: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise OperateError(f"{path}: The record of installed plugins is longer than {MAX_BYTES} bytes.")
    return _parsed(data, path)


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
    if document.get("version") != _VERSION:
        raise _wrong(path, line_of(text, ["version"]), f"version must be {_VERSION}; a newer utter may have written it")
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
        key = place.partition("`")[0].partition("[")[0]
        line = line_of(text, ["plugins", name, *([key] if key else [])])
        raise _wrong(path, line, f"plugins.{name}{f'.{key}' if key else ''}: {what}") from None


def _wrong(path: Path, line: int, what: str) -> OperateError:
    return OperateError(
        f"{path}:{line}: The record of installed plugins cannot be used: {what}. Mend it, or move it away and install "
        "the plugins again."
    )


def write(path: Path, entries: Mapping[str, Entry]) -> None:
    """Put a new record in the place of the old one.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    import tomli_w  # noqa: PLC0415 - whoever only reads does not need it

    plugins = {name: msgspec.to_builtins(entries[name]) for name in sorted(entries)}
    text = _HEAD + tomli_w.dumps({"version": _VERSION, "plugins": plugins})
    replace_file(path, text.encode())


def replace_file(path: Path, data: bytes) -> None:
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
