"""What the configuration says in place of a secret, and the secret that it stands for.

Rules here: a secret is read once, by whoever starts the daemon, and appears in no message, only its place does. The
text of a reference is no secret.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_SECRET = 4096
"""The longest secret, in bytes."""
_REFERENCE = re.compile(r"(file|env|secret):(.+)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class SecretError(Exception):
    """A secret that cannot be had. The message is a sentence that names where it was looked for, not what was found."""


def is_reference(text: str) -> bool:
    """Whether a text names a secret, "file:PATH", "env:NAME" or "secret:ATTRIBUTE=VALUE", and is none itself."""
    return _REFERENCE.fullmatch(text) is not None


def secret_file(reference: str, base: Path) -> Path | None:
    """Return the file that a reference names, or None for one of another kind; `base` is as for `find_secret`."""
    found = _REFERENCE.fullmatch(reference)
    try:
        return base / Path(found[2]).expanduser() if found and found[1] == "file" else None
    except RuntimeError:
        # There is no such user, whose home directory it could be; `find_secret` says so.
        return None


def find_secret(reference: str, environ: Mapping[str, str], base: Path) -> str:
    """Return the secret that a reference stands for.

    Args:
        reference: "file:PATH", with ~ for the home directory; "env:NAME"; or "secret:ATTRIBUTE=VALUE,...", an item of
            the desktop's Secret Service.
        environ: the variables, and where the session bus is.
        base: what a relative path counts from.

    Raises:
        SecretError: there is none.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise SecretError('A reference begins with "file:", "env:" or "secret:".')
    kind, rest = found.groups()
    if kind == "file":
        return _of_file(rest, base)
    if kind == "env":
        return _of_variable(rest, environ)
    # jeepney, which is optional, and slow to import for those who have no such secret.
    from .secret_service import look_up  # noqa: PLC0415 - see above

    return _checked(look_up(_attributes(rest), environ), "The item of the Secret Service")


def _of_file(text: str, base: Path) -> str:
    try:
        path = base / Path(text).expanduser()
        # A pipe is not waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise SecretError(f"The secret's file {path} is not a regular file.")
            if status.st_uid != os.getuid():
                raise SecretError(f"The secret's file {path} belongs to another user.")
            if status.st_mode & _OTHERS:
                raise SecretError(f"The secret's file {path} can be used by other users: run chmod 600 {path}")
            data = os.read(fd, MAX_SECRET + 3)
        finally:
            os.close(fd)
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SecretError(f"The secret's file {text} cannot be read: {why}.") from None
    return _checked(data, f"The secret's file {path}")


def _of_variable(name: str, environ: Mapping[str, str]) -> str:
    if not _NAME.fullmatch(name):
        raise SecretError('"env:" must be followed by the name of an environment variable.')
    value = environ.get(name, "")
    if not value:
        raise SecretError(f"The environment variable {name} is not set for the runner.")
    return _checked(os.fsencode(value), f"The environment variable {name}")


def _attributes(text: str) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name or name in attributes:
            raise SecretError('"secret:" must be followed by ATTRIBUTE=VALUE, or several of them joined with commas.')
        attributes[name] = value
    return attributes


def _checked(data: bytes, where: str) -> str:
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        raise SecretError(f"{where} is empty.")
    if len(line) > MAX_SECRET:
        raise SecretError(f"{where} holds more than max_secret ({MAX_SECRET}) bytes.")
    try:
        secret = line.decode()
    except UnicodeDecodeError:
        raise SecretError(f"{where} does not hold text in UTF-8.") from None
    if not secret.isprintable():
        raise SecretError(f"{where} holds more than one line, or control characters.")
    return secret
