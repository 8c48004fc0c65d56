"""Asks a language model which of the router's own phrases was meant, when none was near enough.

Rules here: the model gets the utterance and phrases, nothing from the screen; it picks one of the phrases or none, and
never writes a step. Whatever goes wrong with it leaves the answer as it was: not understood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.kinds import LlmChooseParams, LlmChooseResult
from utter_protocol.methods import Candidate, PlanResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from utter_sdk import Plugin

    from .choices import Choice

CAPABILITY = "llm.choose@1"
METHOD = "llm.choose"
NOT_ALLOWED = (
    f'use_llm needs requires = ["{CAPABILITY}"] in the [[plugin]] entry of commands, and a plugin that provides it'
)
_GRACE_S = 1.0
"""How much longer than the runner's own deadline an answer is waited for."""


class Adviser:
    """The model behind `llm.choose`.

    Args:
        plugin: asks the runner.
        min_probability: what a choice must have at least.
        timeout_s: how long it may take.
    """

    def __init__(self, plugin: Plugin, *, min_probability: float, timeout_s: float) -> None:
        self._plugin = plugin
        self._min_probability = min_probability
        self._timeout_s = timeout_s
        self._said = ""

    def advise(self, utterance: str, choices: Sequence[Choice]) -> PlanResult | None:
        """The plan of the phrase that the model takes the utterance for, or None if it takes it for none of them."""
        plans = {choice.text: choice.plan for choice in choices}
        params = LlmChooseParams(utterance=utterance, candidates=[Candidate(id=text, value=text) for text in plans])
        call = self._plugin.host.invoke(CAPABILITY, METHOD, params, result=LlmChooseResult, timeout=self._timeout_s)
        try:
            chosen = call.result(self._timeout_s + _GRACE_S)
        except TimeoutError as error:
            call.cancel()
            self._say(f"The language model could not be asked: {error}.")
            return None
        except RpcError as error:
            if error.code == ErrorCode.CANCELLED:
                raise
            hint = f" ({NOT_ALLOWED}.)" if error.code in (ErrorCode.NOT_PERMITTED, ErrorCode.CAPABILITY_MISSING) else ""
            self._say(f"The language model could not be asked: {error.message}{hint}")
            return None
        self._said = ""
        plan = plans.get(chosen.choice_id or "")
        if plan is None or chosen.probability < self._min_probability:
            return None
        return PlanResult(steps=plan.steps, matched=plan.matched, score=round(chosen.probability, 3))

    def _say(self, what: str) -> None:
        """Log what goes wrong once, until it goes well or something else goes wrong."""
        if what != self._said:
            self._said = what
            self._plugin.log(what)
