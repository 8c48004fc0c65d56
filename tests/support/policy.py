"""A small world to judge steps in, and generators of steps that try to get through."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from utter_protocol.methods import Candidate, Op, PlannedStep, Provenance
from utter_runner.policy import (
    CandidateStore,
    Decision,
    OpRegistry,
    OpRule,
    Origin,
    PolicyRules,
    Rate,
    canonical_op,
    decide,
)

PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=250)

SESSION = "session-1"
NOW = 100.0
SPECIAL = ("ensure_url", "open_url", "terminal", "input", "niri", "launch_app")

MEDIA_SCHEMA = {
    "type": "object",
    "properties": {
        "command": {"enum": ["play", "pause", "toggle", "next", "previous", "stop"]},
        "player": {"type": "string"},
    },
    "required": ["command"],
    "additionalProperties": False,
}

OPS = [
    *(Op(op=f"action.{name}") for name in SPECIAL),
    Op(op="media", side_effect="local", schema=MEDIA_SCHEMA),
    Op(op="mute", side_effect="local"),
    Op(op="note", side_effect="local", schema={"properties": {"text": {}, "tags": {}}}),
    Op(op="free", side_effect="none"),
    Op(op="wipe", side_effect="destructive", schema={"properties": {"disk": {"type": "string"}}}),
    Op(op="asks", side_effect="local", needs_confirm=True),
]

CANDIDATES = [
    Candidate(id="youtube", value="https://www.youtube.com/"),
    Candidate(id="script", value="javascript:alert(1)"),
    Candidate(id="firefox", value="org.mozilla.firefox"),
    Candidate(id="pause", value="pause"),
    Candidate(id="command", value="rm -rf /"),
    Candidate(id="action", value="close-window"),
    Candidate(id="spawn", value="spawn"),
    Candidate(id="tags", value=["a", {"b": 1}]),
]


def registry() -> OpRegistry:
    """Every special-cased op and some others, of one plugin."""
    made = OpRegistry()
    made.advertise("desktop", OPS)
    return made


def candidates() -> CandidateStore:
    """CANDIDATES as global knowledge, `mine` of SESSION, and `theirs` of another session."""
    store = CandidateStore()
    store.record(CANDIDATES, source="knowledge", owner="commands", now=0.0)
    store.record([Candidate(id="mine", value="https://mine.example/")], **_session(SESSION))
    store.record([Candidate(id="theirs", value="https://theirs.example/")], **_session("session-2"))
    return store


def _session(session: str) -> dict[str, Any]:
    return {"source": "user", "owner": session, "session": session, "now": 0.0, "ttl_s": 600.0, "plugin": "desktop"}


REGISTRY = registry()
CANDIDATE_STORE = candidates()
USER = Origin(provenance="user", session=SESSION)
SCREEN = Origin(provenance="screen", session=SESSION)
EVERYTHING_ON = PolicyRules(enabled_ops=frozenset({"terminal", "input"}))


def step(op: str, args: dict[str, Any] | None = None, provenance: Provenance = "user", **more: Any) -> PlannedStep:
    """A step, of the user's if nothing else is said."""
    return PlannedStep(op=op, args=args or {}, provenance=provenance, **more)


def judge(proposed: PlannedStep, origin: Origin = USER, rules: PolicyRules | None = None, now: float = NOW) -> Decision:
    """What is decided about a step in this world."""
    return decide(proposed, origin, REGISTRY, rules or PolicyRules(), CANDIDATE_STORE, now=now)


