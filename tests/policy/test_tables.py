"""The tables and bounds that the rules read, entry by entry: none may be lost, and none may come in unnoticed."""

from __future__ import annotations

from typing import Any

import pytest

from utter_protocol.methods import Op
from utter_runner.policy import (
    OpRegistry,
    Origin,
    PolicyRules,
    UrlError,
    builtin,
    candidates,
    canonical_op,
    canonical_url,
    chars,
    decide,
    json_values,
    ops,
    provenance,
    rates,
    render,
    urls,
)
from utter_runner.policy.builtin import ArgumentError
from utter_runner.policy.chars import is_hidden, visible
from utter_runner.policy.json_values import copy_args

BLANK = [
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0, 0x1D159),
    *(0xFE00, 0xFE0F, 0xE0100, 0xE01EF),
]


@pytest.mark.parametrize("code", BLANK, ids=hex)
def test_what_is_drawn_as_nothing_is_hidden(code: int) -> None:
    assert is_hidden(chr(code))
    assert visible(f"a{chr(code)}b") == f"a\u27e8U+{code:04X}\u27e9b"


def test_nothing_else_is_taken_for_blank() -> None:
    assert len(chars._BLANK) == 13 + 16 + 240
    assert min(chars._BLANK) == 0x034F
    assert max(chars._BLANK) == 0xE01EF
    assert not {0xFDFF, 0xFE10, 0xE00FF, 0xE01F0} & chars._BLANK


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a<b", "a\uff1cb"),
        ("a&b", "a\uff06b"),
        ("a\uff1cb", "a\u27e8U+FF1C\u27e9b"),
        ("a\uff06b", "a\u27e8U+FF06\u27e9b"),
        ("a\u2423b", "a\u27e8U+2423\u27e9b"),
        ("a\u27e8b", "a\u27e8U+27E8\u27e9b"),
        ("a\u27e9b", "a\u27e8U+27E9\u27e9b"),
        ("a\nb", "a\u27e8newline\u27e9b"),
        ("a\tb", "a\u27e8tab\u27e9b"),
        ("a\rb", "a\u27e8return\u27e9b"),
        ("a ", "a\u2423"),
        ("a\u05d0", "a\u27e8U+05D0\u27e9"),  # R
        ("a\u0627", "a\u27e8U+0627\u27e9"),  # AL
        ("a\u0661", "a\u27e8U+0661\u27e9"),  # AN
        ("a\u0301\u0302", "a\u0301\u0302"),
        ("a\u0301\u0302\u0303", "a\u0301\u0302\u27e8U+0303\u27e9"),
    ],
)
def test_what_is_written_out(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_quotation_marks_are_named() -> None:
    assert visible('a"', quoted=True) == "a\u27e8quote\u27e9"


@pytest.mark.parametrize(
    "scheme",
    [
        *("about", "blob", "chrome", "chrome-extension", "data", "file", "filesystem", "jar", "javascript"),
        *("livescript", "mk", "moz-extension", "ms-its", "res", "resource", "vbscript", "view-source", "wyciwyg"),
    ],
)
def test_what_opens_nothing_whatever_is_configured(scheme: str) -> None:
    with pytest.raises(UrlError) as caught:
        canonical_url(f"{scheme}:x", {scheme})
    assert caught.value.reason == "scheme"
    with pytest.raises(ValueError, match="can never be opened"):
        PolicyRules(url_schemes=frozenset({scheme}))


@pytest.mark.parametrize("scheme", ["http", "https", "ws", "wss", "ftp"])
def test_what_needs_a_host(scheme: str) -> None:
    for rest in ("a.org", "/a.org", "///a.org"):
        with pytest.raises(UrlError) as caught:
            canonical_url(f"{scheme}:{rest}", {scheme})
        assert caught.value.reason == "no-host"


def test_what_is_opened_where_nothing_is_configured() -> None:
    assert PolicyRules().url_schemes == {"http", "https", "mailto"}


@pytest.mark.parametrize("field", ["subject=x", "body=x", "cc=a@b.org"])
def test_what_mail_may_set(field: str) -> None:
    assert canonical_url(f"mailto:a@b.org?{field}").scheme == "mailto"


# The bounds, by who has them.
@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (builtin, "MAX_KEYS", 32),
        (builtin, "_MAX_KEY", 64),
        (builtin, "_TYPED", "\n\t\u200c\u200d"),
        (candidates, "MAX_ID", 256),
        (candidates, "MAX_VALUE_BYTES", 8192),
        (decide, "_MAX_DETAIL", 400),
        (json_values, "MAX_CHARACTERS", 65_536),
        (json_values, "MAX_DEPTH", 16),
        (ops, "MAX_OPS_PER_PLUGIN", 256),
        (rates, "MAX_COUNT", 9_999),
        (render, "MAX_SHOWN", 2_000),
        (urls, "MAX_URL_BYTES", 8_192),
    ],
)
def test_a_bound_is_what_is_documented(module: Any, name: str, value: Any) -> None:
    # `decide` the function hides its module behind its name.
    held = module.__globals__ if callable(module) else vars(module)
    assert held[name] == value


