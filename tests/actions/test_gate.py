"""What reaches a plugin, what does not, and who is told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import event, given
from hypothesis import strategies as st

from support.policy import (
    CANDIDATES,
    EVERYTHING_ON,
    OPS,
    PROPERTY,
    SCREEN,
    SESSION,
    USER,
    candidates,
    origins,
    registry,
    rule_sets,
    step,
    steps,
)
from support.stage import DONE, SILENT, Ending, Person, Stage, assert_paired
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import Op, PlannedStep
from utter_runner.actions.gate import ActionGate, decision_name, denial
from utter_runner.confirm.confirmer import Confirmer
from utter_runner.confirm.spoken import SpokenAnswers
from utter_runner.policy import Allow, Confirm, Decision, Deny, OpRule, Origin, PolicyRules, Rate, decide
from utter_runner.rpc.requesters import Requester
from utter_runner.supervision.fake import FakeInstance, FakeSupervisor
from utter_runner.supervision.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

MUTE = step("mute")
WIPE = step("wipe", {"disk": "sda"})
TERMINAL = step("terminal", {"command": "ls"})


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


# ---- each kind of decision


async def test_an_allowed_step_is_run_with_canonical_arguments_and_without_a_task() -> None:
    stage = Stage()
    ending = stage.submit(step("open_url", {"url": "HTTP://Example.com:80/a/../b"}), timeout=7.0)
    # The gate's own task does not even run.
    (request,) = stage.plugin.received
    assert (request.method, request.timeout) == ("action.invoke", 7.0)
    assert request.params == {
        "op": "action.open_url",
        "args": {"url": "http://example.com/b"},
        "provenance": "user",
    }
    assert ending.replies == []
    await ending.wait()
    assert ending.result == DONE
    assert ending.phases == ["acting"]
    assert [decision_name(one) for one in ending.decisions] == ["allow"]
    assert stage.events == [
        {
            "event": "decision",
            "session": SESSION,
            "op": "open_url",
            "decision": "allow",
            "rule": "allowed",
            "detail": "The op is on and its arguments are valid.",
            "args": {"url": "http://example.com/b"},
        }
    ]


async def test_a_denied_step_never_reaches_the_plugin() -> None:
    person = Person(answer=True)
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(step("open_url", {"url": "javascript:alert(1)"}))
        await ending.wait()
    assert ending.error.code == ErrorCode.NOT_PERMITTED
    assert ending.error.data == {"rule": "url", "op": "open_url", "field": "url", "reason": "scheme"}
    assert (stage.plugin.received, person.asked, ending.phases) == ([], [], [])
    assert (stage.events[0]["decision"], stage.events[0]["args"]) == ("deny", {})


@pytest.mark.parametrize("approved", [True, False])
async def test_a_step_to_confirm_waits_for_the_answer(approved: bool) -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(WIPE)
        await settle()
        assert stage.plugin.received == []
        (question,) = person.asked
        assert (question.op, question.args, question.provenance) == ("wipe", {"disk": "sda"}, "user")
        assert question.digest == ending.decisions[0].digest
        assert question.text == ending.decisions[0].text
        person.say(approved)
        await ending.wait()
    if approved:
        assert ending.result == DONE
        assert ending.phases == ["confirming", "acting"]
        assert [one.params["args"] for one in stage.plugin.received] == [{"disk": "sda"}]
    else:
        assert ending.error.code == ErrorCode.NOT_PERMITTED
        assert ending.error.data == {"op": "wipe", "rule": "destructive", "confirmed": False}
        assert (ending.phases, stage.plugin.received) == (["confirming"], [])
    assert_paired(stage.questions)


async def test_a_step_to_confirm_is_refused_before_the_gate_runs_and_after() -> None:
    stage = Stage(Person(answer=True))
    early = stage.submit(WIPE)
    await early.wait()
    async with stage.running():
        pass
    late = stage.submit(WIPE)
    await late.wait()
    assert [one.error.code for one in (early, late)] == [ErrorCode.NOT_PERMITTED] * 2
    assert stage.plugin.received == []


async def test_what_the_plugin_answers_comes_back_as_it_is() -> None:
    stage = Stage(invoke=RpcError(-32099, "its own", {"a": 1}))
    ending = stage.submit(MUTE)
    await ending.wait()
    assert (ending.error.code, ending.error.message, ending.error.data) == (-32099, "its own", {"a": 1})


async def test_a_plugin_that_does_not_run_is_minus_32000() -> None:
    stage = Stage()
    stage.plugin.die("backoff", "it crashed")
    ending = stage.submit(MUTE)
    await ending.wait()
    assert ending.error.code == ErrorCode.PLUGIN_FAILED
    assert "it crashed" in ending.error.message


async def test_an_op_of_a_plugin_that_the_supervisor_does_not_know_is_minus_32005() -> None:
    stage = Stage()
    stage.ops.advertise("ghost", [Op(op="haunt", side_effect="none")])
    ending = stage.submit(step("haunt"))
    await ending.wait()
    assert ending.error.code == ErrorCode.CAPABILITY_MISSING
    assert ending.phases == []


async def test_the_provenance_that_a_plugin_is_told_is_the_lowest(autojump_clock: MockClock) -> None:
    stage = Stage()
    picked = step("launch_app", {"app": {"select": "firefox"}}, arg_provenance={"app": "screen"})
    ending = stage.submit(picked)
    await ending.wait()
    assert stage.plugin.received[0].params == {
        "op": "action.launch_app",
        "args": {"app": "org.mozilla.firefox"},
        "provenance": "screen",
    }


async def test_explain_decides_and_does_nothing() -> None:
    stage = Stage(Person(answer=True))
    async with stage.running():
        assert isinstance(stage.gate.explain(MUTE, USER), Allow)
        assert isinstance(stage.gate.explain(WIPE, USER), Confirm)
        assert isinstance(stage.gate.explain(MUTE, SCREEN), Confirm)
        assert isinstance(stage.gate.explain(step("nobody"), USER), Deny)
        await settle()
    assert (stage.events, stage.plugin.received, stage.persons[0].asked) == ([], [], [])


# ---- what changes between the question and the answer


def readvertise(stage: Stage, **changes: Any) -> None:
    stage.ops.advertise("desktop", [Op(op=one.op, side_effect=one.side_effect, schema=one.schema) for one in OPS])
    if changes:
        stage.ops.advertise("desktop", [Op(op="wipe", **changes)])


def take_over(stage: Stage) -> None:
    stage.ops.withdraw("desktop")
    stage.ops.advertise("other", OPS)


def restart(stage: Stage) -> None:
    stage.plugin.die()
    stage.plugin.start()


def set_rules(stage: Stage, rules: PolicyRules) -> None:
    stage.gate._rules = rules


CHANGES: list[tuple[str, Callable[[Stage], None], int, str | None]] = [
    ("the op is withdrawn", lambda s: s.ops.withdraw("desktop"), ErrorCode.CAPABILITY_MISSING, "no-provider"),
    ("another plugin offers it", take_over, ErrorCode.NOT_PERMITTED, "step-changed"),
    (
        "its schema refuses",
        lambda s: readvertise(s, schema={"properties": {"disk": {"type": "integer"}}}),
        -32602,
        "schema",
    ),
    ("its side effect is milder", lambda s: readvertise(s, side_effect="local"), -32003, "step-changed"),
    (
        "it has another name",
        lambda s: s.ops.advertise("desktop", [Op(op="action.wipe", side_effect="destructive")]),
        -32003,
        "step-changed",
    ),
    (
        "it is switched off",
        lambda s: set_rules(s, PolicyRules(disabled_ops=frozenset({"wipe"}))),
        -32003,
        "op-disabled",
    ),
    ("more rules ask", lambda s: set_rules(s, PolicyRules(confirm_ops=frozenset({"wipe"}))), -32003, "step-changed"),
    ("the plugin restarts", restart, ErrorCode.NOT_PERMITTED, "plugin-changed"),
    ("the plugin is down", lambda s: s.plugin.die(), ErrorCode.PLUGIN_FAILED, None),
]


@pytest.mark.parametrize(("change", "code", "rule"), [one[1:] for one in CHANGES], ids=[one[0] for one in CHANGES])
async def test_any_difference_after_the_answer_is_a_denial(
    change: Callable[[Stage], None], code: int, rule: str | None
) -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(WIPE)
        await settle()
        change(stage)
        person.say(answer=True)
        await ending.wait()
        assert (ending.error.code, ending.error.data.get("rule")) == (code, rule)
    assert [one.method for one in stage.plugin.received] == []


TYPE = step("input", {"text": "yes"})
CLOSE = step("niri", {"action": "close-window"}, confirm=True)
SPAWN = step("niri", {"action": "spawn", "args": ["foot"]})


@pytest.mark.parametrize(
    ("proposed", "before", "after", "ok"),
    [
        (TYPE, "1", "2", False),
        (TYPE, "1", "", False),
        (TYPE, "1", "1", True),
        # Nobody knew, so there is nothing to compare.
        (TYPE, "", "2", True),
        (CLOSE, "1", "2", False),
        # These go to no window.
        (SPAWN, "1", "2", True),
        (TERMINAL, "1", "2", True),
        (WIPE, "1", "2", True),
    ],
)
async def test_a_yes_holds_for_the_window_that_was_in_front(
    proposed: PlannedStep, before: str, after: str, ok: bool
) -> None:
    person = Person()
    stage = Stage(person)
    window = before

    async def in_front() -> str:
        await trio.lowlevel.checkpoint()
        return window

    stage.gate._window = in_front
    async with stage.running():
        ending = stage.submit(proposed)
        await settle()
        window = after
        person.say(answer=True)
        await ending.wait()
        if ok:
            assert ending.result == DONE
        else:
            rule = "window-changed"
            assert ending.error.data == {"op": proposed.op, "rule": rule, "confirmed": False}
            assert stage.plugin.received == []


async def test_a_yes_to_another_step_is_a_denial() -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(WIPE)
        await settle()
        person.digest = "e" * 64
        person.say(answer=True)
        await ending.wait()
        assert ending.error.data == {"op": "wipe", "rule": "answer-mismatch", "confirmed": False}
        again = stage.submit(WIPE)
        await settle()
        person.digest = person.asked[-1].digest
        person.say(answer=True)
        await again.wait()
        assert again.result == DONE


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, object(), {1, 2}, 2**70, float("nan")])
async def test_arguments_that_are_no_json_are_refused_like_others(value: Any) -> None:
    stage = Stage()
    async with stage.running():
        ending = stage.submit(step("note", {"text": value}))
        await ending.wait()
        assert (ending.error.code, ending.error.data["rule"]) == (ErrorCode.INVALID_PARAMS, "arguments")
        assert stage.plugin.received == []


ALWAYS = OpRule(confirm="always", spoken=True)
BY_VOICE = PolicyRules(
    enabled_ops=frozenset({"terminal", "input"}),
    ops={
        "mute": ALWAYS,
        "media": OpRule(confirm="always"),
        "asks": OpRule(spoken=True),
        "wipe": ALWAYS,
        "terminal": ALWAYS,
        "niri": ALWAYS,
    },
)


@pytest.mark.parametrize(
    ("proposed", "origin", "may"),
    [
        (step("mute"), USER, True),
        (step("asks"), USER, True),
        (step("media", {"command": "next"}), USER, False),
        (step("mute"), SCREEN, False),
        (step("wipe", {"disk": "sda"}), USER, False),
        (step("terminal", {"command": "ls"}), USER, False),
        (step("niri", {"action": "quit"}), USER, False),
        (step("niri", {"action": "spawn", "args": ["ls"]}), USER, False),
    ],
)
async def test_a_voice_answers_only_for_ops_that_allow_it_and_never_what_the_runner_asks_itself(
    proposed: PlannedStep, origin: Origin, may: bool
) -> None:
    person, spoken = Person(), SpokenAnswers(["yes"], ["no"])
    stage = Stage(person, rules=BY_VOICE, spoken=spoken)
    async with stage.running():
        ending = stage.submit(proposed, origin)
        await settle()
        (question,) = person.asked
        assert spoken.waits(origin.session) == (question.id if may else "")
        if may:
            spoken.answer(question.id, "yes")
        else:
            person.say(answer=True)
        await ending.wait()
        assert ending.result == DONE
        confirmation = stage.audit.entries[-1].confirmation
        assert confirmation is not None
        assert confirmation.surface == ("voice" if may else "person")


async def test_who_asked_for_a_step_goes_along_with_its_question() -> None:
    asker, other = Requester(1, 100, 5), Requester(2, 200, 5)
    own, theirs = Person(), Person(answer=True)
    own.requester, theirs.requester = asker, other
    stage = Stage(own, theirs)
    async with stage.running():
        for options in ({"requesters": frozenset({asker})}, {"work": Work("user", requesters=frozenset({asker}))}):
            raw = await stage.gate.run_step(WIPE, USER, timeout=30.0, **options)
            assert msgspec.json.decode(raw) == DONE
        assert (own.asked, len(theirs.asked), len(own.withheld)) == ([], 2, 2)


async def test_what_changes_and_changes_back_is_no_difference() -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(WIPE)
        await settle()
        stage.ops.withdraw("desktop")
        stage.ops.advertise("desktop", OPS)
        person.say(answer=True)
        await ending.wait()
        assert ending.result == DONE


async def test_a_plugin_that_restarts_while_its_question_queues_is_denied() -> None:
    first, second = Person(), Person()
    stage = Stage(first)
    async with stage.running():
        ahead = stage.submit(TERMINAL)
        await settle()
        behind = stage.submit(WIPE)
        await settle()
        restart(stage)
        stage.persons = [second]
        first.say(answer=False)
        await settle()
        second.say(answer=True)
        await behind.wait()
        await ahead.wait()
        assert behind.error.data == {"op": "wipe", "rule": "plugin-changed", "confirmed": False}
    assert stage.plugin.received == []


async def test_a_step_altered_after_it_was_submitted_is_denied() -> None:
    person = Person()
    stage = Stage(person)
    mine = step("wipe", {"disk": "sda"})
    async with stage.running():
        ending = stage.submit(mine)
        await settle()
        mine.args["disk"] = "sdb"
        person.say(answer=True)
        await ending.wait()
        assert ending.error.code == ErrorCode.NOT_PERMITTED
    assert stage.plugin.received == []


async def test_arguments_that_only_compare_equal_are_a_difference() -> None:
    person = Person()
    stage = Stage(person)
    mine = step("free", {"x": 1}, confirm=True)
    async with stage.running():
        ending = stage.submit(mine)
        await settle()
        mine.args["x"] = True
        person.say(answer=True)
        await ending.wait()
        assert ending.error.code == ErrorCode.NOT_PERMITTED
    assert stage.plugin.received == []


async def test_a_candidate_that_expires_meanwhile_is_a_denial(autojump_clock: MockClock) -> None:
    person = Person()
    stage = Stage(person, confirm_timeout=5_000)
    picked = step("open_url", {"url": {"select": "mine"}}, "screen", confirm=True)
    async with stage.running():
        ending = stage.submit(picked)
        await settle()
        assert person.asked[0].args == {"url": "https://mine.example/"}
        await trio.sleep(601)
        person.say(answer=True)
        await ending.wait()
        assert ending.error.code == ErrorCode.UNTRUSTED_PROVENANCE
    assert stage.plugin.received == []


# ---- withdrawing


async def test_cancelling_a_pending_question_withdraws_it_everywhere() -> None:
    persons = [Person(), Person()]
    stage = Stage(*persons)
    async with stage.running():
        ending = stage.submit(WIPE)
        await settle()
        ending.submission.cancel()
        await ending.wait()
        assert ending.error.code == ErrorCode.CANCELLED
        assert [(len(one.asked), one.withdrawn) for one in persons] == [(1, 1), (1, 1)]
        # An answer that comes late counts for nothing.
        persons[0].say(answer=True)
        await settle()
    assert [state for _, state in stage.questions] == ["asked", "denied"]
    assert (stage.plugin.received, len(ending.replies)) == ([], 1)


async def test_cancelling_before_the_question_is_asked_asks_nobody() -> None:
    person = Person(answer=True)
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(WIPE)
        ending.submission.cancel()
        await ending.wait()
        assert ending.error.code == ErrorCode.CANCELLED
    assert (person.asked, stage.questions, stage.plugin.received) == ([], [], [])


async def test_a_cancellation_beats_an_approval_of_the_same_moment() -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(WIPE)
        await settle()

        def cancel_on_approval(said: dict[str, Any]) -> None:
            stage.events.append(said)
            if said.get("state") == "approved":
                ending.submission.cancel()

        stage.confirmer._emit = cancel_on_approval
        person.say(answer=True)
        await ending.wait()
        assert ending.error.code == ErrorCode.CANCELLED
        assert ending.phases == ["confirming"]
    assert stage.plugin.received == []


async def test_whoever_is_told_that_it_acts_may_still_cancel() -> None:
    stage = Stage(Person(answer=True))
    ending = Ending()

    def phase(name: str) -> None:
        if name == "acting":
            ending.submission.cancel()

    async with stage.running():
        ending.submission = stage.gate.submit(WIPE, USER, ending.on_reply, timeout=5, on_phase=phase)
        await ending.wait()
        assert ending.error.code == ErrorCode.CANCELLED
    assert stage.plugin.received == []


@pytest.mark.parametrize("proposed", [MUTE, WIPE])
async def test_cancelling_while_the_plugin_works_is_passed_on(proposed: PlannedStep) -> None:
    stage = Stage(Person(answer=True), invoke=SILENT)
    async with stage.running():
        ending = stage.submit(proposed)
        await settle()
        (request,) = stage.plugin.received
        ending.submission.cancel()
        assert request.cancelled
        await ending.wait()
        assert ending.error.code == ErrorCode.CANCELLED
        ending.submission.cancel()
        stage.plugin.answer(request, DONE)
        assert len(ending.replies) == 1


async def test_a_late_cancellation_does_not_meet_a_request_of_the_next_epoch() -> None:
    stage = Stage(invoke=SILENT)
    old = stage.submit(MUTE)
    restart(stage)
    new = stage.submit(MUTE)
    first, second = stage.plugin.received
    assert first.id == second.id
    old.submission.cancel()
    assert not second.cancelled
    stage.plugin.answer(second, DONE)
    await new.wait()
    await old.wait()
    assert old.error.code == ErrorCode.PLUGIN_FAILED
    assert new.result == DONE


async def test_a_time_out_is_the_plugins_own_and_begins_with_the_plugin(autojump_clock: MockClock) -> None:
    person = Person()
    stage = Stage(person, invoke=SILENT, confirm_timeout=60.0)
    async with stage.running():
        ending = stage.submit(WIPE, timeout=2.0)
        await trio.sleep(50)
        person.say(answer=True)
        began = trio.current_time()
        await ending.wait()
        assert (ending.error.code, ending.error.data) == (ErrorCode.TIMED_OUT, {"timeout_ms": 2000})
        assert trio.current_time() - began == pytest.approx(2.0)
        assert stage.plugin.received[0].cancelled


# ---- several at once


async def test_two_confirmations_queue() -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        first = stage.submit(WIPE)
        await settle()
        second = stage.submit(TERMINAL)
        await settle()
        assert [one.op for one in person.asked] == ["wipe"]
        person.say(answer=True)
        await first.wait()
        assert [one.op for one in person.asked] == ["wipe", "terminal"]
        assert second.replies == []
        person.say(answer=True)
        await second.wait()
    assert (first.result, second.result) == (DONE, DONE)
    assert_paired(stage.questions)


async def test_one_that_queues_can_be_withdrawn_without_having_been_asked() -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        first = stage.submit(WIPE)
        await settle()
        second = stage.submit(TERMINAL)
        await settle()
        second.submission.cancel()
        await second.wait()
        assert second.error.code == ErrorCode.CANCELLED
        assert first.replies == []
        person.say(answer=True)
        await first.wait()
    assert [one.op for one in person.asked] == ["wipe"]
    assert_paired(stage.questions)


async def test_a_pending_question_does_not_hold_up_allowed_steps() -> None:
    stage = Stage(Person())
    async with stage.running():
        waiting = stage.submit(WIPE)
        await settle()
        ending = stage.submit(MUTE)
        await ending.wait()
        assert ending.result == DONE
        assert waiting.replies == []


# ---- callbacks that fail


def boom(*_: object, **_options: object) -> None:
    raise ValueError("boom")


@pytest.mark.parametrize("proposed", [MUTE, WIPE, step("nobody")])
@pytest.mark.parametrize("broken", ["on_phase", "on_decision", "emit"])
async def test_a_hook_that_raises_changes_nothing(
    proposed: PlannedStep, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    stage = Stage(Person(answer=True))
    hooks = {broken: boom} if broken != "emit" else {}
    if broken == "emit":
        stage.gate._emit = boom
    async with stage.running():
        ending = Ending()
        stage.gate.submit(proposed, USER, ending.on_reply, timeout=5, **hooks)
        await ending.wait()
        after = stage.submit(WIPE)
        await after.wait()
        assert after.result == DONE
    assert (ending.replies[0][1] is None) == (proposed.op != "nobody")


@pytest.mark.parametrize("proposed", [MUTE, WIPE, step("nobody")])
@pytest.mark.parametrize("status", ["ready", "failed"])
async def test_an_on_reply_that_raises_is_called_once_and_harms_nobody(
    proposed: PlannedStep, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    stage = Stage(Person(answer=True))
    calls: list[object] = []

    def raising(*args: object) -> None:
        calls.append(args)
        raise ValueError("boom")

    async with stage.running():
        if status == "failed":
            stage.plugin.die("failed")
        stage.gate.submit(proposed, USER, raising, timeout=5)
        await settle()
        assert len(calls) == 1
        if status == "failed":
            stage.plugin.start()
        after = stage.submit(WIPE)
        await after.wait()
        assert after.result == DONE


@pytest.mark.parametrize("during", ["question", "work"])
async def test_an_on_reply_that_raises_does_so_not_to_who_cancels(
    during: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    stage = Stage(Person(), invoke=SILENT)
    async with stage.running():
        submission = stage.gate.submit(WIPE if during == "question" else MUTE, USER, boom, timeout=5)
        await settle()
        submission.cancel()
        await settle()


@pytest.mark.parametrize("where", ["surfaces", "emit", "confirmer", "plugin"])
async def test_a_confirmation_that_fails_is_an_error_and_no_approval(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    stage = Stage(Person(answer=True))
    async with stage.running():
        with pytest.MonkeyPatch.context() as patch:
            target = {"surfaces": "_surfaces", "emit": "_emit", "confirmer": "ask", "plugin": "request"}[where]
            patch.setattr(stage.plugin if where == "plugin" else stage.confirmer, target, boom)
            ending = stage.submit(WIPE)
            await ending.wait()
            assert ending.error.code == ErrorCode.INTERNAL_ERROR
        after = stage.submit(WIPE)
        await after.wait()
        assert after.result == DONE
    assert len(stage.plugin.received) == 1


async def test_when_the_gate_ends_whoever_waits_is_told() -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        asked, queued = stage.submit(WIPE), stage.submit(WIPE)
        await settle()
    assert [one.error.code for one in (asked, queued)] == [ErrorCode.CANCELLED] * 2
    assert person.withdrawn == 1
    assert_paired(stage.questions)


# ---- run_step


async def test_run_step_returns_what_was_answered_or_raises_it() -> None:
    stage = Stage(Person(answer=False))
    async with stage.running():
        assert bytes(await stage.gate.run_step(MUTE, USER, timeout=5)) == b'{"ok":true,"detail":"Done."}'
        with pytest.raises(RpcError) as error:
            await stage.gate.run_step(WIPE, USER, timeout=5)
        assert error.value.code == ErrorCode.NOT_PERMITTED


@pytest.mark.parametrize("proposed", [MUTE, WIPE])
async def test_a_run_step_that_is_cancelled_withdraws_the_step(proposed: PlannedStep) -> None:
    person = Person()
    stage = Stage(person, invoke=SILENT)
    async with stage.running() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope)
            await stage.gate.run_step(proposed, USER, timeout=5)
        assert scope.cancelled_caught
        await settle()
        if proposed is MUTE:
            assert stage.plugin.received[0].cancelled
        else:
            assert (person.withdrawn, stage.plugin.received) == (1, [])
    assert_paired(stage.questions)


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await settle()
    scope.cancel()


@pytest.mark.parametrize("proposed", [MUTE, WIPE])
async def test_what_is_cancelled_already_reaches_nobody(proposed: PlannedStep) -> None:
    person = Person(answer=True)
    stage = Stage(person)
    async with stage.running():
        with trio.CancelScope() as scope:
            scope.cancel()
            await stage.gate.run_step(proposed, USER, timeout=5)
        assert scope.cancelled_caught
        await settle()
    assert (stage.plugin.received, person.asked, stage.events) == ([], [], [])


# ---- rates


def limited(op: str, rate: Rate) -> PolicyRules:
    return PolicyRules(enabled_ops=EVERYTHING_ON.enabled_ops, ops={op: OpRule(rate=rate)})


async def test_an_op_runs_as_often_as_its_rate_allows(autojump_clock: MockClock) -> None:
    stage = Stage(rules=limited("mute", Rate(2, "minute")))

    async def submit(proposed: PlannedStep = MUTE) -> Ending:
        ending = stage.submit(proposed)
        await ending.wait()
        return ending

    for _ in range(2):
        assert (await submit()).result == DONE
        await trio.sleep(10)
    refused = await submit()
    assert refused.error.code == ErrorCode.NOT_PERMITTED
    assert refused.error.data == {
        "rule": "rate",
        "op": "mute",
        "bound": "rate",
        "limit": 2,
        "per": "minute",
        "retry_after_ms": 40_000,
    }
    # Others are not held up, and what was refused does not count.
    assert (await submit(step("free"))).result == DONE
    await trio.sleep(39.9)
    assert (await submit()).error.data["retry_after_ms"] in {100, 101}
    await trio.sleep(0.2)
    assert (await submit()).result == DONE
    assert (await submit()).error.data["rule"] == "rate"
    assert [one.params["op"] for one in stage.plugin.received] == ["mute", "mute", "free", "mute"]


async def test_what_was_explained_denied_or_not_confirmed_does_not_count(autojump_clock: MockClock) -> None:
    rules = limited("wipe", Rate(1, "hour"))
    no, yes = Person(answer=False), Person(answer=True)
    stage = Stage(no, rules=rules)
    async with stage.running():
        for _ in range(3):
            assert isinstance(stage.gate.explain(WIPE, USER), Confirm)
        for proposed in (WIPE, step("wipe", {"disk": 1})):
            ending = stage.submit(proposed)
            await ending.wait()
            assert ending.error.data["rule"] != "rate"
        stage.persons[:] = [yes]
        confirmed = stage.submit(WIPE)
        await confirmed.wait()
        assert confirmed.result == DONE
        again = stage.submit(WIPE)
        await again.wait()
        assert again.error.data["rule"] == "rate"
    # Nobody is asked about what may not run anyway.
    assert len(yes.asked) == 1


async def test_of_two_that_were_asked_about_only_as_many_run_as_the_rate_allows() -> None:
    person = Person(answer=True)
    stage = Stage(person, rules=limited("wipe", Rate(1, "hour")))
    async with stage.running():
        endings = [stage.submit(WIPE), stage.submit(WIPE)]
        assert all(isinstance(ending.decisions[0], Confirm) for ending in endings)
        for ending in endings:
            await ending.wait()
    assert sorted(ending.replies[0][1] is None for ending in endings) == [False, True]
    (refused,) = [ending.error for ending in endings if ending.replies[0][1] is not None]
    assert refused.data["rule"] == "rate"
    assert len(stage.plugin.received) == 1


async def test_what_could_not_be_sent_does_not_count() -> None:
    stage = Stage(rules=limited("mute", Rate(1, "hour")))
    stage.plugin.die()
    down = stage.submit(MUTE)
    await down.wait()
    assert down.error.code == ErrorCode.PLUGIN_FAILED
    stage.plugin.start()
    up = stage.submit(MUTE)
    await up.wait()
    assert up.result == DONE


# ---- what a language model had a part in


async def test_a_command_that_a_model_made_never_gets_to_a_person_unless_the_user_wants_it() -> None:
    person = Person(answer=True)
    model = Origin(provenance="user", session=SESSION, llm=True)
    stage = Stage(person)
    async with stage.running():
        denied = stage.submit(TERMINAL, model)
        await denied.wait()
        assert denied.error.code == ErrorCode.UNTRUSTED_PROVENANCE
        assert denied.error.data == {"rule": "command-from-llm", "op": "terminal"}
        assert person.asked == []
        set_rules(stage, PolicyRules(ops={"terminal": OpRule(enabled=True, from_llm=True)}))
        allowed = stage.submit(TERMINAL, model)
        await allowed.wait()
    assert allowed.result == DONE
    (question,) = person.asked
    assert question.text == "Run in a terminal: ls\nA language model had a part in this."


async def test_the_overview_is_of_the_rules_that_the_gate_judges_by() -> None:
    stage = Stage(rules=limited("mute", Rate(2, "minute")))
    found = {one.op: (one.state, one.rate) for one in stage.gate.overview()}
    assert (found["mute"], found["terminal"]) == (("on", "2/minute"), ("asks", None))


# ---- the property


class World:
    """A policy's whole input, in which something can change."""

    def __init__(self, rules: PolicyRules) -> None:
        self.ops = registry()
        self.candidates = candidates()
        self.rules = rules
        self.desktop = FakeInstance("desktop", {"action.invoke": DONE})
        self.other = FakeInstance("other", {"action.invoke": DONE})

    def judge(self, proposed: PlannedStep, origin: Origin) -> Decision:
        return decide(proposed, origin, self.ops, self.rules, self.candidates, now=trio.current_time())

    @property
    def received(self) -> list[Any]:
        return [*self.desktop.received, *self.other.received]


