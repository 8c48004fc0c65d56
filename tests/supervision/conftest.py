from __future__ import annotations

from typing import Any

import pytest

from support import supervision_tools


@pytest.fixture
def house() -> Any:
    return supervision_tools.house