@pytest.mark.parametrize("number", [-(2**63), 2**64 - 1, 0])
def test_numbers_of_64_bits_are_taken(number: int) -> None:
    assert copy_args({"a": number}) == {"a": number}


@pytest.mark.parametrize("number", [-(2**63) - 1, 2**64])
def test_numbers_beyond_64_bits_are_not(number: int) -> None:
    with pytest.raises(ArgumentError, match="64 bits"):
        copy_args({"a": number})


# ---- the ops that the runner knows


def test_the_least_that_each_op_does_and_which_run_commands() -> None:
    assert {name: (known.side_effect, known.runs_commands) for name, known in builtin.BUILTIN.items()} == {
        "ensure_url": ("external", False),
        "open_url": ("external", False),
        "terminal": ("destructive", True),
        "input": ("destructive", True),
        "niri": ("local", False),
        "launch_app": ("local", False),
    }
    assert {name: set(known.arguments) for name, known in builtin.BUILTIN.items()} == {
        "ensure_url": {"url"},
        "open_url": {"url"},
        "terminal": {"command"},
        "input": {"text", "keys"},
        "niri": {"action", "args"},
        "launch_app": {"app"},
    }
    assert {"terminal", "input"} == builtin.OFF_BY_DEFAULT
    assert {"open_url", "ensure_url"} == builtin.URL_OPS


EFFECTS = ["none", "local", "external", "destructive"]


@pytest.mark.parametrize("stated", EFFECTS)
@pytest.mark.parametrize(("op", "least"), [("niri", "local"), ("open_url", "external"), ("terminal", "destructive")])
def test_what_an_op_does_is_the_stronger_of_what_is_known_and_stated(op: str, least: str, stated: Any) -> None:
    registry = OpRegistry()
    registry.advertise("desktop", [Op(op=op, side_effect=stated)])
    spec = registry.find(op)
    assert spec is not None
    assert spec.side_effect == max(least, stated, key=EFFECTS.index)


@pytest.mark.parametrize("name", ["a" * 64, "a.b_c-d", "0"])
def test_names_of_ops(name: str) -> None:
    assert canonical_op(f"action.{name}") == name


@pytest.mark.parametrize("name", ["a" * 65, "", "_a", "A", "a b"])
def test_no_names_of_ops(name: str) -> None:
    assert canonical_op(name) is None


# ---- provenance and rates


@pytest.mark.parametrize("source", ["user", "config", "knowledge"])
def test_whose_word_is_the_users(source: str) -> None:
    assert provenance.of_sources([source]) == "user"
    assert source in candidates.SOURCES
    assert provenance.USER_SOURCES == candidates.SOURCES
    assert len(candidates.SOURCES) == 3
    assert Origin(sources=(source,)).provenance == "screen"


@pytest.mark.parametrize(("per", "seconds"), [("second", 1.0), ("minute", 60.0), ("hour", 3600.0)])
def test_how_long_a_stretch_is(per: str, seconds: float) -> None:
    rate = rates.parse_rate(f"9999/{per}")
    assert (rate.count, rate.seconds) == (9_999, seconds)


# ---- what a confirmation says


@pytest.mark.parametrize(
    ("op", "args", "text"),
    [
        ("terminal", {"command": "ls"}, "Run in a terminal: ls"),
        ("input", {"text": "a"}, "Type this text: a"),
        ("input", {"keys": "a"}, "Press these keys: a"),
        ("open_url", {"url": "https://a.org/"}, "Open this address: https://a.org/"),
        ("ensure_url", {"url": "a:b"}, "Open this address, or go to it where it is open: a:b"),
        ("launch_app", {"app": "gimp"}, "Start this application: gimp"),
        ("niri", {"action": "quit"}, "Make the window manager do: quit"),
        ("wipe", {"a_1": "x", "b c": 1}, 'Do "wipe" with a_1 = "x", "b c" = 1'),
    ],
)
def test_the_words(op: str, args: dict[str, Any], text: str) -> None:
    assert render.confirmation(op, args, "user")[0] == text
