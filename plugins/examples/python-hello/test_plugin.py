"""Tests of python-hello: it is started as the runner starts it. Run them with `python -m pytest`."""

import sys
from pathlib import Path

import pytest

from utter_sdk import RpcError
from utter_sdk.testing import PluginProcess

HERE = Path(__file__).parent


def invoke(**args):
    return {"op": "hello", "args": args, "provenance": "user"}


@pytest.fixture
def plugin():
    with PluginProcess([sys.executable, "plugin.py"], cwd=HERE, settings={"greeting": "Good day"}) as process:
        yield process


def test_it_introduces_itself(plugin):
    assert plugin.hello.plugin.name == "python-hello"
    assert [op["op"] for op in plugin.call("action.capabilities")["ops"]] == ["hello"]


def test_it_greets(plugin):
    assert plugin.call("action.invoke", invoke(name="Ada"))["detail"] == "Good day, Ada!"


def test_it_wants_a_name(plugin):
    with pytest.raises(RpcError, match="name"):
        plugin.call("action.invoke", invoke())


def test_it_ends_with_its_input(plugin):
    assert plugin.close() == 0
