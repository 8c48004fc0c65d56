from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.dbus import PrivateBus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    with PrivateBus(tmp_path) as started:
        yield started
