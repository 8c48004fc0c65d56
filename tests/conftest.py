"""What holds for every test: it leaves no descriptor, no child process and no thread behind."""

from __future__ import annotations

import gc
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from support.threads import running_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

_THREAD_SECONDS = 5.0
_LOOKS = 50


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


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test after which there are more descriptors, child processes or threads than before it."""
    before, threads = _descriptors() | _children(), running_threads()
    yield
    for thread in running_threads() - threads:
        thread.join(_THREAD_SECONDS)
    left = (_descriptors() | _children()) - before
    if left:
        gc.collect()
        left = (_descriptors() | _children()) - before
    for _ in range(_LOOKS):
        if not left:
            break
        # A thread of trio's that was abandoned may be about to close what it has.
        time.sleep(_THREAD_SECONDS / _LOOKS)
        left = (_descriptors() | _children()) - before
    leaked = sorted(left) + [f"thread {thread.name}" for thread in running_threads() - threads]
    if leaked:
        pytest.fail("left behind: " + ", ".join(leaked))


# How long an example takes is the machine's to say, and the first one in a process pays for what is read once.
settings.register_profile("machine", settings.default, deadline=None)
settings.load_profile("machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with those that take long, as their own time-out says: at the end the other workers would wait for them."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_configure() -> None:
    """Ctrl-C works in what the tests start, also where the suite itself runs in the background and it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
