"""The plugin on the wire: llm.complete, llm.choose, the stream llm.delta, and health.

Rules here: httpx and asyncio are imported after the handshake; requests run side by side on the asyncio loop, which
also owns the server. Health follows what the server did last. Only while the server is away it is asked, now and then,
whether it is back; one that answers is never asked without need.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.kinds import LlmChooseParams, LlmChooseResult, LlmCompleteParams, LlmCompleteResult, LlmDelta
from utter_sdk import AsyncStream, Plugin

from .chat import finish_of
from .settings import Settings, SettingsError, is_local

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Mapping

    from .server import Server, ServerError

VERSION = "0.1.0"
PROVIDES = ("llm.complete@1", "llm.choose@1")
PERMISSIONS = ("network",)
NEEDED = "Install the extra utter-runner[llm] (httpx) for the runner's Python"
FIRST_PAUSE_S = 5.0
"""How long after it went away the server is asked whether it is back; then twice as long, and so on."""
LONGEST_PAUSE_S = 60.0

T = TypeVar("T")


class Llm:
    """The model behind the server.

    Args:
        plugin: whose health it is.
        env: where the key may be.
    """

    def __init__(self, plugin: Plugin, env: Mapping[str, str]) -> None:
        self._plugin = plugin
        self._env = env
        self._settings = Settings()
        self._failed: RpcError | None = None
        self._server: Server | None = None
        self._blame = ""
        self._watching: asyncio.Task[None] | None = None

    def configure(self, settings: Settings) -> None:
        """Take the settings.

        Raises:
            RpcError: -32000, one of them cannot be used.
        """
        try:
            settings.check()
        except SettingsError as error:
            # For the requests that are waiting already.
            self._failed = RpcError(ErrorCode.PLUGIN_FAILED, f"The settings of the plugin llm: {error}.")
            raise self._failed from None
        self._failed, self._settings = None, settings
        if settings.base_url.startswith("http:") and not is_local(settings.base_url):
            self._plugin.log(f"What is asked travels to {settings.base_url} unencrypted; https would hide it.")

    async def start(self) -> None:
        """Look for the server.

        Raises:
            RpcError: -32000, httpx is missing.
        """
        if self._failed is not None:
            return
        try:
            from .server import Server, ServerError  # noqa: PLC0415 - httpx, after the handshake
        except ImportError as error:
            self._failed = RpcError(ErrorCode.PLUGIN_FAILED, f"{NEEDED}: {error}.")
            raise self._failed from error
        self._server = Server(self._settings, self._env)
        try:
            await self._server.probe()
        except ServerError as error:
            self._note(error)

    async def complete(self, params: LlmCompleteParams) -> LlmCompleteResult:
        """Answer llm.complete."""
        completion = await self._asked(self._ready().complete(self._fields(params)))
        tokens = completion.usage.completion_tokens if completion.usage else None
        return LlmCompleteResult(text=completion.text, finish=completion.finish, tokens=tokens)

    async def choose(self, params: LlmChooseParams) -> LlmChooseResult:
        """Answer llm.choose."""
        from . import choosing  # noqa: PLC0415 - after the handshake

        if len(params.utterance) > choosing.MAX_UTTERANCE:
            raise _invalid("utterance", f"has more than {choosing.MAX_UTTERANCE} characters")
        if len({candidate.id for candidate in params.candidates}) != len(params.candidates):
            raise _invalid("candidates", "has an id twice")
        server = self._ready()
        if not params.candidates:
            return LlmChooseResult(probability=1.0)
        question = choosing.Question(params.utterance, params.context, params.candidates)
        fields = {"messages": question.messages(), "temperature": 0, "max_tokens": choosing.MAX_TOKENS}
        completion = await self._asked(server.complete_with_logprobs(fields, choosing.TOP_LOGPROBS))
        return question.result(completion.text, completion.logprobs)

    async def delta(self, params: LlmCompleteParams, stream: AsyncStream) -> None:
        """Send what llm.complete would answer, as it is written."""
        finish = None
        async with aclosing(self._ready().pieces(self._fields(params))) as pieces:
            while (piece := await self._asked(anext(pieces, None))) is not None:
                for choice in piece.choices[:1]:
                    finish = choice.finish_reason or finish
                    if choice.delta.content:
                        await stream.send(LlmDelta(text=choice.delta.content))
        await stream.send(LlmDelta(text="", finish=finish_of(finish)))

    def _fields(self, params: LlmCompleteParams) -> dict[str, Any]:
        """The request's body, besides the model."""
        settings = self._settings
        messages = [{"role": "system", "content": params.system}] if params.system else []
        fields: dict[str, Any] = {
            "messages": [*messages, {"role": "user", "content": params.prompt}],
            "temperature": settings.temperature if params.temperature is None else params.temperature,
            "max_tokens": settings.max_tokens if params.max_tokens is None else params.max_tokens,
        }
        return {**fields, "stop": params.stop} if params.stop else fields

    def _ready(self) -> Server:
        if self._server is None:
            raise self._failed or RpcError(ErrorCode.PLUGIN_FAILED, "The plugin llm could not start; see the log.")
        return self._server

    async def _asked(self, answer: Awaitable[T]) -> T:
        """Wait for the server, and keep what that says about its health."""
        from .server import ServerError  # noqa: PLC0415 - loaded already by whoever has a server

        try:
            result = await answer
        except ServerError as error:
            self._note(error)
            raise
        self._well()
        return result

    def _well(self) -> None:
        self._blame = ""
        self._plugin.health("ok")

    def _note(self, error: ServerError) -> None:
        if error.blame == "request":
            return
        self._blame = error.blame
        self._plugin.health("degraded", error.message)
        if error.blame == "away" and self._watching is None:
            import asyncio  # noqa: PLC0415 - loaded already by whoever runs this

            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Ask whether the server is back until it is, or until somebody else found out more."""
        import asyncio  # noqa: PLC0415 - loaded already by whoever runs this

        from .server import ServerError  # noqa: PLC0415 - loaded already by whoever has a server

        pause = FIRST_PAUSE_S
        try:
            while self._blame == "away":
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                if self._blame != "away":
                    return
                try:
                    await self._asked(self._ready().probe())
                except ServerError:
                    continue
        finally:
            self._watching = None


def _invalid(field: str, why: str) -> RpcError:
    return RpcError(ErrorCode.INVALID_PARAMS, f"llm.choose: {field} {why}", {"field": field})


def build(env: Mapping[str, str] = os.environ) -> Plugin:
    """The plugin, ready to run."""
    plugin = Plugin("llm", version=VERSION, kind="llm", provides=PROVIDES, permissions=PERMISSIONS)
    llm = Llm(plugin, env)
    plugin.on_start(llm.configure)
    plugin.on_start(llm.start)
    plugin.method("llm.complete")(llm.complete)
    plugin.method("llm.choose")(llm.choose)
    plugin.stream("llm.delta")(llm.delta)
    return plugin