def switch_off(world: World) -> None:
    world.rules = PolicyRules(disabled_ops=frozenset({"wipe", "terminal", "media", "mute", "free", "asks"}))


WORLD_CHANGES: dict[str, Callable[[World], object]] = {
    "nothing": lambda _: None,
    "withdrawn": lambda world: world.ops.withdraw("desktop"),
    "taken over": lambda world: (world.ops.withdraw("desktop"), world.ops.advertise("other", OPS)),
    "milder": lambda world: world.ops.advertise(
        "desktop", [Op(op=one.op, side_effect="none", schema=one.schema) for one in OPS]
    ),
    "restarted": lambda world: (world.desktop.die(), world.desktop.start()),
    "down": lambda world: world.desktop.die(),
    "forgotten": lambda world: world.candidates.forget("commands"),
    "other values": lambda world: (
        world.candidates.forget("commands"),
        world.candidates.record(reversed(CANDIDATES), source="knowledge", owner="else", now=0.0),
    ),
    "switched off": switch_off,
    "everything on": lambda world: setattr(world, "rules", EVERYTHING_ON),
}
ANSWERS = {"yes": True, "no": False, "abstains": None, "fails": RpcError(-32603, "x"), "silent": "later"}


FAIR = [
    MUTE,
    WIPE,
    TERMINAL,
    step("asks"),
    step("mute", provenance="screen"),
    step("input", {"text": "hello"}),
    step("action.niri", {"action": "spawn", "args": ["x"]}),
    step("open_url", {"url": "HTTP://a.b"}, confirm=True),
    step("open_url", {"url": {"select": "youtube"}}, "screen", confirm=True),
    step("media", {"command": {"select": "pause"}}, arg_provenance={"command": "screen"}, confirm=True),
]


