from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for that only a loss of power would show."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
