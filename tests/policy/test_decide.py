"""Every rule of the policy, each with a step that it decides."""

from __future__ import annotations

import hashlib
import inspect
import re
from typing import Any

import pytest

from support.policy import CANDIDATE_STORE, EVERYTHING_ON, NOW, OPS, SCREEN, SESSION, USER, judge, step
from utter_protocol.methods import Op, PlannedStep, Provenance
from utter_runner.policy import Allow, Confirm, Deny, OpRegistry, Origin, PolicyRules, decide, render, step_digest
from utter_runner.policy import decide as decide_function

YOUTUBE = "https://www.youtube.com/"
PICK = {"select": "youtube"}
OFF = PolicyRules(disabled_ops=frozenset({"action.open_url", "terminal"}), enabled_ops=frozenset({"terminal"}))
ASKING = PolicyRules(confirm_ops=frozenset({"action.media"}))
OTHER = Origin(provenance="user", session=SESSION, plugin="other")
SEEN = Origin(provenance="user", session=SESSION, sources=("user", "context.snapshot"))
LONG = "a" * (render.MAX_SHOWN + 1)
BASE = PolicyRules()

# step, origin, rules, code, rule, what data holds besides
DENIED: list[tuple[PlannedStep, Origin, PolicyRules, int, str, dict[str, Any]]] = [
    (step(""), USER, BASE, -32602, "op-name", {"field": "op"}),
    (step("Terminal", {"command": "ls"}), USER, BASE, -32602, "op-name", {"op": "Terminal"}),
    (step("terminal\n", {"command": "ls"}), USER, EVERYTHING_ON, -32602, "op-name", {}),
    (step("action."), USER, BASE, -32602, "op-name", {}),
    (step("x" * 500), USER, BASE, -32602, "op-name", {"op": "x" * 80 + "…"}),
    (step("mute", arg_provenance={"x": "user"}), USER, BASE, -32602, "arg-provenance", {"field": "x"}),
    # Provenance comes before enablement.
    (step("terminal", {"command": "ls"}, "screen"), USER, BASE, -32006, "command-from-screen", {"op": "terminal"}),
    (step("terminal", {"command": "ls"}), SCREEN, BASE, -32006, "command-from-screen", {}),
    (step("action.terminal", {"command": "ls"}), SCREEN, EVERYTHING_ON, -32006, "command-from-screen", {}),
    (step("terminal", {"command": "ls"}), SEEN, EVERYTHING_ON, -32006, "command-from-screen", {}),
    (step("terminal", {"command": {"select": "command"}}), SCREEN, EVERYTHING_ON, -32006, "command-from-screen", {}),
    (step("terminal", {}), SCREEN, EVERYTHING_ON, -32006, "command-from-screen", {}),
    (
        step("terminal", {"command": "ls"}, arg_provenance={"command": "screen"}),
        USER,
        EVERYTHING_ON,
        -32006,
        "command-from-screen",
        {},
    ),
    (step("input", {"text": "hi"}, "screen"), USER, BASE, -32006, "command-from-screen", {"op": "input"}),
    (step("niri", {"action": {"select": "spawn"}}), SCREEN, EVERYTHING_ON, -32006, "command-from-screen", {}),
    (step("open_url", {"url": YOUTUBE}), SCREEN, BASE, -32006, "screen-authored-argument", {"field": "url"}),
    (step("open_url", {"url": YOUTUBE}), SCREEN, OFF, -32006, "screen-authored-argument", {}),
    (step("nobody", {"x": 1}), SCREEN, BASE, -32006, "screen-authored-argument", {"field": "x"}),
    (
        step("media", {"command": "play", "player": "x"}, arg_provenance={"player": "screen"}),
        USER,
        BASE,
        -32006,
        "screen-authored-argument",
        {"field": "player"},
    ),
    (step("open_url", {"url": {**PICK, "x": 1}}), SCREEN, BASE, -32006, "screen-authored-argument", {}),
    (step("open_url", {"url": [PICK]}), SCREEN, BASE, -32006, "screen-authored-argument", {}),
    (step("open_url", {"url": {"select": [YOUTUBE]}}), SCREEN, BASE, -32006, "screen-authored-argument", {}),
    (step("open_url", {"url": {"select": 1}}), SCREEN, BASE, -32006, "screen-authored-argument", {}),
    (step("open_url", {"url": {"url": PICK}}), SCREEN, BASE, -32006, "screen-authored-argument", {}),
    (step("open_url", {"url": {}}), SCREEN, BASE, -32006, "screen-authored-argument", {}),
    (step("open_url", {"url": None}), SCREEN, BASE, -32006, "screen-authored-argument", {}),
    (step("free", {"anything": PICK}), SCREEN, BASE, -32006, "screen-undeclared-argument", {"field": "anything"}),
    (step("open_url", {"url": PICK, "rm -rf": PICK}), SCREEN, BASE, -32006, "screen-undeclared-argument", {}),
    (step("open_url", {"url": {"select": "gone"}}), SCREEN, BASE, -32006, "unknown-candidate", {"field": "url"}),
    (step("open_url", {"url": {"select": "theirs"}}), SCREEN, BASE, -32006, "unknown-candidate", {}),
    (step("open_url", {"url": YOUTUBE}), USER, OFF, -32003, "op-disabled", {"op": "open_url"}),
    (step("open_url", {"url": PICK}), SCREEN, OFF, -32003, "op-disabled", {}),
    (step("terminal", {"command": "ls"}), USER, OFF, -32003, "op-disabled", {}),
    (step("terminal", {"command": "ls"}), USER, BASE, -32003, "op-not-enabled", {"op": "terminal"}),
    (step("action.input", {"text": "hi"}), USER, BASE, -32003, "op-not-enabled", {"op": "input"}),
    (step("niri", {"action": "spawn-sh", "args": ["ls"]}), USER, BASE, -32003, "op-not-enabled", {"field": "action"}),
    (step("niri", {"action": "SpawnSh"}), USER, BASE, -32003, "op-not-enabled", {}),
    (step("niri", {"action": "load-config-file"}), USER, OFF, -32003, "op-not-enabled", {}),
    (step("nobody"), USER, BASE, -32005, "no-provider", {"op": "nobody"}),
    (step("nobody", {"x": PICK}), SCREEN, BASE, -32005, "no-provider", {}),
    (step("media", {"command": "play"}), OTHER, BASE, -32005, "no-provider", {"plugin": "other"}),
    (step("terminal", {"command": "ls"}), OTHER, EVERYTHING_ON, -32005, "no-provider", {"plugin": "other"}),
    (step("open_url"), USER, BASE, -32602, "arguments", {"field": "url"}),
    (step("open_url", {"url": 5}), USER, BASE, -32602, "arguments", {"field": "url"}),
    (step("open_url", {"url": PICK}), USER, BASE, -32602, "arguments", {"field": "url"}),
    (step("open_url", {"url": YOUTUBE, "new": True}), USER, BASE, -32602, "arguments", {"field": "new"}),
    (step("note", {"text": float("nan")}), USER, BASE, -32602, "arguments", {"field": "text"}),
    (step("media", {"command": "rewind"}), USER, BASE, -32602, "schema", {"field": "command"}),
    (step("media", {}), USER, BASE, -32602, "schema", {"field": "command"}),
    (step("media", {"command": "play", "loud": 1}), USER, BASE, -32602, "schema", {}),
    (step("media", {"command": {"select": "youtube"}}), SCREEN, BASE, -32602, "schema", {"field": "command"}),
    (step("open_url", {"url": "file:///etc/passwd"}), USER, BASE, -32003, "url", {"field": "url", "reason": "scheme"}),
    (step("ensure_url", {"url": {"select": "script"}}), SCREEN, BASE, -32003, "url", {"reason": "scheme"}),
    (step("open_url", {"url": "https://a:b@c/"}), USER, BASE, -32003, "url", {"reason": "credentials"}),
    (
        step("terminal", {"command": LONG}),
        USER,
        EVERYTHING_ON,
        -32003,
        "confirm-too-long",
        {"bound": render.MAX_SHOWN, "length": render.MAX_SHOWN + 1},
    ),
]

