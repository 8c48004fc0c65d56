"""What is there of the plugins that are configured or were installed, to be held against the record.

Rules here: nothing is run, and nothing is read but manifests and what goes into a digest, up to the bounds of a
package; what cannot be read is told. The digest of a plugin that the configuration gives a command is over the words of
that and the files that they name (PROTOCOL.md, "The record").
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from utter_protocol.manifest import load_with_text
from utter_protocol.packages import MANIFEST_NAME, PackageError, manifest_for, user_directories
from utter_runner.operate.contents import contents_of, file_digest, open_regular
from utter_runner.operate.drift import Found
from utter_runner.operate.errors import OperateError
from utter_runner.operate.tree import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from utter_protocol.manifest import Manifest
    from utter_runner.config import Config
    from utter_runner.operate.contents import Contents
    from utter_runner.operate.lockfile import Entry
    from utter_runner.operate.places import Places

_FIRST_LINE: Final = b"utter-command 1\n"
_PYTHON: Final = "${PYTHON}"


class Subject(NamedTuple):
    """One plugin to look at.

    Attributes:
        manifest: the path of its manifest; None without one.
        command: the entrypoint that the configuration gives, as it stands there; empty if the manifest's is run.
        cwd: the working directory that the configuration gives.
    """

    manifest: Path | None
    command: Sequence[str] = ()
    cwd: str | None = None


def survey(config: Config, environ: Mapping[str, str], places: Places, record: Mapping[str, Entry]) -> dict[str, Found]:
    """What there is of every plugin that the configuration names, and of those that are installed besides.

    One that is configured and cannot be found, or that was installed and is gone, is not among them.
    """
    directories: list[str | Path] = [*config.runner.plugin_dirs, *user_directories(environ)]
    found: dict[str, Found] = {}
    for entry in config.plugin:
        try:
            manifest = manifest_for(entry.id, entry.manifest, directories, own_command=entry.entrypoint is not None)
        except (PackageError, OSError, RuntimeError, ValueError) as error:
            found[entry.id] = Found(problem=why(error))
            continue
        if manifest is not None or entry.entrypoint is not None:
            found[entry.id] = looked_at(entry.id, Subject(manifest, entry.entrypoint or (), entry.cwd), environ)
        elif not entry.spawn:
            found[entry.id] = looked_at(entry.id, Subject(None), environ)
    for name, known in record.items():
        place = places.plugins / name / MANIFEST_NAME
        if known.source and name not in {entry.id for entry in config.plugin} and os.path.lexists(place.parent):
            found[name] = looked_at(name, Subject(place), environ)
    return found


def looked_at(plugin: str, subject: Subject, environ: Mapping[str, str]) -> Found:
    """As `look`, with what is wrong as the finding's problem."""
    try:
        return look(plugin, subject, environ)
    except (OSError, ValueError, OperateError) as error:
        return Found(problem=why(error))


def why(error: Exception) -> str:
    """Why something could not be looked at, as a sentence with the path that it is about."""
    if not isinstance(error, OSError):
        return f"{error}"
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}."


def look(plugin: str, subject: Subject, environ: Mapping[str, str], limits: Limits | None = None) -> Found:
    """What there is of one plugin now.

    Raises:
        OperateError, OSError, ValueError: that cannot be told; a ManifestError is a ValueError.
    """
    limits = limits or Limits()
    if subject.manifest is None:
        if not subject.command:
            # Somebody else starts it, and nothing of it is known here but its name.
            return Found(digest=f"sha256:{hashlib.sha256(_FIRST_LINE + plugin.encode()).hexdigest()}")
        return Found(digest=_command_digest(subject, None, "", environ, limits))
    manifest, text = load_with_text(subject.manifest)
    if manifest.name != plugin:
        raise OperateError(f"{subject.manifest} is of a plugin named {manifest.name}.")
    directory = subject.manifest.absolute().parent
    contents = contents_of(directory, subject.manifest.name, limits)
    # What was parsed has to be what goes into the digest.
    if contents.manifest != hashlib.sha256(text.encode()).hexdigest():
        raise OperateError(f"{subject.manifest} was changed while it was read.")
    digest = contents.digest
    if subject.command:
        digest = _command_digest(subject, directory, digest, environ, limits)
    return _of_manifest(manifest, digest, contents)


def _of_manifest(manifest: Manifest, digest: str, contents: Contents) -> Found:
    return Found(
        version=manifest.version,
        protocol=manifest.protocol,
        abi=manifest.abi,
        permissions=tuple(dict.fromkeys(manifest.permissions)),
        digest=digest,
        code=contents.code,
        manifest=contents.manifest,
    )


def _command_digest(
    subject: Subject, directory: Path | None, package: str, environ: Mapping[str, str], limits: Limits
) -> str:
    whole = hashlib.sha256(_FIRST_LINE)
    if package:
        whole.update(f"package {package}\n".encode())
    for word in subject.command:
        whole.update(f"word {hashlib.sha256(os.fsencode(word)).hexdigest()}\n".encode())
    left = limits.max_package_bytes
    for path in _named_files(subject, directory, environ):
        with open_regular(path) as file:
            if file is None:
                continue
            content, size = file_digest(file, left)
        left -= size
        if left < 0:
            raise OperateError(
                f"The files that the command names are larger than {limits.max_package_bytes} bytes, the limit of a "
                "package (max_package_bytes)."
            )
        whole.update(f"file {content}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def _named_files(subject: Subject, directory: Path | None, environ: Mapping[str, str]) -> Iterator[Path]:
    """The files that the words of a command name: the program, and its arguments as the program would find them.

    A program that is looked for in PATH counts only if no argument names a file: otherwise it is an interpreter, and
    part of the system like that of a package.
    """
    if not subject.command:
        return
    program, *arguments = subject.command
    home = environ.get("HOME") or "/"
    inside = Path(subject.cwd or directory or home)
    named = [path for word in arguments if (path := _file(inside, word))]
    if "/" in program:
        # Beside the manifest, else in `cwd`, as it is started; one that is not there is told by whoever opens it.
        named.insert(0, Path(directory or subject.cwd or home) / program)
    elif not named and _PYTHON not in program:
        place = shutil.which(program, path=environ.get("PATH") or os.defpath)
        if place is None:
            raise OperateError(f"There is no executable {program!r} in PATH.")
        named.append(Path(place))
    own = Path(sys.executable).resolve()
    yield from (path for path in named if path.resolve() != own)


def _file(directory: Path, word: str) -> Path | None:
    try:
        path = directory / word
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None
