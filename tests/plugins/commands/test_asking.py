"""The commands plugin asks a language model, through the runner, and only if it may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from utter_plugins.commands.asking import NOT_ALLOWED
from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.testing import PluginProcess

ARGV = [sys.executable, "-P", "-m", "utter_plugins.commands"]
SAID = "I am freezing in here"
PHRASES = [{"say": "turn on the heating", "op": "heat"}, {"say": "open the window", "op": "window"}]
HEAT = {"choice_id": "turn on the heating", "probability": 0.9, "distribution": {}}


def plugin(env: dict[str, str], **settings: Any) -> PluginProcess:
    return PluginProcess(ARGV, env=env, settings={"use_llm": True, "phrase": PHRASES, **settings}, timeout=30)


def plan(process: PluginProcess, utterance: str = SAID) -> dict[str, Any]:
    answer = process.call("router.plan", {"utterance": utterance, "context": {"window": "secret"}})
    assert isinstance(answer, dict)
    return answer


class Model:
    """What the runner is asked, and what it answers."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def __call__(self, params: dict[str, Any]) -> Any:
        self.asked.append(params)
        if isinstance(self.answer, RpcError):
            raise self.answer
        return self.answer


@pytest.fixture
def ask(env: dict[str, str]) -> Callable[..., tuple[Model, dict[str, Any], str]]:
    """Plan once with a model; what it was asked, the plan, the log."""

    def once(answer: Any, utterance: str = SAID, **settings: Any) -> tuple[Model, dict[str, Any], str]:
        model = Model(answer)
        with plugin(env, **settings) as process:
            process.on_host("host.invoke", model)
            planned = plan(process, utterance)
            assert process.call("plugin.health")["status"] == "ok"
            process.close()
            return model, planned, process.stderr

    return once


Ask = Callable[..., tuple[Model, dict[str, Any], str]]


def test_the_model_chooses_among_phrases_and_its_choice_is_planned(ask: Ask) -> None:
    model, planned, log = ask(HEAT, llm_timeout_ms=2500)
    (asked,) = model.asked
    assert (asked["capability"], asked["method"], asked["timeout_ms"]) == ("llm.choose@1", "llm.choose", 2500)
    assert isinstance(asked["request"], int)
    params = asked["params"]
    assert params["utterance"] == SAID
    assert params["candidates"][:2] == [
        {"id": "turn on the heating", "value": "turn on the heating", "label": ""},
        {"id": "open the window", "value": "open the window", "label": ""},
    ]
    # What is on the screen is no part of the question: the answer counts as the user's.
    assert params["context"] == {}
    assert planned == {
        "steps": [{"op": "heat", "args": {}, "provenance": "user", "arg_provenance": {}, "confirm": False}],
        "detail": "",
        "matched": "turn on the heating",
        "score": 0.9,
    }
    assert log == ""


@pytest.mark.parametrize(
    ("answer", "settings"),
    [
        ({"choice_id": None, "probability": 0.99, "distribution": {}}, {}),
        ({**HEAT, "probability": 0.59}, {}),
        ({**HEAT, "probability": 0.94}, {"llm_min_probability": 0.95}),
        ({**HEAT, "choice_id": "rm -rf ~"}, {}),
        ({**HEAT, "choice_id": ""}, {}),
    ],
)
def test_none_and_doubt_are_not_understood(ask: Ask, answer: Any, settings: dict[str, Any]) -> None:
    model, planned, log = ask(answer, **settings)
    assert len(model.asked) == 1
    assert (planned["steps"], bool(planned["detail"]), log) == ([], True, "")


def test_a_choice_at_the_bar_counts(ask: Ask) -> None:
    _, planned, _ = ask({**HEAT, "probability": 0.6})
    assert planned["steps"][0]["op"] == "heat"


@pytest.mark.parametrize("utterance", ["turn on the heating", "Turned on the heating.", "open youtube", ""])
def test_what_is_understood_or_empty_is_not_asked(ask: Ask, utterance: str) -> None:
    model, _, _ = ask(HEAT, utterance)
    assert model.asked == []


def test_nobody_is_asked_unless_the_settings_say_so(ask: Ask) -> None:
    model, planned, _ = ask(HEAT, use_llm=False)
    assert (model.asked, planned["steps"]) == ([], [])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RpcError(ErrorCode.PLUGIN_FAILED, "No language model answers."), "No language model answers."),
        (RpcError(ErrorCode.TIMED_OUT, "no answer within 3000 ms"), "no answer within 3000 ms"),
        (RpcError(ErrorCode.NOT_PERMITTED, "'llm.choose@1' is not required"), NOT_ALLOWED),
        (RpcError(ErrorCode.CAPABILITY_MISSING, "nobody provides it"), NOT_ALLOWED),
        ({"choice_id": 5}, "the answer does not fit"),
        ({**HEAT, "probability": 7}, "the answer does not fit"),
    ],
)
def test_a_model_that_fails_leaves_it_not_understood(ask: Ask, error: Any, said: str) -> None:
    _, planned, log = ask(error)
    assert (planned["steps"], bool(planned["detail"])) == ([], True)
    assert log.startswith("The language model could not be asked: ")
    assert said in log
    assert SAID not in log


def test_a_failure_is_logged_once_until_it_is_over(env: dict[str, str]) -> None:
    down = RpcError(ErrorCode.PLUGIN_FAILED, "It is down.")
    model = Model(down)
    with plugin(env) as process:
        process.on_host("host.invoke", model)
        for answer in (down, down, HEAT, down):
            model.answer = answer
            plan(process)
        process.close()
        assert process.stderr.count("It is down.") == 2


def test_a_runner_that_never_answers_is_given_up(env: dict[str, str]) -> None:
    with plugin(env, llm_timeout_ms=100) as process:
        process.hold_host("host.invoke")
        pending = process.send("router.plan", {"utterance": SAID})
        asked = process.asked("host.invoke")
        assert pending.result()["steps"] == []
        asked.wait_cancelled()
        assert plan(process, "turn on the heating")["steps"][0]["op"] == "heat"


def test_cancelling_the_plan_cancels_the_question(env: dict[str, str]) -> None:
    with plugin(env) as process:
        process.hold_host("host.invoke")
        pending = process.send("router.plan", {"utterance": SAID})
        asked = process.asked("host.invoke")
        pending.cancel()
        asked.wait_cancelled()
        with pytest.raises(RpcError) as caught:
            pending.result()
        assert caught.value.code == ErrorCode.CANCELLED


@pytest.mark.parametrize(
    "settings", [{"llm_min_probability": 1.1}, {"llm_timeout_ms": 50}, {"llm_timeout_ms": 60_000}, {"use_llm": "yes"}]
)
def test_wrong_settings_are_named(env: dict[str, str], settings: dict[str, Any]) -> None:
    with plugin(env, **settings) as process:
        with pytest.raises(RpcError) as caught:
            plan(process)
        assert next(iter(settings)) in caught.value.message
