"""Arguments: copies of JSON values, and what the known ops take."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.policy import PROPERTY, copy_of, json_values
from utter_runner.policy.builtin import (
    BUILTIN,
    MAX_KEYS,
    ArgumentError,
    niri_is_destructive,
    niri_runs_commands,
)
from utter_runner.policy.json_values import MAX_CHARACTERS, MAX_DEPTH, copy_args

HTTPS = frozenset({"https"})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "is not JSON"),
        (float("inf"), "is not JSON"),
        (2**64, "beyond 64 bits"),
        (-(2**63) - 1, "beyond 64 bits"),
        (b"bytes", "is not JSON"),
        ((1, 2), "is not JSON"),
        ({1, 2}, "is not JSON"),
        (dt.date(2024, 1, 1), "is not JSON"),
        (Text("x"), "is not JSON"),
        ({1: 2}, "key that is not a string"),
        ("\ud800", "half a character"),
        ([{"\udfff": 1}], "half a character"),
        (nested(MAX_DEPTH), f"more than {MAX_DEPTH} deep"),
        ("x" * MAX_CHARACTERS, f"more than {MAX_CHARACTERS} characters"),
        (["é" * 1000] * 66, f"more than {MAX_CHARACTERS} characters"),
        ([0] * MAX_CHARACTERS, f"more than {MAX_CHARACTERS} characters"),
    ],
)
def test_what_is_no_json_or_too_much_is_refused_with_its_name(value: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem) as caught:
        copy_args({"ok": 1, "bad": value})
    assert caught.value.field == "bad"


def test_a_name_can_be_at_fault_too() -> None:
    with pytest.raises(ArgumentError, match="half a character"):
        copy_args({"\ud800": 1})
    with pytest.raises(ArgumentError, match=f"more than {MAX_CHARACTERS} characters"):
        copy_args({"x" * MAX_CHARACTERS: 1})


@pytest.mark.parametrize("value", [nested(MAX_DEPTH - 1), 2**64 - 1, -(2**63), "x" * (MAX_CHARACTERS - 2), 1e300])
def test_bounds_are_inside(value: Any) -> None:
    assert copy_args({"a": value}) == {"a": value}


@PROPERTY
@given(args=st.dictionaries(st.text(), json_values.map(copy_of), max_size=3))
def test_a_copy_is_equal_and_shares_nothing(args: dict[str, Any]) -> None:
    try:
        copied = copy_args(args)
    except ArgumentError:
        return
    assert copied == args
    assert copied is not args
    for name, value in args.items():
        assert copied[name] is not value or not isinstance(value, dict | list)


TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("terminal", {"command": "ls -la && echo 'ünd 漢字' \"x\""}),
    ("input", {"text": "two\nlines\tand 👩\u200d👧"}),
    ("input", {"keys": "ctrl+shift+t"}),
    ("input", {"keys": ["LEFTMETA+SPACE", "a", "+"]}),
    ("niri", {"action": "focus-workspace", "args": [1]}),
    ("niri", {"action": "FocusWindow", "args": {"id": 3}}),
    ("launch_app", {"app": "org.mozilla.firefox"}),
    ("launch_app", {"app": "Wine Programs-x_1@2+b"}),
]

NOT_TAKEN: list[tuple[str, dict[str, Any], str]] = [
    ("terminal", {}, "command"),
    ("terminal", {"command": ""}, "command"),
    ("terminal", {"command": ["ls"]}, "command"),
    ("terminal", {"command": "ls", "cwd": "/"}, "cwd"),
    ("terminal", {"command": "ls\nrm -rf /"}, "command"),
    ("terminal", {"command": "ls\r"}, "command"),
    ("terminal", {"command": "ls\x1b[8m"}, "command"),
    ("terminal", {"command": "ls\u202e"}, "command"),
    ("terminal", {"command": "ls\u200b"}, "command"),
    ("terminal", {"command": "ls\u00a0x"}, "command"),
    ("terminal", {"command": "ls\u3164"}, "command"),
    ("input", {}, "text"),
    ("input", {"text": "a", "keys": "b"}, "text"),
    ("input", {"text": ""}, "text"),
    ("input", {"text": "a\rb"}, "text"),
    ("input", {"text": "a\x03"}, "text"),
    ("input", {"text": "a\u202eb"}, "text"),
    ("input", {"keys": ""}, "keys"),
    ("input", {"keys": []}, "keys"),
    ("input", {"keys": ["a"] * (MAX_KEYS + 1)}, "keys"),
    ("input", {"keys": ["a b"]}, "keys"),
    ("input", {"keys": "ctrl+\n"}, "keys"),
    ("input", {"keys": [1]}, "keys"),
    ("input", {"keys": {"a": 1}}, "keys"),
    ("input", {"keys": "x" * 65}, "keys"),
    ("niri", {}, "action"),
    ("niri", {"action": ""}, "action"),
    ("niri", {"action": "close window"}, "action"),
    ("niri", {"action": "--help"}, "action"),
    ("niri", {"action": {"Spawn": {}}}, "action"),
    ("niri", {"action": "quit", "args": "x"}, "args"),
    ("niri", {"action": "quit", "argv": []}, "argv"),
    ("launch_app", {}, "app"),
    ("launch_app", {"app": ""}, "app"),
    ("launch_app", {"app": ".desktop"}, "app"),
    ("launch_app", {"app": "a.desktop.desktop"}, "app"),
    ("launch_app", {"app": "../evil"}, "app"),
    ("launch_app", {"app": "/usr/bin/ls"}, "app"),
    ("launch_app", {"app": "a\\b"}, "app"),
    ("launch_app", {"app": "a..b"}, "app"),
    ("launch_app", {"app": "--version"}, "app"),
    ("launch_app", {"app": "a b "}, "app"),
    ("launch_app", {"app": "a\nb"}, "app"),
    ("launch_app", {"app": "x" * 256}, "app"),
    ("launch_app", {"app": "firefox", "args": ["x"]}, "args"),
    ("open_url", {"url": ""}, "url"),
    ("open_url", {"url": ["https://example.org/"]}, "url"),
    ("ensure_url", {"url": "https://example.org/", "browser": "x"}, "browser"),
]


@pytest.mark.parametrize(("op", "args"), TAKEN)
def test_taken(op: str, args: dict[str, Any]) -> None:
    assert BUILTIN[op].check(args, HTTPS) == args


@pytest.mark.parametrize(("op", "args", "field"), NOT_TAKEN)
def test_not_taken(op: str, args: dict[str, Any], field: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        BUILTIN[op].check(args, HTTPS)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_a_desktop_file_s_name_becomes_its_id() -> None:
    assert BUILTIN["launch_app"].check({"app": "org.gimp.GIMP.desktop"}, HTTPS) == {"app": "org.gimp.GIMP"}


@pytest.mark.parametrize("action", ["spawn", "Spawn", "spawn-sh", "SpawnSh", "spawn_sh", "SPAWN-AT", "LoadConfigFile"])
def test_niri_actions_that_start_programs_in_every_spelling(action: str) -> None:
    assert niri_runs_commands({"action": action})


@pytest.mark.parametrize("args", [{"action": "close-window"}, {"action": "respawn"}, {}, {"action": 3}])
def test_niri_actions_that_do_not(args: dict[str, Any]) -> None:
    assert not niri_runs_commands(args)
    assert not niri_is_destructive(args)


def test_niri_quits() -> None:
    assert niri_is_destructive({"action": "Quit"})
