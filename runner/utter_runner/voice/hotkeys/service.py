"""The hotkey service: watches every keyboard and says when a bound chord begins or ends.

Rules here: one trio task owns the devices, the matcher and the status; it sleeps in one epoll and wakes for nothing
else (while the push-to-talk chord is held also once a second, to notice that the machine slept). What is wrong with
devices ends in the status, never in an exception.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import select
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from utter_runner.voice.hotkeys.events import EventDecoder, KeyChange
from utter_runner.voice.hotkeys.matcher import ChordMatcher
from utter_runner.voice.hotkeys.report import Findings, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from utter_runner.machine.keys import Bindings
    from utter_runner.voice.hotkeys.backend import InputBackend, InputDevice
    from utter_runner.voice.hotkeys.matcher import HotkeyEvent

INJECTOR_NAME = "utter-runner injector"
"""The name that the runner's own virtual keyboard carries."""

_SLEEP_STEP_S = 0.1
_HELD_CHECK_S = 1.0
_MAX_READY = 64

log = logging.getLogger(__name__)


def time_asleep() -> float:
    """Seconds that this machine has been suspended since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(slots=True)
class _Watched:
    path: str
    identity: Hashable
    device: InputDevice
    decoder: EventDecoder = field(default_factory=EventDecoder)


@dataclass(slots=True)
class _Found:
    """What a look at the directory brought; errors are kept for the status."""

    nodes: Mapping[str, Hashable] = field(default_factory=dict)
    opened: list[_Watched] = field(default_factory=list)
    errors: dict[str, OSError] = field(default_factory=dict)
    directory_error: OSError | None = None


class Hotkeys:
    """Watches the chords of `bindings` on all devices of `backend`.

    Args:
        bindings: the chords.
        backend: where the devices come from.
        on_event: told every Press, Release, Toggle and Cancel, in order, from the running task. Press and Release
            alternate, and a Press is always followed by a Release, also when the service stops.
        on_status: told the new `status()` whenever it changes.
        only: names or paths (shell patterns) of the devices to watch; every device when it is empty.
        ignore: names or paths of devices that are not watched, besides the runner's own injector.
        asleep: seconds that the machine has been suspended so far.
    """

    def __init__(
        self,
        bindings: Bindings,
        backend: InputBackend,
        on_event: Callable[[HotkeyEvent], None],
        *,
        on_status: Callable[[dict[str, Any]], None] | None = None,
        only: Sequence[str] = (),
        ignore: Sequence[str] = (),
        asleep: Callable[[], float] = time_asleep,
    ) -> None:
        self._bindings = bindings
        self._backend = backend
        self._on_event = on_event
        self._on_status = on_status
        self._only = tuple(only)
        self._ignore = (INJECTOR_NAME, *ignore)
        self._asleep = asleep
        self._asleep_before = 0.0
        self._matcher = ChordMatcher(bindings)
        self._devices: dict[str, _Watched] = {}
        self._by_fd: dict[int, _Watched] = {}
        self._unwanted: dict[str, Hashable] = {}
        self._status: dict[str, Any] = {"available": False, "devices": [], "detail": "Hotkeys are not started yet."}

    def status(self) -> dict[str, Any]:
        """`{available: bool, devices: [name], detail}`; `detail` says what is wrong and what to do about it."""
        return {**self._status, "devices": list(self._status["devices"])}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; started once the devices that are there have been looked at."""
        if not self._bindings.codes:
            self._publish({"available": False, "devices": [], "detail": "No hotkey is configured in [hotkeys]."})
            task_status.started()
            await trio.sleep_forever()
        with select.epoll() as epoll, contextlib.ExitStack() as cleanup:
            cleanup.callback(self._stop, epoll)
            self._asleep_before = self._asleep()
            hot_plug_error = self._watch_changes(epoll)
            await self._look(epoll, hot_plug_error)
            task_status.started()
            while True:
                # A key that goes up while the machine sleeps may never be reported.
                with trio.move_on_after(_HELD_CHECK_S if self._matcher.talking else float("inf")):
                    await trio.lowlevel.wait_readable(epoll.fileno())
                self._notice_sleep(epoll)
                changed = self._read_ready(epoll)
                if changed:
                    await self._look(epoll, hot_plug_error)

    def _watch_changes(self, epoll: select.epoll) -> OSError | None:
        try:
            self._backend.start()
        except OSError as error:
            log.warning("hot-plugging of keyboards is not noticed: %s", error)
            return error
        epoll.register(self._backend.changes_fd, select.EPOLLIN)
        return None

    def _read_ready(self, epoll: select.epoll) -> bool:
        """Handle what is readable; True when the set of devices may be another."""
        changed = False
        for fd, _ in epoll.poll(0, _MAX_READY):
            if fd == self._backend.changes_fd:
                self._backend.drain_changes()
                changed = True
                continue
            watched = self._by_fd.get(fd)
            if watched is not None and not self._read_device(watched):
                # A dead node may be there for a while yet: only one made anew is opened again.
                self._unwanted[watched.path] = watched.identity
                self._drop(epoll, watched)
                changed = True
        return changed

    def _read_device(self, watched: _Watched) -> bool:
        """Read one device once; False when it is gone."""
        try:
            data = watched.device.read()
            if not data:
                return False
            for change in watched.decoder.feed(data):
                now = trio.current_time()
                if isinstance(change, KeyChange):
                    self._tell(self._matcher.key(watched.path, change.code, down=change.down, time=now))
                else:
                    pressed = watched.device.pressed_keys()
                    log.info("input events of %r were lost; its keys were read again", watched.device.name)
                    self._tell(self._matcher.sync(watched.path, pressed, time=now))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _notice_sleep(self, epoll: select.epoll) -> None:
        asleep = self._asleep()
        slept, self._asleep_before = asleep - self._asleep_before, asleep
        if slept < _SLEEP_STEP_S:
            return
        for watched in list(self._devices.values()):
            self._tell(self._matcher.remove(watched.path, time=trio.current_time()))
            try:
                self._matcher.add(watched.path, watched.device.pressed_keys())
            except OSError:
                self._drop(epoll, watched)

    async def _look(self, epoll: select.epoll, hot_plug_error: OSError | None) -> None:
        known = {watched.path: watched.identity for watched in self._devices.values()} | self._unwanted
        # Opening a node may wake up a sleeping keyboard, which takes as long as it takes.
        found = await trio.to_thread.run_sync(partial(_open_new, self._backend, known))
        if found.directory_error is None or isinstance(found.directory_error, FileNotFoundError):
            self._forget_gone(epoll, found.nodes)
        for watched in found.opened:
            self._adopt(epoll, watched)
        devices = [watched.device for watched in self._devices.values()]
        findings = Findings(
            directory=self._backend.directory,
            devices=[device.name for device in devices],
            keys=frozenset().union(*(device.keys for device in devices)),
            nodes=len(found.nodes),
            errors=found.errors,
            directory_error=found.directory_error,
            hot_plug_error=hot_plug_error,
        )
        self._publish(describe(self._bindings, findings))

    def _forget_gone(self, epoll: select.epoll, nodes: Mapping[str, Hashable]) -> None:
        for path, watched in list(self._devices.items()):
            if nodes.get(path) != watched.identity:
                self._drop(epoll, watched)
        self._unwanted = {path: identity for path, identity in self._unwanted.items() if nodes.get(path) == identity}

    def _adopt(self, epoll: select.epoll, watched: _Watched) -> None:
        device = watched.device
        left_out = _matches(watched, self._ignore) or (self._only and not _matches(watched, self._only))
        if left_out or not device.keys & self._bindings.codes:
            self._unwanted[watched.path] = watched.identity
            device.close()
            return
        try:
            pressed = device.pressed_keys()
        except OSError:
            device.close()
            return
        self._matcher.add(watched.path, pressed)
        self._devices[watched.path] = watched
        self._by_fd[device.fd] = watched
        epoll.register(device.fd, select.EPOLLIN)

    def _drop(self, epoll: select.epoll, watched: _Watched) -> None:
        del self._devices[watched.path]
        del self._by_fd[watched.device.fd]
        epoll.unregister(watched.device.fd)
        watched.device.close()
        self._tell(self._matcher.remove(watched.path, time=trio.current_time()))

    def _stop(self, epoll: select.epoll) -> None:
        for watched in list(self._devices.values()):
            self._drop(epoll, watched)
        self._backend.close()
        self._unwanted = {}
        self._publish({"available": False, "devices": [], "detail": "Hotkeys are stopped."})

    def _tell(self, events: Iterable[HotkeyEvent]) -> None:
        for event in events:
            self._on_event(event)

    def _publish(self, status: dict[str, Any]) -> None:
        if status != self._status:
            self._status = status
            if self._on_status is not None:
                self._on_status(self.status())


def _matches(watched: _Watched, patterns: Iterable[str]) -> bool:
    names = (watched.device.name, watched.path)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _open_new(backend: InputBackend, known: Mapping[str, Hashable]) -> _Found:
    found = _Found()
    try:
        found.nodes = backend.scan()
    except OSError as error:
        found.directory_error = error
        return found
    for path, identity in found.nodes.items():
        if known.get(path) == identity:
            continue
        try:
            device = backend.open(path)
        except OSError as error:
            found.errors[path] = error
        else:
            found.opened.append(_Watched(path, identity, device))
    return found
