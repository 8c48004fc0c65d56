"""From an utterance to what was done."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
import trio.testing

from support.policy import SESSION
from support.stage import DONE, SILENT, Desk, Person, Stage, assert_paired
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.actions.commands import MAX_STEPS, MAX_UTTERANCE, Commands
from utter_runner.supervision.fake import FakeInstance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from utter_runner.policy import Origin
MUTE = {"op": "mute", "provenance": "user"}
WIPE = {"op": "wipe", "args": {"disk": "sda"}, "provenance": "user"}
OPEN = {"op": "action.open_url", "args": {"url": "HTTP://a.b"}, "provenance": "user"}
NOBODY = {"op": "nobody", "provenance": "user"}


@asynccontextmanager
async def desk(*persons: Person, plan: Any, **options: Any) -> AsyncIterator[Desk]:
    made = Desk(*persons, plan=plan, **options)
    async with made.running():
        yield made


def steps(*planned: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"steps": list(planned), **more}


# ---- the whole way


async def test_a_plan_is_carried_out_in_order() -> None:
    def answer(params: Any) -> Any:
        return {"ok": True, "detail": f"Did {params['op']}.", "data": {"n": 1}}

    async with desk(plan=steps(OPEN, MUTE), invoke=answer) as made:
        result = await made.say("open it", context={"app": "x"})
    (asked,) = made.router.received
    assert (asked.method, asked.params) == ("router.plan", {"utterance": "open it", "context": {"app": "x"}})
    assert [one.params["op"] for one in made.plugin.received] == ["action.open_url", "mute"]
    assert (result.understood, result.detail) == (True, "Did mute.")
    first, second = result.results
    assert (first.op, first.ok, first.detail, first.decision) == (
        "action.open_url",
        True,
        "Did action.open_url.",
        "allow",
    )
    assert (first.args, first.data, first.error) == ({"url": "http://a.b/"}, {"n": 1}, None)
    assert (second.op, second.ok) == ("mute", True)
    assert [one["event"] for one in made.events] == ["plan", "decision", "result", "decision", "result"]
    assert made.events[0]["steps"] == [
        {
            "op": "action.open_url",
            "args": {"url": "HTTP://a.b"},
            "provenance": "user",
            "arg_provenance": {},
            "confirm": False,
        },
        {"op": "mute", "args": {}, "provenance": "user", "arg_provenance": {}, "confirm": False},
    ]
    assert {one["session"] for one in made.events} == {SESSION}
    assert made.phases == ["acting", "acting"]


async def test_as_many_steps_as_are_taken_and_one_more() -> None:
    async with desk(plan=steps(*[MUTE] * MAX_STEPS)) as made:
        result = await made.say()
        assert [one.ok for one in result.results] == [True] * MAX_STEPS
        made.router.answers["router.plan"] = steps(*[MUTE] * (MAX_STEPS + 1))
        with pytest.raises(RpcError) as error:
            await made.say()
    assert error.value.code == ErrorCode.PLUGIN_FAILED
    assert error.value.data == {"plugin": "router", "bound": "max_steps", "limit": MAX_STEPS}
    assert len(made.plugin.received) == MAX_STEPS


async def test_as_long_an_utterance_as_is_taken_and_one_more_character() -> None:
    async with desk(plan=steps()) as made:
        assert (await made.say("ü" * MAX_UTTERANCE)).understood is False
        with pytest.raises(RpcError) as error:
            await made.say("ü" * (MAX_UTTERANCE + 1))
    assert error.value.code == ErrorCode.INVALID_PARAMS
    assert error.value.data == {"field": "utterance", "bound": "max_utterance", "limit": MAX_UTTERANCE}
    assert len(made.router.received) == 1


@pytest.mark.parametrize(
    ("detail", "said"), [("I know no zebra.", "I know no zebra."), ("", "That was not understood as a command.")]
)
async def test_what_is_not_understood_says_why(detail: str, said: str) -> None:
    async with desk(plan=steps(detail=detail)) as made:
        result = await made.say()
    assert (result.understood, result.results, result.detail) == (False, [], said)
    assert set(result.latency_ms) == {"router"}
    assert [one["event"] for one in made.events] == ["plan"]


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        ({"steps": [{"args": {}}]}, "`op` - at `$.steps[0]`"),
        ({"steps": [MUTE, {"op": 7}]}, "$.steps[1].op"),
        ({"steps": [{"op": "mute", "provenance": "root"}]}, "$.steps[0].provenance"),
        ({"steps": [{"op": "mute", "arg_provenance": {"a": "root"}}]}, "$.steps[0].arg_provenance"),
        ({"steps": [{"op": "mute", "args": []}]}, "$.steps[0].args"),
        ({"steps": [{"op": "mute", "confirm": 0}]}, "$.steps[0].confirm"),
        ({"steps": {}}, "$.steps"),
        ([], "Expected `object`"),
        (None, "Expected `object`"),
    ],
)
async def test_a_plan_of_the_wrong_shape_is_the_routers_failure_and_names_the_field(plan: Any, names: str) -> None:
    async with desk(plan=plan) as made:
        with pytest.raises(RpcError) as error:
            await made.say()
    assert error.value.code == ErrorCode.PLUGIN_FAILED
    assert error.value.message.startswith("router answered router.plan")
    assert names in error.value.message
    assert error.value.data == {"plugin": "router", "method": "router.plan"}
    assert made.plugin.received == []


async def test_an_action_result_of_the_wrong_shape_is_the_plugins_failure() -> None:
    async with desk(plan=steps(MUTE, MUTE), invoke={"ok": "yes"}) as made:
        first, second = (await made.say()).results
    assert first.error.code == ErrorCode.PLUGIN_FAILED
    assert first.detail.startswith("desktop answered action.invoke")
    assert "$.ok" in first.detail
    assert first.error.data == {"plugin": "desktop", "method": "action.invoke"}
    assert second.ok is False
    assert len(made.plugin.received) == 1


# ---- steps that fail


@pytest.mark.parametrize(
    ("bad", "code", "decision"),
    [
        (NOBODY, ErrorCode.CAPABILITY_MISSING, "deny"),
        ({"op": "open_url", "args": {"url": "javascript:1"}, "provenance": "user"}, ErrorCode.NOT_PERMITTED, "deny"),
        ({"op": "open_url", "args": {"url": "http://a.b"}}, ErrorCode.UNTRUSTED_PROVENANCE, "deny"),
        (WIPE, ErrorCode.NOT_PERMITTED, "confirm"),
    ],
)
async def test_after_a_refused_step_nothing_is_run(bad: dict[str, Any], code: int, decision: str) -> None:
    async with desk(Person(answer=False), plan=steps(MUTE, bad, MUTE, WIPE)) as made:
        result = await made.say()
    done, refused, *rest = result.results
    assert done.ok
    assert (refused.ok, refused.error.code, refused.decision) == (False, code, decision)
    assert (refused.args == {}) == (decision == "deny")
    assert result.detail == refused.detail
    assert result.understood
    for one in rest:
        assert (one.ok, one.detail, one.error, one.decision) == (False, "Not run: an earlier step failed.", None, "")
    assert len(made.plugin.received) == 1
    assert [one["event"] for one in made.events].count("result") == 4


async def test_a_step_that_says_that_it_failed_ends_the_plan() -> None:
    async with desk(plan=steps(MUTE, MUTE), invoke={"ok": False, "detail": "There is no sound card."}) as made:
        result = await made.say()
    first, second = result.results
    assert (first.ok, first.detail, first.error) == (False, "There is no sound card.", None)
    assert (second.ok, result.detail) == (False, "There is no sound card.")
    assert len(made.plugin.received) == 1


async def test_an_error_of_the_plugin_is_in_the_steps_result() -> None:
    async with desk(plan=steps(MUTE), invoke=RpcError(-32602, "no such player", {"field": "player"})) as made:
        (only,) = (await made.say()).results
    assert (only.ok, only.error.code, only.error.message, only.error.data) == (
        False,
        -32602,
        "no such player",
        {"field": "player"},
    )


# ---- provenance


@pytest.mark.parametrize(
    ("stated", "given", "runs"),
    [("user", "user", True), ("user", "screen", False), ("screen", "user", False), (None, "user", False)],
)
async def test_the_trust_of_a_command_bounds_that_of_its_steps(stated: str | None, given: str, runs: bool) -> None:
    planned = {"op": "open_url", "args": {"url": "http://a.b"}} | ({"provenance": stated} if stated else {})
    async with desk(plan=steps(planned)) as made:
        (only,) = (await made.say(provenance=given)).results
    assert only.ok is runs
    assert len(made.plugin.received) == runs
    if not runs:
        assert only.error.code == ErrorCode.UNTRUSTED_PROVENANCE


async def test_what_a_language_model_had_a_part_in_is_said_to_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, provides, given in (("router", (), False), ("llm", (), True), ("bundle", ("llm.choose@1",), True)):
        async with desk(plan=steps(MUTE)) as made:
            made.router.spec = msgspec.structs.replace(
                made.router.spec, provides=(*made.router.spec.provides, *provides)
            )
            made.router.describe(methods=["router.plan"], kind=kind)
            origins: list[Origin] = []
            run_step = made.gate.run_step

            async def spy(step: Any, origin: Origin, run: Any = run_step, seen: Any = origins, **options: Any) -> Any:
                seen.append(origin)
                return await run(step, origin, **options)

            monkeypatch.setattr(made.gate, "run_step", spy)
            await made.say()
            await made.say(llm=True)
        assert [(one.llm, one.sources) for one in origins] == [(given, ()), (True, ())]
        # Who carries it out has its help, too, in what it asks for meanwhile.
        assert [one.work.llm for one in made.plugin.received] == [given, True]


async def test_a_pick_of_this_session_passes_and_one_of_another_does_not(autojump_clock: MockClock) -> None:
    picked = {"op": "open_url", "args": {"url": {"select": "mine"}}, "provenance": "screen"}
    async with desk(plan=steps(picked)) as made:
        (mine,) = (await made.say(session=SESSION)).results
        (theirs,) = (await made.say(session="session-9")).results
    assert (mine.ok, mine.args) == (True, {"url": "https://mine.example/"})
    assert theirs.error.code == ErrorCode.UNTRUSTED_PROVENANCE
    assert made.plugin.received[0].params["provenance"] == "screen"


# ---- the router is not there


async def test_without_a_router_it_is_minus_32005() -> None:
    stage = Stage()
    commands = Commands(stage.supervisor, stage.gate, timeout=30.0, router_wait=10.0, emit=stage.emit)
    with pytest.raises(RpcError) as error:
        await commands.command("x", session="s", provenance="user")
    assert (error.value.code, error.value.data) == (ErrorCode.CAPABILITY_MISSING, {"capability": "router.plan@1"})


async def test_a_router_that_restarts_is_waited_for(autojump_clock: MockClock) -> None:
    async with desk(plan=steps(MUTE)) as made:
        made.router.die("backoff")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_back_after, made.router, 9.0)
            result = await made.say()
    assert result.results[0].ok
    assert made.router.received[0].epoch == 2


async def _back_after(instance: FakeInstance, seconds: float) -> None:
    await trio.sleep(seconds)
    instance.start()


@pytest.mark.parametrize(("timeout", "waited"), [(None, 10.0), (3.0, 3.0)])
async def test_but_not_for_ever(timeout: float | None, waited: float, autojump_clock: MockClock) -> None:
    async with desk(plan=steps(MUTE)) as made:
        made.router.die("backoff", "it crashed")
        began = trio.current_time()
        with pytest.raises(RpcError) as error:
            await made.say(timeout=timeout)
        assert trio.current_time() - began == pytest.approx(waited)
    assert error.value.code == ErrorCode.PLUGIN_FAILED
    assert error.value.data == {"plugin": "router", "status": "backoff", "epoch": 1}
    assert "it crashed" in error.value.message


@pytest.mark.parametrize("status", ["failed", "stopping", "stopped"])
async def test_one_that_failed_for_good_is_an_error_at_once(status: Any, autojump_clock: MockClock) -> None:
    async with desk(plan=steps(MUTE)) as made:
        made.router.die(status)
        began = trio.current_time()
        with pytest.raises(RpcError) as error:
            await made.say()
        assert trio.current_time() == began
    assert error.value.code == ErrorCode.PLUGIN_FAILED


async def test_a_router_that_dies_while_it_plans_is_an_error() -> None:
    async with desk(plan=SILENT) as made, trio.open_nursery() as nursery:
        nursery.start_soon(_die_when_blocked, made.router)
        with pytest.raises(RpcError) as error:
            await made.say()
        assert error.value.code == ErrorCode.PLUGIN_FAILED


async def _die_when_blocked(instance: FakeInstance) -> None:
    await trio.testing.wait_all_tasks_blocked()
    instance.die()


async def test_a_router_that_thinks_too_long_is_timed_out(autojump_clock: MockClock) -> None:
    async with desk(plan=SILENT) as made:
        with pytest.raises(RpcError) as error:
            await made.say(timeout=2.5)
    assert (error.value.code, error.value.data) == (ErrorCode.TIMED_OUT, {"timeout_ms": 2500})
    assert made.router.received[0].cancelled


async def test_cancelling_a_command_cancels_what_it_waits_for() -> None:
    for plan, invoke in ((SILENT, DONE), (steps(MUTE), SILENT)):
        async with desk(plan=plan, invoke=invoke) as made, trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_when_blocked, scope)
                await made.say()
            assert scope.cancelled_caught
            await trio.testing.wait_all_tasks_blocked()
            last = [*made.router.received, *made.plugin.received][-1]
            assert last.cancelled


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_a_command_cancelled_between_two_steps_runs_only_the_first() -> None:
    async with desk(plan=steps(MUTE, MUTE)) as made:
        with trio.CancelScope() as scope:

            def cancel_after_the_first(event: dict[str, Any]) -> None:
                made.events.append(event)
                if event["event"] == "result":
                    scope.cancel()

            made.commands._emit = cancel_after_the_first
            await made.say()
        assert scope.cancelled_caught
    assert len(made.plugin.received) == 1


# ---- latencies


class Slow:
    """Answers after some seconds."""

    def __init__(self, nursery: trio.Nursery, instance: FakeInstance, seconds: float, answer: Any) -> None:
        self._nursery, self._instance, self._seconds, self._answer = nursery, instance, seconds, answer

    async def _later(self) -> None:
        await self._instance.wait_received()
        await trio.sleep(self._seconds)
        self._instance.answer(self._instance.received[-1], self._answer)

    def start(self) -> None:
        self._nursery.start_soon(self._later)


async def test_latencies_say_where_the_time_went(autojump_clock: MockClock) -> None:
    person = Person()
    async with desk(person, plan=SILENT, invoke=SILENT) as made, trio.open_nursery() as nursery:
        Slow(nursery, made.router, 0.25, steps(WIPE)).start()
        nursery.start_soon(_say_after, person, 2.0)
        Slow(nursery, made.plugin, 0.5, DONE).start()
        result = await made.say()
    assert result.latency_ms == {
        "router": pytest.approx(250, abs=5),
        "policy": pytest.approx(0, abs=1),
        "confirm": pytest.approx(2000, abs=5),
        "action": pytest.approx(500, abs=5),
    }
    assert_paired(made.questions)
    assert made.phases == ["confirming", "acting"]


async def _say_after(person: Person, seconds: float) -> None:
    await person.wait_asked()
    await trio.sleep(seconds)
    person.say(answer=True)


async def test_a_question_that_nobody_answers_counts_as_confirm_time(autojump_clock: MockClock) -> None:
    async with desk(Person(), plan=steps(WIPE), confirm_timeout=30.0) as made:
        result = await made.say()
    assert set(result.latency_ms) == {"router", "policy", "confirm"}
    assert result.latency_ms["confirm"] == pytest.approx(30_000)


async def test_an_action_that_times_out_counts_as_action_time(autojump_clock: MockClock) -> None:
    async with desk(plan=steps(MUTE), invoke=SILENT) as made:
        result = await made.say(timeout=4.0)
    assert result.results[0].error.code == ErrorCode.TIMED_OUT
    assert result.latency_ms["action"] == pytest.approx(4_000)
    assert result.latency_ms["policy"] == pytest.approx(0)


async def test_a_denied_step_has_no_action_time() -> None:
    async with desk(plan=steps(NOBODY)) as made:
        assert set((await made.say()).latency_ms) == {"router", "policy"}


async def test_latencies_of_several_steps_add_up(autojump_clock: MockClock) -> None:
    async with desk(plan=steps(MUTE, MUTE, MUTE), invoke=SILENT) as made, trio.open_nursery() as nursery:
        nursery.start_soon(_answer_each, made, 0.5)
        result = await made.say()
        nursery.cancel_scope.cancel()
    assert result.latency_ms["action"] == pytest.approx(1_500, abs=10)


async def _answer_each(made: Desk, seconds: float) -> None:
    for number in range(3):
        request = await made.plugin.wait_received(number + 1)
        await trio.sleep(seconds)
        made.plugin.answer(request, DONE)