# step, origin, rules, the first rule, all rules
ASKED: list[tuple[PlannedStep, Origin, PolicyRules, tuple[str, ...]]] = [
    (step("terminal", {"command": "ls"}), USER, EVERYTHING_ON, ("always-confirm", "destructive")),
    (step("input", {"keys": "ctrl+c"}), USER, EVERYTHING_ON, ("always-confirm", "destructive")),
    (step("niri", {"action": "spawn", "args": ["ls"]}), USER, EVERYTHING_ON, ("always-confirm",)),
    (step("niri", {"action": "quit"}), USER, BASE, ("destructive",)),
    (step("wipe", {"disk": "sda"}), USER, BASE, ("destructive",)),
    (step("mute"), SCREEN, BASE, ("screen-without-arguments",)),
    (step("media", {"command": "play"}), USER, ASKING, ("configured-confirm",)),
    (step("asks"), USER, BASE, ("plugin-asks",)),
    (step("mute", confirm=True), USER, BASE, ("plan-asks",)),
    (
        step("asks", confirm=True),
        SCREEN,
        PolicyRules(confirm_ops=frozenset({"asks"})),
        ("screen-without-arguments", "configured-confirm", "plugin-asks", "plan-asks"),
    ),
]

# step, origin, canonical args
ALLOWED: list[tuple[PlannedStep, Origin, dict[str, Any]]] = [
    (step("open_url", {"url": "HTTPS://YouTube.com"}), USER, {"url": "https://youtube.com/"}),
    (step("action.open_url", {"url": YOUTUBE}), USER, {"url": YOUTUBE}),
    (step("ensure_url", {"url": PICK}), SCREEN, {"url": YOUTUBE}),
    (step("ensure_url", {"url": {"select": "mine"}}, "screen"), USER, {"url": "https://mine.example/"}),
    (step("open_url", {"url": PICK}, arg_provenance={"url": "screen"}), USER, {"url": YOUTUBE}),
    (step("open_url", {"url": PICK}), SEEN, {"url": YOUTUBE}),
    (
        step("media", {"command": {"select": "pause"}, "player": "vlc"}, arg_provenance={"command": "screen"}),
        USER,
        {"command": "pause", "player": "vlc"},
    ),
    (step("launch_app", {"app": "org.mozilla.firefox.desktop"}), USER, {"app": "org.mozilla.firefox"}),
    (step("launch_app", {"app": {"select": "firefox"}}), SCREEN, {"app": "org.mozilla.firefox"}),
    (step("niri", {"action": {"select": "action"}}), SCREEN, {"action": "close-window"}),
    (step("note", {"tags": {"select": "tags"}}), SCREEN, {"tags": ["a", {"b": 1}]}),
    (step("mute"), USER, {}),
    (step("free", {"any": {"thing": [1, None]}}), USER, {"any": {"thing": [1, None]}}),
]


