from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def _open_fds() -> dict[str, str]:
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found[fd.name] = str(fd.readlink())
        except FileNotFoundError:
            continue
    return found


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    before = _open_fds()
    yield
    assert _open_fds() == before
