"""Edges of what single values may hold, at the very value where each bound begins; found by `make mutants`, too."""

from __future__ import annotations

from typing import Any

import pytest

from support.policy import EVERYTHING_ON, REGISTRY, USER, judge, step
from utter_protocol.methods import Op
from utter_runner.policy import (
    AdvertiseError,
    Confirm,
    Deny,
    OpRegistry,
    OpRule,
    PolicyRules,
    UrlError,
    canonical_url,
    overview,
)
from utter_runner.policy.builtin import MAX_KEYS, ArgumentError, acts_on_window
from utter_runner.policy.chars import label, visible
from utter_runner.policy.json_values import MAX_CHARACTERS, MAX_DEPTH, copy_args
from utter_runner.policy.render import confirmation


def typed(**args: Any) -> Confirm | Deny:
    decision = judge(step("input", args), USER, EVERYTHING_ON)
    assert isinstance(decision, Confirm | Deny)
    return decision


# ---- keys


def test_input_takes_no_other_argument() -> None:
    refused = typed(x="y")
    assert isinstance(refused, Deny)
    assert refused.data["field"] == "x"


def test_every_chord_is_one() -> None:
    assert isinstance(typed(keys=["ctrl+c", "a"]), Confirm)
    assert isinstance(typed(keys=["ctrl+c", "rm -rf"]), Deny)


def test_so_many_chords_of_such_a_length() -> None:
    assert MAX_KEYS == 32
    assert isinstance(typed(keys=["a"] * 32), Confirm)
    assert isinstance(typed(keys=["a"] * 33), Deny)
    assert isinstance(typed(keys="a" * 64), Confirm)
    assert isinstance(typed(keys="a" * 65), Deny)


# ---- what arguments hold together


def refusal(args: dict[str, Any]) -> str:
    """Why arguments are refused; nothing if they are not."""
    try:
        copied = copy_args(args)
    except ArgumentError as error:
        return str(error)
    assert copied == args
    return ""


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda size: {"a": "x" * (size - 2)}, id="a text"),
        pytest.param(lambda size: {"a": "é" * (size - 3)}, id="a text that is looked through"),
        pytest.param(lambda size: {"a": [0] * (size - 3)}, id="values"),
        pytest.param(lambda size: {"a": {"k" * (size - 4): 0}}, id="a key"),
        pytest.param(lambda size: {"n" * (size - 1): ""}, id="a name"),
    ],
)
def test_arguments_hold_as_much_as_the_bound_and_not_one_more(make: Any) -> None:
    assert refusal(make(MAX_CHARACTERS)) == ""
    assert refusal(make(MAX_CHARACTERS + 1)) == f"The arguments hold more than {MAX_CHARACTERS} characters."


@pytest.mark.parametrize("wrap", [lambda value: {"k": value}, lambda value: [value]], ids=["objects", "lists"])
def test_arguments_are_as_deep_as_the_bound_and_not_deeper(wrap: Any) -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH - 1):
        value = wrap(value)
    assert refusal({"a": value}) == ""
    assert refusal({"a": wrap(value)}) == f"The argument 'a' is nested more than {MAX_DEPTH} deep."


def test_half_a_character_among_whole_ones_is_refused() -> None:
    for args in ({"a": "é\ud800"}, {"a": {"x\udfff": 1}}, {"a\ud800": "x"}):
        with pytest.raises(ArgumentError, match="half a character"):
            copy_args(args)


# ---- what a person sees


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\u20ddb", "a\u27e8U+20DD\u27e9b"),  # a circle around a letter
        ("\u00e9\u05d0b", "\u00e9\u27e8U+05D0\u27e9b"),  # only what reorders is written out
        ("\u200b\u0301", "\u27e8U+200B\u27e9\u27e8U+0301\u27e9"),  # a mark without a letter to stand on
        ("ab  cd", "ab\u2423\u2423cd"),
        ("a  ", "a\u2423\u2423"),
        ("ab c  d", "ab c\u2423\u2423d"),
    ],
)
def test_what_is_seen(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_a_label_is_cut_behind_its_bound() -> None:
    assert label("x" * 80) == "x" * 80
    assert label("x" * 81) == "x" * 80 + "\N{HORIZONTAL ELLIPSIS}"


def test_yes_and_no_are_told_apart() -> None:
    assert confirmation("wipe", {"a": True, "b": False, "c": None}, "user")[0] == (
        'Do "wipe" with a = true, b = false, c = null'
    )


# ---- ops


def test_who_came_first_is_the_provider_whatever_the_names() -> None:
    registry = OpRegistry()
    registry.advertise("zeta", [Op(op="mute")])
    registry.advertise("alpha", [Op(op="mute")])
    assert registry.provider("mute") == "zeta"
    registry.withdraw("zeta")
    assert registry.provider("mute") == "alpha"
    registry.advertise("zeta", [Op(op="mute")])
    assert registry.provider("mute") == "zeta"


def test_what_could_not_be_advertised_is_named() -> None:
    with pytest.raises(AdvertiseError) as caught:
        OpRegistry().advertise("desktop", [Op(op="action.Mute")])
    assert (caught.value.plugin, caught.value.op) == ("desktop", "action.Mute")


# ---- addresses


@pytest.mark.parametrize(
    "address",
    [
        "mailto:a@b.org,nobody",
        "mailto:a@b.org?cc=c@d.org,nobody",
        "mailto:a@b.org?subject=a#b",
        "mailto:a@b.org?subject=a&Subject=b",
        "mailto:a%2540b.org",
    ],
)
def test_mail_that_is_refused(address: str) -> None:
    with pytest.raises(UrlError) as caught:
        canonical_url(address)
    assert caught.value.reason == "mailto"


@pytest.mark.parametrize("address", ["mailto:a@b.org?Subject=x", "mailto:a@b.org,c@d.org", "https://xn--n3h:8443/"])
def test_addresses_that_pass(address: str) -> None:
    assert canonical_url(address).href == address


# ---- what is told of ops and windows


def test_ops_that_only_the_configuration_names_are_listed() -> None:
    rules = PolicyRules(
        enabled_ops=frozenset({"one"}),
        disabled_ops=frozenset({"two"}),
        confirm_ops=frozenset({"three"}),
        ops={"four": OpRule(confirm="always")},
    )
    assert {"one", "two", "three", "four"} <= {state.op for state in overview(OpRegistry(), rules)}


def test_the_key_that_is_told_is_that_of_the_rule_that_is_told() -> None:
    rules = PolicyRules(confirm_ops=frozenset({"wipe", "mute"}))
    found = {state.op: (state.rule, state.key) for state in overview(REGISTRY, rules)}
    assert found["mute"] == ("configured-confirm", "[policy] confirm_ops")
    assert found["wipe"] == ("destructive", "")


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("input", {"text": "x"}, True),
        ("niri", {"action": "close-window"}, True),
        ("niri", {"action": "spawn-sh"}, False),
        ("niri", {"action": "quit"}, False),
        ("open_url", {"url": "https://a.org/"}, False),
    ],
)
def test_what_acts_on_the_window_in_front(op: str, args: dict[str, Any], *, expected: bool) -> None:
    assert acts_on_window(op, args) is expected
