"""The server over HTTP: asks it, reads its answers within bounds, and says in plain sentences what is wrong with it.

Rules here: one connection pool, on the asyncio loop; nothing is followed or looked up but the one address of the
settings (no redirects, no proxies, no credentials of other programs). Whoever is cancelled closes the connection, by
which servers notice that nobody wants the rest. No content and no key appears in an error.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import httpx
import msgspec

from utter_protocol.errors import ErrorCode, RpcError

from .chat import ChatError, EventReader, describe_error, read_completion, read_models
from .settings import SettingsError, read_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from .chat import Completion, Piece
    from .settings import Settings

MAX_ANSWER = 4 * 1024 * 1024
"""The longest answer, in bytes."""
MAX_CONNECTIONS = 8
"""How many requests the server gets at a time; more wait for their turn."""
_MAX_ERROR = 64 * 1024
_PROBE_S = 5.0
_REFUSED = (401, 403)
_NOT_FOUND = 404
_BAD_REQUEST = (400, 422, 501)
# "Loading model", "overloaded", or whatever stands before the server has lost it.
_UNAVAILABLE = (502, 503, 504)

Blame = Literal["away", "settings", "request"]


class ServerError(RpcError):
    """What the server did not do, as the caller is told.

    Attributes:
        blame: "away": it may come back by itself; "settings": somebody must change something; "request": only this one.
        status: the HTTP status, or 0.
    """

    def __init__(self, message: str, blame: Blame, status: int = 0) -> None:
        super().__init__(ErrorCode.PLUGIN_FAILED, message, {"status": status} if status else None)
        self.blame = blame
        self.status = status


class Server:
    """The server of the settings. Use it on one asyncio loop.

    Args:
        settings: checked.
        env: where the key is, if the settings say so.
    """

    def __init__(self, settings: Settings, env: Mapping[str, str]) -> None:
        self._settings = settings
        self._env = env
        self._base = settings.base_url.rstrip("/")
        self._model = settings.model
        self._logprobs = True
        secure = self._base.startswith("https:")
        self._client = httpx.AsyncClient(
            trust_env=False,
            timeout=None,  # noqa: S113 - asyncio.timeout bounds whole answers, which httpx cannot
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=2),
            # The certificates that the system trusts; for http a context that trusts none, because it costs nothing.
            verify=ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    async def probe(self) -> None:
        """Find out whether the server is there.

        Raises:
            ServerError: it is not, or refuses the key.
        """
        await self._models(min(_PROBE_S, self._settings.timeout_s))

    async def complete(self, fields: Mapping[str, Any]) -> Completion:
        """Ask for a whole answer.

        Args:
            fields: of the request's body, besides the model.

        Raises:
            ServerError: there is none.
        """
        async with self._deadline():
            return await self._complete(fields)

    async def complete_with_logprobs(self, fields: Mapping[str, Any], top: int) -> Completion:
        """Ask for a whole answer with the `top` alternatives of each token, or without, if the server has none.

        Raises:
            ServerError: there is no answer.
        """
        async with self._deadline():
            if self._logprobs:
                try:
                    return await self._complete({**fields, "logprobs": True, "top_logprobs": top})
                except ServerError as error:
                    if error.status not in _BAD_REQUEST:
                        raise
            # Either it does not know the fields, or it is the request: then the same without them fails, too.
            completion = await self._complete(fields)
            self._logprobs = False
            return completion

    async def pieces(self, fields: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """Ask for an answer in pieces, as they are written.

        Raises:
            ServerError: it broke off.
        """
        model = await self._model_name()
        body = {**self._settings.request, **model, **fields, "stream": True}
        reader, size, finished = EventReader(), 0, False
        async with self._answer("POST", "chat/completions", body) as response:
            chunks = response.aiter_raw()
            while not reader.done:
                async with self._deadline():
                    chunk = await anext(chunks, b"")
                size += len(chunk)
                self._bound(size)
                try:
                    pieces = reader.feed(chunk or b"\n\n")
                except ChatError as error:
                    raise self._broken(error) from None
                for piece in pieces:
                    finished = finished or any(choice.finish_reason for choice in piece.choices)
                    yield piece
                if not chunk and not (finished or reader.done):
                    raise self._broken(ChatError("it ends in the middle"))
                if not chunk:
                    return

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _complete(self, fields: Mapping[str, Any]) -> Completion:
        body = {**self._settings.request, **await self._model_name(), **fields}
        async with self._answer("POST", "chat/completions", body) as response:
            answer = await self._read(response)
        try:
            return read_completion(answer)
        except ChatError as error:
            raise self._foreign(error) from None

    async def _model_name(self) -> dict[str, str]:
        """The field `model`; without one in the settings, the first that the server lists."""
        if not self._model:
            models = await self._models(self._settings.timeout_s)
            if models is None:
                return {}
            if not models:
                message = f"The server at {self._base} has no model. Install one, or start the server with one."
                raise ServerError(message, "settings")
            self._model = models[0]
        return {"model": self._model}

    async def _models(self, timeout_s: float) -> list[str] | None:
        """The server's models; None if it does not list them."""
        try:
            async with self._deadline(timeout_s), self._answer("GET", "models") as response:
                answer = await self._read(response)
        except ServerError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        try:
            return read_models(answer)
        except ChatError as error:
            raise self._foreign(error) from None

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a request, with a status that means success, its body still to be read."""
        headers = {"Accept-Encoding": "identity"}
        try:
            key = read_key(self._settings, self._env)
        except SettingsError as error:
            raise ServerError(f"The settings of the plugin llm: {error}.", "settings") from None
        if key:
            headers["Authorization"] = f"Bearer {key}"
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode(body)
        try:
            url = f"{self._base}/{path}"
            async with self._client.stream(method, url, headers=headers, content=content) as response:
                if not response.is_success:
                    raise self._refused(response, await self._read_start(response), key)
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise self._foreign(ChatError("it is compressed, although that was not asked for"))
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerError(
                f"No language model answers at {self._base} ({_reason(error)}). "
                "Start the server, or set base_url of the plugin llm.",
                "away",
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(f"The server at {self._base} broke off its answer ({_reason(error)}).", "away") from None

    async def _read(self, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for chunk in response.aiter_raw():
            size += len(chunk)
            self._bound(size)
            parts.append(chunk)
        return b"".join(parts)

    async def _read_start(self, response: httpx.Response) -> bytes:
        start = b""
        async for chunk in response.aiter_raw():
            start += chunk
            if len(start) > _MAX_ERROR:
                break
        return start[:_MAX_ERROR]

    def _bound(self, size: int) -> None:
        if size > MAX_ANSWER:
            raise ServerError(f"The answer of the server at {self._base} is longer than {MAX_ANSWER} bytes.", "request")

    @asynccontextmanager
    async def _deadline(self, timeout_s: float | None = None) -> AsyncIterator[None]:
        seconds = timeout_s or self._settings.timeout_s
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise ServerError(
                f"The language model at {self._base} did not answer within {seconds:g} s. "
                "Use a smaller model, or raise timeout_s of the plugin llm.",
                "away",
            ) from None

    def _refused(self, response: httpx.Response, body: bytes, key: str) -> ServerError:
        status = response.status_code
        try:
            detail = describe_error(msgspec.json.decode(body))
        except (msgspec.DecodeError, RecursionError):
            detail = ""
        if key:
            detail = detail.replace(key, "…")
        said = f"HTTP {status}: {detail}" if detail else f"HTTP {status}"
        where = f"The server at {self._base}"
        if status in _REFUSED:
            advice = "Set api_key_file or api_key_env of the plugin llm to the right key."
            return ServerError(f"{where} refuses the key ({said}). {advice}", "settings", status)
        if status == _NOT_FOUND:
            # It may have been the first of the list, which is another one by now.
            model, self._model = self._model, self._settings.model
            advice = "Set base_url and model of the plugin llm, or install the model on the server."
            what = f"does not know the model {model!r}, or has no chat there" if model else "has no chat there"
            return ServerError(f"{where} {what} ({said}). {advice}", "settings", status)
        if status in _UNAVAILABLE:
            return ServerError(f"{where} is not ready ({said}). Wait, or look at the server's own log.", "away", status)
        if response.is_redirect:
            advice = "Set base_url of the plugin llm to the address that it points to."
            return ServerError(f"{where} points elsewhere ({said}). {advice}", "settings", status)
        return ServerError(f"{where} did not answer ({said}).", "request", status)

    def _foreign(self, error: ChatError) -> ServerError:
        message = f"The server at {self._base} does not speak the OpenAI API ({error}). Set base_url of the plugin llm."
        return ServerError(message, "settings")

    def _broken(self, error: ChatError) -> ServerError:
        return ServerError(f"The server at {self._base} broke off its answer ({error}).", "request")


def _reason(error: Exception) -> str:
    """What went wrong, in a few words."""
    return str(error) or type(error).__name__
