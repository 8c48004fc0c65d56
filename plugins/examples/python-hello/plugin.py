"""python-hello: a plugin for utter-runner that offers one op."""

from msgspec import Struct

from utter_sdk import ActionResult, Plugin

plugin = Plugin("python-hello", version="0.1.0", kind="action", provides=["action.invoke@1"])


class Settings(Struct, forbid_unknown_fields=True):
    """The plugin's table in the runner's configuration."""

    greeting: str = "Hello"


settings = Settings()


@plugin.on_start
def start(given: Settings) -> None:
    """Take the settings, once, before the first request."""
    global settings
    settings = given


class HelloArgs(Struct):
    """What the op `hello` takes; the runner has checked it against the schema below."""

    name: str


@plugin.action(
    "hello",
    side_effect="none",
    description="Greets someone.",
    schema={
        "type": "object",
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 200}},
        "required": ["name"],
        "additionalProperties": False,
    },
)
def hello(args: HelloArgs) -> ActionResult:
    """Greet someone; the sentence may be shown, or spoken."""
    return ActionResult(ok=True, detail=f"{settings.greeting}, {args.name}!")


if __name__ == "__main__":
    plugin.run()
