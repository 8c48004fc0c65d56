"""The text of a confirmation shows what would run, and nothing else."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.policy import PROPERTY, json_values
from utter_runner.policy.chars import first_hidden, is_hidden, label, name, visible
from utter_runner.policy.render import confirmation

WRITTEN = re.compile("⟨(?:U\\+([0-9A-F]+)|(newline|tab|return|quote))⟩")
WORDS = {"newline": "\n", "tab": "\t", "return": "\r", "quote": '"'}
FULLWIDTH = {"\uff1c": "<", "\uff06": "&", "␣": " "}

SHOWN = [
    ("terminal", {"command": "ls -la"}, "Run in a terminal: ls -la"),
    ("terminal", {"command": 'echo "a" && cat <b'}, 'Run in a terminal: echo "a" \uff06\uff06 cat \uff1cb'),
    ("terminal", {"command": "ls;        rm"}, "Run in a terminal: ls;␣␣␣␣␣␣␣␣rm"),
    ("terminal", {"command": "ls "}, "Run in a terminal: ls␣"),
    ("input", {"text": "a\nb\tc"}, "Type this text: a⟨newline⟩b⟨tab⟩c"),
    ("input", {"text": "\x1b[2J\u202e\u200d"}, "Type this text: ⟨U+001B⟩[2J⟨U+202E⟩⟨U+200D⟩"),
    ("input", {"text": "⟨U+001B⟩"}, "Type this text: ⟨U+27E8⟩U+001B⟨U+27E9⟩"),
    ("input", {"text": "שלום"}, "Type this text: שלום"),
    ("input", {"text": "rm א"}, "Type this text: rm ⟨U+05D0⟩"),
    ("input", {"text": "e\u0301\u0302\u0303"}, "Type this text: e\u0301\u0302⟨U+0303⟩"),
    ("input", {"text": "\u0301x"}, "Type this text: ⟨U+0301⟩x"),
    ("input", {"keys": "ctrl+c"}, "Press these keys: ctrl+c"),
    ("input", {"keys": ["ctrl+c", "a"]}, 'Do "input" with keys = ["ctrl+c", "a"]'),
    ("open_url", {"url": "https://a.b/?x=1&y=2"}, "Open this address: https://a.b/?x=1\uff06y=2"),
    ("launch_app", {"app": "org.gimp.GIMP"}, "Start this application: org.gimp.GIMP"),
    ("niri", {"action": "quit"}, "Make the window manager do: quit"),
    (
        "niri",
        {"action": "spawn", "args": ["sh", "-c", 'a "b"']},
        'Do "niri" with action = "spawn", args = ["sh", "-c", "a ⟨quote⟩b⟨quote⟩"]',
    ),
    ("input", {"keys": ["א", "ב"]}, 'Do "input" with keys = ["⟨U+05D0⟩", "⟨U+05D1⟩"]'),
    ("mute", {}, 'Do "mute"'),
    ("note", {"b": None, "a": {"z": 1, "y": [True, 1.5]}}, 'Do "note" with a = {"y": [true, 1.5], "z": 1}, b = null'),
    ("note", {"a = 1, b": 2}, 'Do "note" with "a = 1, b" = 2'),
]


@pytest.mark.parametrize(("op", "args", "text"), SHOWN)
def test_shown(op: str, args: dict[str, Any], text: str) -> None:
    shown, count = confirmation(op, args, "user")
    assert shown == text
    assert text.endswith(text[len(text) - count :])
    if args:
        assert 0 < count < len(text)


def test_what_the_screen_chose_says_so() -> None:
    text, _ = confirmation("mute", {}, "screen")
    assert text == 'Do "mute"\nThis was chosen by something on the screen, not by you.'


def test_what_a_language_model_had_a_part_in_says_so() -> None:
    text, count = confirmation("mute", {}, "screen", llm=True)
    assert text.splitlines()[1:] == [
        "This was chosen by something on the screen, not by you.",
        "A language model had a part in this.",
    ]
    assert count == 0


def read_back(text: str) -> str:
    """Undo `visible`, from its documentation alone."""
    out: list[str] = []
    at = 0
    while at < len(text):
        match = WRITTEN.match(text, at)
        if match is not None:
            out.append(chr(int(match[1], 16)) if match[1] else WORDS[match[2]])
            at = match.end()
        else:
            out.append(FULLWIDTH.get(text[at], text[at]))
            at += 1
    return "".join(out)


UNSEEN = (
    "\n\r\t\x00\x1b\x7f\x85\u00a0\u00ad\u034f\u061c\u115f\u200b\u200d\u200e\u2028\u202a\u202e\u2066\u2069\u3164\u2800"
)
UNSEEN += "\ufe0f\ufeff\ufff9\ud800\U000e0041\U000e0100"
SEEN = "ab<&> \"'\\⟨⟩␣\uff1c\uff06\u0301\u20ddאع٣é漢🙂"
nasty = st.text(st.sampled_from(UNSEEN) | st.sampled_from(SEEN) | st.characters(), max_size=12)


@PROPERTY
@given(text=nasty, quoted=st.booleans())
@example(text="", quoted=False)
def test_visible_shows_everything_and_can_be_read_back(text: str, quoted: bool) -> None:
    shown = visible(text, quoted=quoted)
    assert read_back(shown) == text
    assert not any(is_hidden(char) for char in shown)
    assert {unicodedata.category(char) for char in shown}.isdisjoint({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
    assert not re.search(r"[<&\n]|  |^ | $", shown)
    if quoted:
        assert '"' not in shown


@PROPERTY
@given(text=nasty, quoted=st.booleans())
def test_right_to_left_letters_never_stand_among_others(text: str, quoted: bool) -> None:
    kinds = {unicodedata.bidirectional(char) for char in visible(text, quoted=quoted) if char not in "⟨⟩␣"}
    if quoted or "L" in {unicodedata.bidirectional(char) for char in text}:
        assert kinds.isdisjoint({"R", "AL", "AN"})


values = json_values | nasty.filter(lambda text: text.isprintable() or "\ud800" not in text)
steps = st.tuples(
    st.sampled_from(["terminal", "input", "niri", "note", "open_url"]),
    st.dictionaries(st.sampled_from(["command", "text", "keys", "action", "url", "a"]) | nasty, values, max_size=3),
    st.sampled_from(["user", "screen"]),
)


@PROPERTY
@given(one=steps, other=steps)
def test_different_steps_give_different_texts(one: Any, other: Any) -> None:
    same_text = confirmation(*one)[0] == confirmation(*other)[0]
    assert same_text == (_canonical(one) == _canonical(other))


@PROPERTY
@given(text=nasty, other=nasty)
def test_a_text_of_one_argument_is_never_that_of_another(text: str, other: str) -> None:
    shown = {
        confirmation("terminal", {"command": text}, "user")[0],
        confirmation("terminal", {"command": other}, "user")[0],
    }
    assert (len(shown) == 1) == (text == other)


def _canonical(step: Any) -> tuple[Any, ...]:
    op, args, provenance = step
    return op, _typed(args), provenance


def _typed(value: Any) -> Any:
    """Equal only for values that are the same JSON: 1, 1.0 and true are three."""
    if isinstance(value, dict):
        return ("object", tuple(sorted((key, _typed(child)) for key, child in value.items())))
    if isinstance(value, list):
        return ("array", tuple(_typed(child) for child in value))
    return (type(value).__name__, repr(value))


def test_first_hidden_names_what_nobody_sees() -> None:
    assert first_hidden("plain text, ünd 漢字 🙂") is None
    assert first_hidden("a\tb", "\t") is None
    found = first_hidden("a\u200bb")
    assert found is not None
    assert name(found) == "U+200B"


def test_labels_are_cut_with_a_sign() -> None:
    assert label("short") == "short"
    assert label("x" * 81) == "x" * 80 + "…"
    assert label("a\nb") == "a⟨newline⟩b"


def test_the_text_is_json_on_the_wire() -> None:
    text, _ = confirmation("input", {"text": "\ud800"}, "user")
    assert msgspec.json.decode(msgspec.json.encode(text)) == text