@pytest.mark.parametrize("row", DENIED, ids=lambda row: f"{row[4]}-{row[0].op[:20]}")
def test_denied(row: tuple[PlannedStep, Origin, PolicyRules, int, str, dict[str, Any]]) -> None:
    proposed, origin, rules, code, rule, data = row
    decision = judge(proposed, origin, rules)
    assert isinstance(decision, Deny)
    assert (decision.code, decision.rule) == (code, rule)
    assert data.items() <= decision.data.items()
    assert decision.data["rule"] == rule
    assert decision.detail.endswith(".")


@pytest.mark.parametrize(("proposed", "origin", "rules", "asking"), ASKED)
def test_asked(proposed: PlannedStep, origin: Origin, rules: PolicyRules, asking: tuple[str, ...]) -> None:
    decision = judge(proposed, origin, rules)
    assert isinstance(decision, Confirm)
    assert decision.rules == asking
    assert decision.rule == asking[0]
    assert decision.text == render.confirmation(decision.op, decision.args, decision.provenance)[0]


@pytest.mark.parametrize(("proposed", "origin", "args"), ALLOWED)
def test_allowed(proposed: PlannedStep, origin: Origin, args: dict[str, Any]) -> None:
    decision = judge(proposed, origin)
    assert isinstance(decision, Allow)
    assert decision.args == args
    assert decision.plugin == "desktop"
    assert decision.rule == "allowed"


def test_every_rule_that_the_code_names_is_shown_here_and_documented() -> None:
    module = inspect.getmodule(decide_function)
    assert module is not None
    named = set(
        re.findall(r'"([a-z]+(?:-[a-z]+)+|arguments|destructive|schema|url|allowed)"', inspect.getsource(module))
    )
    shown = {row[4] for row in DENIED} | {each for row in ASKED for each in row[3]} | {"allowed"}
    assert named == shown
    documented = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", decide_function.__doc__ or ""))
    assert shown <= documented


def test_the_digest_is_of_the_canonical_json() -> None:
    decision = judge(step("media", {"player": "vlc", "command": "play"}))
    assert isinstance(decision, Allow)
    canonical = '{"args":{"command":"play","player":"vlc"},"op":"media","plugin":"desktop","provenance":"user"}'
    assert decision.digest == hashlib.sha256(canonical.encode()).hexdigest()


