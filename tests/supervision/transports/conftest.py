from __future__ import annotations

from pathlib import Path

import pytest

from support.transports import WAYS, Way


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    """Every way in which a plugin can be connected."""
    return Way(request.param, tmp_path)
