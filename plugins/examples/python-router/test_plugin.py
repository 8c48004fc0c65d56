"""Tests of python-router: it is started as the runner starts it. Run them with `python -m pytest`."""

import sys
from pathlib import Path

import pytest

from utter_sdk.testing import PluginProcess

HERE = Path(__file__).parent
PAGES = {"Open my wiki.": "https://wiki.example/"}


@pytest.fixture
def plugin():
    with PluginProcess([sys.executable, "plugin.py"], cwd=HERE, settings={"pages": PAGES}) as process:
        yield process


def test_it_introduces_itself(plugin):
    assert plugin.hello.plugin.name == "python-router"


def test_it_plans(plugin):
    (step,) = plugin.call("router.plan", {"utterance": "open  my wiki"})["steps"]
    assert (step["op"], step["args"], step["provenance"]) == ("open_url", {"url": "https://wiki.example/"}, "user")


def test_what_it_does_not_know_has_no_steps(plugin):
    answer = plugin.call("router.plan", {"utterance": "sing a song"})
    assert (answer["steps"], answer["detail"]) == ([], "I do not know this sentence.")


def test_it_gives_hints(plugin):
    assert plugin.call("router.hints") == {"phrases": ["open my wiki"]}


def test_it_ends_with_its_input(plugin):
    assert plugin.close() == 0
