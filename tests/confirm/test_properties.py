"""Whoever answers when: one verdict, the first one's, and never that of whoever asked; and one text everywhere."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

import trio
import trio.testing
from hypothesis import assume, given
from hypothesis import strategies as st

from support.policy import EVERYTHING_ON, PROPERTY, judge, steps
from utter_protocol.methods import ConfirmParams, ConfirmResult, PlannedStep
from utter_runner.cli.text import harmless_lines
from utter_runner.confirm.confirmer import NOBODY, NOBODY_CAN, NOBODY_ELSE, Confirmer, Question, Verdict
from utter_runner.confirm.notifications import notification
from utter_runner.confirm.surfaces import MISMATCH
from utter_runner.policy import Confirm
from utter_runner.rpc.requesters import Requester

TIMEOUT = 10.0
DIGEST = "d" * 64
ASKER = Requester(1, 100, 5000)


class Answer(NamedTuple):
    """What a surface does, and when: yes, no, an answer to another step, nothing, a defect, or it only shows."""

    after: int
    what: str
    digest: str = ""
    joins: bool = False


answers = st.builds(
    Answer,
    # Never two at the same moment: who of them is first is nobody's business.
    st.integers(0, 14),
    st.sampled_from(["yes", "no", "nothing", "fails", "shows"]),
    st.sampled_from(["", DIGEST, "e" * 64]),
    st.booleans(),
)
requesters = st.one_of(
    st.none(), st.builds(Requester, st.integers(1, 3), st.sampled_from([0, 100, 101]), st.sampled_from([0, 5000, 5001]))
)


class FakeSurface:
    kind = "fake"

    def __init__(self, requester: Requester | None, answer: Answer, offset: float) -> None:
        self.requester = requester
        self.answer = answer
        self.at = answer.after + offset
        self.asked = 0
        self.open = False
        self.withheld = 0

    def withhold(self, _params: ConfirmParams) -> None:
        self.withheld += 1

    async def ask(self, _params: ConfirmParams, abstain: Any) -> ConfirmResult | None:
        self.asked += 1
        self.open = True
        try:
            if self.answer.what == "shows":
                abstain()
                await trio.sleep_forever()
            await trio.sleep(self.at)
        finally:
            self.open = False
        if self.answer.what == "fails":
            raise ValueError("a defect")
        if self.answer.what == "nothing":
            return None
        return ConfirmResult(approved=self.answer.what == "yes", digest=self.answer.digest)


def is_asker(surface: FakeSurface) -> bool:
    one = surface.requester
    return one is not None and one.pid == ASKER.pid and one.started in {0, ASKER.started}


@PROPERTY
@given(st.lists(st.tuples(requesters, answers), max_size=5), st.booleans())
def test_the_first_answer_of_somebody_else_is_the_verdict(
    given_surfaces: list[tuple[Requester | None, Answer]], self_confirm: bool
) -> None:
    surfaces = [FakeSurface(who, what, index / 100) for index, (who, what) in enumerate(given_surfaces)]
    verdicts: list[Verdict] = []
    events: list[dict[str, Any]] = []

    async def main() -> None:
        confirmer = Confirmer(
            lambda: [one for one in surfaces if not one.answer.joins],
            timeout=TIMEOUT,
            emit=events.append,
            self_confirm=self_confirm,
        )
        question = Question(text="?", op="x", args={}, provenance="user", digest=DIGEST, requesters=frozenset({ASKER}))

        async def ask() -> None:
            verdicts.append(await confirmer.ask(question))
            # Nothing is left of the question, wherever it was asked.
            assert not any(one.open for one in surfaces)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.0)
            for one in surfaces:
                if one.answer.joins:
                    confirmer.join(one)
                    confirmer.join(one)
        assert confirmer.questions() == []

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    present = [one for one in surfaces if not one.answer.joins]
    may = [one for one in surfaces if self_confirm or not is_asker(one)]
    ((_, ended),) = [(events[0]["state"], events[1]["state"])]
    assert all(one.asked <= 1 for one in surfaces)
    assert not any(one.asked for one in surfaces if one not in may)
    can = [one for one in present if one in may and one.answer.what != "shows"]
    if not can:
        # What joins comes too late: nobody held the question open.
        nobody = NOBODY if not present else NOBODY_ELSE if len(may) < len(surfaces) else NOBODY_CAN
        assert not verdicts[0].approved
        assert verdicts[0].why in {nobody, NOBODY_CAN, NOBODY_ELSE}
        assert ended == "denied"
        return
    (verdict,) = verdicts
    speaking = sorted(
        (one for one in surfaces if one.asked and one.answer.what in {"yes", "no"}), key=lambda one: one.at
    )
    first = next((one for one in speaking if one.at < TIMEOUT), None)
    if verdict.approved:
        assert first is not None
        assert (first.answer.what, first.answer.digest in {"", DIGEST}) == ("yes", True)
        assert ended == "approved"
    elif first is not None and verdict.why in {"it was declined", "the answer was given for another step"}:
        mismatch = first.answer.digest not in {"", DIGEST}
        assert mismatch or first.answer.what == "no"
        assert verdict.rule == (MISMATCH if mismatch else "")
    else:
        # Nobody spoke in time, or all who could had abstained by then.
        assert first is None or first.at > max(one.at for one in can)
        assert ended in {"timed_out", "denied"}


@PROPERTY
@given(steps())
def test_one_text_on_all_surfaces(proposed: PlannedStep) -> None:
    decision = judge(proposed, rules=EVERYTHING_ON)
    assume(isinstance(decision, Confirm))
    params = ConfirmParams(
        id="q", text=decision.text, op="x", args={}, provenance="user", digest=decision.digest, timeout_ms=1000
    )
    for answerable in (True, False):
        *_, marked_up, _, _, _ = notification(params, ":1.7", markup=True, answerable=answerable).body
        assert html.unescape(marked_up) == decision.text
        assert not set("<>") & set(marked_up)
        *_, plain, _, _, _ = notification(params, ":1.7", markup=False, answerable=answerable).body
        assert plain == decision.text
        # It goes over the wire as it is.
        assert notification(params, ":1.7", markup=True, answerable=answerable).serialise(1)
    assert "\n".join(harmless_lines(decision.text)) == decision.text
