"""python-router: a plugin for utter-runner that turns sentences into steps."""

from msgspec import Struct, field

from utter_protocol.methods import HintsResult, PlannedStep, PlanParams, PlanResult
from utter_sdk import Plugin

plugin = Plugin("python-router", version="0.1.0", kind="router", provides=["router.plan@1", "router.hints@1"])


class Settings(Struct, forbid_unknown_fields=True):
    """The plugin's table in the runner's configuration."""

    pages: dict[str, str] = field(default_factory=lambda: {"open the example": "https://example.org/"})


pages: dict[str, str] = {}


@plugin.on_start
def start(settings: Settings) -> None:
    """Take the settings, once, before the first request."""
    pages.update({_plain(sentence): address for sentence, address in settings.pages.items()})


def _plain(sentence: str) -> str:
    """A sentence as it is compared: recognisers write capitals and full stops."""
    return " ".join(sentence.lower().strip(" .!?").split())


@plugin.method("router.plan")
def plan(params: PlanParams) -> PlanResult:
    """Say what the sentence asks for. No steps means that it was not understood."""
    address = pages.get(_plain(params.utterance))
    if address is None:
        return PlanResult(detail="I do not know this sentence.")
    # The address is the user's own, from the settings. What comes from the screen must say so: provenance="screen".
    step = PlannedStep(op="open_url", args={"url": address}, provenance="user")
    return PlanResult(steps=[step], matched=params.utterance, score=1.0)


@plugin.method("router.hints")
def hints() -> HintsResult:
    """Say what is likely to be said, for the recogniser to lean towards."""
    return HintsResult(phrases=list(pages))


if __name__ == "__main__":
    plugin.run()
