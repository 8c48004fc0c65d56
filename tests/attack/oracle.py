"""What must hold of everything that reaches a plugin, worked out without the policy's code.

Rules here: nothing of `utter_runner.policy` judges here but `visible`'s user, the rendering, which is what is examined;
the ledger of candidates is a second, simpler one.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from utter_runner.policy.render import confirmation

if TYPE_CHECKING:
    from utter_protocol.methods import Candidate, ConfirmParams, PlannedStep
    from utter_runner.policy import Origin, PolicyRules

_TRUSTED = {"user", "config", "knowledge"}
_URL_OPS = {"open_url", "ensure_url"}


class Held(NamedTuple):
    """A candidate of the ledger."""

    owner: str
    value: Any
    plugin: str | None
    until: float


class Ledger:
    """What was recorded, and is still."""

    def __init__(self) -> None:
        self._held: dict[tuple[str | None, str], Held] = {}

    def record(  # noqa: PLR0917 - what the store is told
        self, found: list[Candidate], session: str | None, owner: str, plugin: str | None, now: float, ttl: float
    ) -> None:
        self._held = {key: held for key, held in self._held.items() if held.until > now}
        taken = [one for one in found if self._held.get((session, one.id), Held(owner, 0, None, 0)).owner == owner]
        for one in taken:
            self._held[session, one.id] = Held(owner, one.value, plugin, now + ttl)

    def forget(self, owner: str) -> None:
        self._held = {key: held for key, held in self._held.items() if held.owner != owner}

    def values(self, chosen: str, session: str, plugin: str, now: float) -> list[Any]:
        """What an id may stand for."""
        found = [self._held.get((scope, chosen)) for scope in (session, None)]
        return [one.value for one in found if one and one.until > now and one.plugin in {None, plugin}]


class Sent(NamedTuple):
    """A request that reached a plugin, and what it came of."""

    plugin: str
    op: str
    args: dict[str, Any]
    provenance: str
    step: PlannedStep
    origin: Origin


def bare(op: str) -> str:
    """An op without prefixes."""
    return op.rsplit("action.", 1)[-1]


def tainted(step: PlannedStep, origin: Origin) -> set[str]:
    """The arguments that are the screen's."""
    whole = "screen" in {step.provenance, origin.provenance} or not _TRUSTED.issuperset(origin.sources)
    return {name for name in step.args if whole or step.arg_provenance.get(name) == "screen"}


def untrusted(step: PlannedStep, origin: Origin) -> bool:
    """Whether anything in a step is the screen's."""
    whole = "screen" in {step.provenance, origin.provenance} or not _TRUSTED.issuperset(origin.sources)
    return whole or bool(tainted(step, origin))


def starts_programs(op: str, args: dict[str, Any]) -> bool:
    action = str(args.get("action", "")).lower().replace("-", "").replace("_", "")
    return op == "niri" and (action.startswith("spawn") or action == "loadconfigfile")


def check_screen(sent: Sent, ledger: Ledger, now: float) -> None:
    """Nothing of the screen's but a candidate that was recorded for this session and plugin."""
    for name in tainted(sent.step, sent.origin):
        proposed = sent.step.args[name]
        assert isinstance(proposed, dict), f"'{name}' of the screen was sent"
        assert list(proposed) == ["select"], f"'{name}' of the screen was sent"
        values = ledger.values(proposed["select"], sent.origin.session, sent.plugin, now)
        assert any(_same(bare(sent.op), sent.args[name], value) for value in values), f"'{name}' was not recorded"
    dirty = untrusted(sent.step, sent.origin)
    assert sent.provenance == ("screen" if dirty else "user"), "the plugin was told another provenance"
    risky = bare(sent.op) in {"terminal", "input"} or starts_programs(bare(sent.op), sent.args)
    assert not (risky and dirty), "the screen had a part in a command"
    assert sent.args.keys() == sent.step.args.keys(), "arguments came or went"


def _same(op: str, sent: Any, value: Any) -> bool:
    """Whether what was sent is the value, or (addresses, applications) its canonical form."""
    if op in _URL_OPS:
        return isinstance(value, str)  # both readers look at what it stands for: `check_address`
    if op == "launch_app":
        return bool(sent == str(value).removesuffix(".desktop"))
    return bool(sent == value)


def check_switched_on(sent: Sent, rules: PolicyRules) -> None:
    """Nothing that is off."""
    op = bare(sent.op)
    on = {bare(name) for name in rules.enabled_ops} | {bare(n) for n, rule in rules.ops.items() if rule.enabled}
    off = {bare(name) for name in rules.disabled_ops}
    off |= {bare(name) for name, rule in rules.ops.items() if rule.enabled is False}
    assert op not in off, f"'{op}' is off"
    needs = "terminal" if starts_programs(op, sent.args) else op
    if needs in {"terminal", "input"}:
        assert needs in on - off, f"'{needs}' was never switched on"
        allowed = needs in rules.ops and rules.ops[needs].from_llm
        assert allowed or not sent.origin.llm, "a language model had a part in a command"


def check_confirmed(sent: Sent, asked: list[ConfirmParams], answer: bool, wanted: bool) -> None:
    """Whoever had to be asked was, about exactly this, and said yes."""
    if not wanted:
        assert not asked, "somebody was asked for nothing"
        return
    assert len(asked) == 1, "a step was sent that nobody was asked about, or asked twice"
    question = asked[0]
    assert answer, "a step was sent that was declined"
    assert (question.op, question.args, question.provenance) == (bare(sent.op), sent.args, sent.provenance)
    again, _ = confirmation(bare(sent.op), sent.args, sent.provenance, llm=sent.origin.llm)  # type: ignore[arg-type]
    assert question.text == again, "the text is of something else than what was sent"


class Texts:
    """All texts of confirmations so far: no two steps may share one."""

    def __init__(self) -> None:
        self._of: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._of)

    def check(self, op: str, args: dict[str, Any], provenance: str, *, llm: bool) -> None:
        """Render a step and look whether another one looks the same."""
        text, _ = confirmation(op, args, provenance, llm=llm)  # type: ignore[arg-type]
        canonical = msgspec.json.encode([op, args, provenance, llm], order="sorted")
        # Numbers are told apart by how they are written, as JSON does.
        step = hashlib.sha256(canonical).digest()[:16]
        held = self._of.setdefault(hashlib.sha256(text.encode()).digest()[:16], step)
        assert held == step, f"two steps look the same: {text!r}, one of them {canonical!r}"


def neighbours(rng: random.Random, args: dict[str, Any]) -> dict[str, Any]:
    """Arguments that differ from others by very little, or by something that is hard to see."""
    made = dict(args)
    if not made:
        return {rng.choice(("", " ", "a")): rng.choice(("", None, 0))}
    name = rng.choice(sorted(made))
    held = made[name]
    kind = rng.randrange(6)
    if kind == 0:
        made[name + rng.choice((" ", "\u200b", "\u2423", '"'))] = made.pop(name)
    elif kind == 1:
        made[name] = [held]
    elif kind == 2 and len(made) == 1:
        made["x"] = "y"
    elif isinstance(held, str):
        at = rng.randrange(len(held) + 1)
        odd = rng.choice(' "\\<&\uff1c\uff06\u27e8\u27e9\u2423\u200b\u202e\u05d0\u0301\n\t,=}\ufe0f\u00a0a')
        made[name] = held[:at] + odd + held[at + (kind == 3) :]
    else:
        made[name] = msgspec.json.encode(held).decode()
    return made
