"""Whose trust a request carries, how deep it stands, and what ends with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.host import MAX_DEPTH
from utter_runner.rpc.requesters import Requester
from utter_runner.supervision.work import Work


def test_trust_goes_down_with_the_depth_and_never_up() -> None:
    root = Work("user", "s1")
    plan = root.below("router", "router.plan")
    assert (plan.provenance, plan.session, plan.depth) == ("user", "s1", 1)
    low = plan.below("llm", "llm.choose", "screen")
    assert low.provenance == "screen"
    assert low.below("other", "x", "user").provenance == "screen"
    assert plan.provenance == "user"
    assert plan.lowered("user") == "user"
    assert plan.lowered("screen") == "screen"
    assert Work("screen").below("router", "router.plan", "user").provenance == "screen"


def test_what_was_read_taints_everybody_who_waits_for_it_and_nobody_else() -> None:
    root = Work("user")
    plan = root.below("router", "router.plan")
    inner, other = plan.below("llm", "llm.choose"), plan.below("catalog", "knowledge.catalog")
    inner.taint("context.snapshot")
    assert [work.provenance for work in (inner, plan, root)] == ["screen"] * 3
    assert root.sources == ("context.snapshot",)
    assert other.provenance == "user"
    # Whatever is asked from now on has heard of it.
    assert plan.below("late", "x").provenance == "screen"


def test_work_that_cannot_be_told_apart_is_the_screens_and_taints_all_candidates() -> None:
    one, two = Work("user").below("p", "a"), Work("user").below("p", "b")
    guess = one.beside([one, two])
    assert guess.provenance == "screen"
    assert guess.depth == one.depth
    guess.taint("perception.tree")
    assert one.provenance == two.provenance == "screen"


def test_who_asked_for_it_is_known_all_the_way_down_and_of_all_that_it_may_be_for() -> None:
    one, two = Requester(1, 100, 5), Requester(2, 200, 5)
    plan = Work("user", requesters=frozenset({one})).below("router", "router.plan")
    assert plan.below("llm", "llm.choose").requesters == {one}
    other = Work("user", requesters=frozenset({two})).below("router", "router.plan")
    assert plan.beside([plan, other]).requesters == {one, two}
    assert plan.beside([plan]).below("llm", "x").requesters == {one}
    assert Work("user").below("router", "router.plan").requesters == frozenset()


def test_a_loop_is_refused_and_named() -> None:
    work = Work().below("router", "router.plan").below("llm", "llm.choose").below("router", "knowledge.catalog")
    with pytest.raises(RpcError) as error:
        work.below("llm", "llm.choose")
    assert error.value.code == ErrorCode.NOT_PERMITTED
    assert error.value.data == {
        "loop": ["llm llm.choose", "router knowledge.catalog", "llm llm.choose"],
        "plugin": "llm",
    }


def test_the_depth_is_bounded_and_names_its_bound() -> None:
    work = Work()
    for number in range(MAX_DEPTH):
        work = work.below(f"p{number}", "x")
    with pytest.raises(RpcError) as error:
        work.below("one more", "x")
    assert error.value.data == {"bound": "max_depth_of_requests", "limit": MAX_DEPTH}


def test_cancelling_reaches_what_was_asked_once_and_whoever_comes_late() -> None:
    work = Work()
    called: list[str] = []

    def fails() -> None:
        called.append("fails")
        raise ValueError

    def ended() -> None:
        called.append("ended")

    work.add_child(fails)
    work.add_child(ended)
    work.add_child(lambda: called.append("other"))
    work.remove_child(ended)
    work.remove_child(ended)
    work.cancel()
    work.cancel()
    assert called == ["fails", "other"]
    work.add_child(lambda: called.append("late"))
    assert called == ["fails", "other", "late"]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["below", "taint"]), st.sampled_from(["user", "screen"])))
)
def test_nothing_that_waits_for_something_tainted_is_the_users(actions: list[tuple[int, str, str]]) -> None:
    works = [Work("user")]
    tainted: set[int] = set()
    for number, (which, what, grade) in enumerate(actions):
        work = works[which % len(works)]
        if what == "taint":
            work.taint("x")
            above: Work | None = work
            while above is not None:
                tainted.add(id(above))
                above = above.parent
        elif work.depth < MAX_DEPTH:
            works.append(work.below(f"p{number}", "x", "user" if grade == "user" else "screen"))
            if work.provenance == "screen" or grade == "screen":
                tainted.add(id(works[-1]))
    for work in works:
        assert (work.provenance == "screen") == (id(work) in tainted)
