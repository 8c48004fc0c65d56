"""Tests of python-context: it is started as the runner starts it. Run them with `python -m pytest`."""

import sys
from pathlib import Path

import pytest

from utter_sdk.testing import PluginProcess

HERE = Path(__file__).parent


@pytest.fixture
def plugin():
    with PluginProcess([sys.executable, "plugin.py"], cwd=HERE) as process:
        yield process


def test_it_introduces_itself(plugin):
    assert plugin.hello.plugin.name == "python-context"


@pytest.mark.parametrize("params", [{}, {"sources": ["load"]}, {"sources": ["window", "load"]}])
def test_it_tells_the_load(plugin, params):
    found = plugin.call("context.snapshot", params)
    assert list(found) == ["load"]
    assert found["load"].keys() == {"1", "5", "15"}


def test_it_tells_nothing_else(plugin):
    assert plugin.call("context.snapshot", {"sources": ["window"]}) == {}


def test_it_ends_with_its_input(plugin):
    assert plugin.close() == 0
