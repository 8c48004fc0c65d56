from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from support.voice import OK, Rig
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.voice.machine import OPEN_ENDED, RECORDING, TRANSITIONS, Effect, Event, State, Transition, mermaid
from utter_runner.voice.outcome import Outcome

if TYPE_CHECKING:
    from utter_runner.voice.recording import Session

SHORT, LONG = 0.1, 0.5
BY_USER = {Event.PRESS, Event.RELEASE, Event.TAP, Event.LATCH, Event.TOGGLE, Event.LISTEN, Event.CANCEL}


def test_the_table_knows_every_event_in_every_state() -> None:
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}


def test_every_state_can_be_reached_and_left() -> None:
    reached, before = {State.IDLE}, set[State]()
    while reached != before:
        before = set(reached)
        reached |= {row.target for (state, _), row in TRANSITIONS.items() if state in before}
    assert reached == set(State)
    for state in State:
        assert any(row.target is not state for (source, _), row in TRANSITIONS.items() if source is state)


@pytest.mark.parametrize("state", [state for state in State if state is not State.IDLE])
def test_cancel_and_a_fault_end_a_session_in_every_state(state: State) -> None:
    for event in (Event.CANCEL, Event.FAULT):
        assert TRANSITIONS[state, event] == Transition(State.IDLE, Effect.FINISH)


def test_a_session_ends_only_with_a_report() -> None:
    for (state, event), row in TRANSITIONS.items():
        if state is not State.IDLE and row.target is State.IDLE:
            assert row.effect in {Effect.FINISH, Effect.REPLACE}, (state, event)


def test_nothing_queues_behind_a_confirmation() -> None:
    assert all(
        row.effect not in {Effect.QUEUE, Effect.CUT}
        for (state, _), row in TRANSITIONS.items()
        if state is State.CONFIRMING
    )


def test_a_word_that_may_be_misheard_ends_nothing() -> None:
    for state in State:
        row = TRANSITIONS[state, Event.LISTEN]
        assert row.target is (State.LATCHED if state is State.IDLE else state)
        assert row.effect in {Effect.NONE, Effect.OPEN, Effect.QUEUE}, state


def test_what_uses_the_microphone_is_published_as_listening() -> None:
    assert {state for state in State if state.published == "listening"} == RECORDING
    assert {state.published for state in State} == {
        "idle", "listening", "recognising", "planning", "confirming", "acting",
    }  # fmt: skip


def test_the_diagram_has_every_transition_that_changes_something() -> None:
    diagram = mermaid()
    assert diagram.startswith("stateDiagram-v2\n")
    drawn: dict[tuple[str, str], set[str]] = {}
    for line in diagram.splitlines()[2:]:
        arrow, _, label = line.strip().partition(": ")
        source, _, target = arrow.partition(" --> ")
        drawn.setdefault((source, target), set()).update(label.partition(" / ")[0].split(", "))
    for (state, event), row in TRANSITIONS.items():
        changes = row != Transition(state)
        assert (event.value in drawn.get((state.value, row.target.value), set())) == changes, (state, event)


async def reach(rig: Rig, state: State, *, open_for: float) -> Session | None:
    """Bring the rig's controller into a state by its ordinary way there."""
    if state is State.IDLE:
        return None
    (rig.controller.toggle if state is State.LATCHED else rig.controller.press)()
    await trio.sleep(open_for)
    session = rig.controller._sessions[0]
    if state not in OPEN_ENDED:
        await trio.sleep(LONG)
        rig.controller.release()
    if state not in RECORDING:
        await trio.sleep(LONG)
    if state not in RECORDING | {State.RECOGNISING}:
        rig.recogniser.may_finish.set()
        await trio.testing.wait_all_tasks_blocked()
    if state is State.CONFIRMING:
        await rig.say("confirming")
    elif state is State.ACTING:
        await rig.say("acting")
    assert session.state is state
    return session


def by_user(rig: Rig, event: Event) -> None:
    controller = rig.controller
    if event is Event.PRESS:
        controller.press()
    elif event is Event.TOGGLE:
        controller.toggle()
    elif event is Event.LISTEN:
        controller.listen()
    elif event is Event.CANCEL:
        assert controller.cancel() == bool(rig.opened)
    else:
        controller.release()


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
async def test_the_controller_does_what_the_table_says(
    state: State, event: Event, autojump_clock: trio.testing.MockClock
) -> None:
    row = TRANSITIONS[state, event]
    rig = Rig(scripted=True, tap="toggle" if event is Event.LATCH else "ignore", max_ms=5_000)
    rig.recogniser.may_finish = trio.Event()
    async with rig.running():
        session = await reach(rig, state, open_for=SHORT if event in {Event.TAP, Event.LATCH} else LONG)
        before = len(rig.opened)
        if event in BY_USER:
            by_user(rig, event)
        elif session is not None:
            rig.controller._apply(session, event, Outcome("failed"))
        if session is not None:
            assert session.state is row.target
            ended = row.effect in {Effect.FINISH, Effect.REPLACE}
            assert [report.session for report in rig.reports] == ["s1"] * ended
            assert (session.report is not None) == ended
            assert (session.key_up_at == trio.current_time()) == (row.effect is Effect.STOP or state is State.TAIL)
        opens = row.effect in {Effect.OPEN, Effect.QUEUE, Effect.CUT, Effect.REPLACE}
        assert len(rig.opened) - before == opens
        if opens:
            newest = rig.controller._sessions[-1]
            assert newest.state is (State.LISTENING if event is Event.PRESS else State.LATCHED)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Event.LIMIT, State.LISTENING),
        (Event.CAPTURED, State.TAIL),
        (Event.HEARD, State.RECOGNISING),
        (Event.SILENCE, State.RECOGNISING),
        (Event.ASK, State.PLANNING),
        (Event.ACT, State.CONFIRMING),
        (Event.PLAN, State.ACTING),
        (Event.END, State.ACTING),
        (Event.FAULT, State.PLANNING),
    ],
)
async def test_the_collaborators_bring_their_events_about(
    event: Event, state: State, autojump_clock: trio.testing.MockClock
) -> None:
    rig = Rig(scripted=True, max_ms=5_000)
    rig.recogniser.may_finish = trio.Event()
    if event is Event.SILENCE:
        rig.recogniser.texts.clear()
    async with rig.running():
        session = await reach(rig, state, open_for=LONG)
        assert session is not None
        if event is Event.LIMIT:
            await trio.sleep(5.0 - LONG)
        elif event is Event.CAPTURED:
            await trio.sleep(0.22)
        elif event in {Event.HEARD, Event.SILENCE}:
            rig.recogniser.may_finish.set()
        elif event is Event.END:
            await rig.say(OK)
        elif event is Event.FAULT:
            await rig.say(RpcError(ErrorCode.PLUGIN_FAILED, "The router crashed."))
        elif event in {Event.ASK, Event.ACT, Event.PLAN}:
            await rig.say({Event.ASK: "confirming", Event.ACT: "acting", Event.PLAN: "planning"}[event])  # type: ignore[arg-type] # the literals are those of Phase
        await trio.testing.wait_all_tasks_blocked()
        assert session.state is TRANSITIONS[state, event].target