provenances: st.SearchStrategy[Provenance] = st.sampled_from(["user", "screen"])
op_names = st.builds(
    lambda prefix, name: prefix + name,
    st.sampled_from(["", "action.", "action.action."]),
    st.sampled_from([*SPECIAL, "media", "mute", "note", "free", "wipe", "asks", "nobody", "Terminal", "terminal "]),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
ids = st.sampled_from([*(c.id for c in CANDIDATES), "mine", "theirs", "unknown", ""])
selects = st.builds(lambda chosen: {"select": chosen}, ids)
near_selects = st.one_of(
    selects,
    st.builds(lambda chosen, more: {"select": chosen, "value": more}, ids, json_values),
    st.builds(lambda chosen: [{"select": chosen}], ids),
    st.builds(lambda chosen: {"select": {"select": chosen}}, ids),
    st.builds(lambda chosen: {"Select": chosen}, ids),
    st.builds(lambda chosen: {"select": [chosen]}, ids),
)
# What each argument is meant to hold, so that many steps get far: values that fit, and candidates that do.
FITTING: dict[str, tuple[list[Any], list[str]]] = {
    "url": (
        ["https://example.org/", "HTTP://a.b", "mailto:a@b.org", "javascript:x", "tel:1"],
        ["youtube", "mine", "theirs"],
    ),
    "command": (["ls -la", "pause", "play"], ["pause", "command"]),
    "text": (["hello", "two\nlines"], ["pause"]),
    "keys": (["ctrl+c", ["a", "b"]], ["pause"]),
    "action": (["close-window", "spawn-sh", "quit"], ["action", "spawn"]),
    "args": ([[], ["x"], {"id": 1}], ["tags"]),
    "app": (["org.mozilla.firefox", "gimp.desktop"], ["firefox"]),
    "player": (["vlc"], ["firefox"]),
    "disk": (["sda"], ["pause"]),
    "tags": ([["a"], {"b": {}}], ["tags"]),
    "x": ([1], ["pause"]),
}
TAKES = {
    "open_url": ["url"],
    "ensure_url": ["url"],
    "terminal": ["command"],
    "input": ["text", "keys"],
    "niri": ["action", "args"],
    "launch_app": ["app"],
    "media": ["command", "player"],
    "note": ["text", "tags"],
    "wipe": ["disk"],
    "free": ["x"],
}


@st.composite
def steps(draw: st.DrawFn) -> PlannedStep:
    """A step of any op, with arguments that fit, are picked, nearly picked, or anything."""
    op = draw(op_names)
    takes = TAKES.get(op.removeprefix("action.").removeprefix("action."), [])
    names = draw(st.lists(st.sampled_from(takes or ["x"]), max_size=2, unique=True) if takes else st.just([]))
    if draw(st.integers(0, 9)) == 0:
        names = [*names, draw(st.sampled_from(sorted(FITTING)))]
    args: dict[str, Any] = {}
    stated: dict[str, Provenance] = {}
    everything: Provenance = draw(provenances)
    for name in names:
        fits, picks = FITTING[name]
        kind = draw(st.sampled_from(["fits", "fits", "picks", "picks", "picks", "near", "any"]))
        if kind == "fits":
            args[name] = draw(st.sampled_from(fits))
        elif kind == "picks":
            args[name] = {"select": draw(st.sampled_from(picks))}
            if draw(st.booleans()):
                stated[name] = "screen"
        else:
            args[name] = draw(near_selects if kind == "near" else json_values)
    if draw(st.integers(0, 19)) == 0:
        stated["ghost"] = "user"
    return PlannedStep(op=op, args=args, provenance=everything, arg_provenance=stated, confirm=draw(st.booleans()))


origins = st.builds(
    Origin,
    provenance=provenances,
    session=st.sampled_from([SESSION, "session-3"]),
    sources=st.sampled_from(
        [(), (), (), ("user", "config"), ("knowledge",), ("context.snapshot",), ("user", "clipboard")]
    ),
    plugin=st.sampled_from([None, None, "desktop", "other"]),
    llm=st.sampled_from([False, False, True]),
)
_ops_set = st.frozensets(st.sampled_from([*SPECIAL, "action.terminal", "media", "mute", "free"]), max_size=3)
# Schemas of the user's own that some steps fit and others do not, by op.
_OWN_SCHEMAS: dict[str, list[dict[str, Any]]] = {
    "media": [{"properties": {"command": {"enum": ["pause", "play"]}}}, {"maxProperties": 1}],
    "open_url": [{"properties": {"url": {"pattern": "^https:"}}}],
    "note": [{"required": ["text"]}],
    "terminal": [{"properties": {"command": {"maxLength": 5}}}],
}


def _everything_said(op: str) -> list[OpRule]:
    """All that may be said of an op, in every combination."""
    schemes: list[frozenset[str] | None] = [None]
    if op in {"open_url", "ensure_url"}:
        schemes += [frozenset(), frozenset({"https"}), frozenset({"tel", "https"})]
    return [
        OpRule(enabled=enabled, confirm=confirm, schemes=opens, schema=schema, rate=rate, from_llm=from_llm)
        for enabled in (None, True, False)
        for confirm in CONFIRMING
        for opens in schemes
        for schema in (None, *_OWN_SCHEMAS.get(op, [{"maxProperties": 0}]))
        for rate in (None, Rate(1, "second"), Rate(2, "minute"))
        for from_llm in ((False, True) if op in {"terminal", "input"} else (False,))
    ]


CONFIRMING: list[Any] = [None, "always", "untrusted", "never"]
RULED = [*SPECIAL, "media", "mute", "note", "free", "wipe", "asks"]
# One draw each, because there are many.
OP_RULES = {op: st.sampled_from(_everything_said(op)) for op in [*RULED, "nobody"]}
ops_tables = st.dictionaries(st.sampled_from(RULED), st.none(), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: OP_RULES[name] for name in names})
)
rule_sets = st.builds(
    PolicyRules,
    ops=st.just({}) | ops_tables,
    enabled_ops=st.sampled_from([frozenset(), frozenset({"terminal"}), frozenset({"action.input", "terminal"})]),
    disabled_ops=_ops_set,
    confirm_ops=_ops_set,
    url_schemes=st.sampled_from([frozenset({"https"}), frozenset({"http", "https", "mailto"}), frozenset({"tel"})]),
)


def copy_of(value: Any) -> Any:
    """The value after a trip over the wire."""
    return msgspec.json.decode(msgspec.json.encode(value))


# Steps of the user's that get far, so that what is said of their ops decides.
FAR = [
    step("terminal", {"command": "ls"}),
    step("input", {"text": "x"}),
    step("niri", {"action": "spawn"}),
    step("niri", {"action": "close-window"}, confirm=True),
    step("open_url", {"url": "https://a.org/"}),
    step("media", {"command": "next"}, confirm=True),
    step("mute"),
    step("asks"),
    step("wipe", {"disk": "sda"}),
]


@st.composite
def steps_and_what_is_said(draw: st.DrawFn) -> tuple[PlannedStep, dict[str, OpRule]]:
    """A step, and something said of its op, and often of `terminal`, which niri actions are ruled by."""
    proposed = draw(st.sampled_from(FAR) | steps())
    about = {canonical_op(proposed.op) or "mute", *draw(st.sampled_from([(), ("terminal",)]))}
    return proposed, {op: draw(OP_RULES[op]) for op in sorted(about)}
