"""Every rule of the policy, each with a step that it decides."""

from __future__ import annotations

import hashlib
import inspect
import re
from typing import Any

import pytest

from support.policy import CANDIDATE_STORE, EVERYTHING_ON, NOW, OPS, SCREEN, SESSION, USER, judge, step
from utter_protocol.methods import Op, PlannedStep, Provenance
from utter_runner.policy import (
    Allow,
    Confirm,
    Deny,
    OpRegistry,
    OpRule,
    Origin,
    PolicyRules,
    confirmations,
    decide,
    render,
    step_digest,
)
from utter_runner.policy import decide as decide_function

YOUTUBE = "https://www.youtube.com/"
PICK = {"select": "youtube"}
OFF = PolicyRules(disabled_ops=frozenset({"action.open_url", "terminal"}), enabled_ops=frozenset({"terminal"}))
ASKING = PolicyRules(confirm_ops=frozenset({"action.media"}))
EXAMPLE_ORG = {"properties": {"url": {"pattern": "^https?://example\\.org/"}}}
OTHER = Origin(provenance="user", session=SESSION, plugin="other")
SEEN = Origin(provenance="user", session=SESSION, sources=("user", "context.snapshot"))
LONG = "a" * (render.MAX_SHOWN + 1)
BASE = PolicyRules()
MODEL = Origin(provenance="user", session=SESSION, llm=True)
MODEL_SEEN = Origin(provenance="screen", session=SESSION, llm=True)
TERMINAL_FROM_LLM = PolicyRules(
    ops={"terminal": OpRule(enabled=True, from_llm=True), "action.input": OpRule(enabled=True)}
)


def only(op: str, **said: Any) -> PolicyRules:
    """Rules that say something of one op, with everything on."""
    return PolicyRules(enabled_ops=EVERYTHING_ON.enabled_ops, ops={op: OpRule(**said)})


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
    (step("terminal", {"command": "ls"}), MODEL, EVERYTHING_ON, -32006, "command-from-llm", {"op": "terminal"}),
    # Who had a part in it comes before enablement, too, and the screen before the model.
    (step("terminal", {"command": "ls"}), MODEL, BASE, -32006, "command-from-llm", {}),
    (step("terminal", {"command": "ls"}), MODEL_SEEN, TERMINAL_FROM_LLM, -32006, "command-from-screen", {}),
    (step("input", {"text": "hi"}), MODEL, TERMINAL_FROM_LLM, -32006, "command-from-llm", {"op": "input"}),
    (step("action.niri", {"action": "spawn-sh"}), MODEL, EVERYTHING_ON, -32006, "command-from-llm", {"op": "niri"}),
    (
        step("niri", {"action": "SpawnSh"}),
        MODEL,
        PolicyRules(ops={"terminal": OpRule(from_llm=True)}),
        -32003,
        "op-not-enabled",
        {"field": "action"},
    ),
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
    (step("mute"), USER, only("action.mute", enabled=False), -32003, "op-disabled", {"op": "mute"}),
    (step("terminal", {"command": "ls"}), USER, only("terminal", enabled=False), -32003, "op-disabled", {}),
    (step("niri", {"action": "spawn"}), USER, only("terminal", enabled=False), -32003, "op-not-enabled", {}),
    (
        step("mute"),
        USER,
        PolicyRules(disabled_ops=frozenset({"mute"}), ops={"mute": OpRule(enabled=True)}),
        -32003,
        "op-disabled",
        {},
    ),
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
        step("open_url", {"url": "http://a.org"}),
        USER,
        only("open_url", schemes=frozenset({"https"})),
        -32003,
        "url",
        {"field": "url", "reason": "scheme"},
    ),
    # What the op says comes on top of what is configured for all, and not instead of it.
    (
        step("ensure_url", {"url": "tel:1"}),
        USER,
        only("ensure_url", schemes=frozenset({"tel"})),
        -32003,
        "url",
        {"reason": "scheme"},
    ),
    (
        step("open_url", {"url": "HTTPS://EXAMPLE.com"}),
        USER,
        only("open_url", schema=EXAMPLE_ORG),
        -32003,
        "configured-schema",
        {"field": "url"},
    ),
    (step("mute"), USER, only("mute", schema={"required": ["why"]}), -32003, "configured-schema", {"field": "why"}),
    # The plugin's own schema is asked first, and still.
    (step("media", {"command": "rewind"}), USER, only("media", schema={"type": "object"}), -32602, "schema", {}),
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
    (step("terminal", {"command": "ls"}), MODEL, TERMINAL_FROM_LLM, ("always-confirm", "destructive")),
    (step("niri", {"action": "spawn"}), MODEL, TERMINAL_FROM_LLM, ("always-confirm",)),
    (step("mute"), USER, only("mute", confirm="always"), ("configured-confirm",)),
    (step("mute"), MODEL, only("mute", confirm="untrusted"), ("untrusted-confirm",)),
    (step("open_url", {"url": PICK}), SCREEN, only("open_url", confirm="untrusted"), ("untrusted-confirm",)),
    # "never" is about what plugins and plans ask for, and only where little can happen.
    (step("terminal", {"command": "ls"}), USER, only("terminal", confirm="never"), ("always-confirm", "destructive")),
    (step("wipe", {"disk": "sda"}), USER, only("wipe", confirm="never"), ("destructive",)),
    (step("niri", {"action": "quit"}, confirm=True), USER, only("niri", confirm="never"), ("destructive", "plan-asks")),
    (
        step("niri", {"action": "spawn"}, confirm=True),
        USER,
        only("niri", confirm="never"),
        ("always-confirm", "plan-asks"),
    ),
    (step("mute"), SCREEN, only("mute", confirm="never"), ("screen-without-arguments",)),
    (step("asks"), SCREEN, only("asks", confirm="never"), ("screen-without-arguments", "plugin-asks")),
    (step("open_url", {"url": YOUTUBE}, confirm=True), USER, only("open_url", confirm="never"), ("plan-asks",)),
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


