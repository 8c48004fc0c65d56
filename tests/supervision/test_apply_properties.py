"""Whatever is configured, in whatever order, and whatever happens meanwhile."""

from __future__ import annotations

from typing import Any, TypeAlias

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from support.quick_plugins import QuickHouse, QuickInstance, quick, quick_house
from utter_runner.supervision.spec import PluginSpec

# Each may need the one before it, so that there are no circles; "d" stands by itself.
NEEDS = {"a": (), "b": ("a",), "c": ("b",), "d": ()}


@st.composite
def plugin_sets(draw: st.DrawFn) -> list[PluginSpec]:
    names = draw(st.lists(st.sampled_from("abcd"), unique=True))
    return [
        quick(
            name,
            draw(st.sampled_from("12")),
            provides=[f"experimental/{name}@1"],
            requires=[f"experimental/{one}@1" for one in NEEDS[name] if draw(st.booleans())],
        )
        for name in names
    ]


Step: TypeAlias = "tuple[str, Any]"
STEPS = st.one_of(
    st.tuples(st.just("apply"), plugin_sets()),
    st.tuples(st.sampled_from(["crash", "hold", "start", "restart"]), st.sampled_from("abcd")),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.3, 0.7, 5.0])),
)


class Model:
    """What is configured, and which plugins may have been started anew since."""

    def __init__(self, house: QuickHouse, specs: list[PluginSpec]) -> None:
        self.house = house
        self.specs = {spec.id: spec for spec in specs}
        self.held: set[str] = set()
        self.touched: set[str] = set()

    def apply(self, specs: list[PluginSpec]) -> None:
        wanted = {spec.id: spec for spec in specs}
        changes = self.house.supervisor.apply(specs)
        changed = {name for name in wanted.keys() & self.specs.keys() if wanted[name] != self.specs[name]}
        assert set(changes.added) == wanted.keys() - self.specs.keys()
        assert set(changes.removed) == self.specs.keys() - wanted.keys()
        assert set(changes.restarted) == changed - self.held
        self.touched |= changed | set(changes.added) | set(changes.removed)
        self.held &= wanted.keys()
        self.specs = wanted

    def act(self, verb: str, name: str) -> None:
        if name not in self.specs:
            return
        supervisor = self.house.supervisor
        self.touched.add(name)
        if verb == "crash":
            instance = supervisor.get(name)
            assert isinstance(instance, QuickInstance)
            instance.crash()
        elif verb == "hold":
            assert supervisor.hold(name, "a test") == (name not in self.held)
            self.held.add(name)
        elif verb == "start":
            supervisor.start(name)
            self.held.discard(name)
        else:
            supervisor.restart(name)
            self.held.discard(name)


def healthy(house: QuickHouse) -> set[str]:
    """Those that run and have what they need, also from whom they need it: one that has lost it goes on, degraded."""
    running = {one.id: one for one in house.supervisor.instances if one.running}
    for name in NEEDS:
        if name in running and not {one[-3] for one in running[name].requires} <= running.keys():
            assert running[name].status == "degraded" or NEEDS[name][0] in house.statuses()
            del running[name]
    return set(running)


async def fresh(specs: list[PluginSpec]) -> set[str]:
    async with quick_house(*specs) as house:
        return healthy(house)


async def live(first: list[PluginSpec], steps: list[Step]) -> None:
    async with quick_house(*first) as house:
        await trio.sleep(1000)
        before = house.incarnations()
        model = Model(house, first)
        for verb, what in steps:
            if verb == "apply":
                model.apply(what)
            elif verb == "wait":
                await trio.sleep(what)
            else:
                model.act(verb, what)
        await trio.sleep(1000)

        # The order is the configuration's, and nothing else is left.
        assert [one.id for one in house.supervisor.instances] == [*model.specs]
        assert [one.spec for one in house.supervisor.instances] == [*model.specs.values()]
        # What is the same was not touched, whatever became of others.
        after = house.incarnations()
        for name in before.keys() & model.specs.keys() - model.touched:
            assert after[name] == before[name]
        # It is as if the runner had been started with what is configured, but for what a person has stopped.
        assert {name for name, status in house.statuses().items() if status == "stopped"} == model.held
        expected = await fresh([spec for spec in model.specs.values() if spec.id not in model.held])
        assert healthy(house) == expected
        assert all(house.supervisor._lives[name].at_rest for name in model.specs)
    # Each epoch of an id is one more than the last, also when the plugin was gone meanwhile.
    for name in NEEDS:
        epochs = [epoch for plugin, epoch, status in house.history if plugin == name and status == "ready"]
        assert epochs == sorted(epochs)
        seen = list(dict.fromkeys(epoch for plugin, epoch, _ in house.history if plugin == name))
        assert seen == sorted(seen)


@given(plugin_sets(), st.lists(STEPS, max_size=12))
@settings(max_examples=150, deadline=None)
def test_any_sequence_of_configurations_and_accidents(first: list[PluginSpec], steps: list[Step]) -> None:
    trio.run(live, first, steps, clock=trio.testing.MockClock(autojump_threshold=0))