@PROPERTY
@given(
    # Whatever can be thought of is denied mostly; those that pass must be there too.
    proposed=st.sampled_from(FAIR) | steps(),
    origin=st.just(USER) | origins,
    rules=st.just(EVERYTHING_ON) | rule_sets,
    answer=st.sampled_from(["yes", "yes", "yes", "no", "abstains", "fails", "silent"]),
    change=st.sampled_from(["nothing", "nothing", *WORLD_CHANGES]),
)
def test_a_request_reaches_a_plugin_only_as_decided(
    proposed: PlannedStep, origin: Origin, rules: PolicyRules, answer: str, change: str
) -> None:
    trio.run(_play, proposed, origin, rules, answer, change, clock=trio.testing.MockClock(autojump_threshold=0))


async def _play(proposed: PlannedStep, origin: Origin, rules: PolicyRules, answer: str, change: str) -> None:
    world = World(rules)
    events: list[dict[str, Any]] = []
    person = Person()
    confirmer = Confirmer(lambda: [person], timeout=30.0, emit=events.append)
    gate = ActionGate(
        FakeSupervisor(world.desktop, world.other),
        ops=world.ops,
        rules=rules,
        candidates=world.candidates,
        confirmer=confirmer,
        emit=events.append,
    )
    ending = Ending()
    first = world.judge(proposed, origin)
    may = isinstance(first, Allow)
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run)
        gate.submit(proposed, origin, ending.on_reply, timeout=5)
        if isinstance(first, Confirm):
            await settle()
            assert world.received == []
            epoch = world.desktop.epoch
            WORLD_CHANGES[change](world)
            gate._rules = world.rules
            second = world.judge(proposed, origin)
            may = (
                answer == "yes"
                and isinstance(second, Confirm)
                and second.digest == first.digest
                and second == first
                and world.desktop.epoch == epoch
                and world.desktop.running
            )
            if answer != "silent":
                person.say(ANSWERS[answer])
        await ending.wait()
        nursery.cancel_scope.cancel()
    event(f"{decision_name(first)}, {'runs' if may else 'does not'}")
    questions = [(one["id"], one["state"]) for one in events if one["event"] == "confirm"]
    assert_paired(questions)
    assert len(questions) == (2 if isinstance(first, Confirm) else 0)
    assert len(world.received) == may
    assert (ending.replies[0][1] is None) == may
    if may:
        assert not isinstance(first, Deny)
        assert world.received[0].params == {"op": first.invoke_as, "args": first.args, "provenance": first.provenance}
    elif isinstance(first, Deny):
        assert (ending.error.code, ending.error.message) == (denial(first).code, first.detail)


