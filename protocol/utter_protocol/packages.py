"""Where plugin packages lie on disk, and which of them may be trusted (PROTOCOL.md, "Packages").

Rules here: nothing is started and nothing but manifests is read; a package is found by its id, in the first directory
that has it; one that somebody else could have put there, or could change, is refused and never passed over in silence.
"""

from __future__ import annotations

import os
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MANIFEST_NAME: Final = "utter-plugin.toml"
_DATA_DIRS: Final = "/usr/local/share:/usr/share"


class PackageError(Exception):
    """A package that is there and is not used; the message names its path and says why."""


class Package(NamedTuple):
    """A package that was found: its id, its manifest, and whether it ships with the runner."""

    id: str
    manifest: Path
    bundled: bool


def user_directories(environ: Mapping[str, str]) -> list[Path]:
    """Where packages are looked for by themselves: `utter/plugins` below $XDG_DATA_HOME, then each of $XDG_DATA_DIRS.

    Paths in either that are not absolute are left out, as the XDG base directory specification wants it.
    """
    home = environ.get("XDG_DATA_HOME") or str(Path(environ.get("HOME") or "/", ".local", "share"))
    bases = [home, *(environ.get("XDG_DATA_DIRS") or _DATA_DIRS).split(":")]
    return list(dict.fromkeys(Path(base, "utter", "plugins") for base in bases if base.startswith("/")))


def bundled_directory() -> Path | None:
    """The directory of the plugins that ship with the runner, or None when they are not installed."""
    spec = find_spec("utter_plugins")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def find_package(plugin: str, directories: Iterable[str | os.PathLike[str]]) -> Package | None:
    """The package of the plugin `plugin` in the first of `directories` that has it, else the one that ships, else None.

    Raises:
        PackageError: the first one that is there cannot be reached or may not be trusted.
    """
    for directory in directories:
        manifest = Path(directory, plugin, MANIFEST_NAME)
        if _is_there(manifest):
            # In a sticky directory, such as /tmp, others may add packages, which are not theirs to own, and no more.
            _check(Path(directory), sticky_passes=True)
            check_package(manifest)
            return Package(plugin, manifest, bundled=False)
    bundled = bundled_directory()
    if bundled and _is_there(bundled / plugin / MANIFEST_NAME):
        return Package(plugin, bundled / plugin / MANIFEST_NAME, bundled=True)
    return None


def manifest_for(
    plugin: str, given: str | None, directories: Iterable[str | os.PathLike[str]], *, own_command: bool
) -> Path | None:
    """Where the manifest of a configured plugin is; None where there is none.

    Args:
        plugin: its id.
        given: the path of the manifest, or of its directory, if the configuration gives it.
        directories: as for `find_package`.
        own_command: whether the configuration says what is run, so that no package is looked for.

    Raises:
        PackageError: it cannot be reached or may not be trusted.
        OSError, RuntimeError: the path that was given cannot be looked at.
    """
    if given is not None:
        path = Path(given).expanduser()
        path = path / MANIFEST_NAME if path.is_dir() else path
        check_package(path)
        return path
    package = None if own_command else find_package(plugin, directories)
    return package.manifest if package else None


def all_packages(directories: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[str, Package | PackageError]]:
    """Every id that `find_package` would find something for, in order, with what it finds or why it refuses it."""
    bundled = bundled_directory()
    places = [Path(directory) for directory in directories]
    names = {name for place in (*places, *([bundled] if bundled else [])) for name in _names(place)}
    for name in sorted(names):
        try:
            found = find_package(name, places)
        except PackageError as error:
            yield name, error
        else:
            if found:
                yield name, found


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir() if os.path.lexists(path / MANIFEST_NAME)]
    except OSError:
        return []


def _is_there(manifest: Path) -> bool:
    try:
        # A place that is closed to us is like one that is not there: nothing in it could be run either.
        return os.access(manifest.parent.parent, os.X_OK) and stat.S_ISREG(manifest.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise PackageError(f"{manifest} cannot be reached: {getattr(error, 'strerror', error)}.") from None


def missing_for(runtime: str) -> str:
    """What has to be installed before this Python can run plugins of a runtime, in one sentence; empty for nothing."""
    if runtime != "wasm" or find_spec("wasmtime"):
        return ""
    return f"The runtime wasm needs an extra: pip install utter-runner[wasm], with {sys.executable}."


def check_package(manifest: Path) -> None:
    """Refuse a package, given by its manifest, that another user, or everybody, could change.

    Raises:
        PackageError: its directory or its manifest is owned by another user who is not root, is writable by everybody,
            or cannot be looked at.
    """
    for path in (manifest.parent, manifest):
        _check(path, sticky_passes=False)


def _check(path: Path, *, sticky_passes: bool) -> None:
    try:
        found, link = path.stat(), path.lstat()
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}.") from None
    for one in (found, link):
        if one.st_uid not in (0, os.geteuid()):
            raise PackageError(
                f"{path} is owned by user {one.st_uid}, who could put other code there: make it your own with chown."
            )
    if found.st_mode & stat.S_IWOTH and not (sticky_passes and found.st_mode & stat.S_ISVTX):
        raise PackageError(f"{path} can be changed by every user, who could put other code there: run chmod o-w {path}")
