"""The file of tokens with which programs use the clients' socket: its place, its form, what of it is believed.

Rules here: no token is stored, only a salted hash of it; a file that somebody else could have written or read is
refused, never half used; who offers a token is compared with every entry, so that the time says nothing of which one
it is. `utter token` writes the file, the runner reads it; both come here.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import tomllib
from datetime import datetime  # noqa: TC003 - the Struct below needs it to read a file
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from utter_protocol.state import state_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_TOKENS = 64
MAX_BYTES = 64 * 1024
_SALT_BYTES = 16
_HASH_BYTES = 32

TokenName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}\Z",
        description="a token's name (1 to 64 of the characters a-z 0-9 . _ -, the first a letter or digit)",
    ),
]


class TokensError(Exception):
    """The file cannot be used; the message names it and says what to do."""


class StoredToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[token]]`.

    Attributes:
        name: what the person called it.
        created: when, with a time zone.
        salt: hexadecimal, of 16 bytes.
        hash: hexadecimal, of 32 bytes: BLAKE2b of the token, keyed with the salt. A token is 256 random bits, so there
            is nothing that a slow hash would make slower to guess.
    """

    name: TokenName
    created: Annotated[datetime, Meta(tz=True)]
    salt: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: Annotated[list[StoredToken], Meta(max_length=MAX_TOKENS)] = []


def tokens_path(environ: Mapping[str, str]) -> Path:
    """Return where the tokens lie: `tokens.toml` in the state directory."""
    return state_directory(environ) / "tokens.toml"


def store(name: str, token: str, created: datetime) -> StoredToken:
    """Return what is kept of a new token."""
    salt = os.urandom(_SALT_BYTES)
    return StoredToken(name=name, created=created, salt=salt.hex(), hash=_hash(token, salt))


def matching(tokens: Iterable[StoredToken], offered: str) -> StoredToken | None:
    """Return the entry that a token belongs to; every entry is compared, and each in constant time."""
    found = None
    for one in tokens:
        if hmac.compare_digest(_hash(offered, bytes.fromhex(one.salt)), one.hash):
            found = one
    return found


def _hash(token: str, salt: bytes) -> str:
    return hashlib.blake2b(token.encode(), key=salt, digest_size=_HASH_BYTES).hexdigest()


def parse_tokens(data: bytes, path: Path) -> list[StoredToken]:
    """Read the file's content.

    Raises:
        TokensError: it is no TOML, or not of this form.
    """
    try:
        tokens = msgspec.convert(tomllib.loads(data.decode()), type=_File).token
    except (ValueError, RecursionError) as error:
        # A ValidationError says where and what, and quotes no value.
        what = str(error) if isinstance(error, msgspec.ValidationError) else "it is no TOML in UTF-8"
        raise TokensError(f"The file of tokens {path} cannot be used: {what}. Correct it, or move it away.") from None
    names = [one.name for one in tokens]
    if len(set(names)) != len(names):
        raise TokensError(f"The file of tokens {path} has a name twice; names are unique. Correct it.")
    return tokens


def read_tokens(path: Path) -> list[StoredToken]:
    """Read the file. A file that is not there holds no tokens.

    Raises:
        TokensError: it, or its directory, is another user's or open to others, or it cannot be read.
    """
    try:
        check_directory(path.parent)
        # Without waiting: what lies there may be a FIFO.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TokensError(f"The file of tokens {path} cannot be read: {error.strerror}.") from None
    try:
        _check_file(path, os.fstat(fd))
        data = os.read(fd, MAX_BYTES + 1)
    except OSError as error:
        raise TokensError(f"The file of tokens {path} cannot be read: {error.strerror}.") from None
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise TokensError(f"The file of tokens {path} is longer than {MAX_BYTES} bytes.")
    return parse_tokens(data, path)


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokensError(f"The file of tokens {path} is not a regular file. Move it away.")
    if status.st_uid != os.getuid():
        raise TokensError(f"The file of tokens {path} belongs to uid {status.st_uid}, not to you.")
    if status.st_mode & 0o077:
        raise TokensError(
            f"The file of tokens {path} is open to other users (mode {status.st_mode & 0o7777:04o}). If none of them "
            f"could have changed it, run: chmod 600 {path}"
        )


def check_directory(directory: Path) -> None:
    """See to it that nobody else can put a file into a directory.

    Raises:
        TokensError: it is another user's, or others may write to it.
        OSError: it cannot be looked at.
    """
    status = directory.stat()
    if status.st_uid != os.getuid():
        raise TokensError(f"The directory {directory} belongs to uid {status.st_uid}, not to you.")
    if status.st_mode & 0o022:
        raise TokensError(
            f"The directory {directory} is writable by others (mode {status.st_mode & 0o7777:04o}). "
            f"Run: chmod 700 {directory}"
        )
