"""Tests of start-up: what importing the SDK loads. The figures themselves are the benchmark's business."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each of these costs more than the SDK itself; what the list of a lean import may contain is msgspec's business.
HEAVY = {"asyncio", "trio", "subprocess", "logging", "email", "http", "dataclasses", "pathlib", "ssl"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["utter_sdk", "utter_sdk.server", "utter_sdk.host", "utter_sdk.sockets", "utter_sdk.client"]
)
def test_importing_stays_lean(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert not HEAVY & loaded


def test_the_plugin_side_and_the_client_do_not_load_each_other() -> None:
    unused = {
        "socket",
        "utter_sdk.client",
        "utter_sdk.testing",
        "utter_sdk.sockets",
        "utter_sdk.host",
        "utter_sdk.ring",
    }
    assert not unused & loaded_by("import utter_sdk.server")
    assert not {"utter_sdk.server", "utter_sdk.testing", "utter_sdk.lanes"} & loaded_by("import utter_sdk.client")


def test_importing_touches_no_descriptor() -> None:
    code = (
        "import os; before = sorted(os.listdir('/proc/self/fd')); import utter_sdk, utter_sdk.server;"
        "assert sorted(os.listdir('/proc/self/fd')) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
