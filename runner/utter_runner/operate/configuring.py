"""The configuration file as `utter config` works on it: reading, checking, changing one key, writing the first one.

Rules here: what a configuration may say is the runner's to judge, so a changed one is given to `utter-runner --check`
before it takes the place of the old one, and what that says is the answer; a change that it refuses changes nothing.
The file keeps its mode and its owner, and a link stays a link. Values that may be secret appear in no message.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tomllib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from utter_protocol.manifest import ManifestError, load_manifest
from utter_protocol.packages import PackageError, find_package, user_directories
from utter_runner.config import ConfigError, load_config
from utter_runner.config.edit import EditError
from utter_runner.operate.errors import OperateError
from utter_runner.operate.lockfile import locked, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CHECK_SECONDS = 120.0
"""How long `utter-runner --check` may take; it looks at the keyring, among others."""
_BOM = b"\xef\xbb\xbf"
_PLACE = re.compile(r"^(?P<file>.*?):(?P<line>[0-9]+): ")
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class ConfigFile(NamedTuple):
    """A configuration file that was read.

    Attributes:
        path: as it was named.
        data: its content.
        text: the content as text.
        document: what the text says.
    """

    path: Path
    data: bytes
    text: str
    document: dict[str, Any]


class Verdict(NamedTuple):
    """What `utter-runner --check` said.

    Attributes:
        code: its exit code: 0 nothing, 1 there are problems, 2 the runner does not start with it.
        problems: one sentence each, most of them with "FILE:LINE: " in front.
        summary: its last line; empty with code 2.
    """

    code: int
    problems: list[str]
    summary: str


def read_file(path: Path) -> ConfigFile:
    """Read a configuration file, whatever it says.

    Raises:
        OperateError: it cannot be read, or is no TOML.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise OperateError(f"There is no configuration {path}. Write one with: utter config init") from None
    except OSError as error:
        raise OperateError(f"{path}: The configuration cannot be read: {error.strerror}.") from None
    try:
        text = data.removeprefix(_BOM).decode()
        return ConfigFile(path, data, text, tomllib.loads(text))
    except (ValueError, RecursionError):
        try:
            load_config(path)
        except ConfigError as error:
            raise OperateError(str(error)) from None
        raise OperateError(f"{path} was changed while it was read; try again.") from None