# What is said of the op, a step that is allowed by it.
MILDER: list[tuple[PolicyRules, PlannedStep, Origin]] = [
    (only("asks", confirm="never"), step("asks"), USER),
    (only("asks", confirm="never"), step("asks", confirm=True), MODEL),
    (only("free", confirm="never"), step("free", confirm=True), USER),
    (only("mute", confirm="untrusted"), step("mute"), USER),
    (only("open_url", confirm="untrusted", schema=EXAMPLE_ORG), step("open_url", {"url": "http://EXAMPLE.org"}), USER),
    (only("mute", enabled=True), step("mute"), USER),
]


@pytest.mark.parametrize(("rules", "proposed", "origin"), MILDER)
def test_what_is_said_of_an_op_lets_through_what_it_does_not_forbid(
    rules: PolicyRules, proposed: PlannedStep, origin: Origin
) -> None:
    assert isinstance(judge(proposed, origin, rules), Allow)


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
    text, _ = render.confirmation(decision.op, decision.args, decision.provenance, llm=origin.llm)
    assert decision.text == text
    assert ("A language model had a part in this." in text) == origin.llm


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
    source = inspect.getsource(module) + inspect.getsource(confirmations)
    named = set(re.findall(r'"([a-z]+(?:-[a-z]+)+|arguments|destructive|schema|url|rate|allowed)"', source))
    # The one that needs a history has tests of its own.
    shown = {row[4] for row in DENIED} | {each for row in ASKED for each in row[3]} | {"allowed", "rate"}
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


def test_a_candidate_of_the_session_is_for_the_plugin_that_it_was_recorded_for() -> None:
    registry = OpRegistry()
    registry.advertise("desktop", OPS)
    registry.advertise("other", [Op(op="open_url")])
    for pick, allowed in (("mine", False), ("youtube", True)):
        picking = step("open_url", {"url": {"select": pick}}, "screen")
        theirs = Origin(provenance="screen", session=SESSION, plugin="other")
        judged = decide(picking, theirs, registry, BASE, CANDIDATE_STORE, now=NOW)
        assert isinstance(judged, Allow) == allowed
        assert isinstance(decide(picking, SCREEN, registry, BASE, CANDIDATE_STORE, now=NOW), Allow)
        if isinstance(judged, Deny):
            assert (judged.rule, judged.data["field"]) == ("unknown-candidate", "url")


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
    assert set(PolicyRules(ops={"action.mute": OpRule()}).ops) == {"mute"}


@pytest.mark.parametrize(
    ("ops", "problem"),
    [
        ({"Media": {}}, "'Media' is not the name of an op"),
        ({"mute": {}, "action.mute": {}}, "named twice"),
        ({"open_url": {"schemes": frozenset({"javascript"})}}, "'javascript' can never be opened"),
        ({"open_url": {"schemes": frozenset({"HTTP"})}}, "is not the name of a URL scheme"),
        ({"mute": {"schemes": frozenset({"https"})}}, "'mute' opens no addresses"),
        ({"mute": {"from_llm": True}}, "from_llm is for input and terminal, not for 'mute'"),
        ({"mute": {"schema": {"type": "nothing"}}}, "is not a valid JSON Schema at 'type'"),
        ({"mute": {"schema": {"$ref": "https://example.org/"}}}, "only references inside the schema"),
    ],
)
def test_what_cannot_be_said_of_an_op_is_refused(ops: dict[str, dict[str, Any]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        PolicyRules(ops={name: OpRule(**said) for name, said in ops.items()})


def test_the_table_of_ops_is_the_one_that_the_tests_mean() -> None:
    assert len({op.op for op in OPS}) == len(OPS)
