"""The list of checks, and running them side by side within one deadline.

Rules here: a check that raises is a finding and not a traceback, one that hangs is left behind and is a finding, too;
neither keeps another from its answer. Adding a check is writing one function with `@check` on it.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from utter_runner.operate.doctor.model import Finding, broken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from utter_runner.operate.doctor.look import Look

    Check = Callable[[Look], Iterable[Finding]]

DEADLINE_S: Final = 10.0
"""Seconds that all checks have together, if nothing else is said."""
LONGEST_S: Final = 600.0
"""The most that can be said."""
THREADS: Final = "doctor "
"""What the names of the doctor's threads begin with."""

CHECKS: dict[str, Check] = {}
"""Every check by its id, in the order in which people read of them."""

_T = TypeVar("_T")


def check(name: str) -> Callable[[Check], Check]:
    """Register a function that looks and yields findings under the id `FAMILY.WHAT`."""

    def register(function: Check) -> Check:
        if name in CHECKS:
            raise ValueError(f"there are two checks {name}")
        CHECKS[name] = function
        return function

    return register


class Once(Generic[_T]):
    """Something that several checks want to know and that is found out once, by the first that asks.

    Args:
        find: finds it out. What it raises, everybody gets who asks.
    """

    def __init__(self, find: Callable[[], _T]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._found: list[_T] = []

    def __call__(self) -> _T:
        """Return it; waits while another is finding it out."""
        with self._lock:
            if not self._found:
                self._found.append(self._find())
            return self._found[0]


def run_all(look: Look, checks: Mapping[str, Check], seconds: float = DEADLINE_S) -> list[Finding]:
    """Run checks at the same time, each on a thread of its own; return what they found, in the order of `checks`.

    Args:
        look: what they look through.
        checks: by id.
        seconds: what they have together; what has not ended then is told and not waited for.
    """
    deadline = time.monotonic() + seconds
    done: queue.SimpleQueue[tuple[str, list[Finding]]] = queue.SimpleQueue()
    for name, function in checks.items():
        threading.Thread(target=_run, args=(name, function, look, done), name=f"{THREADS}{name}", daemon=True).start()
    found: dict[str, list[Finding]] = {}
    while len(found) < len(checks) and (left := deadline - time.monotonic()) > 0:
        try:
            name, findings = done.get(timeout=left)
        except queue.Empty:
            break
        found[name] = findings
    return [finding for name in checks for finding in found.get(name, [_late(name, seconds, look)])]


def _run(name: str, function: Check, look: Look, done: queue.SimpleQueue[tuple[str, list[Finding]]]) -> None:
    findings: list[Finding] = []
    try:
        for finding in function(look):
            # One by one, so that what was found before it raises is kept.
            findings.append(msgspec.structs.replace(finding, check=name))  # noqa: PERF401 - see above
    except Exception as error:  # noqa: BLE001 - whatever it is, the other findings are worth more than a traceback
        findings.append(_failed(name, error))
    done.put((name, findings))


def _failed(name: str, error: Exception) -> Finding:
    # Its text could have come from anywhere.
    what = f"The check {name} itself has failed ({type(error).__name__}"
    what += f": {error.strerror})." if isinstance(error, OSError) and error.strerror else ")."
    return msgspec.structs.replace(
        broken(what, "What it looks at may be in order or not.", "Report it, with the output of: utter doctor --json"),
        check=name,
    )


def _late(name: str, seconds: float, look: Look) -> Finding:
    return msgspec.structs.replace(
        broken(
            f"The check {name} has not ended within {seconds:g} s.",
            "What it looks at hangs, such as a file system, a bus or a program, or this machine is slow.",
            look.more_time(),
        ),
        check=name,
    )


def still_looking() -> bool:
    """Whether a check that was given up, or what a report wanted, still waits for something."""
    return any(thread.name.startswith(THREADS) for thread in threading.enumerate())