def check_file(path: Path) -> Verdict:
    """Have the runner of this installation check a file.

    Raises:
        OperateError: it cannot be asked.
    """
    command = [sys.executable, "-P", "-m", "utter_runner", "--check", "--config", str(path), "--log-level", "error"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperateError(f"utter-runner --check could not be asked: {error}.") from None
    if done.returncode not in {0, 1, 2}:
        raise OperateError(f"utter-runner --check ended with exit status {done.returncode}.")
    problems = done.stderr.decode(errors="replace").splitlines()
    return Verdict(done.returncode, problems, done.stdout.decode(errors="replace").strip())


class Change(NamedTuple):
    """What a change has come to.

    Attributes:
        changed: whether the file is another one now.
        warnings: what is allowed and unwise in it, or was wrong before, too.
    """

    changed: bool
    warnings: list[str]


def change_file(path: Path, edit: Callable[[ConfigFile], str]) -> Change:
    """Change a file by a function of its content that returns the new text.

    Raises:
        OperateError: it cannot be changed, the runner would not take it so, or somebody else changed it meanwhile.
    """
    read_file(path)
    real = Path(os.path.realpath(path))
    try:
        with locked(real.parent):
            return _changed(path, real, edit)
    except OSError as error:
        raise OperateError(f"{path} cannot be written: {error.strerror}. Nothing was changed.") from None


def _changed(path: Path, real: Path, edit: Callable[[ConfigFile], str]) -> Change:
    before = read_file(path)
    try:
        text = edit(before)
    except EditError as error:
        raise OperateError(f"{path}: {error} Nothing was changed.") from None
    data = (_BOM if before.data.startswith(_BOM) else b"") + text.encode()
    if data == before.data:
        return Change(changed=False, warnings=[])
    status = real.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OperateError(f"{path} is not a regular file. Nothing was changed.")
    warnings = _judged(before, data, stat.S_IMODE(status.st_mode))
    with _beside(real, data, stat.S_IMODE(status.st_mode)) as new:
        if (status.st_uid, status.st_gid) != (new.stat().st_uid, new.stat().st_gid):
            os.chown(new, status.st_uid, status.st_gid)
            new.chmod(stat.S_IMODE(status.st_mode))
        if real.read_bytes() != before.data:
            raise OperateError(f"{path} was changed by somebody else meanwhile. Nothing was changed; try again.")
        new.replace(real)
    sync_directory(real.parent)
    return Change(changed=True, warnings=warnings)


def _judged(before: ConfigFile, data: bytes, mode: int) -> list[str]:
    """Return what is to be said of a new content. Raises OperateError if the runner would say no to what is new."""
    # Beside the link, if it is one: relative paths count from there.
    with _beside(before.path, data, mode) as new:
        try:
            config = load_config(new)
        except ConfigError as error:
            unwise: list[str] = []
            found = list(error.problems)
        else:
            unwise = list(config.warnings)
            found = [one for one in check_file(new).problems if one not in unwise]
        named = str(new)
    found = [_named(one, named, str(before.path)) for one in found]
    if not found:
        return [_named(one, named, str(before.path)) for one in unwise]
    known = {_sentence(one) for one in check_file(before.path).problems}
    refused = [_sentence(one) for one in found if _sentence(one) not in known]
    if refused:
        raise OperateError(f"{' '.join(refused)} Nothing was changed.")
    return found


def _named(problem: str, temporary: str, path: str) -> str:
    return problem.replace(temporary, path)


def _sentence(problem: str) -> str:
    """A problem without its place: the lines of two versions of a file are not the same."""
    return _PLACE.sub("", problem)


@contextmanager
def _beside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A file with `data` in the directory of `path`, which is gone afterwards unless it was renamed. Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        # Of a process that was killed and had the same number.
        new.unlink()
    descriptor = os.open(new, _OPEN, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        yield new
    finally:
        with suppress(FileNotFoundError):
            new.unlink()


def write_new(path: Path, text: str) -> None:
    """Write a file of this user alone where there is none, with its directory; it is there whole or not at all.

    Raises:
        OperateError: there is one, or it cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _beside(path, text.encode(), 0o600) as new:
            # Unlike a rename this never takes the place of anything, a dangling link among them.
            os.link(new, path)
        sync_directory(path.parent)
    except FileExistsError:
        raise OperateError(
            f"{path} is there already, and is not written over. Change it with: utter config set"
        ) from None
    except OSError as error:
        raise OperateError(f"{path} cannot be written: {error.strerror}.") from None


def schema_of(table: Mapping[str, Any], file: ConfigFile, environ: Mapping[str, str]) -> dict[str, Any]:
    """The JSON Schema of a plugin's settings, by its table in the configuration; an empty one if nobody can say."""
    base = file.path.absolute().parent
    named, name = table.get("manifest"), table.get("id")
    runner = file.document.get("runner")
    directories = runner.get("plugin_dirs", []) if isinstance(runner, dict) else []
    try:
        if isinstance(named, str):
            manifest: Path | None = base / Path(named).expanduser()
        elif isinstance(name, str) and isinstance(directories, list):
            places = [base / Path(one).expanduser() for one in directories if isinstance(one, str)]
            found = find_package(name, [*places, *user_directories(environ)])
            manifest = found.manifest if found else None
        else:
            return {}
        return load_manifest(manifest).config_schema if manifest else {}
    except (ManifestError, PackageError, RuntimeError, OSError):
        return {}
