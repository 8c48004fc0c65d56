"""The table of ops."""

from __future__ import annotations

from typing import Any

import pytest

from utter_protocol.methods import Op, SideEffect
from utter_runner.policy import AdvertiseError, OpRegistry, canonical_op
from utter_runner.policy.builtin import BUILTIN
from utter_runner.policy.ops import MAX_OPS_PER_PLUGIN


@pytest.mark.parametrize(
    ("op", "canonical"),
    [
        ("terminal", "terminal"),
        ("action.terminal", "terminal"),
        ("action.action.terminal", "terminal"),
        ("media.play", "media.play"),
        ("x", "x"),
        ("x" * 64, "x" * 64),
        ("", None),
        ("action.", None),
        ("Terminal", None),
        ("Action.terminal", None),
        ("terminal ", None),
        (" terminal", None),
        ("terminal\n", None),
        ("term\u0131nal", None),
        ("\uff54erminal", None),
        (".terminal", None),
        ("x" * 65, None),
    ],
)
def test_an_op_has_one_name(op: str, canonical: str | None) -> None:
    assert canonical_op(op) == canonical


def test_the_first_plugin_provides_also_after_it_was_away() -> None:
    registry = OpRegistry()
    registry.advertise("one", [Op(op="action.a"), Op(op="b")])
    registry.advertise("two", [Op(op="a"), Op(op="c")])
    assert [registry.provider(op) for op in ("a", "action.a", "b", "c", "d", "")] == (
        ["one", "one", "one", "two", None, None]
    )
    registry.withdraw("one")
    assert [registry.provider(op) for op in ("a", "b", "c")] == ["two", None, "two"]
    registry.advertise("one", [Op(op="a")])
    assert [registry.provider(op) for op in ("a", "b", "c")] == ["one", None, "two"]
    registry.withdraw("nobody")
    assert registry.ops("one") == ("a",)
    assert registry.ops("nobody") == ()


def test_what_is_advertised_replaces_what_was() -> None:
    registry = OpRegistry()
    registry.advertise("one", [Op(op="a")])
    registry.advertise("one", [Op(op="b")])
    assert registry.ops("one") == ("b",)
    assert registry.provider("a") is None


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([Op(op="B!")], "Plugin 'one', op 'B!': an op's name has 1 to 64 of the characters a-z 0-9 _ . -."),
        ([Op(op="b"), Op(op="action.b")], "Plugin 'one', op 'action.b': 'b' is advertised twice."),
        (
            [Op(op="b", schema={"type": "strin"})],
            "Plugin 'one', op 'b': its schema is not a valid JSON Schema at 'type'",
        ),
        ([Op(op="b", schema={"$ref": "urn:x"})], "Plugin 'one', op 'b': its schema refers to 'urn:x'; only references"),
    ],
)
def test_a_bad_list_is_refused_whole(ops: list[Op], message: str) -> None:
    registry = OpRegistry()
    registry.advertise("one", [Op(op="a")])
    with pytest.raises(AdvertiseError) as caught:
        registry.advertise("one", [Op(op="c"), *ops])
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(".")
    assert caught.value.plugin == "one"
    assert registry.ops("one") == ("a",)


def test_the_number_of_ops_is_bounded() -> None:
    registry = OpRegistry()
    with pytest.raises(AdvertiseError, match=f"more than {MAX_OPS_PER_PLUGIN} ops"):
        registry.advertise("one", [Op(op=f"op{at}") for at in range(MAX_OPS_PER_PLUGIN + 1)])
    registry.advertise("one", [Op(op=f"op{at}") for at in range(MAX_OPS_PER_PLUGIN)])
    assert registry.provider("op0") == "one"


@pytest.mark.parametrize("stated", ["none", "local", "external", "destructive"])
@pytest.mark.parametrize("op", sorted(BUILTIN))
def test_a_side_effect_is_the_stronger_of_two(op: str, stated: SideEffect) -> None:
    registry = OpRegistry()
    registry.advertise("one", [Op(op=op, side_effect=stated)])
    spec = registry.find(op)
    assert spec is not None
    strength = ["none", "local", "external", "destructive"]
    assert strength.index(spec.side_effect) == max(map(strength.index, (stated, BUILTIN[op].side_effect)))


@pytest.mark.parametrize(
    ("op", "schema", "declared"),
    [
        ("a", None, set()),
        ("a", {}, set()),
        ("a", {"properties": {"x": {}, "y": True}}, {"x", "y"}),
        ("a", {"additionalProperties": True, "patternProperties": {".*": {}}}, set()),
        ("open_url", {"properties": {"url": {}, "extra": {}}}, {"url"}),
    ],
)
def test_declared_arguments(op: str, schema: dict[str, Any] | None, declared: set[str]) -> None:
    registry = OpRegistry()
    registry.advertise("one", [Op(op=op, schema=schema)])
    spec = registry.find(op)
    assert spec is not None
    assert spec.declared == declared
