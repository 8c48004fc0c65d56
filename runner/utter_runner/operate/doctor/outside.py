"""Everything outside of the doctor, behind one interface: files, processes, programs, limits, and the runner's socket.

Rules here: nothing is changed, and nothing is waited for longer than its deadline; what is missing is an `OSError`, as
the operating system has it. No check reads anything but through `Outside`, our own files apart (the configuration, the
packages, the lockfile), which are read by the functions that everybody uses. The fake is in fake.py.
"""

from __future__ import annotations

import ctypes
import grp
import importlib.util
import os
import pwd
import resource
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from utter_runner.operate.doctor.contact import Contact, Heard, hear, reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PATIENCE_S: Final = 4.0
"""Seconds that a program may take which the doctor asks."""
MAX_READ: Final = 256 * 1024
"""Bytes that are read of a file, or of what a program prints."""
_LANDLOCK_CREATE = 444


class Ran(NamedTuple):
    """What a program did. `code` is None if it had to be killed because its time was over."""

    code: int | None
    out: str = ""
    err: str = ""

    @property
    def said(self) -> str:
        """What it said of why, in one line."""
        return " ".join((self.err or self.out).split())[:200] or "it said nothing"


class Seen(NamedTuple):
    """What stat(2) says of a file."""

    mode: int
    uid: int
    gid: int
    inode: int = 0


class Space(NamedTuple):
    """What is free in a file system: bytes, and inodes (-1 where there is no bound)."""

    free: int
    inodes: int


class Process(NamedTuple):
    """A process of this user.

    Attributes:
        pid: its number.
        argv: its command line.
        state: the letter of proc_pid_stat(5); `T` is stopped.
        cgroup: the path of its control group.
        groups: the groups that it has.
        environ: what it was started with; empty if that may not be read.
    """

    pid: int
    argv: tuple[str, ...]
    state: str = "S"
    cgroup: str = ""
    groups: frozenset[int] = frozenset()
    environ: Mapping[str, str] = {}


class Outside(Protocol):
    """What the checks may look at. Paths are absolute; what cannot be read raises OSError."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of the command."""

    @property
    def pace(self) -> float:
        """How many times as long as usual everything may take that is waited for."""

    @property
    def interpreter(self) -> str:
        """The path of this Python, beside which this installation has its programs."""

    @property
    def uid(self) -> int:
        """The user's number."""

    @property
    def user(self) -> str:
        """The user's name."""

    def read(self, path: str) -> str:
        """The beginning of a file."""

    def stat(self, path: str) -> Seen:
        """What a file is; a symbolic link itself."""

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def can_read(self, path: str) -> bool:
        """Whether this process may open a device node or file for reading."""

    def can_write(self, path: str) -> bool:
        """Whether this process may write to a directory or file."""

    def which(self, program: str) -> str | None:
        """Where a program is found in PATH."""

    def run(self, argv: Sequence[str], *, timeout: float = PATIENCE_S) -> Ran:
        """Run a program to its end; FileNotFoundError if it is not installed."""

    def sample(self, argv: Sequence[str], size: int, *, timeout: float = PATIENCE_S) -> tuple[bytes, str]:
        """The first `size` bytes that a program prints before it is killed, and what it said on stderr."""

    def groups(self) -> frozenset[int]:
        """The groups that this process has."""

    def account_groups(self) -> frozenset[int]:
        """The groups that a new login of this user would have."""

    def group_name(self, gid: int) -> str:
        """The name of a group; its number if it has none."""

    def space(self, path: str) -> Space:
        """What is free where a directory lies, or would lie."""

    def file_limit(self, pid: int | None) -> int:
        """How many descriptors a process, or None for this one, may have (RLIMIT_NOFILE)."""

    def rtprio(self) -> int:
        """The highest real-time priority that this user may take (RLIMIT_RTPRIO)."""

    def processes(self) -> list[Process]:
        """The processes of this user."""

    def installed(self, module: str) -> bool:
        """Whether this Python can import a module."""

    def landlock(self) -> int:
        """The version of Landlock that the kernel has; 0 for none."""

    def reach(self, path: str, token: str | None) -> Contact:
        """Ask the runner how it is."""

    def hear(self, path: str, token: str | None) -> Heard:
        """Listen through the runner for a moment."""


