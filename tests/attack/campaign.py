"""A campaign: hostile steps through the real gate, and whether what reaches the plugins may.

Rules here: what is tried depends on the seed and the scene's number alone; every step is judged by the oracle, not by
the policy; between steps, and while a person thinks, plugins restart, offer other ops, and candidates come and go.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from attack import generate
from attack.oracle import (
    Ledger,
    Sent,
    Texts,
    bare,
    check_confirmed,
    check_screen,
    check_switched_on,
    neighbours,
    tainted,
    untrusted,
)
from support.stage import Person, Stage
from utter_runner.policy import Confirm, Deny
from utter_runner.supervision.fake import FakeInstance

if TYPE_CHECKING:
    from collections.abc import Callable

    from attack.other_reader import OtherReader
    from support.stage import Ending

STEPS_PER_SCENE = 50
_NEIGHBOURS = 3
_MINUTE = 60.0
_OF_ADDRESSES = 0.4
_AT_FIRST = 6


class Failure(Exception):
    """A scene in which something reached a plugin that must not have, and how to play it again."""


class Campaign:
    """The steps `start` to `start` + `steps` of a seed.

    Args:
        seed: what everything is made from.
        start: the first step; rounded down to the beginning of its scene.
        steps: how many, rounded up to whole scenes.
        reader: the second reader of addresses, or None.
        say: told about progress, a line at a time.
    """

    def __init__(
        self, seed: int, start: int, steps: int, reader: OtherReader | None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.seed, self.start, self.steps = seed, start - start % STEPS_PER_SCENE, steps
        self.outcomes: Counter[str] = Counter()
        self.texts = Texts()
        self._reader, self._say = reader, say

    def run(self) -> None:
        """Play all scenes.

        Raises:
            Failure: a property does not hold.
        """
        for count, number in enumerate(range(self.start, self.start + self.steps, STEPS_PER_SCENE)):
            scene = _Scene(random.Random(f"{self.seed}:{number}"), self.outcomes, self.texts)
            try:
                trio.run(scene.play, clock=trio.testing.MockClock())
                self._compare(scene.opened)
            except Exception as error:
                raise Failure(
                    f"{scene.last}\nagain: make properties PROPERTIES_ARGS="
                    f"'--seed {self.seed} --start {number} --steps {STEPS_PER_SCENE}'"
                ) from error
            if count % 200 == 199:
                self._say(f"{number - self.start + STEPS_PER_SCENE:>10} steps")

    def _compare(self, opened: list[tuple[str, str]]) -> None:
        """Have the second reader read what was proposed and what was sent to be opened."""
        if self._reader is None or not opened:
            return
        readings = self._reader.read([text for pair in opened for text in pair])
        for (proposed, sent), first, second in zip(opened, readings[::2], readings[1::2], strict=True):
            check_address(proposed, sent, first, second)
            self.outcomes["addresses that both readers read alike"] += 1

    def summary(self) -> list[str]:
        """What was tried, for people."""
        return [
            f"seed {self.seed}, steps {self.start} to {self.start + self.steps}",
            *(f"{count:>10}  {name}" for name, count in sorted(self.outcomes.items())),
            f"{len(self.texts):>10}  different texts of confirmations",
        ]


def check_address(proposed: str, sent: str, first: Any, second: Any) -> None:
    """What is opened is what the second reader makes of what was proposed, and stays the same when it is read again."""
    assert first is not None, f"the second reader takes {proposed!r} for no address"
    assert second is not None, f"the second reader takes {sent!r} for no address"
    assert second.href == sent, f"{sent!r} is read as {second.href!r}"
    # The standard has come to escape this character in paths; node 20 still leaves it as it is, everywhere alike.
    what = f"{proposed!r} was sent as {sent!r} and is read as {first.href!r}"
    assert first.href.replace("^", "%5E") == sent.replace("^", "%5E"), what
    assert first.host == second.host, f"{proposed!r} and {sent!r} have different hosts"
    assert not second.credentials, f"{sent!r} carries credentials"


class _Scene:
    """One configuration, two plugins, a person, and steps."""

    def __init__(self, rng: random.Random, outcomes: Counter[str], texts: Texts) -> None:
        self.opened: list[tuple[str, str]] = []
        self.last = "nothing was tried"
        self._rng, self._outcomes, self._texts = rng, outcomes, texts
        self._rules = generate.rules(rng)
        # Many scenes are about addresses only: of other steps, few get as far as to be opened.
        self._step = generate.opening if rng.random() < _OF_ADDRESSES else generate.step
        self._person = Person()
        self._ledger = Ledger()

    async def play(self) -> None:
        other = FakeInstance("other", {"action.invoke": {"ok": True}})
        self._stage = stage = Stage(self._person, rules=self._rules, others=(other,))
        self._plugins = {"desktop": stage.plugin, "other": other}
        # The stage's own candidates are not in the ledger.
        stage.candidates.forget("commands")
        for session in generate.SESSIONS:
            stage.candidates.end_session(session)
        self._clock = trio.lowlevel.current_clock()
        for plugin in self._plugins:
            stage.ops.advertise(plugin, generate.ops(self._rng))
        for _ in range(_AT_FIRST):
            self._record()
        async with stage.running():
            for _ in range(STEPS_PER_SCENE):
                if self._rng.random() < 0.5:
                    self._something_happens()
                await self._try()

    def _something_happens(self) -> None:
        rng, stage = self._rng, self._stage
        kind = rng.randrange(8)
        plugin = rng.choice(generate.PLUGINS)
        if kind <= 3:
            self._record()
        elif kind == 4:
            stage.candidates.forget(owner := rng.choice(("commands", "config", *generate.SESSIONS)))
            self._ledger.forget(owner)
        elif kind == 5:
            stage.ops.withdraw(plugin)
            if rng.random() < 0.8:
                stage.ops.advertise(plugin, generate.ops(rng))
        elif kind == 6:
            self._plugins[plugin].die()
            if rng.random() < 0.9:
                self._plugins[plugin].start()
        else:
            self._clock.jump(rng.choice((1.0, 10.0, _MINUTE)))
        for plugin, instance in self._plugins.items():
            if not instance.running and rng.random() < 0.5:
                instance.start()
                stage.ops.advertise(plugin, generate.ops(rng))

    def _record(self) -> None:
        rng = self._rng
        found = list({one.id: one for one in generate.candidates(rng)}.values())
        now, ttl = trio.current_time(), rng.choice((5.0, _MINUTE, 600.0))
        session = rng.choice((None, *generate.SESSIONS))
        plugin = rng.choice(generate.PLUGINS) if session else rng.choice((None, *generate.PLUGINS))
        owner = session or rng.choice(("commands", "config"))
        self._stage.candidates.record(
            found,
            source="user" if session else "knowledge",
            owner=owner,
            now=now,
            session=session,
            ttl_s=ttl,
            plugin=plugin,
        )
        self._ledger.record(found, session, owner, plugin, now, ttl)

    async def _try(self) -> None:
        rng, stage, person = self._rng, self._stage, self._person
        step, origin = self._step(rng), generate.origin(rng)
        self.last = f"{step}\n{origin}\n{self._rules}"
        person.asked.clear()
        for instance in self._plugins.values():
            instance.received.clear()
        ending = stage.submit(step, origin)
        decision = ending.decisions[0]
        answer = rng.random() < 0.8
        if isinstance(decision, Confirm):
            assert not any(instance.received for instance in self._plugins.values()), "it was sent before the answer"
            self._look(decision)
            await trio.testing.wait_all_tasks_blocked()
            if rng.random() < 0.3:
                self._something_happens()
            if not ending.replies and person.asked:
                person.say(answer)
            await trio.testing.wait_all_tasks_blocked()
        self._check(ending, step, origin, answer)

    def _look(self, decision: Confirm) -> None:
        llm = "\nA language model had a part in this." in decision.text
        self._texts.check(decision.op, decision.args, decision.provenance, llm=llm)
        args = decision.args
        for _ in range(_NEIGHBOURS):
            args = neighbours(self._rng, args)
            self._texts.check(decision.op, args, decision.provenance, llm=llm)

    def _check(self, ending: Ending, step: Any, origin: Any, answer: bool) -> None:
        decision = ending.decisions[0]
        requests = [(p, request) for p, instance in self._plugins.items() for request in instance.received]
        kind = "denied" if isinstance(decision, Deny) else "asked" if isinstance(decision, Confirm) else "allowed"
        self._outcomes[f"{kind}: {decision.rule}"] += 1
        assert len(requests) <= 1, "it was sent more than once"
        if isinstance(decision, Deny):
            assert not requests, "it was denied and sent"
        for plugin, request in requests:
            sent = Sent(
                plugin, request.params["op"], request.params["args"], request.params["provenance"], step, origin
            )
            assert bare(sent.op) == bare(step.op), "another op was sent"
            now = trio.current_time()
            check_screen(sent, self._ledger, now)
            check_switched_on(sent, self._rules)
            check_confirmed(sent, self._person.asked, answer, isinstance(decision, Confirm))
            self._count(sent)
            if bare(sent.op) in {"open_url", "ensure_url"}:
                self._open(sent, now)

    def _count(self, sent: Sent) -> None:
        self._outcomes["sent"] += 1
        if tainted(sent.step, sent.origin):
            self._outcomes["sent with what the screen picked"] += 1
        elif untrusted(sent.step, sent.origin):
            self._outcomes["sent because the screen chose it"] += 1

    def _open(self, sent: Sent, now: float) -> None:
        proposed, href = sent.step.args["url"], sent.args["url"]
        if isinstance(proposed, dict):
            values = self._ledger.values(proposed["select"], sent.origin.session, sent.plugin, now)
            proposed = values[0]
        self.opened.append((proposed, href))
