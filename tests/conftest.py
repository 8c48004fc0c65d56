"""What holds for every test: it leaves no descriptor, no child process and no thread behind."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# trio keeps idle worker threads for the next `to_thread`; they end by themselves.
_KEPT_THREADS = "Trio thread"
_THREAD_SECONDS = 5.0


def _descriptors() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"descriptor {entry.name} -> {entry.readlink()}")
        except FileNotFoundError:
            # The one that listed the directory.
            continue
    return found


def _children() -> set[str]:
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found |= {f"child process {pid}" for pid in path.read_text().split()}
        except FileNotFoundError:
            # Of a thread that has ended meanwhile.
            continue
    return found


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(_KEPT_THREADS)}


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test after which there are more descriptors, child processes or threads than before it."""
    before, threads = _descriptors() | _children(), _threads()
    yield
    for thread in _threads() - threads:
        thread.join(_THREAD_SECONDS)
    left = (_descriptors() | _children()) - before
    if left:
        gc.collect()
        left = (_descriptors() | _children()) - before
    leaked = sorted(left) + [f"thread {thread.name}" for thread in _threads() - threads]
    if leaked:
        pytest.fail("left behind: " + ", ".join(leaked))


def pytest_configure() -> None:
    """Ctrl-C works in what the tests start, also where the suite itself runs in the background and it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
