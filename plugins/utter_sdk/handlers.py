"""A plugin's function as the server calls it: what it takes, where it runs, what its errors become on the wire.

Rules here: annotations are resolved once, before the first frame is read, so that a mistake in one is seen at start;
invalid input is -32602 and names the field; whatever else goes wrong in a plugin's code is -32603 with the exception's
type and message, never its traceback.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from utter_protocol.errors import ErrorCode, RpcError, invalid_field
from utter_protocol.methods import ActionResult
from utter_sdk.stdio import log

if TYPE_CHECKING:
    from collections.abc import Callable


_encode = msgspec.json.Encoder().encode


def encode_result(result: Any) -> bytes:
    """Return a method's result as JSON; None as `{}`."""
    return b"{}" if result is None else _encode(result)


def encode_action(result: ActionResult | str) -> bytes:
    """Return an op's result as JSON; a sentence means success.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(result, str):
        result = ActionResult(ok=True, detail=result)
    if not isinstance(result, ActionResult):
        raise TypeError(f"an action returns an ActionResult or a str, not {type(result).__name__}")
    return _encode(result)


class Cancelled(Exception):
    """Raised by a handler that gives up because `Plugin.cancelled()` is true; answered as -32002."""


class Handler:
    """One function of a plugin.

    Args:
        name: the method, notification or op that it serves, for messages.
        function: takes nothing, or one argument whose annotation says what to decode the params into
            (none, or `dict`: any JSON object).
        lane: the worker thread that it runs on; None: the reading thread, or the asyncio loop for an `async def`.
        encode: turns what it returns into JSON.
        takes: how many arguments it is called with, the params first; 1 means none or one.

    Raises:
        TypeError: the function takes other arguments, or is `async def` and has a lane.
    """

    __slots__ = ("_convert_to", "_decode", "encode", "function", "is_async", "lane", "name", "parameter")

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        lane: str | None,
        encode: Callable[[Any], bytes] = encode_result,
        takes: int = 1,
    ) -> None:
        self.name = name
        self.function = function
        self.lane = lane
        self.encode = encode
        self.is_async = inspect.iscoroutinefunction(function)
        self._convert_to: Any = None
        self._decode: Callable[[bytes | msgspec.Raw], Any] | None = None
        if self.is_async and lane is not None:
            raise TypeError(f"{name}: an `async def` handler runs on the asyncio loop; it cannot be blocking")
        parameters = list(inspect.signature(function).parameters.values())
        wrong = len(parameters) > 1 if takes == 1 else len(parameters) != takes
        if wrong or any(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters):
            wanted = "no argument or one (the params)" if takes == 1 else "two arguments (the params and the stream)"
            raise TypeError(f"{name}: a handler takes {wanted}, not {len(parameters)}")
        self.parameter = parameters[0].name if parameters else None

    def prepare(self) -> None:
        """Resolve the annotation of the argument.

        Raises:
            TypeError: it cannot be resolved at run time, or names a type that msgspec cannot decode.
        """
        if self.parameter is None:
            return
        try:
            wanted = get_type_hints(self.function).get(self.parameter, dict)
            self._decode = msgspec.json.Decoder(wanted).decode
        except NameError as error:
            raise TypeError(
                f"{self.name}: an annotation of {self.function.__qualname__}() is unknown at run time ({error}); "
                "import it at module level, outside `if TYPE_CHECKING`"
            ) from None
        except TypeError as error:
            raise TypeError(f"{self.name}: the params of {self.function.__qualname__}(): {error}") from None
        self._convert_to = wanted

    def decode(self, raw: bytes | msgspec.Raw, prefix: str = "") -> tuple[Any, ...]:
        """Return the positional arguments for a call with the JSON `raw`, found in the params' `prefix`.

        Raises:
            RpcError: -32602, naming the field.
        """
        if self._decode is None:
            return ()
        try:
            return (self._decode(raw),)
        except msgspec.ValidationError as error:
            raise invalid_params(self.name, error, prefix) from None

    def convert(self, value: Any, prefix: str) -> tuple[Any, ...]:
        """Return the positional arguments for a call with an already decoded `value`, found in the params' `prefix`.

        Raises:
            RpcError: -32602, naming the field.
        """
        if self._convert_to is None:
            return ()
        try:
            return (msgspec.convert(value, self._convert_to),)
        except msgspec.ValidationError as error:
            raise invalid_params(self.name, error, prefix) from None


def invalid_params(name: str, error: msgspec.ValidationError, prefix: str = "") -> RpcError:
    """Return -32602 for what msgspec found; `data.field` is the dotted path, empty for the params as a whole."""
    what, field = invalid_field(error)
    field = ".".join(part for part in (prefix, field) if part)
    where = f" (in {field})" if field else ""
    return RpcError(ErrorCode.INVALID_PARAMS, f"{name}: {what}{where}", {"field": field})


def describe(error: BaseException) -> str:
    """Return an exception as "Type: message", whatever its `__str__` does, in text that UTF-8 can carry."""
    kind = type(error).__name__
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception's __str__ is a plugin's code and may raise anything
        message = "(its message cannot be shown)"
    text = f"{kind}: {message}" if message else kind
    return text.encode("utf-8", "backslashreplace").decode()


def wire_error(error: BaseException) -> RpcError:
    """Return what a handler's exception is answered as."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, Cancelled):
        return RpcError(ErrorCode.CANCELLED, "the request was cancelled")
    return RpcError(ErrorCode.INTERNAL_ERROR, describe(error), {"exception": type(error).__name__})


def log_traceback(error: BaseException) -> None:
    """Write an exception with its traceback to stderr."""
    import traceback  # noqa: PLC0415 - a plugin that makes no mistake does not pay for the import

    log("".join(traceback.format_exception(error)))