# ---- other rules, while it runs


async def test_what_has_run_counts_under_other_rules(autojump_clock: MockClock) -> None:
    stage = Stage(rules=limited("mute", Rate(1, "hour")))

    async def submit() -> Ending:
        ending = stage.submit(MUTE)
        await ending.wait()
        return ending

    assert (await submit()).result == DONE
    # Another rule, and this one as it was.
    others = PolicyRules(confirm_ops=frozenset({"wipe"}), ops={"mute": OpRule(rate=Rate(1, "hour"))})
    stage.gate.reconfigure(others, None)
    assert (await submit()).error.data["rule"] == "rate"
    stage.gate.reconfigure(limited("mute", Rate(2, "hour")), None)
    assert (await submit()).result == DONE
    assert (await submit()).error.data["rule"] == "rate"


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        (PolicyRules(disabled_ops=frozenset({"wipe"})), "op-disabled"),
        (PolicyRules(confirm_ops=frozenset({"wipe"})), "step-changed"),
    ],
)
async def test_what_is_being_confirmed_is_judged_by_the_rules_of_the_moment_of_the_answer(
    rules: PolicyRules, rule: str
) -> None:
    person = Person()
    stage = Stage(person)
    async with stage.running():
        ending = stage.submit(WIPE)
        await settle()
        stage.gate.reconfigure(rules, stage.audit)
        person.say(answer=True)
        await ending.wait()
    assert ending.error.code == ErrorCode.NOT_PERMITTED
    assert ending.error.data["rule"] == rule
    assert stage.plugin.received == []


async def test_the_trail_can_be_switched_off_and_on() -> None:
    stage = Stage()
    for audit, kept in ((None, 0), (stage.audit, 1)):
        stage.gate.reconfigure(EVERYTHING_ON, audit)
        await stage.submit(MUTE).wait()
        assert len(stage.audit.entries) == kept