def test_the_digest_tells_apart_what_differs() -> None:
    base: tuple[str, dict[str, Any], Provenance, str] = ("media", {"a": 1}, "user", "desktop")
    others: list[tuple[str, dict[str, Any], Provenance, str]] = [
        ("medi", {"a": 1}, "user", "desktop"),
        ("media", {"a": 1.0}, "user", "desktop"),
        ("media", {"a": True}, "user", "desktop"),
        ("media", {"a": "1"}, "user", "desktop"),
        ("media", {"b": 1}, "user", "desktop"),
        ("media", {"a": 1}, "screen", "desktop"),
        ("media", {"a": 1}, "user", "desktop2"),
    ]
    digests = {step_digest(*parts) for parts in [base, *others]}
    assert len(digests) == len(others) + 1


def test_the_plugin_that_was_named_runs_it_under_the_name_that_it_advertised() -> None:
    registry = OpRegistry()
    registry.advertise("first", [Op(op="open_url")])
    registry.advertise("second", [Op(op="action.open_url", needs_confirm=True)])
    args = {"url": YOUTUBE}
    default = decide(step("open_url", args), USER, registry, BASE, CANDIDATE_STORE, now=NOW)
    named = Origin(provenance="user", plugin="second")
    chosen = decide(step("open_url", args), named, registry, BASE, CANDIDATE_STORE, now=NOW)
    assert isinstance(default, Allow)
    assert (default.plugin, default.invoke_as) == ("first", "open_url")
    assert isinstance(chosen, Confirm)
    assert (chosen.plugin, chosen.invoke_as) == ("second", "action.open_url")
    assert chosen.digest != default.digest


def test_a_plugin_cannot_make_an_op_harmless() -> None:
    registry = OpRegistry()
    registry.advertise("p", [Op(op="terminal", side_effect="none", schema={"properties": {}})])
    for arguments, expected in (({"command": "ls"}, Confirm), ({"command": "ls", "cwd": "/"}, Deny)):
        decision = decide(step("terminal", arguments), USER, registry, EVERYTHING_ON, CANDIDATE_STORE, now=NOW)
        assert isinstance(decision, expected)


def test_a_plugin_s_schema_makes_a_known_op_stricter() -> None:
    registry = OpRegistry()
    strict = {"properties": {"url": {"pattern": "^https://example\\.org/"}}}
    registry.advertise("p", [Op(op="open_url", schema=strict)])
    judged = [
        decide(step("open_url", {"url": url}), USER, registry, BASE, CANDIDATE_STORE, now=NOW)
        for url in ("https://EXAMPLE.org/x", "https://example.com/")
    ]
    assert isinstance(judged[0], Allow)
    assert isinstance(judged[1], Deny)
    assert judged[1].rule == "schema"


def test_candidates_expire_between_two_judgements() -> None:
    picking = step("open_url", {"url": {"select": "mine"}}, "screen")
    assert isinstance(judge(picking, now=599.0), Allow)
    late = judge(picking, now=600.0)
    assert isinstance(late, Deny)
    assert late.rule == "unknown-candidate"


def test_names_from_outside_are_harmless_in_errors() -> None:
    decision = judge(step("open_url", {"url": YOUTUBE, "\x1b[31m<b>" + "x" * 500: 1}))
    assert isinstance(decision, Deny)
    field = decision.data["field"]
    for shown in (decision.detail, field):
        assert "\x1b" not in shown
        assert "<" not in shown
        assert len(shown) < 600
    assert field.endswith("…")


def test_configured_names_have_one_spelling_and_bad_ones_are_refused() -> None:
    rules = PolicyRules(enabled_ops=frozenset({"action.terminal"}), disabled_ops=frozenset({"action.action.media"}))
    assert rules.enabled_ops == {"terminal"}
    assert rules.disabled_ops == {"media"}
    with pytest.raises(ValueError, match="'Media' is not the name of an op"):
        PolicyRules(confirm_ops=frozenset({"Media"}))
    with pytest.raises(ValueError, match="'javascript' can never be opened"):
        PolicyRules(url_schemes=frozenset({"javascript"}))


def test_the_table_of_ops_is_the_one_that_the_tests_mean() -> None:
    assert len({op.op for op in OPS}) == len(OPS)
