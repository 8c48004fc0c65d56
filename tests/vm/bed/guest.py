"""What a test holds of a guest: commands, files, keys and speech in it.

Rules here: the guest is 10 to 30 times slower than the machine under it, so nothing here expects anything to be quick;
whoever waits polls, up to a limit that only something broken reaches. Nothing of the runner is known here.
"""

from __future__ import annotations

import itertools
import json
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from vm.bed.image import USER
from vm.bed.layer import VENV
from vm.bed.machine import Machine, restored

# How long a command may take if nothing else is said.
COMMAND_SECONDS = 120.0
WAIT_SECONDS = 180.0
# A look takes a second of an emulated processor, which those need that are waited for.
_POLL_SECONDS = 1.5
_SHARED = "/mnt/host"


class GuestError(AssertionError):
    """Something in the guest is not as it has to be; the message has what was seen there."""


class Done(NamedTuple):
    """A command that has ended; `code` is None if it was killed because its time was over."""

    argv: tuple[str, ...]
    code: int | None
    out: str
    err: str

    def ok(self) -> Done:
        """Itself, or `GuestError` if it failed."""
        if self.code != 0:
            raise GuestError(f"{' '.join(self.argv)}: exit code {self.code}\n{self.out}\n{self.err}")
        return self


class Job:
    """A request that was sent and whose answer may not be there yet."""

    def __init__(self, guest: Guest, number: int, argv: tuple[str, ...], limit: float) -> None:
        self._guest, self._number, self._argv, self._limit = guest, number, argv, limit
        self.answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def answer(self) -> dict[str, Any]:
        """What the agent answers."""
        try:
            found = self.answers.get(timeout=self._limit)
        except queue.Empty:
            raise GuestError(f"{' '.join(self._argv)}: the guest does not answer") from None
        if found is None:
            raise GuestError(f"{' '.join(self._argv)}: the guest is gone")
        if "failed" in found:
            raise GuestError(f"{' '.join(self._argv)}: {found['failed']}")
        return found

    def wait(self) -> Done:
        """Wait for the end of a command."""
        found = self.answer()
        return Done(self._argv, found["rc"], found["out"], found["err"])

    def signal(self, number: int) -> None:
        """Send a signal to the command and what it has started."""
        self._guest.ask("stop", job=self._number, signal=number)


class Guest:
    """A running guest; `started` makes one."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.shared = machine.shared
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._mutex = threading.Lock()
        machine.port.settimeout(None)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def ask(self, what: str, **params: object) -> dict[str, Any]:
        """One request to the agent, and its answer."""
        return self._send(what, (what,), COMMAND_SECONDS * 2, params).answer()

    def start(
        self,
        *argv: str,
        user: str = USER,
        timeout: float = COMMAND_SECONDS,
        env: dict[str, str] | None = None,
        text: str = "",
    ) -> Job:
        """Start a command as a user, with `text` as its standard input."""
        params = {"argv": argv, "user": user, "timeout": timeout, "env": env or {}, "input": text}
        return self._send("run", argv, timeout + COMMAND_SECONDS, params)

    def run(
        self,
        *argv: str,
        user: str = USER,
        timeout: float = COMMAND_SECONDS,
        env: dict[str, str] | None = None,
        text: str = "",
    ) -> Done:
        """Run a command to its end."""
        return self.start(*argv, user=user, timeout=timeout, env=env, text=text).wait()

    def write(self, path: str, text: str, *, user: str = USER, mode: int = 0o644) -> None:
        """Write a file; a path that is not absolute is below the user's home."""
        place = path if path.startswith("/") else f"/home/{user}/{path}"
        self.ask("write", path=place, text=text, user=user, mode=mode)

    def read(self, path: str) -> str | None:
        """A file's text, or None if there is no such file."""
        done = self.run("cat", path, user="root")
        return done.out if done.code == 0 else None

    def until(self, what: str, look: Callable[[], Any], limit: float = WAIT_SECONDS) -> Any:
        """Look again and again until there is something true, and return it; `GuestError` names `what`."""
        deadline = time.monotonic() + limit
        while not (seen := look()):
            if time.monotonic() > deadline:
                raise GuestError(f"waited {limit:.0f} s in vain: {what}; last seen: {seen!r}")
            time.sleep(_POLL_SECONDS)
        return seen

    def journal(self, *arguments: str) -> str:
        """The whole journal, the system's and the user's."""
        return self.run("journalctl", "-b", "--no-pager", *arguments, user="root").out

    def close(self) -> None:
        """End the guest."""
        with suppress(OSError):
            self.machine.port.shutdown(2)
        self.machine.kill()
        self._reader.join()

    def _send(self, what: str, argv: tuple[str, ...], limit: float, params: dict[str, object]) -> Job:
        with self._mutex:
            number = next(self._numbers)
            job = self._jobs[number] = Job(self, number, argv, limit)
            self.machine.port.sendall(json.dumps({"id": number, "do": what, **params}).encode() + b"\n")
        return job

    def _read(self) -> None:
        with suppress(OSError, ValueError), self.machine.port.makefile("rb") as lines:
            for line in lines:
                answer = json.loads(line)
                if (job := self._jobs.pop(answer.get("id"), None)) is not None:
                    job.answers.put(answer)
        for job in list(self._jobs.values()):
            job.answers.put(None)


@contextmanager
def started(guest_image: Path) -> Iterator[Guest]:
    """A guest with the runner's environment in its place, at the right time of day."""
    directory = Path(tempfile.mkdtemp(prefix="utter-vm-"))
    try:
        guest = Guest(restored(guest_image, directory))
        try:
            guest.ask("clock", now=time.time())
            guest.run("mkdir", "-p", _SHARED, user="root").ok()
            options = "trans=virtio,version=9p2000.L,msize=1048576,cache=none"
            guest.run("mount", "-t", "9p", "-o", options, "host", _SHARED, user="root").ok()
            # What was read of the disk before the checkpoint was another disk.
            guest.run("blockdev", "--flushbufs", "/dev/vdb", user="root").ok()
            guest.run("mkdir", "-p", VENV, f"/home/{USER}/.local/bin").ok()
            guest.run("mount", "/dev/vdb", VENV, user="root").ok()
            commands = [f"{VENV}/bin/{one}" for one in ("utter", "utter-runner")]
            guest.run("ln", "-s", *commands, f"/home/{USER}/.local/bin/").ok()
            yield guest
        finally:
            guest.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
