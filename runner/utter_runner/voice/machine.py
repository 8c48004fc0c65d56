"""The state machine of a spoken session, as data.

Rules here: pure. `TRANSITIONS` is the only place that says what an event does in a state; the controller carries the
effects out and has no ifs of its own about states, and the documentation's diagram is rendered from the same table.

There are at most two sessions: the front one, which has the recogniser and the router, and one queued behind it. What
the user does concerns the newest of them; what a collaborator reports concerns the session that it works for. In
`IDLE` there is no session. `LISTEN` comes from something that may be mistaken, such as a wake word: it opens sessions,
and ends none, nor a confirmation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(Enum):
    """Where a session is; the value is the state's name in events and status."""

    IDLE = "idle"
    LISTENING = "listening"
    LATCHED = "latched"
    TAIL = "tail"
    RECOGNISING = "recognising"
    PLANNING = "planning"
    CONFIRMING = "confirming"
    ACTING = "acting"

    @property
    def published(self) -> str:
        """The name that clients are told: while the microphone is in use, that is "listening"."""
        return "listening" if self in RECORDING else self.value


OPEN_ENDED = frozenset({State.LISTENING, State.LATCHED})
"""Recording without a known end."""
RECORDING = OPEN_ENDED | {State.TAIL}
"""The microphone is in use."""


class Event(Enum):
    """What can happen to a session."""

    PRESS = "press"
    RELEASE = "release"
    TAP = "tap"
    LATCH = "latching tap"
    TOGGLE = "toggle"
    REPLY = "press that answers"
    LISTEN = "listen"
    LIMIT = "maximum length"
    PAUSE = "nobody speaks"
    CAPTURED = "audio complete"
    HEARD = "text"
    SILENCE = "no text"
    PLAN = "planning"
    ASK = "confirmation asked"
    ACT = "acting"
    END = "result"
    FAULT = "fault"
    CANCEL = "cancel"


class Effect(Enum):
    """What the controller does on a transition.

    QUEUE and CUT are refused, and the transition with them, while another session is already queued.
    """

    NONE = "nothing"
    OPEN = "open a session"
    STOP = "record the post-roll, then no more"
    QUEUE = "open a session behind this one"
    CUT = "end this recording here, open a session behind this one"
    REPLACE = "report this session as cancelled, open a session"
    REPLY = "open a session that answers this one's question"
    FINISH = "report this session"


@dataclass(frozen=True, slots=True)
class Transition:
    """The state that follows and what is done on the way."""

    target: State
    effect: Effect = Effect.NONE


_S, _E, _F = State, Event, Effect
_DROPPED = Transition(_S.IDLE, _F.FINISH)

_RULES: Mapping[State, Mapping[Event, Transition]] = {
    _S.IDLE: {
        _E.PRESS: Transition(_S.LISTENING, _F.OPEN),
        _E.TOGGLE: Transition(_S.LATCHED, _F.OPEN),
        _E.LISTEN: Transition(_S.LATCHED, _F.OPEN),
    },
    _S.LISTENING: {
        _E.RELEASE: Transition(_S.TAIL, _F.STOP),
        _E.TAP: _DROPPED,
        _E.LATCH: Transition(_S.LATCHED),
        _E.TOGGLE: Transition(_S.TAIL, _F.STOP),
        _E.LIMIT: Transition(_S.TAIL, _F.STOP),
        _E.FAULT: _DROPPED,
        _E.CANCEL: _DROPPED,
    },
    _S.LATCHED: {
        _E.PRESS: Transition(_S.TAIL, _F.STOP),
        _E.TOGGLE: Transition(_S.TAIL, _F.STOP),
        _E.LIMIT: Transition(_S.TAIL, _F.STOP),
        _E.PAUSE: Transition(_S.TAIL, _F.STOP),
        _E.FAULT: _DROPPED,
        _E.CANCEL: _DROPPED,
    },
    _S.TAIL: {
        _E.CAPTURED: Transition(_S.RECOGNISING),
        _E.PRESS: Transition(_S.RECOGNISING, _F.CUT),
        _E.TOGGLE: Transition(_S.RECOGNISING, _F.CUT),
        _E.FAULT: _DROPPED,
        _E.CANCEL: _DROPPED,
    },
    _S.RECOGNISING: {
        _E.HEARD: Transition(_S.PLANNING),
        _E.SILENCE: _DROPPED,
        _E.PRESS: Transition(_S.RECOGNISING, _F.QUEUE),
        _E.TOGGLE: Transition(_S.RECOGNISING, _F.QUEUE),
        _E.LISTEN: Transition(_S.RECOGNISING, _F.QUEUE),
        _E.FAULT: _DROPPED,
        _E.CANCEL: _DROPPED,
    },
    _S.PLANNING: {
        _E.ASK: Transition(_S.CONFIRMING),
        _E.ACT: Transition(_S.ACTING),
        _E.END: _DROPPED,
        _E.PRESS: Transition(_S.PLANNING, _F.QUEUE),
        _E.TOGGLE: Transition(_S.PLANNING, _F.QUEUE),
        _E.LISTEN: Transition(_S.PLANNING, _F.QUEUE),
        _E.FAULT: _DROPPED,
        _E.CANCEL: _DROPPED,
    },
    _S.CONFIRMING: {
        _E.PLAN: Transition(_S.PLANNING),
        _E.ACT: Transition(_S.ACTING),
        _E.END: _DROPPED,
        _E.PRESS: Transition(_S.IDLE, _F.REPLACE),
        _E.TOGGLE: Transition(_S.IDLE, _F.REPLACE),
        _E.REPLY: Transition(_S.CONFIRMING, _F.REPLY),
        _E.FAULT: _DROPPED,
        _E.CANCEL: _DROPPED,
    },
    _S.ACTING: {
        _E.PLAN: Transition(_S.PLANNING),
        _E.ASK: Transition(_S.CONFIRMING),
        _E.END: _DROPPED,
        _E.PRESS: Transition(_S.ACTING, _F.QUEUE),
        _E.TOGGLE: Transition(_S.ACTING, _F.QUEUE),
        _E.LISTEN: Transition(_S.ACTING, _F.QUEUE),
        _E.FAULT: _DROPPED,
        _E.CANCEL: _DROPPED,
    },
}

TRANSITIONS: Mapping[tuple[State, Event], Transition] = {
    (state, event): _RULES[state].get(event, Transition(state)) for state in State for event in Event
}
"""Every event in every state; what is not listed above changes nothing."""


def mermaid() -> str:
    """The table as a mermaid state diagram, without what changes nothing."""
    lines = ["stateDiagram-v2", "    [*] --> idle"]
    arrows: dict[tuple[State, State, Effect], list[str]] = {}
    for (state, event), transition in TRANSITIONS.items():
        if transition != Transition(state):
            arrows.setdefault((state, transition.target, transition.effect), []).append(event.value)
    for (state, target, effect), events in arrows.items():
        label = ", ".join(events) + (f" / {effect.value}" if effect is not Effect.NONE else "")
        lines.append(f"    {state.value} --> {target.value}: {label}")
    return "\n".join(lines) + "\n"
