"""The file of tokens as `utter token` changes it.

Rules here: one command at a time holds the lock beside the file; the file is replaced as a whole, with mode 0600 from
its first moment, or not at all. A token is returned once and never stored. Problems are `UsageError`s.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import tomli_w

from utter_runner.cli.connection import UsageError
from utter_runner.config.tokens import (
    MAX_TOKENS,
    StoredToken,
    TokenName,
    TokensError,
    check_directory,
    read_tokens,
    store,
    tokens_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TOKEN_BYTES = 32
_HEAD = "# Hashes of the tokens that `utter token new` has made. `utter token revoke NAME` removes one.\n"


class NewToken(NamedTuple):
    """A token that was just made: its name, itself, and when as ISO 8601."""

    name: str
    token: str
    created: str


def create(name: str | None) -> NewToken:
    """Make a token and store its hash; without a name it gets the first free one of `token-1`, `token-2`..."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with _tokens() as tokens:
        chosen = _new_name(name, tokens)
        if len(tokens) >= MAX_TOKENS:
            raise UsageError(f"There are {MAX_TOKENS} tokens, which is the limit (max_tokens). Revoke one first.")
        made = store(chosen, token, datetime.now(UTC).replace(microsecond=0))
        tokens.append(made)
    return NewToken(made.name, token, made.created.isoformat())


def stored() -> tuple[str, list[StoredToken]]:
    """Return the file's path and what it holds."""
    path = tokens_path(os.environ)
    try:
        return str(path), read_tokens(path)
    except TokensError as error:
        raise UsageError(str(error)) from None


def remove(name: str) -> None:
    """Forget a token."""
    with _tokens() as tokens:
        left = [one for one in tokens if one.name != name]
        if len(left) == len(tokens):
            known = ", ".join(one.name for one in tokens) or "none"
            raise UsageError(f"There is no token {name!r}. There are: {known}.")
        tokens[:] = left


def _new_name(name: str | None, tokens: list[StoredToken]) -> str:
    taken = {one.name for one in tokens}
    if name is None:
        return next(free for free in (f"token-{number}" for number in count(1)) if free not in taken)
    try:
        msgspec.convert(name, TokenName)
    except msgspec.ValidationError:
        raise UsageError(
            f"{name!r} is no name for a token: 1 to 64 of the characters a-z 0-9 . _ -, the first a letter or digit."
        ) from None
    if name in taken:
        raise UsageError(f"There is a token {name} already. Revoke it first, or choose another name.")
    return name


@contextmanager
def _tokens() -> Iterator[list[StoredToken]]:
    """Give the tokens to be changed, and store what they are then. Raises UsageError."""
    path = tokens_path(os.environ)
    try:
        with _locked(path):
            tokens = read_tokens(path)
            yield tokens
            _write(path, tokens)
    except TokensError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"The file of tokens {path} cannot be written: {error.strerror}.") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_directory(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path.with_name(path.name + ".lock"), flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(path: Path, tokens: list[StoredToken]) -> None:
    table: dict[str, Any] = {"token": [msgspec.structs.asdict(one) for one in tokens]}
    data = (_HEAD + tomli_w.dumps(table)).encode()
    new = path.with_name(path.name + ".new")
    # What a command left that was killed; the lock is ours.
    with suppress(FileNotFoundError):
        new.unlink()
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: PTH123 - the mode is to be right from the first moment
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
