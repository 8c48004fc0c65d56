"""What a plugin has learned counts for the rest of the session; what it learned in none, for that of its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.rpc.requesters import Requester
from utter_runner.supervision.memory import MAX_SESSIONS, UNTRUSTED, Memory, is_model
from utter_runner.supervision.work import LLM, Work

if TYPE_CHECKING:
    from utter_protocol.methods import Provenance


class Told:
    """A plugin's memory, and requests to it that are in flight until they are answered."""

    def __init__(self) -> None:
        self.memory = Memory("keeper")
        self._number = 0

    def ask(self, root: Work, method: str = "x", *, stated: Provenance = "user", model: bool = False) -> Work:
        self._number += 1
        work = root.below("keeper", f"{method} {self._number}", stated)
        self.memory.begin(work, method, model=model)
        self.memory.works[self._number] = work
        return work

    def answer(self, work: Work) -> None:
        self.memory.works = {number: one for number, one in self.memory.works.items() if one is not work}


def test_what_was_read_in_a_session_counts_until_its_end() -> None:
    plugin = Told()
    first = plugin.ask(Work("user", "s1"))
    first.taint("context.snapshot")
    plugin.answer(first)
    root = Work("user", "s1")
    again = plugin.ask(root)
    assert (again.provenance, root.sources) == ("screen", ("context.snapshot",))
    assert plugin.ask(Work("user", "s2")).provenance == "user"
    assert plugin.ask(Work("user")).provenance == "user"
    assert not plugin.memory.screen


def test_works_of_one_beginning_are_one_occasion_without_a_session() -> None:
    plugin, root = Told(), Work("user")
    first = plugin.ask(root)
    first.taint("handle")
    plugin.answer(first)
    assert plugin.ask(Work("user")).provenance == "user"
    # Below another part of the same, which began before the first one was tainted.
    other = Work("user")
    other.occasion = root.occasion
    assert plugin.ask(other).provenance == "screen"


def test_what_it_was_told_by_the_screen_counts_like_what_it_read() -> None:
    plugin = Told()
    plugin.answer(plugin.ask(Work("user", "s1"), stated="screen"))
    assert plugin.ask(Work("user", "s1")).sources == (UNTRUSTED,)
    # A request of a client is nobody's session; there is no trust that it could lose.
    plugin.answer(plugin.ask(Work("screen")))
    assert plugin.ask(Work("user")).provenance == "user"


def test_what_it_was_told_with_a_language_models_help_counts_like_what_it_read() -> None:
    plugin = Told()
    plugin.answer(plugin.ask(Work("user", "s1", llm=True)))
    root = Work("user", "s1")
    again = plugin.ask(root)
    assert (again.provenance, again.llm, root.llm) == ("user", True, True)
    assert not plugin.ask(Work("user", "s2")).llm


def test_what_is_read_on_no_occasion_counts_for_the_rest_of_the_epoch() -> None:
    plugin = Told()
    plugin.memory.stray().taint("context.snapshot")
    assert plugin.memory.screen
    for session in ("s1", "s2", ""):
        assert plugin.ask(Work("user", session)).provenance == "screen"


def test_who_does_not_say_what_it_works_on_taints_all_that_is_in_flight_when_it_is_answered() -> None:
    plugin = Told()
    before = plugin.ask(Work("user", "s1"))
    reading = plugin.memory.unnamed()
    later = plugin.ask(Work("user", "s2"))
    assert (before.provenance, later.provenance, reading.provenance) == ("user", "user", "screen")
    reading.taint("context.snapshot")
    assert (before.provenance, later.provenance) == ("screen", "screen")


def test_what_arrives_when_nothing_is_in_flight_any_more_counts_for_good() -> None:
    plugin = Told()
    work = plugin.ask(Work("user", "s1"))
    reading = plugin.memory.unnamed()
    plugin.answer(work)
    reading.taint("context.snapshot")
    assert plugin.ask(Work("user", "s2")).provenance == "screen"


