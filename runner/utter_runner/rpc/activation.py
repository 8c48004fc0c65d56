"""Socket activation: the listening socket that the service manager hands over (sd_listen_fds(3)).

Rules here: what was passed is looked at before it is used, and every error says which unit to mend; the variables are
taken out of the environment, so that no plugin takes the socket for its own. No trio, as in `endpoint`.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from utter_runner.rpc.endpoint import EndpointError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

FIRST_FD = 3
UNIT = "utter-runner.socket"
# More than any unit passes; a number from elsewhere is not gone through one by one.
_MOST = 4096


def take_listener(environ: MutableMapping[str, str], pid: int) -> socket.socket | None:
    """Return the socket that was passed to this process, or None if none was.

    Args:
        environ: the environment; LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES are removed.
        pid: this process; what is meant for another is none.

    Raises:
        EndpointError: more than one was passed, or it is no unix stream socket that listens at a path.
    """
    count, whose = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    if whose != str(pid) or count in ("", "0"):
        return None
    if not (count.isascii() and count.isdigit() and len(count) <= len(str(_MOST)) and int(count) <= _MOST):
        raise EndpointError(f"LISTEN_FDS is {count!r}, which is no number of descriptors.")
    fds = range(FIRST_FD, FIRST_FD + int(count))
    for fd in fds:
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    if len(fds) > 1:
        raise EndpointError(
            f"{len(fds)} sockets were passed ({names or 'without names'}), and the runner listens on one: "
            f"let {UNIT} have one ListenStream= and no other unit pass any."
        )
    try:
        passed = socket.socket(fileno=FIRST_FD)
    except OSError as error:
        raise EndpointError(f"What {UNIT} passed as descriptor {FIRST_FD} is no socket: {error.strerror}.") from None
    wrong = _unfit(passed)
    if wrong:
        passed.close()
        raise EndpointError(f"The socket that {UNIT} passed {wrong}: it needs ListenStream=%t/utter/runner.sock.")
    passed.settimeout(0)
    return passed


def _unfit(passed: socket.socket) -> str:
    if passed.family != socket.AF_UNIX:
        return "is no unix socket"
    if passed.type != socket.SOCK_STREAM:
        return "is no stream socket"
    if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen (Accept=yes passes connections)"
    name = passed.getsockname()
    if not isinstance(name, str) or not name.startswith("/"):
        return "has no path"
    return ""


def check_place(passed: socket.socket, path: Path) -> None:
    """Check that a passed socket lies where clients look for it, and that nobody else may connect.

    Raises:
        EndpointError: it lies elsewhere, its file is gone, or others may use it.
    """
    found = Path(passed.getsockname())
    # The directory may be named in two ways; the file itself is no link.
    if (found.parent.resolve(), found.name) != (path.parent.resolve(), path.name):
        raise EndpointError(
            f"{UNIT} listens on {found}, and the configuration says {path}: give both the same path "
            "(ListenStream= and [runner] socket_path), or stop the unit."
        )
    try:
        status = found.lstat()
    except OSError:
        raise EndpointError(f"The socket file {found} is gone. Run: systemctl --user restart {UNIT}") from None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        raise EndpointError(f"{found} is not the socket that was passed. Run: systemctl --user restart {UNIT}")
    if status.st_mode & 0o077:
        raise EndpointError(
            f"The socket {found} is open to other users (mode {status.st_mode & 0o7777:04o}): "
            f"{UNIT} needs SocketMode=0600."
        )
