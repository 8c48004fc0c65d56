"""A slice of `make properties` on every run, and that each property is really looked at."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from attack import generate
from attack.campaign import Campaign, Failure, check_address
from attack.oracle import Texts
from attack.other_reader import NODE, OtherReader, Reading
from utter_runner.actions import gate
from utter_runner.policy import Allow, Confirm, Decision, PolicyRules, decide, render

SLICE = 6_000


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep thousands of lines about plugins that die out of the report."""
    monkeypatch.setattr(logging.getLogger("utter_runner"), "level", logging.ERROR)


@pytest.fixture
def reader() -> Iterator[OtherReader]:
    if NODE is None:
        pytest.skip("node is not installed")
    with OtherReader() as made:
        yield made


def test_a_slice() -> None:
    campaign = Campaign(20261130, 0, SLICE, None)
    campaign.run()
    outcomes = campaign.outcomes
    # Enough of everything gets through for the rest to mean something.
    assert outcomes["sent"] > SLICE / 20
    assert outcomes["sent with what the screen picked"] > 3
    assert outcomes["sent because the screen chose it"] > SLICE / 200
    for rule in ("op-disabled", "url", "command-from-screen", "command-from-llm", "unknown-candidate"):
        assert outcomes[f"denied: {rule}"] > SLICE / 400
    assert len(campaign.texts) > SLICE / 10


def test_a_slice_that_a_second_program_reads(reader: OtherReader) -> None:
    campaign = Campaign(7, 0, 2_000, reader)
    campaign.run()
    assert campaign.outcomes["addresses that both readers read alike"] > 20


def test_steps_depend_on_nothing_but_the_seed() -> None:
    assert generate.step(random.Random("1:50")) == generate.step(random.Random("1:50"))
    first, second = Campaign(5, 0, 200, None), Campaign(5, 0, 200, None)
    first.run()
    second.run()
    assert first.outcomes == second.outcomes


# ---- a gate that is broken is seen


def _broken(monkeypatch: pytest.MonkeyPatch, change: Any) -> str:
    def wrong(step: Any, origin: Any, registry: Any, rules: Any, *rest: Any, **options: Any) -> Decision:
        return change(step, origin, registry, rules, lambda s, o, r: decide(s, o, registry, r, *rest, **options))

    monkeypatch.setattr(gate, "decide", wrong)
    with pytest.raises(Failure) as caught:
        Campaign(3, 0, 5_000, None).run()
    assert "again: make properties PROPERTIES_ARGS='--seed 3 --start " in str(caught.value)
    cause = caught.value.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return str(cause)


def test_a_gate_that_believes_what_steps_say_of_their_arguments_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(step: Any, origin: Any, _registry: Any, rules: Any, judge: Any) -> Decision:
        return judge(msgspec.structs.replace(step, arg_provenance={}), origin, rules)

    assert _broken(monkeypatch, change).endswith("was not recorded")


def test_a_gate_that_forgets_what_is_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(step: Any, origin: Any, _registry: Any, rules: PolicyRules, judge: Any) -> Decision:
        return judge(step, origin, msgspec.structs.replace(rules, disabled_ops=frozenset()))

    assert "is off" in _broken(monkeypatch, change)


def test_a_gate_that_asks_about_something_else_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(step: Any, origin: Any, _registry: Any, rules: Any, judge: Any) -> Decision:
        decision = judge(step, origin, rules)
        if isinstance(decision, Confirm):
            return msgspec.structs.replace(decision, text=decision.text + " ")
        return decision

    assert "text" in _broken(monkeypatch, change)


def test_a_gate_that_sends_what_was_proposed_is_seen(monkeypatch: pytest.MonkeyPatch, reader: OtherReader) -> None:
    def wrong(step: Any, origin: Any, *rest: Any, **options: Any) -> Decision:
        decision = decide(step, origin, *rest, **options)
        if isinstance(decision, Allow) and decision.op in {"open_url", "ensure_url"} and "url" in step.args:
            return msgspec.structs.replace(decision, args=dict(step.args))
        return decision

    monkeypatch.setattr(gate, "decide", wrong)
    with pytest.raises(Failure):
        Campaign(3, 0, 20_000, reader).run()


def test_a_gate_that_knows_another_configuration_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(step: Any, origin: Any, _registry: Any, _rules: Any, judge: Any) -> Decision:
        return judge(step, origin, PolicyRules(enabled_ops=frozenset({"terminal", "input"})))

    assert "off" in _broken(monkeypatch, change)


def test_two_steps_that_look_the_same_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "visible", lambda text, **_: text.replace("\u200b", ""))
    texts = Texts()
    texts.check("wipe", {"disk": "a"}, "user", llm=False)
    texts.check("wipe", {"disk": "a"}, "user", llm=False)
    with pytest.raises(AssertionError, match="look the same"):
        texts.check("wipe", {"disk": "a\u200b"}, "user", llm=False)


def test_the_second_reader_reads(reader: OtherReader) -> None:
    good, bad = reader.read(["HTTPS://b\u00fccher.example:443/a/../b", "https://"])
    assert good == Reading("https://xn--bcher-kva.example/b", "https:", "xn--bcher-kva.example", "")
    assert bad is None
    check_address("https://A.org", "https://a.org/", *reader.read(["https://A.org", "https://a.org/"]))
    with pytest.raises(AssertionError, match="was sent as"):
        check_address("https://a.org", "https://b.org/", *reader.read(["https://a.org", "https://b.org/"]))
