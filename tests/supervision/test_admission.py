"""Who may be admitted, whatever the order, and in which order they are stopped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_protocol.capabilities import RUNNER_BUILTIN, Entry, Registry, load_registry
from utter_runner.supervision.admission import Offer, admissible, explain_gap, stop_waves

MODEL = settings(derandomize=True, database=None, deadline=None, max_examples=300)
REGISTRY = load_registry()


def capability(number: int) -> str:
    return f"experimental/c{number}@1"


def offer(provides: str = "", requires: str = "") -> Offer:
    """`offer("ab", "c")` provides a and b, and requires c."""
    return Offer(tuple(f"experimental/{one}@1" for one in provides), tuple(f"experimental/{one}@1" for one in requires))


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Offer]:
    """Plugins that provide and require some of a few capabilities, in any relation."""
    some = st.lists(st.integers(0, 5).map(capability), max_size=2, unique=True).map(tuple)
    names = [f"p{number}" for number in range(draw(st.integers(0, 8)))]
    return {name: Offer(draw(some), draw(some)) for name in names}


def closure(offers: dict[str, Offer]) -> set[str]:
    """Who can be admitted, worked out one at a time."""
    admitted: set[str] = set()
    while True:
        provided = {one for name in admitted for one in offers[name].provides}
        more = {
            name
            for name, one in offers.items()
            if name not in admitted and set(one.requires) <= provided | set(one.provides)
        }
        if not more:
            return admitted
        admitted.add(min(more))


@MODEL
@given(offers=graphs(), data=st.data())
def test_the_outcome_does_not_depend_on_the_order(offers: dict[str, Offer], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(offers.items()))))
    first, second = admissible(offers, {}, REGISTRY), admissible(shuffled, {}, REGISTRY)
    assert set(first) == set(second) == closure(offers)
    assert len(first) == len(set(first))


@MODEL
@given(offers=graphs())
def test_whoever_is_admitted_is_covered_by_those_before(offers: dict[str, Offer]) -> None:
    provided: set[str] = set()
    for name in admissible(offers, {}, REGISTRY):
        assert set(offers[name].requires) <= provided | set(offers[name].provides)
        provided |= set(offers[name].provides)


@MODEL
@given(offers=graphs(), split=st.integers(0, 8))
def test_admitting_in_two_goes_comes_to_the_same(offers: dict[str, Offer], split: int) -> None:
    everybody = list(offers.items())
    early = dict(everybody[:split])
    first = admissible(early, {}, REGISTRY)
    admitted = {name: offers[name] for name in first}
    waiting = {name: one for name, one in offers.items() if name not in admitted}
    second = admissible(waiting, admitted, REGISTRY)
    assert {*first, *second} == closure(offers)
    assert not set(first) & set(second)


def test_nobody_waits_for_what_the_runner_or_they_themselves_provide() -> None:
    offers = {"p": Offer(("experimental/x@1",), ("experimental/x@1", *sorted(RUNNER_BUILTIN)))}
    assert admissible(offers, {}, REGISTRY) == ["p"]


def test_another_version_serves_only_where_the_registry_says_so() -> None:
    entries = [
        Entry(name="thing", version=1, summary="", satisfied_by=("thing@2",)),
        Entry(name="thing", version=2, summary=""),
    ]
    registry = Registry(entries)
    new, old = Offer(("thing@2",), ()), Offer(("thing@1",), ())
    wants = {1: Offer((), ("thing@1",)), 2: Offer((), ("thing@2",))}
    assert admissible({"wants": wants[1]}, {"new": new}, registry) == ["wants"]
    assert admissible({"wants": wants[2]}, {"old": old}, registry) == []
    assert stop_waves(["new", "wants"], {"new": new, "wants": wants[1]}, registry) == [["wants"], ["new"]]
    assert explain_gap("wants", {"wants": wants[2], "old": old}, ["thing@2"], registry) == (
        "wants requires thing@2, which no configured plugin provides"
    )


def test_a_malformed_requirement_is_never_met() -> None:
    offers = {"p": Offer(("no version",), ("no version",)), "q": Offer((), ("",))}
    assert admissible(offers, {}, REGISTRY) == []


# ---- saying why


def test_what_nobody_provides_is_named() -> None:
    offers = {"p": offer("", "ab"), "q": offer("c")}
    assert explain_gap("p", offers, ["experimental/a@1", "experimental/b@1"], REGISTRY) == (
        "p requires experimental/a@1, which no configured plugin provides; "
        "experimental/b@1, which no configured plugin provides"
    )


def test_providers_that_do_not_run_are_named() -> None:
    offers = {"p": offer("", "a"), "q": offer("a"), "r": offer("a", "z")}
    assert explain_gap("p", offers, ["experimental/a@1"], REGISTRY) == (
        "p requires experimental/a@1 of q or r, which is not running"
    )


@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_cycle_is_told_from_a_gap(length: int) -> None:
    offers = {f"p{n}": Offer((capability(n),), (capability((n + 1) % length),)) for n in range(length)} | {
        "outside": Offer((), (capability(0),))
    }
    said = explain_gap("p0", offers, [capability(1)], REGISTRY)
    assert said == f"p0 requires {capability(1)} of p1, which in turn waits for p0 (a cycle)"
    # Who only waits for those in the circle is not in it.
    assert "cycle" not in explain_gap("outside", offers, [capability(0)], REGISTRY)


def test_a_plugin_that_could_serve_itself_is_no_cycle() -> None:
    offers = {"p": offer("a", "b"), "q": offer("b", "a"), "r": offer("b")}
    assert "(a cycle)" in explain_gap("p", offers, ["experimental/b@1"], REGISTRY)
    offers = {"p": offer("a", "b"), "q": offer("ba", "a")}
    assert explain_gap("p", offers, ["experimental/b@1"], REGISTRY).endswith("of q, which is not running")


def on_a_way(start: str, goal: str, offers: dict[str, Offer]) -> bool:
    """Whether `start` depends on `goal`, worked out by following every edge."""

    def needs(name: str) -> set[str]:
        mine = offers[name]
        wanted = set(mine.requires) - set(mine.provides)
        return {other for other, one in offers.items() if other != name and wanted & set(one.provides)}

    reached: set[str] = set()
    todo = {start}
    while todo:
        reached |= todo
        todo = {further for name in todo for further in needs(name)} - reached
    return goal in reached


@MODEL
@given(offers=graphs())
def test_every_gap_is_explained_rightly(offers: dict[str, Offer]) -> None:
    admitted = {name: offers[name] for name in admissible(offers, {}, REGISTRY)}
    provided = {one for name in admitted for one in offers[name].provides}
    for name, mine in offers.items():
        if name in admitted:
            continue
        missing = REGISTRY.missing(mine.requires, mine.provides, provided)
        assert missing
        parts = explain_gap(name, offers, missing, REGISTRY).removeprefix(f"{name} requires ").split("; ")
        assert len(parts) == len(missing)
        for one, part in zip(missing, parts, strict=True):
            assert part.startswith(one)
            providers = [other for other in offers if other != name and one in offers[other].provides]
            assert ("no configured plugin" in part) == (not providers)
            assert ("a cycle" in part) == any(on_a_way(other, name, offers) for other in providers)
            assert all(other in part for other in providers)


# ---- stopping


@MODEL
@given(offers=graphs())
def test_nobody_loses_what_they_require_while_they_run(offers: dict[str, Offer]) -> None:
    left = admissible(offers, {}, REGISTRY)[::-1]
    for wave in stop_waves(left, offers, REGISTRY):
        assert wave
        assert set(wave) <= set(left)
        # Those of one group stop in any order.
        for name in wave:
            for other in wave:
                lost = set(offers[other].provides) & (set(offers[name].requires) - set(offers[name].provides))
                assert name == other or not lost
        left = [name for name in left if name not in wave]
        provided = {one for name in left for one in offers[name].provides}
        for name in left:
            assert set(offers[name].requires) <= provided
    assert left == []


def test_in_a_circle_whoever_came_last_goes_first() -> None:
    # p2 came first, and made p1 and then p0 possible, which could serve p1 as well.
    offers = {"p0": offer("a", "b"), "p1": offer("b", "a"), "p2": offer("a")}
    assert admissible(offers, {}, REGISTRY) == ["p2", "p1", "p0"]
    assert stop_waves(["p0", "p1", "p2"], offers, REGISTRY) == [["p0"], ["p1"], ["p2"]]


@MODEL
@given(offers=graphs())
def test_all_plugins_are_stopped_even_if_they_could_not_be_admitted(offers: dict[str, Offer]) -> None:
    stopped = [name for wave in stop_waves(offers, offers, REGISTRY) for name in wave]
    assert sorted(stopped) == sorted(offers)


def test_those_that_nobody_needs_stop_side_by_side() -> None:
    offers = {"base": offer("a"), "x": offer("b", "a"), "y": offer("", "a"), "z": offer("", "b"), "alone": offer()}
    assert stop_waves(offers, offers, REGISTRY) == [["y", "z", "alone"], ["x"], ["base"]]
    assert stop_waves([], offers, REGISTRY) == []
