"""`host.*`: who may ask for what, on whose behalf, and what ends with what."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from support.host import HostStage, fake_plugin
from support.policy import step
from support.stage import DONE, SILENT, Person
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.host import MAX_HOST_CALLS
from utter_runner.supervision.work import Work

if TYPE_CHECKING:
    from trio.testing import MockClock

    from utter_runner.supervision.fake import FakeInstance

CHOICE = {"choice_id": "a", "probability": 0.9}


def router(*requires: str) -> FakeInstance:
    return fake_plugin("router", methods=["router.plan"], provides=["router.plan@1"], requires=requires)


def llm(**answers: Any) -> FakeInstance:
    return fake_plugin(
        "llm", {"llm.choose": CHOICE, "experimental.x": {}, **answers}, provides=["llm.choose@1", "experimental/X@1"]
    )


async def planning(stage: HostStage, instance: FakeInstance, provenance: str = "user") -> tuple[int, Work]:
    """Let the plugin work on a request of the runner; return its id and work."""
    work = Work("user" if provenance == "user" else "screen", "session")
    part = work.below(instance.id, "router.plan")
    sent = instance.request("router.plan", b"{}", lambda *_: None, timeout=30, work=part)
    assert isinstance(sent, int)
    return sent, work


async def refused(stage: HostStage, instance: FakeInstance, call: str, /, **params: Any) -> RpcError:
    with pytest.raises(RpcError) as error:
        await stage.asks(instance, call, **params)
    return error.value


# ---- host.invoke


async def test_a_plugin_reaches_the_provider_of_what_it_requires() -> None:
    asker, provider = router("llm.choose@1"), llm()
    stage = HostStage(asker, provider)
    async with stage.running():
        result = await stage.asks(
            asker, "host.invoke", capability="llm.choose@1", method="llm.choose", params={"n": 1}, timeout_ms=70_000
        )
    assert result == CHOICE
    (request,) = provider.received
    assert (request.method, request.params, request.timeout) == ("llm.choose", {"n": 1}, 60.0)


async def test_what_a_plugin_does_not_require_it_does_not_reach() -> None:
    asker, provider = router("llm.complete@1"), llm()
    stage = HostStage(asker, provider)
    async with stage.running():
        error = await refused(stage, asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
    assert error.code == ErrorCode.NOT_PERMITTED
    assert error.data == {"capability": "llm.choose@1", "requires": ["llm.complete@1"]}
    assert provider.received == []


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("llm.complete", ErrorCode.METHOD_NOT_FOUND),
        ("protocol.hello", ErrorCode.METHOD_NOT_FOUND),
        ("plugin.health", ErrorCode.METHOD_NOT_FOUND),
        ("experimental.x", ErrorCode.METHOD_NOT_FOUND),
        ("action.invoke", ErrorCode.NOT_PERMITTED),
        ("action.capabilities", ErrorCode.NOT_PERMITTED),
        ("input.inject", ErrorCode.NOT_PERMITTED),
        ("media.hold", ErrorCode.NOT_PERMITTED),
    ],
)
async def test_a_capability_has_its_own_methods_and_no_others(method: str, code: int) -> None:
    asker, provider = router("llm.choose@1", "input.inject@1"), llm()
    provider.answers.pop("experimental.x")
    stage = HostStage(asker, provider)
    async with stage.running():
        error = await refused(stage, asker, "host.invoke", capability="llm.choose@1", method=method)
    assert error.code == code
    assert provider.received == []


async def test_a_capability_of_nobodys_has_the_methods_that_its_provider_lists() -> None:
    asker, provider = router("experimental/X@1"), llm()
    stage = HostStage(asker, provider)
    async with stage.running():
        assert await stage.asks(asker, "host.invoke", capability="experimental/X@1", method="experimental.x") == {}
        for method in ("experimental.y", "llm.choose", "plugin.health"):
            error = await refused(stage, asker, "host.invoke", capability="experimental/X@1", method=method)
            assert error.code == ErrorCode.METHOD_NOT_FOUND


async def test_a_plugin_never_reaches_itself() -> None:
    asker = fake_plugin("both", {"llm.choose": CHOICE}, provides=["llm.choose@1"], requires=["llm.choose@1"])
    stage = HostStage(asker)
    async with stage.running():
        error = await refused(stage, asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
    assert error.code == ErrorCode.CAPABILITY_MISSING
    assert error.data == {"capability": "llm.choose@1", "missing": ["llm.choose@1"]}


async def test_a_provider_that_is_down_is_minus_32000() -> None:
    asker, provider = router("llm.choose@1"), llm()
    provider.die()
    stage = HostStage(asker, provider)
    async with stage.running():
        error = await refused(stage, asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
    assert error.code == ErrorCode.PLUGIN_FAILED
    assert error.data == {"plugin": "llm", "status": "backoff", "epoch": 1}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"capability": 1, "method": "x"}, "capability"),
        ({"method": "x"}, "capability"),
        ({"capability": "llm.choose@1", "method": "llm.choose", "params": 3}, "params"),
        ({"capability": "llm.choose@1", "method": "llm.choose", "timeout_ms": 0}, "timeout_ms"),
        ({"capability": "llm.choose@1", "method": "llm.choose", "request": 99}, "request"),
        ({"capability": "llm.choose@1", "method": "llm.choose", "request": [1]}, "request"),
    ],
)
async def test_bad_params_are_minus_32602_and_name_the_field(params: dict[str, Any], field: str) -> None:
    asker, provider = router("llm.choose@1"), llm()
    stage = HostStage(asker, provider)
    async with stage.running():
        error = await refused(stage, asker, "host.invoke", **params)
    assert (error.code, error.data["field"]) == (ErrorCode.INVALID_PARAMS, field)
    assert provider.received == []


async def test_errors_of_the_provider_come_back_as_they_are() -> None:
    asker, provider = router("llm.choose@1"), llm(**{"llm.choose": RpcError(-32602, "no", {"field": "candidates"})})
    stage = HostStage(asker, provider)
    async with stage.running():
        error = await refused(stage, asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
    assert (error.code, error.message, error.data) == (-32602, "no", {"field": "candidates"})


async def test_a_loop_is_refused() -> None:
    first, second = "experimental/One@1", "experimental/Two@1"
    one = fake_plugin("one", methods=["experimental.one"], provides=[first], requires=[second])
    two = fake_plugin("two", methods=["experimental.two"], provides=[second], requires=[first])
    stage = HostStage(one, two)
    async with stage.running():
        stage.ask(one, "host.invoke", capability=second, method="experimental.two")
        asked = await two.wait_received(1)
        stage.ask(two, "host.invoke", capability=first, method="experimental.one", request=asked.id)
        again = await one.wait_received(1)
        # Here it does not even say what it is working on.
        error = await refused(stage, one, "host.invoke", capability=second, method="experimental.two")
        one.answer(again, {})
        two.answer(asked, {})
    assert error.code == ErrorCode.NOT_PERMITTED
    assert error.data["loop"][0] == error.data["loop"][-1] == "two experimental.two"


async def test_fan_out_is_bounded() -> None:
    asker, provider = router("llm.choose@1"), llm()
    del provider.answers["llm.choose"]
    stage = HostStage(asker, provider)
    async with stage.running():
        ask = partial(stage.ask, asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
        for _ in range(MAX_HOST_CALLS):
            ask()
        error = await refused(stage, asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
        assert error.data == {"bound": "max_host_calls", "limit": MAX_HOST_CALLS}
        assert len(provider.received) == MAX_HOST_CALLS
        provider.answer(provider.received[0], CHOICE)
        # One has ended, so there is room for one.
        ask()
        assert len(provider.received) == MAX_HOST_CALLS + 1


async def test_what_a_plugin_asks_before_it_is_admitted_waits_for_that() -> None:
    asker, provider = router("llm.choose@1"), llm()
    asker.status = "starting"
    asker.peer = None
    stage = HostStage(asker, provider)
    asker.peer = stage.peer
    async with stage.running():
        early = stage.ask(asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
        withdrawn = stage.ask(asker, "host.context")
        unknown = await refused(stage, asker, "host.nonsense")
        assert unknown.code == ErrorCode.METHOD_NOT_FOUND
        bad = stage.ask(asker, "host.action")
        await trio.testing.wait_all_tasks_blocked()
        assert (stage.peer.answers.keys() & {early, withdrawn, bad}, provider.received) == (set(), [])
        stage.peer.cancels(withdrawn)
        with pytest.raises(RpcError) as error:
            await stage.peer.answer(withdrawn)
        assert error.value.code == ErrorCode.CANCELLED
        asker.status = "ready"
        stage.host.admitted(asker)
        assert await stage.peer.answer(early) == CHOICE
        with pytest.raises(RpcError) as error:
            await stage.peer.answer(bad)
        assert error.value.code == ErrorCode.INVALID_PARAMS
        stage.host.admitted(asker)


# ---- cancelling


async def test_cancelling_a_plugins_request_cancels_it_at_the_provider() -> None:
    asker, provider = router("llm.choose@1"), llm()
    del provider.answers["llm.choose"]
    stage = HostStage(asker, provider)
    async with stage.running():
        asked = stage.ask(asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
        request = await provider.wait_received()
        stage.peer.cancels(asked)
        with pytest.raises(RpcError) as error:
            await stage.peer.answer(asked)
    assert error.value.code == ErrorCode.CANCELLED
    assert request.cancelled


@pytest.mark.parametrize("how", ["cancel", "time", "error", "answer"])
async def test_the_end_of_a_request_cancels_what_was_asked_for_it(how: str, autojump_clock: MockClock) -> None:
    asker, provider = router("llm.choose@1"), llm()
    del provider.answers["llm.choose"]
    stage = HostStage(asker, provider)
    async with stage.running():
        sent, _ = await planning(stage, asker)
        asked = stage.ask(asker, "host.invoke", capability="llm.choose@1", method="llm.choose", request=sent)
        unrelated = stage.ask(asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
        request = provider.received[0]
        if how == "cancel":
            asker.cancel(sent)
        elif how in {"error", "answer"}:
            asker.answer(asker.received[0], RpcError(-32000, "gave up") if how == "error" else {"steps": []})
        else:
            # Its own time-out is later than that of what it works for.
            await trio.sleep(29)
            assert not request.cancelled
            await trio.sleep(2)
        with pytest.raises(RpcError):
            await stage.peer.answer(asked)
        assert request.cancelled
        if how != "time":
            assert not provider.received[1].cancelled
            assert unrelated not in stage.peer.answers


async def test_what_has_ended_is_not_kept_for_the_rest_of_the_request() -> None:
    person, asker, provider = Person(), router("llm.choose@1", "tts.speak@1"), llm()
    mouth = fake_plugin("mouth", methods=["tts.speak"], provides=["tts.speak@1"])

    async def speak(*_: object) -> object:
        await trio.lowlevel.checkpoint()
        return {"spoken": True}

    stage = HostStage(asker, provider, mouth, persons=(person,), instead={"tts.speak": speak})
    async with stage.running():
        sent, _ = await planning(stage, asker)
        work = asker.work_of(sent)
        await stage.asks(asker, "host.invoke", capability="llm.choose@1", method="llm.choose", request=sent)
        await stage.asks(asker, "host.invoke", capability="tts.speak@1", method="tts.speak", request=sent)
        await stage.asks(asker, "host.action", **OPEN, provenance="user", request=sent)
        provider.request = lambda *_args, **_options: _refused_at_once(*_args)
        await refused(stage, asker, "host.invoke", capability="llm.choose@1", method="llm.choose", request=sent)
        asked = stage.ask(asker, "host.confirm", text="Shall I?", request=sent)
        await person.wait_asked()
        assert len(work._children or ()) == 1
        person.say(answer=False)
        await stage.peer.answer(asked)
        await stage.asks(asker, "host.context", request=sent)
        assert not work._children


def _refused_at_once(_method: str, _params: object, on_reply: Any) -> int:
    """As a peer whose bound is reached: the answer is there before the id of the request."""
    on_reply(None, RpcError(ErrorCode.INVALID_REQUEST, "full", {"bound": "max_in_flight", "limit": 1024}))
    return 7


async def test_a_late_cancellation_does_not_meet_the_next_epochs_request() -> None:
    asker, provider = router("llm.choose@1"), llm()
    del provider.answers["llm.choose"]
    stage = HostStage(asker, provider)
    async with stage.running():
        sent, work = await planning(stage, asker)
        stage.ask(asker, "host.invoke", capability="llm.choose@1", method="llm.choose", request=sent)
        provider.die()
        provider.start()
        other: list[RpcError | None] = []
        provider.request("llm.choose", b"{}", lambda _result, error: other.append(error), timeout=5)
        work.cancel()
        asker.cancel(sent)
        assert other == []


# ---- context and perception


async def test_whoever_reads_the_screen_is_tainted_by_it() -> None:
    asker = router("perception.tabs@1")
    eyes = fake_plugin("eyes", {"perception.tabs": {"tabs": []}}, provides=["perception.tabs@1"])
    stage = HostStage(asker, eyes)
    async with stage.running():
        sent, work = await planning(stage, asker)
        other, clean = await planning(stage, asker)
        assert await stage.asks(asker, "host.perceive", what="tabs", request=sent) == {"tabs": []}
        assert (work.provenance, work.sources) == ("screen", ("perception.tabs",))
        assert clean.provenance == "user"
        await stage.asks(asker, "host.context", request=other)
        assert (clean.provenance, clean.sources) == ("screen", ("context.snapshot",))


async def test_reading_without_saying_for_what_taints_everything_under_way() -> None:
    asker = router()
    stage = HostStage(asker)
    async with stage.running():
        _, one = await planning(stage, asker)
        _, two = await planning(stage, asker)
        assert await stage.asks(asker, "host.context") == {"meta": {}}
    assert one.provenance == two.provenance == "screen"


async def test_a_look_that_is_not_answered_taints_nothing(autojump_clock: MockClock) -> None:
    asker = router("perception.tabs@1")
    eyes = fake_plugin("eyes", methods=["perception.tabs"], provides=["perception.tabs@1"])
    stage = HostStage(asker, eyes)
    async with stage.running():
        sent, work = await planning(stage, asker)
        error = await refused(stage, asker, "host.perceive", what="tabs", request=sent, timeout_ms=1000)
    assert (error.code, work.provenance) == (ErrorCode.TIMED_OUT, "user")


async def test_what_is_said_of_the_screen_in_an_error_taints_like_a_result() -> None:
    asker = router("perception.tabs@1")
    said = RpcError(-32000, "cannot list them", {"title": "run this"})
    eyes = fake_plugin("eyes", {"perception.tabs": said}, provides=["perception.tabs@1"])
    stage = HostStage(asker, eyes)
    async with stage.running():
        sent, work = await planning(stage, asker)
        error = await refused(stage, asker, "host.perceive", what="tabs", request=sent)
    assert (error.data, work.sources) == ({"title": "run this"}, ("perception.tabs",))


async def test_what_another_plugin_read_taints_whoever_asked_it() -> None:
    asker, helper = router("llm.choose@1"), llm()
    del helper.answers["llm.choose"]
    stage = HostStage(asker, helper)
    async with stage.running():
        sent, work = await planning(stage, asker)
        asked = stage.ask(asker, "host.invoke", capability="llm.choose@1", method="llm.choose", request=sent)
        request = await helper.wait_received()
        await stage.asks(helper, "host.context", request=request.id)
        helper.answer(request, CHOICE)
        await stage.peer.answer(asked)
    assert work.provenance == "screen"


# ---- what language models say, and content that was stored


async def test_what_a_language_model_answered_is_remembered_by_all_who_waited() -> None:
    asker, helper = router("llm.choose@1"), llm()
    stage = HostStage(asker, helper)
    async with stage.running():
        sent, work = await planning(stage, asker)
        _, other = await planning(stage, asker)
        await stage.asks(asker, "host.invoke", capability="llm.choose@1", method="llm.choose", request=sent)
    assert (work.llm, work.provenance, other.llm) == (True, "user", False)


async def test_a_language_model_that_did_not_answer_had_no_part(autojump_clock: MockClock) -> None:
    asker, helper = router("llm.choose@1"), llm()
    del helper.answers["llm.choose"]
    stage = HostStage(asker, helper)
    invoke = partial(refused, stage, asker, "host.invoke", capability="llm.choose@1", method="llm.choose")
    async with stage.running():
        sent, work = await planning(stage, asker)
        error = await invoke(request=sent, timeout_ms=1000)
    assert (error.code, work.llm) == (ErrorCode.TIMED_OUT, False)


async def test_what_a_language_model_says_in_an_error_is_its_word_too() -> None:
    asker, helper = router("llm.choose@1"), llm(**{"llm.choose": RpcError(-32000, "no", {"say": "run this"})})
    stage = HostStage(asker, helper)
    async with stage.running():
        sent, work = await planning(stage, asker)
        await refused(stage, asker, "host.invoke", capability="llm.choose@1", method="llm.choose", request=sent)
    assert work.llm


@pytest.mark.parametrize("holder", ["asker", "provider"])
async def test_a_handle_that_is_handed_over_taints_whoever_gets_it(holder: str) -> None:
    asker, provider = router("experimental/X@1"), llm(**{"experimental.x": {"see": "handle://x"}})
    stage = HostStage(asker, provider)
    stage.marks[asker.id if holder == "asker" else provider.id] = "screen"
    params = {"see": "handle://x"} if holder == "asker" else {}
    async with stage.running():
        sent, work = await planning(stage, asker)
        await stage.asks(
            asker, "host.invoke", capability="experimental/X@1", method="experimental.x", params=params, request=sent
        )
    (received,) = provider.received
    assert (work.provenance, work.sources) == ("screen", ("handle",))
    assert received.work is not None
    assert (received.work.provenance == "screen") == (holder == "asker")


async def test_an_action_that_names_what_the_asker_stored_is_the_screens() -> None:
    asker = router()
    stage = HostStage(asker)
    stage.marks["router"] = "screen"
    async with stage.running():
        sent, work = await planning(stage, asker)
        await stage.asks(asker, "host.action", **OPEN, provenance="user", request=sent)
        args = {"url": "http://example.com/?handle://x"}
        error = await refused(stage, asker, "host.action", op="open_url", args=args, provenance="user", request=sent)
    assert error.code == ErrorCode.UNTRUSTED_PROVENANCE
    assert work.sources == ("handle",)


# ---- host.action

OPEN = {"op": "open_url", "args": {"url": "http://example.com/"}}


async def test_an_action_carries_the_trust_of_the_request_that_it_is_for() -> None:
    asker = router()
    stage = HostStage(asker)
    async with stage.running():
        sent, _ = await planning(stage, asker)
        assert await stage.asks(asker, "host.action", **OPEN, provenance="user", request=sent) == DONE
        assert stage.events[-1]["session"] == "session"
        for params in (
            {"provenance": "user"},
            {"provenance": "screen", "request": sent},
            {"request": sent},
        ):
            error = await refused(stage, asker, "host.action", **OPEN, **params)
            assert error.code == ErrorCode.UNTRUSTED_PROVENANCE, params
        low, _ = await planning(stage, asker, "screen")
        error = await refused(stage, asker, "host.action", **OPEN, provenance="user", request=low)
        assert error.code == ErrorCode.UNTRUSTED_PROVENANCE
        await stage.asks(asker, "host.context", request=sent)
        error = await refused(stage, asker, "host.action", **OPEN, provenance="user", request=sent)
        assert error.code == ErrorCode.UNTRUSTED_PROVENANCE
    assert len(stage.plugin.received) == 1


async def test_an_action_can_pick_what_was_recorded() -> None:
    asker = router()
    stage = HostStage(asker)
    async with stage.running():
        error = await refused(stage, asker, "host.action", op="launch_app", args={"app": {"select": "no such"}})
    assert error.data["rule"] == "unknown-candidate"


async def test_an_action_that_asks_a_person_waits_and_ends_with_its_request() -> None:
    person, asker = Person(), router()
    stage = HostStage(asker, persons=(person,))
    async with stage.running():
        sent, _ = await planning(stage, asker)
        asked = stage.ask(asker, "host.action", op="wipe", args={"disk": "sda"}, provenance="user", request=sent)
        await person.wait_asked()
        asker.cancel(sent)
        with pytest.raises(RpcError) as error:
            await stage.peer.answer(asked)
        assert error.value.code == ErrorCode.CANCELLED
    assert (person.withdrawn, stage.plugin.received) == (1, [])


async def test_an_op_that_asks_for_itself_again_is_a_loop() -> None:
    stage = HostStage(router(), invoke=SILENT)
    async with stage.running():
        ending = stage.submit(step("mute"))
        (request,) = stage.plugin.received
        error = await refused(
            stage, stage.plugin, "host.action", op="mute", args={}, provenance="user", request=request.id
        )
        assert error.code == ErrorCode.NOT_PERMITTED
        assert error.data["loop"] == ["desktop action.invoke mute", "desktop action.invoke mute"]
        stage.plugin.answer(request, DONE)
        await ending.wait()


# ---- host.confirm


async def test_a_plugins_own_question_is_marked_as_such_and_cannot_pose_as_the_runners() -> None:
    person, asker = Person(), router()
    stage = HostStage(asker, persons=(person,))
    async with stage.running():
        text = 'Shall I?"\nRun in a terminal: rm \u202e'
        asked = stage.ask(asker, "host.confirm", text=text)
        await person.wait_asked()
        (question,) = person.asked
        assert question.text.startswith('The plugin router asks: "Shall I?')
        assert "\n" not in question.text
        assert "\u202e" not in question.text
        assert question.text.count('"') == 2
        assert (question.op, question.provenance) == ("host.confirm", "screen")
        error = await refused(stage, asker, "host.confirm", text="And this?")
        assert error.data == {"bound": "max_plugin_questions", "limit": 1}
        person.say(answer=True)
        assert await stage.peer.answer(asked) == {"approved": True}
        again = stage.ask(asker, "host.confirm", text="Now?")
        await trio.testing.wait_all_tasks_blocked()
        person.say(answer=False)
        assert await stage.peer.answer(again) == {"approved": False}


async def test_questions_that_come_together_are_one_at_a_time_too() -> None:
    person, asker = Person(), router()
    stage = HostStage(asker, persons=(person,))
    async with stage.running():
        first, *others = [stage.ask(asker, "host.confirm", text=f"{n}?") for n in range(3)]
        for other in others:
            with pytest.raises(RpcError) as error:
                await stage.peer.answer(other)
            assert error.value.data == {"bound": "max_plugin_questions", "limit": 1}
        await person.wait_asked()
        assert len(person.asked) == 1
        stage.peer.cancels(first)
        with pytest.raises(RpcError) as error:
            await stage.peer.answer(first)
        assert error.value.code == ErrorCode.CANCELLED
        # One that was withdrawn is none.
        stage.ask(asker, "host.confirm", text="Now?")
        await trio.testing.wait_all_tasks_blocked()
        assert len(person.asked) == 2
        person.say(answer=True)


@pytest.mark.parametrize("text", ["", "x" * 501])
async def test_a_question_has_a_length(text: str) -> None:
    stage = HostStage(router())
    async with stage.running():
        error = await refused(stage, stage.supervisor.get("router"), "host.confirm", text=text)
    assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": "text"})


# ---- host.emit


async def test_items_go_to_the_plugins_own_streams() -> None:
    asker = fake_plugin("ui", streams=["experimental.clicks"])
    stage = HostStage(asker)
    async with stage.running():
        result = await stage.asks(asker, "host.emit", method="experimental.clicks", data={"n": 1})
        assert result == {"subscribers": 3}
        error = await refused(stage, asker, "host.emit", method="runner.events", data={})
        assert error.data == {"field": "method"}
    assert stage.emitted == [("ui", "experimental.clicks", {"n": 1})]


# ---- done by the runner itself


async def test_what_the_runner_does_itself_is_not_passed_on() -> None:
    spoken: list[tuple[str, bytes]] = []

    async def speak(provider: FakeInstance, params: Raw, work: Work, timeout: float) -> object:
        await trio.lowlevel.checkpoint()
        spoken.append((provider.id, bytes(params)))
        assert (work.step, timeout) == (("mouth", "tts.speak"), 30.0)
        return {"spoken": True}

    asker = router("tts.speak@1")
    mouth = fake_plugin("mouth", methods=["tts.speak"], provides=["tts.speak@1"])
    stage = HostStage(asker, mouth, instead={"tts.speak": speak})
    async with stage.running():
        result = await stage.asks(
            asker, "host.invoke", capability="tts.speak@1", method="tts.speak", params={"text": "hi"}
        )
    assert result == {"spoken": True}
    assert spoken == [("mouth", b'{"text": "hi"}')]
    assert mouth.received == []
