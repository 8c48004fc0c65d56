"""Runs the body of a command and turns whatever ends it into a sentence on stderr and an exit code.

Rules here: no traceback for what a user can cause; with `--json` an error is a document on stdout as well; a reader
that went away (`| head`) is no error to talk about.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from utter_protocol.errors import RpcError
from utter_runner.cli.connection import UsageError
from utter_runner.cli.exits import Exit, of_error
from utter_runner.cli.interrupts import heeding_signals
from utter_runner.cli.text import document, harmless
from utter_runner.operate.errors import OperateError, Untrusted
from utter_sdk.client import RunnerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def guard(body: Callable[[], Exit], *, as_json: bool) -> int:
    """Run `body` and return the exit code."""
    with suppress(AttributeError):
        # Terminals that know ASCII only still get every word, escaped, instead of a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # what is no TextIOWrapper has none
    try:
        with heeding_signals():
            code = _run(body, as_json=as_json)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return Exit.BROKEN_PIPE
    except OSError as error:
        _forget_output()
        say(f"The output cannot be written: {error.strerror or error}.")
        return Exit.FAILED
    return code


def _forget_output() -> None:
    """Send what is left in the buffer nowhere: at exit Python would write it, fail again, and say so."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _run(body: Callable[[], Exit], *, as_json: bool) -> Exit:
    try:
        return body()
    except (UsageError, OperateError) as error:
        blocked = isinstance(error, Untrusted)
        code, kind = (Exit.BLOCKED, "untrusted") if blocked else (Exit.USAGE, "usage")
        return _fail(code, kind, str(error), as_json=as_json)
    except UnicodeEncodeError:
        return _fail(Exit.USAGE, "usage", "An argument is not text in UTF-8.", as_json=as_json)
    except RunnerUnavailable as error:
        return _fail(Exit.UNAVAILABLE, "unavailable", f"The runner is not available: {error}", as_json=as_json)
    except TimeoutError as error:
        return _fail(
            Exit.UNAVAILABLE,
            "timeout",
            f"The runner did not answer: {error}. `utter status` shows what it is doing.",
            as_json=as_json,
        )
    except RpcError as error:
        more = {"code": error.code, "data": error.data}
        return _fail(of_error(error.code), "rpc", error.message, as_json=as_json, more=more)


def _fail(code: Exit, kind: str, message: str, *, as_json: bool, more: dict[str, Any] | None = None) -> Exit:
    if as_json:
        print(document({"error": {"kind": kind, "message": message, **(more or {})}}))
    say(message)
    return code


def say(message: str) -> None:
    """Write one sentence to stderr."""
    with suppress(BrokenPipeError):
        print(f"utter: {harmless(message)}", file=sys.stderr, flush=True)


def written(body: Callable[[], _T]) -> _T:
    """What `body` returns; what the file system refuses is an error with the path that it is about."""
    try:
        return body()
    except OSError as error:
        place = f" {error.filename}" if error.filename else ""
        raise OperateError(f"Files cannot be read or written:{place}: {error.strerror or error}.") from None