class Machine:
    """The real `Outside`.

    Args:
        environ: the environment of the command.
        pace: see `Outside.pace`.
    """

    def __init__(self, environ: Mapping[str, str], pace: float = 1.0) -> None:
        self.environ = environ
        self.pace = pace
        self.interpreter = sys.executable
        self.uid = os.getuid()

    @property
    def user(self) -> str:
        """See `Outside.user`."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def read(self, path: str) -> str:
        """See `Outside.read`."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(fd, "rb") as file:
            return (file.read(MAX_READ) or b"").decode(errors="replace")

    def stat(self, path: str) -> Seen:
        """See `Outside.stat`."""
        found = os.lstat(path)
        return Seen(found.st_mode, found.st_uid, found.st_gid, found.st_ino)

    def names(self, path: str) -> list[str]:
        """See `Outside.names`."""
        return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths

    def can_read(self, path: str) -> bool:
        """See `Outside.can_read`. It is opened in fact: access(2) does not ask the kernel's modules."""
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
        except OSError:
            return False
        return True

    def can_write(self, path: str) -> bool:
        """See `Outside.can_write`."""
        return os.access(path, os.W_OK)

    def which(self, program: str) -> str | None:
        """See `Outside.which`."""
        return shutil.which(program, path=self.environ.get("PATH"))

    def _started(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, argv: Sequence[str], *, timeout: float = PATIENCE_S) -> Ran:
        """See `Outside.run`. What the program has started goes with it when its time is over."""
        with self._started(argv) as process:
            try:
                out, err = process.communicate(timeout=timeout * self.pace)
            except subprocess.TimeoutExpired:
                _kill_group(process)
                return Ran(None)
        return Ran(process.returncode, *(text[:MAX_READ].decode(errors="replace") for text in (out, err)))

    def sample(self, argv: Sequence[str], size: int, *, timeout: float = PATIENCE_S) -> tuple[bytes, str]:
        """See `Outside.sample`."""
        deadline = time.monotonic() + timeout * self.pace
        heard = b""
        with self._started(argv) as process:
            try:
                assert process.stdout is not None  # noqa: S101 - it is a pipe, as said above
                out = process.stdout.fileno()
                while len(heard) < size and (left := deadline - time.monotonic()) > 0:
                    if select.select([out], [], [], left)[0]:
                        piece = os.read(out, size - len(heard))
                        if not piece:
                            break
                        heard += piece
            finally:
                _kill_group(process)
            _, said = process.communicate()
        return heard, " ".join(said.decode(errors="replace").split())[:200]

    def groups(self) -> frozenset[int]:
        """See `Outside.groups`."""
        return frozenset({*os.getgroups(), os.getegid()})

    def account_groups(self) -> frozenset[int]:
        """See `Outside.account_groups`."""
        try:
            account = pwd.getpwuid(self.uid)
        except KeyError:
            return self.groups()
        return frozenset(os.getgrouplist(account.pw_name, account.pw_gid))

    def group_name(self, gid: int) -> str:
        """See `Outside.group_name`."""
        try:
            return grp.getgrgid(gid).gr_name
        except KeyError:
            return str(gid)

    def space(self, path: str) -> Space:
        """See `Outside.space`."""
        place = Path(path)
        while not place.exists() and place != place.parent:
            place = place.parent
        found = os.statvfs(place)
        return Space(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else -1)

    def file_limit(self, pid: int | None) -> int:
        """See `Outside.file_limit`."""
        return resource.prlimit(pid or 0, resource.RLIMIT_NOFILE)[0]

    def rtprio(self) -> int:
        """See `Outside.rtprio`."""
        return resource.getrlimit(resource.RLIMIT_RTPRIO)[1]

    def processes(self) -> list[Process]:
        """See `Outside.processes`."""
        return [found for name in self.names("/proc") if name.isdecimal() for found in self._process(name)]

    def _process(self, pid: str) -> Iterator[Process]:
        # It may end at any moment, and then it is not there.
        with suppress(OSError, ValueError):
            place = f"/proc/{pid}"
            if os.lstat(place).st_uid != self.uid:
                return
            status = dict(line.split(":\t", 1) for line in self.read(f"{place}/status").splitlines() if ":\t" in line)
            environ: dict[str, str] = {}
            with suppress(OSError):
                pairs = (entry.partition("=") for entry in self.read(f"{place}/environ").split("\0") if "=" in entry)
                environ = {name: value for name, _, value in pairs}
            gids = {*status.get("Groups", "").split(), *status.get("Gid", "").split()[1:2]}
            yield Process(
                int(pid),
                tuple(self.read(f"{place}/cmdline").rstrip("\0").split("\0")),
                status.get("State", "?")[:1],
                self.read(f"{place}/cgroup").strip().rpartition(":")[2],
                frozenset(map(int, gids)),
                environ,
            )

    def installed(self, module: str) -> bool:
        """See `Outside.installed`."""
        return importlib.util.find_spec(module) is not None

    def landlock(self) -> int:
        """See `Outside.landlock`."""
        libc = ctypes.CDLL(None, use_errno=True)
        return max(0, int(libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))

    def reach(self, path: str, token: str | None) -> Contact:
        """See `Outside.reach`."""
        return reach(path, token, self.pace)

    def hear(self, path: str, token: str | None) -> Heard:
        """See `Outside.hear`."""
        return hear(path, token, self.pace)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and what it has started. It is a group of its own, and it is ours until it is waited for."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
