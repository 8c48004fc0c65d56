"""Telling the service manager how the runner is: sd_notify(3), without its library.

Rules here: `notification` and the texts are pure. Nothing is raised and nothing waits when the manager is not there or
does not listen: it is told as a courtesy. The variables are taken out of the environment, so that no plugin speaks to
the manager in the runner's name. No trio: it is made before the rest of the daemon is loaded.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from utter_protocol.printable import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

MAX_STATUS = 500
"""Characters of a status text: it is one line in `systemctl status`."""

_MAX_REASON = 120
_MAX_NAMED = 3
_MICROSECONDS = 1_000_000


def notification(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return the datagram of some assignments. A value is one printable line: whatever it holds, it adds no field."""
    return "\n".join(f"{name}={harmless(value)}" for name, value in fields).encode()


def socket_address(address: str) -> str | None:
    """Return what NOTIFY_SOCKET names as Python has it: a path or an abstract name; None if it is no unix socket."""
    if address.startswith("@") and len(address) > 1:
        return "\0" + address[1:]
    return address if address.startswith("/") else None


class Plugin(Protocol):
    """As much of a plugin as a status text tells."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def status(self) -> str:
        """Where it is in its life."""

    @property
    def detail(self) -> str:
        """What is wrong with it."""

    @property
    def running(self) -> bool:
        """Whether it serves."""


def status_text(plugins: Iterable[Plugin], state: str) -> str:
    """Return one line about the runner: "8 of 9 plugins run; whisper failed: ...", what is worst first.

    Args:
        plugins: all that are configured.
        state: the runner's: `starting`, `ready` or `stopping`.
    """
    known = list(plugins)
    running = sum(one.running for one in known)
    said = f"{running} of {len(known)} plugins run" if known else "No plugins are configured"
    if state == "stopping":
        return f"Stopping; {said}" if running else "Stopping"
    troubled = sorted((one for one in known if not one.running or one.status == "degraded"), key=_rank)
    told = [said if state == "ready" else f"Starting: {said}"]
    told += [_trouble(one) for one in troubled[:_MAX_NAMED]]
    if len(troubled) > _MAX_NAMED:
        told.append(f"{len(troubled) - _MAX_NAMED} more do not run well")
    return "; ".join(told)


_WORST_FIRST = ("failed", "backoff", "degraded", "waiting", "starting")


def _rank(plugin: Plugin) -> int:
    return _WORST_FIRST.index(plugin.status) if plugin.status in _WORST_FIRST else len(_WORST_FIRST)


def _trouble(plugin: Plugin) -> str:
    words = {"failed": "failed", "backoff": "starts again", "degraded": "is degraded"}
    said = f"{plugin.id} {words.get(plugin.status, 'is ' + plugin.status)}"
    detail = harmless(plugin.detail)
    if not detail:
        return said
    return f"{said}: {detail if len(detail) <= _MAX_REASON else detail[: _MAX_REASON - 1] + '…'}"


class ServiceManager:
    """The service manager, if one started this process and wants to hear of it.

    Args:
        address: NOTIFY_SOCKET; empty when there is none.
        watchdog: seconds within which it wants to hear of the runner again and again; None when it does not.
    """

    def __init__(self, address: str = "", watchdog: float | None = None) -> None:
        self._address = socket_address(address)
        self.watchdog = watchdog if self._address is not None else None

    @property
    def present(self) -> bool:
        """Whether there is one that listens."""
        return self._address is not None

    def tell(self, *fields: tuple[str, str]) -> bool:
        """Send assignments; return whether they are on their way. True also when nobody wants to know."""
        if self._address is None:
            return True
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(notification(fields), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address)
            return True
        return False

    def status(self, text: str) -> bool:
        """Say in words how the runner is."""
        return self.tell(_status(text))

    def ready(self, text: str) -> bool:
        """Starting, or reloading, is over."""
        return self.tell(("READY", "1"), _status(text))

    def reloading(self) -> bool:
        """The configuration is read again; `ready` ends that."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        return self.tell(("RELOADING", "1"), ("MONOTONIC_USEC", str(now)))

    def stopping(self, text: str, seconds: float) -> bool:
        """The runner stops, which takes at most so long."""
        return self.tell(("STOPPING", "1"), _status(text), _extension(seconds))

    def extend(self, seconds: float) -> bool:
        """Starting may take so long from now on, whatever the unit says."""
        return self.tell(_extension(seconds))

    def alive(self) -> bool:
        """Feed the watchdog."""
        return self.tell(("WATCHDOG", "1"))


def _status(text: str) -> tuple[str, str]:
    return "STATUS", harmless(text)[:MAX_STATUS]


def _extension(seconds: float) -> tuple[str, str]:
    return "EXTEND_TIMEOUT_USEC", str(round(seconds * _MICROSECONDS))


def take_manager(environ: MutableMapping[str, str], pid: int) -> ServiceManager:
    """Return the service manager that the environment names, and take its variables out.

    Args:
        environ: the environment; NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are removed.
        pid: this process; a watchdog that is meant for another is none (sd_watchdog_enabled(3)).
    """
    address = environ.pop("NOTIFY_SOCKET", "")
    interval, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    mine = whose in ("", str(pid))
    wanted = mine and interval.isascii() and interval.isdigit() and int(interval) > 0
    return ServiceManager(address, int(interval) / _MICROSECONDS if wanted else None)
