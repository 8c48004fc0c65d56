"""The store of models on disk (PROTOCOL.md, "Models").

Rules here: `sha256/DIGEST` is complete and right or not there; `plugins/ID/NAME` is a link to one of those;
`parts/DIGEST` is what has come so far, and belongs to whoever holds its lock. Names change only while `held` is, so
that nothing is deleted that is just being given a name. Whenever a process is killed, the next one goes on from what is
there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from utter_protocol.models import (
    Found,
    content_path,
    found_model,
    link_path,
    link_target,
    models_directory,
    part_path,
    plugin_models,
)
from utter_runner.operate.contents import open_regular
from utter_runner.operate.errors import OperateError
from utter_runner.operate.lockfile import locked, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from utter_protocol.manifest import Model

STALE_S: Final = 14 * 24 * 3600
"""How long what has come of a file is kept for the rest to come."""
_CHUNK: Final = 2**20
_DIGEST_LENGTH: Final = 64


class Content(NamedTuple):
    """A complete file: its digest, which is its name, and its size in bytes."""

    sha256: str
    size: int


class Store:
    """The models of one user.

    Args:
        root: the directory, which is made when something is put there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The store that an environment says."""
        return cls(models_directory(environ))

    def held(self) -> AbstractContextManager[None]:
        """Hold the names in it against other commands; waits for them."""
        return locked(self.root)

    # ---- what is there

    def state(self, plugin: str, model: Model, *, thorough: bool = False) -> Found:
        """What is there of a plugin's model.

        Args:
            plugin: its id.
            model: what its manifest or the configuration says.
            thorough: look at the content, too.

        Raises:
            OSError: it cannot be read.
        """
        found = found_model(self.root, plugin, model)
        if thorough and found.have == model.size and found.state in {"present", "partial"}:
            path = content_path(self.root, model.sha256)
            if path.exists() and not self.is_whole(model.sha256):
                return Found("damaged", found.have)
        return found

    def has(self, model: Model) -> bool:
        """Whether the content is there, by its size."""
        path = content_path(self.root, model.sha256)
        try:
            found = path.lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == model.size

    def is_whole(self, sha256: str) -> bool:
        """Whether the content of a complete file is what its name says.

        Raises:
            OSError: it cannot be read.
        """
        with open_regular(content_path(self.root, sha256), os.O_NOFOLLOW) as file:
            return file is not None and hashlib.file_digest(file, "sha256").hexdigest() == sha256

    def contents(self) -> list[Content]:
        """Every complete file, by digest."""
        return [Content(path.name, path.lstat().st_size) for path in _files(self.root / "sha256")]

    def parts(self) -> list[str]:
        """The digests of what has begun to come."""
        return [path.name for path in _files(self.root / "parts")]

    def links(self) -> dict[tuple[str, str], str]:
        """The digest that each name leads to, by plugin and name; empty for a link that is none of ours."""
        found = {}
        plugins = self.root / "plugins"
        for directory, subdirectories, files in os.walk(plugins):
            for name in (*subdirectories, *files):
                path = Path(directory, name)
                if path.is_symlink():
                    plugin, _, inside = path.relative_to(plugins).as_posix().partition("/")
                    digest = Path(path.readlink()).name
                    found[plugin, inside] = digest if str(path.readlink()) == link_target(inside, digest) else ""
        return found

    # ---- coming

    @contextmanager
    def part(self, sha256: str, on_wait: Callable[[], object]) -> Iterator[int]:
        """The file that content is collected in, opened to read and write, and held against other processes.

        Args:
            sha256: the digest of the content.
            on_wait: called when another process holds it, before this one waits.

        Raises:
            OSError: it cannot be made.
        """
        path = part_path(self.root, sha256)
        descriptor = self._hold_part(path, on_wait)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _hold_part(self, path: Path, on_wait: Callable[[], object]) -> int:
        _make(path.parent)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if not _lock_now(descriptor):
                    on_wait()
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Whoever had it may have put it in its place, or deleted it.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), path.lstat()):
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def accept(self, sha256: str, descriptor: int) -> None:
        """Give the content of a part, which is held and has been looked at, its place.

        Raises:
            OSError: it could not be written; nothing has the name then.
        """
        os.fchmod(descriptor, 0o444)
        os.fsync(descriptor)
        _make(self.root / "sha256")
        os.rename(part_path(self.root, sha256), content_path(self.root, sha256))  # noqa: PTH104 - the tests end the process at each change that `os` makes
        sync_directory(self.root / "sha256")

    def drop_part(self, sha256: str) -> None:
        """Delete a part, which is held."""
        with suppress(FileNotFoundError):
            os.unlink(part_path(self.root, sha256))  # noqa: PTH108 - see above

    def drop_content(self, sha256: str) -> None:
        """Delete a complete file, because its content is not what its name says. To be called while `held` is."""
        with suppress(FileNotFoundError):
            os.unlink(content_path(self.root, sha256))  # noqa: PTH108 - see above

    def give(self, plugin: str, model: Model) -> None:
        """Let a plugin find a model, whose content is there, under its name. To be called while `held` is.

        Raises:
            OperateError: something else has the name.
            OSError: it cannot be written.
        """
        path = link_path(self.root, plugin, model.name)
        target = link_target(model.name, model.sha256)
        try:
            if str(path.readlink()) == target:
                return
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOTDIR}:
                raise
            raise OperateError(f"{path} is in the way of the model {model.name}: move it elsewhere.") from None
        try:
            _make(path.parent)
        except (FileExistsError, NotADirectoryError):
            raise OperateError(f"{path.parent} is in the way of the model {model.name}: move it elsewhere.") from None
        # No name of a model begins with a dot.
        temporary = path.with_name(f".{path.name}")
        with suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108 - see above
        os.symlink(target, temporary)  # noqa: PTH211 - see above
        os.rename(temporary, path)  # noqa: PTH104 - see above
        sync_directory(path.parent)

    # ---- going

    def take(self, plugin: str, name: str) -> None:
        """Delete the name of a plugin's model; its content stays. To be called while `held` is."""
        path = link_path(self.root, plugin, name)
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)  # noqa: PTH108 - see above
        for parent in path.parents:
            if parent == self.root / "plugins":
                return
            try:
                os.rmdir(parent)  # noqa: PTH106 - see above
            except OSError:
                return

    def drop_unnamed(self) -> list[Content]:
        """Delete every complete file that no name leads to; return them. To be called while `held` is."""
        named = set(self.links().values())
        gone = [content for content in self.contents() if content.sha256 not in named]
        for content in gone:
            os.unlink(content_path(self.root, content.sha256))  # noqa: PTH108 - see above
        return gone

    def sweep(self, wanted: Collection[str] = (), *, older_s: float = STALE_S) -> int:
        """Delete parts that nobody works on and that are old or of complete files; return how many bytes those were.

        Args:
            wanted: digests whose parts are kept, whatever their age.
            older_s: how old, in seconds; 0 deletes all others.
        """
        freed = 0
        for path in _files(self.root / "parts"):
            complete = content_path(self.root, path.name).exists()
            if not complete and (path.name in wanted or time.time() - path.lstat().st_mtime < older_s):
                continue
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    # It may be another one by now.
                    if _lock_now(descriptor) and os.path.samestat(os.fstat(descriptor), path.lstat()):
                        freed += os.fstat(descriptor).st_size
                        os.unlink(path)  # noqa: PTH108 - see above
                finally:
                    os.close(descriptor)
        return freed

    def directory_of(self, plugin: str) -> Path:
        """Where a plugin has its models under their names."""
        return plugin_models(self.root, plugin)


def _lock_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make(directory: Path) -> None:
    if not directory.is_dir():
        if not directory.parent.is_dir():
            _make(directory.parent)
        with suppress(FileExistsError):
            os.mkdir(directory, 0o755)  # noqa: PTH102 - the tests end the process at each change that `os` makes
        if not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))


def _files(directory: Path) -> list[Path]:
    """What in a directory could be named by a digest, in order."""
    try:
        found = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in found if len(path.name) == _DIGEST_LENGTH and path.is_file() and not path.is_symlink()]
