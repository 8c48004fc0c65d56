"""A socket file, the clients' or a plugin's: its directory, its lock, and leaving nothing behind.

Rules here: a lock file beside the socket decides who owns the path, so that a stale socket is told from a living one
without guessing; nothing is removed that a runner did not make; every error names the path. No trio: the sockets are
made before the rest of the daemon is loaded.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# sun_path holds 108 bytes with the terminating zero (unix(7)).
MAX_PATH_BYTES = 107


class EndpointError(Exception):
    """The socket cannot be made; the message names the path and what to do."""


def runtime_directory(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_RUNTIME_DIR`, checked.

    Raises:
        EndpointError: XDG_RUNTIME_DIR is unset, no absolute path, no directory of this user, or open to others.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if not runtime:
        raise EndpointError(
            "XDG_RUNTIME_DIR is not set, so there is no private place for the socket. A login session sets it "
            f"(usually /run/user/{os.getuid()}); otherwise set [runner] socket_path."
        )
    path = Path(runtime)
    if not path.is_absolute():
        raise EndpointError(f"XDG_RUNTIME_DIR is {runtime!r}, which is not an absolute path.")
    try:
        status = path.stat()
    except OSError as error:
        raise EndpointError(f"XDG_RUNTIME_DIR {path} cannot be used: {error.strerror}.") from None
    if not stat.S_ISDIR(status.st_mode):
        raise EndpointError(f"XDG_RUNTIME_DIR {path} is not a directory.")
    if status.st_uid != os.getuid():
        raise EndpointError(f"XDG_RUNTIME_DIR {path} belongs to uid {status.st_uid}, not to you (uid {os.getuid()}).")
    if status.st_mode & 0o077:
        raise EndpointError(
            f"XDG_RUNTIME_DIR {path} is open to other users (mode {status.st_mode & 0o7777:04o}). Run: chmod 700 {path}"
        )
    return path


def default_socket_path(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_RUNTIME_DIR/utter/runner.sock`. Raises EndpointError as `runtime_directory` does."""
    return runtime_directory(environ) / "utter" / "runner.sock"


def check_length(path: Path, remedy: str) -> None:
    """Raise EndpointError when `path` is too long for a socket's; `remedy` is a sentence that says what to do."""
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise EndpointError(
            f"The socket path {path} has {size} bytes; unix sockets take at most {MAX_PATH_BYTES}. {remedy}"
        )


def make_directory(directory: Path) -> None:
    """Make the directory of a socket with mode 0700, and those above it, if they are missing.

    Raises:
        EndpointError: it cannot be made, belongs to somebody else, or others may write to it.
    """
    try:
        # mkdir(parents=True) would give those above it the mode that the umask says.
        for parent in [*reversed(directory.parents), directory]:
            if not parent.exists():
                parent.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise EndpointError(f"The directory {directory} cannot be made: {error.strerror}.") from None
    if status.st_uid != os.getuid():
        raise EndpointError(f"The directory {directory} belongs to uid {status.st_uid}, not to you.")
    if status.st_mode & 0o022:
        raise EndpointError(
            f"The directory {directory} is writable by others (mode {status.st_mode & 0o7777:04o}). "
            f"Run: chmod 700 {directory}"
        )


def remove_stale(path: Path, instead: str) -> None:
    """Remove a socket file that nobody listens on.

    Args:
        path: where it may lie.
        instead: what else the user could do if something is in the way, for the message.

    Raises:
        EndpointError: what lies there is no socket, is somebody else's, or is alive.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise EndpointError(f"{path} exists and is not a socket; move it away or {instead}.")
    if status.st_uid != os.getuid():
        raise EndpointError(f"{path} belongs to uid {status.st_uid}, not to you; {instead}.")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with probe:
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                path.unlink()
            return
        except BlockingIOError:
            # Its queue of connections is full, so it is alive, if busy.
            pass
        except OSError as error:
            raise EndpointError(f"{path} cannot be examined: {error.strerror}.") from None
        managed = _is_managed(probe)
    if managed:
        raise EndpointError(
            f"systemd listens on {path} for the runner (utter-runner.socket): start it with "
            f"systemctl --user start utter-runner, or {instead}."
        )
    raise EndpointError(f"Another program listens on {path}; {instead}.")


def _is_managed(probe: socket.socket) -> bool:
    """Whether it is the service manager that listens: then it is to start the runner."""
    pid, _uid, _gid = struct.unpack(
        "3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == "systemd\n"
    return False


class Endpoint:
    """A listening unix socket that this process alone owns.

    Args:
        path: where the socket file goes; its directory is made with mode 0700 if it is missing.
        instead: what else the user could do if something is in the way, for the message.
        passed: a socket that listens there already, made by the service manager (`activation`); becomes the endpoint's.
            Its file stays when this is closed: the manager goes on listening.

    Raises:
        EndpointError: another runner owns the path, something else lies there, or it cannot be made.
    """

    def __init__(
        self, path: Path, instead: str = "set another socket_path", passed: socket.socket | None = None
    ) -> None:
        self.path = path
        self.activated = passed is not None
        self._instead = instead
        self._closed = False
        if "\0" in str(path):
            raise EndpointError(f"The socket path {str(path)!r} has a NUL character.")
        check_length(path, "Set [runner] socket_path to a shorter one.")
        make_directory(path.parent)
        self._lock_fd = self._lock(path.with_name(path.name + ".lock"))
        try:
            if passed is not None:
                self.listener = passed
                self._note_place()
                return
            # The lock is ours, so no runner serves it; a socket of some other program may still be alive.
            remove_stale(path, instead)
            self.listener = socket.socket(
                socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            )
            try:
                self._bind()
            except OSError:
                self.listener.close()
                raise
        except EndpointError:
            os.close(self._lock_fd)
            raise
        except OSError as error:
            os.close(self._lock_fd)
            raise EndpointError(f"The socket {path} cannot be made: {error.strerror}.") from None

    def _lock(self, path: Path) -> int:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise EndpointError(f"The lock file {path} cannot be opened: {error.strerror}.") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise EndpointError(
                f"Another runner (pid {owner}) already serves {self.path}. Stop it first, or {self._instead}."
            ) from None
        except OSError as error:
            os.close(fd)
            raise EndpointError(f"The lock file {path} cannot be used: {error.strerror}.") from None
        return fd

    def _bind(self) -> None:
        # The mode must be right from the first moment; the umask is the only way for a socket file.
        umask = os.umask(0o177)
        try:
            self.listener.bind(os.fspath(self.path))
        finally:
            os.umask(umask)
        self.listener.listen(128)
        self._note_place()

    def _note_place(self) -> None:
        status = self.path.lstat()
        self._made = (status.st_dev, status.st_ino)

    def in_place(self) -> bool:
        """Whether the socket file is still where it was made, so that others can reach it."""
        try:
            # As long as the socket is open, nobody else's file can have its inode number.
            status = self.path.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._made

    def close(self) -> None:
        """Stop listening; remove the socket file if it is still the one that was made here. Harmless when repeated.

        What was passed is only closed: whoever connects now waits for the next runner.
        """
        if self._closed:
            return
        self._closed = True
        if not self.activated and self.in_place():
            with suppress(OSError):
                self.path.unlink()
        self.listener.close()
        os.close(self._lock_fd)
