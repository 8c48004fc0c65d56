"""The whole way from an utterance to steps, with the sentences that ship with the plugin."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_plugins.commands.router import Router
    from utter_protocol.methods import PlanResult

YOUTUBE = ("open_url", {"url": "https://www.youtube.com/"})
FIREFOX = ("launch_app", {"app": "org.mozilla.firefox"})
WRITER = ("launch_app", {"app": "writer"})


def steps(plan: PlanResult) -> list[tuple[str, dict[str, Any]]]:
    assert all(step.provenance == "user" for step in plan.steps)
    assert plan.steps or plan.detail
    return [(step.op, step.args) for step in plan.steps]


def volume(command: str, percent: int | None = None) -> tuple[str, dict[str, Any]]:
    return "volume", {"command": command} | ({} if percent is None else {"percent": percent})


def media(command: str) -> tuple[str, dict[str, Any]]:
    return "media", {"command": command}


@pytest.mark.parametrize(
    ("heard", "step"),
    [
        ("open youtube", YOUTUBE),
        ("Open YouTube.", YOUTUBE),
        ("open you tube", YOUTUBE),
        ("Open you two", YOUTUBE),
        ("could you open youtube please", YOUTUBE),
        ("go to the youtube website", YOUTUBE),
        ("opun youtube", YOUTUBE),
        ("launch firefox", FIREFOX),
        ("open the web browser", FIREFOX),
        ("start the firefox application", FIREFOX),
        ("open libre office writer", WRITER),
        ("open the word processor", WRITER),
        ("open github.com/torvalds/Linux", ("open_url", {"url": "https://github.com/torvalds/Linux"})),
        ("go to example dot org", ("open_url", {"url": "https://example.org"})),
        (
            "search the web for What's New & why?",
            ("open_url", {"url": "https://duckduckgo.com/?q=What%27s%20New%20%26%20why"}),
        ),
        (
            "search youtube for lo-fi beats",
            ("open_url", {"url": "https://www.youtube.com/results?search_query=lo-fi%20beats"}),
        ),
        ("play", media("play")),
        ("resume the music", media("play")),
        ("pause", media("pause")),
        ("Pause the music, please.", media("pause")),
        ("next song", media("next")),
        ("next tracks", media("next")),
        ("We'll mute the sound.", volume("mute")),
        ("previous track", media("previous")),
        ("stop the music", media("stop")),
        ("set the volume to fifty percent", volume("set", 50)),
        ("Set volume to 50%.", volume("set", 50)),
        ("set the volume too 40 percent", volume("set", 40)),
        ("set volume two fifty", volume("set", 50)),
        ("turn the volume up to 120", volume("set", 120)),
        ("turn the volume up by 10 percent", volume("up", 10)),
        ("volume down", volume("down")),
        ("turn it up", volume("up")),
        ("mute", volume("mute")),
        ("unmute", volume("unmute")),
        ("turn the sound off", volume("mute")),
    ],
)
def test_shipped_sentences(teach: Callable[..., Router], heard: str, step: tuple[str, dict[str, Any]]) -> None:
    assert steps(teach().plan(heard)) == [step]


@pytest.mark.parametrize(
    "heard",
    [
        "",
        "please",
        "thank you",
        "...",
        "play the Beatles",
        "I'm Peppa Pig",
        "open the door",
        "close youtube",
        "start secret helper",
        "set the volume to 500 percent",
        "set volume to",
        "what's for dinner",
        "the volume of a sphere",
        "next week I'm on vacation",
        "open your books on page twenty",
        "mute swans are beautiful birds",
        "a" * 5000,
        "no " * 200,
    ],
)
def test_what_is_no_command_has_no_steps(teach: Callable[..., Router], heard: str) -> None:
    assert steps(teach().plan(heard)) == []


def test_a_taught_phrase_goes_before_a_shipped_one(teach: Callable[..., Router]) -> None:
    router = teach("next song", "skip this song")
    assert steps(router.plan("next song")) == [("test", {"said": "next song"})]
    assert steps(router.plan("skip the song")) == [("test", {"said": "skip this song"})]
    assert steps(router.plan("previous song")) == [media("previous")]


def test_a_taught_phrase_goes_before_free_text(teach: Callable[..., Router]) -> None:
    router = teach("search for my keys")
    assert steps(router.plan("search for my key")) == [("test", {"said": "search for my keys"})]
    assert steps(router.plan("search for my friends")) == [
        ("open_url", {"url": "https://duckduckgo.com/?q=my%20friends"})
    ]


def test_slots_fill_args(teach: Callable[..., Router]) -> None:
    router = teach(
        phrase=[
            {
                "say": "[set the] {lamp} [lamp] to {percent:level} percent",
                "steps": [
                    {"op": "lamp", "args": {"id": "{lamp}", "level": "{level}", "note": "to {level}!"}},
                    {"op": "tell", "args": {"list": ["{lamp}", 1]}, "confirm": True},
                ],
            },
            {"say": "note [that] {text:note}", "op": "note", "args": {"text": "{note}", "url": "x?{note|url}"}},
            {"say": "wait [{0..10:minutes} minutes]", "op": "wait", "args": {"minutes": "{minutes}"}},
        ],
        lists={"lamp": ["desk", {"say": ["bed", "bedside"], "value": 7}]},
    )
    plan = router.plan("set the bedside lamp to forty percent")
    assert steps(plan) == [("lamp", {"id": 7, "level": 40, "note": "to 40!"}), ("tell", {"list": [7, 1]})]
    assert [step.confirm for step in plan.steps] == [False, True]
    assert steps(router.plan("said the desk lamp two 40 percent"))[0][1]["id"] == "desk"
    assert steps(router.plan("note Buy 2 Eggs!")) == [("note", {"text": "Buy 2 Eggs", "url": "x?Buy%202%20Eggs"})]
    assert steps(router.plan("wait 5 minutes")) == [("wait", {"minutes": 5})]
    assert steps(router.plan("wait")) == [("wait", {})]
    assert steps(router.plan("wait 50 minutes")) == []


def test_hints_are_written_as_taught_and_name_what_is_installed(teach: Callable[..., Router]) -> None:
    hints = teach("set Bed Light to 50 percent", "(turn|switch) on the [big] Lamp").hints()
    assert hints[0] == "set Bed Light to 50 percent"
    assert {"turn on the Lamp", "switch on the big Lamp", "open Firefox", "open YouTube", "pause"} <= set(hints)
    assert "set the volume to" in hints or "set volume to" in hints
    assert not any("{" in hint or "(" in hint for hint in hints)


def test_two_thousand_phrases_are_planned_quickly(teach: Callable[..., Router]) -> None:
    names = [f"{first} {second}" for first in ("kitchen", "bath", "hall", "bed", "desk") for second in range(200)]
    router = teach(*(f"turn {way} the {name} lamp" for name in names for way in ("on", "off")))
    heard = ["turn of the kitchen 42 lamp", "turned on the desk 7 lamp", "the weather is nice", "turn on bath 5 lamps"]
    assert steps(router.plan(heard[0])) == [("test", {"said": "turn off the kitchen 42 lamp"})]
    best = min(_seconds(router, heard) for _ in range(5))
    assert best / len(heard) < 0.05


def _seconds(router: Router, heard: list[str]) -> float:
    # What others do on this machine meanwhile is not the router's.
    began = time.thread_time()
    for utterance in heard:
        router.plan(utterance)
    return time.thread_time() - began


def test_any_text_is_answered(teach: Callable[..., Router]) -> None:
    router = teach("turn on the lights")

    @settings(deadline=None)
    @given(st.text(max_size=120))
    def check(utterance: str) -> None:
        plan = router.plan(utterance)
        assert plan.steps or plan.detail

    check()


def test_gibberish_is_rejected(teach: Callable[..., Router]) -> None:
    router = teach("turn on the lights", "lock the front door")

    @settings(deadline=None)
    @given(st.lists(st.text(alphabet="qxzjkvwy", min_size=3, max_size=9), min_size=1, max_size=8))
    def check(words: list[str]) -> None:
        assert router.plan(" ".join(words)).steps == []

    check()
