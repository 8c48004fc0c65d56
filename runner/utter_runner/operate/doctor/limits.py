"""Checks of what the machine allows: disk space, descriptors, inotify, real-time priority, versions.

Rules here: a bound below which something fails is broken, one that is merely near is a warning.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import TYPE_CHECKING, Final

from utter_protocol.state import state_directory
from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.doctor.words import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.look import Look

MIB: Final = 2**20
FULL: Final = 16 * MIB
LITTLE: Final = 256 * MIB
FEW_INODES: Final = 100
FEW_DESCRIPTORS: Final = 1_024
FEW_INSTANCES: Final = 64
"""A desktop's own programs hold some tens of inotify instances."""
FEW_WATCHES: Final = 1_024
OLDEST_KERNEL: Final = (5, 3)
"""pidfd_open(2), by which plugins are waited for."""

_INOTIFY: Final = "/proc/sys/fs/inotify"
_RTKIT: Final = ("/usr/libexec/rtkit-daemon", "/usr/lib/rtkit-daemon", "/usr/lib/rtkit/rtkit-daemon")


def places(look: Look) -> dict[str, str]:
    """The directories that are written to, by what they hold."""
    environ = look.outside.environ
    home = environ.get("HOME", "/")
    found = {
        "data": os.path.join(environ.get("XDG_DATA_HOME") or f"{home}/.local/share", "utter"),  # noqa: PTH118 - text
        "state": str(state_directory(environ)),
    }
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        found["runtime"] = runtime
    if look.config.runner.handle_root:
        found["handles"] = look.config.runner.handle_root
    return found


@check("limits.disk")
def disk(look: Look) -> Iterator[Finding]:
    """Whether there is room for what is written."""
    fine = []
    for name, path in places(look).items():
        space = look.outside.space(path)
        free = f"{space.free // MIB:,} MiB"
        if space.free < FULL or 0 <= space.inodes < FEW_INODES:
            yield broken(
                f"The file system of {path} ({name}) is full: {free} and {space.inodes} inodes are free.",
                "Neither the audit trail nor large data can be written.",
                f"df -h -i {path}",
            )
        elif space.free < LITTLE:
            yield warning(
                f"The file system of {path} ({name}) is nearly full: {free} are free.",
                "Models do not fit any more, and large data may soon not, either.",
                f"df -h {path}",
            )
        else:
            fine.append(f"{name} {free}")
    if fine:
        yield ok(f"Free: {', '.join(fine)}.")


@check("limits.descriptors")
def descriptors(look: Look) -> Iterator[Finding]:
    """How many files and sockets the runner may have open."""
    process = look.runner_process()
    limit = look.outside.file_limit(process.pid if process else None)
    if 0 <= limit < FEW_DESCRIPTORS:
        yield warning(
            f"At most {limit} descriptors may be open (RLIMIT_NOFILE).",
            "With some plugins and clients the runner has to turn others away.",
            f"ulimit -n {FEW_DESCRIPTORS}",
        )
    else:
        yield ok(f"Descriptors: {'no bound' if limit < 0 else limit}.")


@check("limits.inotify")
def inotify(look: Look) -> Iterator[Finding]:
    """Whether new keyboards and changed files can be noticed."""
    found = False
    for name, few in (("max_user_instances", FEW_INSTANCES), ("max_user_watches", FEW_WATCHES)):
        try:
            value = int(look.outside.read(f"{_INOTIFY}/{name}"))
        except (OSError, ValueError):
            continue
        if value < few:
            found = True
            yield warning(
                f"fs.inotify.{name} is {value}.",
                "When other programs use them up, a keyboard that is plugged in later is not noticed.",
                f"sudo sysctl fs.inotify.{name}={8 * few}",
            )
    if not found:
        yield ok("inotify has room.")


@check("limits.realtime")
def realtime(look: Look) -> Iterator[Finding]:
    """Whether the sound server can keep up under load."""
    if look.config.audio.source in ("wav", "none"):
        return
    if look.outside.rtprio() or any(look.outside.can_read(path) for path in _RTKIT):
        yield ok("The sound server may have real-time priority.")
    else:
        yield warning(
            "Neither rtkit nor RLIMIT_RTPRIO gives the sound server real-time priority.",
            "Under load the microphone loses pieces of words.",
            install(look.outside, "rtkit"),
        )


@check("limits.versions")
def versions(look: Look) -> Iterator[Finding]:
    """Python and the kernel."""
    try:
        release = look.outside.read("/proc/sys/kernel/osrelease").strip()
    except OSError:
        release = platform.release()
    python = ".".join(map(str, sys.version_info[:3]))
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        yield broken(
            f"The kernel is {release}, and {oldest} is the oldest that has what is needed.",
            "Plugins cannot be watched safely.",
            "Install a kernel of a supported distribution",
        )
    else:
        yield ok(f"Python {python}, Linux {release}.")