def test_a_language_models_words_are_remembered_apart_from_the_grade() -> None:
    plugin = Told()
    asked = plugin.ask(Work("user", "s1"))
    asked.taint(LLM)
    assert (asked.provenance, asked.llm, asked.mark, asked.sources) == ("user", True, "llm", ())
    plugin.answer(asked)
    again = plugin.ask(Work("user", "s1"))
    assert (again.provenance, again.mark) == ("user", "llm")
    assert plugin.ask(Work("user", "s2")).mark == "user"
    again.taint("context.snapshot")
    assert again.mark == "screen"


@pytest.mark.parametrize(("method", "model"), [("llm.choose", False), ("router.plan", True)])
def test_what_a_language_model_asks_for_is_its_own_before_it_answers(method: str, *, model: bool) -> None:
    plugin, root = Told(), Work("user", "s1")
    work = plugin.ask(root, method, model=model)
    assert work.llm
    assert work.below("actor", "action.invoke wave").llm
    # Whoever waits has not heard of it yet.
    assert not root.llm


def test_who_is_a_language_model() -> None:
    assert is_model("llm", ())
    assert is_model("bundle", ("router.plan@1", "llm.choose@1"))
    assert not is_model("bundle", ("router.plan@1",))
    assert not is_model("router", ())


def test_what_a_plugin_hears_from_another_it_knows_where_that_one_does() -> None:
    source, plugin = Told(), Told()
    for session, learned in (("s1", "context.snapshot"), ("s2", LLM)):
        work = source.ask(Work("user", session))
        work.taint(learned)
        source.answer(work)
    flight = [plugin.ask(Work("user", f"s{number}")) for number in range(1, 4)]
    plugin.memory.hears(source.memory, "ui.event")
    for works in (flight, [plugin.ask(Work("user", f"s{number}")) for number in range(1, 4)]):
        assert [(work.mark, work.sources) for work in works] == [("screen", ("ui.event",)), ("llm", ()), ("user", ())]
    version = plugin.memory.version
    plugin.memory.hears(source.memory, "ui.event")
    assert plugin.memory.version == version
    source.memory.reads("context.live")
    plugin.memory.hears(source.memory, "ui.event")
    assert (flight[2].sources, plugin.memory.screen) == (("ui.event",), True)


def test_sessions_are_remembered_up_to_a_bound() -> None:
    plugin = Told()
    for number in range(MAX_SESSIONS + 1):
        work = plugin.ask(Work("user", f"s{number}"))
        work.taint("handle")
        plugin.answer(work)
    assert plugin.ask(Work("user", "s0")).provenance == "user"
    assert plugin.ask(Work("user", "s1")).provenance == "screen"
    assert plugin.ask(Work("user", f"s{MAX_SESSIONS}")).provenance == "screen"


@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "answer", "read", "model", "stray", "unnamed"]), st.integers(0, 3)),
        max_size=40,
    )
)
def test_nothing_raises_what_a_session_has_sunk_to(actions: list[tuple[str, int]]) -> None:
    plugin = Told()
    flight: dict[int, list[Work]] = {number: [] for number in range(4)}
    sunk: set[int] = set()
    model: set[int] = set()
    for what, session in actions:
        works = flight[session]
        if what == "ask":
            works.append(plugin.ask(Work("user", f"s{session}")))
        elif what == "answer" and works:
            plugin.answer(works.pop())
        elif what == "read" and works:
            works[-1].taint("context.snapshot")
            sunk.add(session)
        elif what == "model" and works:
            works[-1].taint(LLM)
            model.add(session)
        elif what == "stray":
            plugin.memory.stray().taint("handle")
            sunk |= {*flight}
        elif what == "unnamed":
            busy = {number for number, one in flight.items() if one}
            plugin.memory.unnamed().taint("handle")
            sunk |= busy or {*flight}
        for number in flight:
            fresh = plugin.ask(Work("user", f"s{number}"))
            assert (fresh.provenance == "screen") == (number in sunk)
            assert fresh.llm == (number in model)
            plugin.answer(fresh)


def test_what_may_be_for_several_requests_was_asked_for_by_all_who_asked_for_them() -> None:
    one, two = Requester(1, 100, 5), Requester(2, 200, 5)
    plugin = Told()
    assert plugin.memory.unnamed().requesters == frozenset()
    for requester in (one, two):
        plugin.ask(Work("user", requesters=frozenset({requester})))
    assert plugin.memory.unnamed().requesters == {one, two}
