"""Tests of declaring a plugin, without running it."""

from __future__ import annotations

from typing import Any, assert_type

import pytest

from utter_protocol.methods import PlanParams, PlanResult
from utter_sdk import ActionResult, Plugin
from utter_sdk.server import Server


def make(**options: Any) -> Plugin:
    return Plugin("tiny", version="1", kind="bundle", **options)


@pytest.mark.parametrize("name", ["", "a", "Tiny", "ti ny", "-tiny", "x" * 65, "tiny\n"])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a plugin's name must match"):
        Plugin(name, version="1", kind="action")


def test_a_wrong_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a plugin's kind is one of stt, router, .*, not 'toaster'"):
        Plugin("tiny", version="1", kind="toaster")  # type: ignore[arg-type]  # the mistake under test


def test_decorators_return_the_function_with_its_type() -> None:
    plugin = make()

    @plugin.method("router.plan", blocking=True)
    def plan(params: PlanParams) -> PlanResult:
        return PlanResult(detail=params.utterance)

    @plugin.action("hi")
    def hi(args: dict[str, Any]) -> ActionResult:
        return ActionResult(ok=bool(args))

    @plugin.on_start
    def started(settings: dict[str, Any]) -> int:
        return len(settings)

    @plugin.on_start(blocking="load")
    def load() -> str:
        return "loaded"

    @plugin.notification("stt.feed")
    async def feed() -> None: ...

    assert_type(plan(PlanParams(utterance="x")), PlanResult)
    assert plan(PlanParams(utterance="x")).detail == "x"
    assert_type(hi({}), ActionResult)
    assert hi({}).ok is False
    assert_type(started({}), int)
    assert started({"a": 1}) == 1
    assert_type(load(), str)
    assert load() == "loaded"
    assert [hook.lane for hook in plugin.start_hooks] == [None, "load"]


@pytest.mark.parametrize("name", ["protocol.hello", "plugin.describe", "plugin.health", "twice"])
def test_a_method_is_served_once(name: str) -> None:
    plugin = make()
    plugin.method("twice")(lambda: None)
    with pytest.raises(ValueError, match=f"{name} is served already"):
        plugin.method(name)(lambda: None)


def test_a_notification_is_taken_once() -> None:
    plugin = make()
    plugin.notification("twice")(lambda: None)
    for name in ("twice", "$/cancel"):
        with pytest.raises(ValueError, match="is taken already"):
            plugin.notification(name)(lambda: None)


def test_ops_and_their_methods_exclude_each_other() -> None:
    plugin = make()
    plugin.action("open_url")(lambda: "done")
    with pytest.raises(ValueError, match="the op open_url is declared already"):
        plugin.action("action.open_url")(lambda: "done")
    with pytest.raises(ValueError, match=r"action\.invoke is served already"):
        plugin.method("action.invoke")(lambda: None)
    other = make()
    other.method("action.invoke")(lambda: None)
    with pytest.raises(ValueError, match="declare either ops or the methods"):
        other.action("open_url")(lambda: "done")


def test_signatures_that_do_not_fit_are_refused() -> None:
    plugin = make()
    with pytest.raises(TypeError, match=r"x: a handler takes no argument or one \(the params\), not 2"):
        plugin.method("x")(lambda one, two: one + two)
    with pytest.raises(TypeError, match="a handler takes no argument or one"):
        plugin.method("x")(lambda **params: params)

    async def later() -> None: ...

    with pytest.raises(TypeError, match="an `async def` handler runs on the asyncio loop; it cannot be blocking"):
        plugin.method("x", blocking=True)(later)


def test_notifying_before_running_is_a_mistake_that_says_so() -> None:
    with pytest.raises(RuntimeError, match="the plugin is not running"):
        make().notify("router.hints_changed")
    with pytest.raises(RuntimeError, match=r"protocol\.hello has not been answered yet"):
        Server(make()).greeted_connection("notify")


def test_cancellation_outside_a_handler_is_nothing() -> None:
    plugin = make()
    plugin.on_cancel(lambda: pytest.fail("called"))
    assert plugin.cancelled() is False
