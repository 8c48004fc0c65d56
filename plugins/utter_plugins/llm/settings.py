"""The plugin's settings: where the server is, which model, how long it may take, and where its key is.

Rules here: an address is checked once, at the start; the key is read anew for each request, so that a new one counts
without a restart, and appears in no message.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"
MAX_KEY = 4096
"""The longest key, in bytes."""
OWN_FIELDS = frozenset({"messages", "model", "stream", "stream_options", "logprobs", "top_logprobs", "n", "tools"})
"""What `request` cannot set: the plugin does, or could not read the answer."""


class SettingsError(ValueError):
    """A setting that cannot be used. The text names it and says what is allowed."""


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The plugin's table in the runner's config.

    Attributes:
        base_url: where the API begins, http or https.
        model: the model's name for the server; empty: the first that the server lists.
        api_key: the key itself, which the runner has put in place of a reference to it.
        api_key_file: a file that holds the key, for servers that want one.
        api_key_env: the environment variable that holds it instead.
        timeout_s: how long an answer may take as a whole, and of a stream each piece.
        temperature: how freely the model writes, unless a request says so; choosing is always at 0.
        max_tokens: how much it writes at most, unless a request says so.
        request: further fields of each request, for what only one kind of server knows.
    """

    base_url: Annotated[str, Meta(min_length=1, max_length=2048)] = DEFAULT_BASE_URL
    model: Annotated[str, Meta(max_length=256)] = ""
    api_key: Annotated[str, Meta(max_length=MAX_KEY)] = ""
    api_key_file: Annotated[str, Meta(max_length=4096)] = ""
    api_key_env: Annotated[str, Meta(pattern=r"^(?:[A-Za-z_][A-Za-z0-9_]*)?\Z")] = ""
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 30.0
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.2
    max_tokens: Annotated[int, Meta(ge=1, le=131_072)] = 1024
    request: dict[str, Any] = {}

    def check(self) -> None:
        """Check what the types do not say.

        Raises:
            SettingsError: naming the setting.
        """
        check_url(self.base_url)
        if sum(map(bool, (self.api_key, self.api_key_file, self.api_key_env))) > 1:
            raise SettingsError("api_key, api_key_file and api_key_env: give one of them, not both")
        if taken := sorted(OWN_FIELDS.intersection(self.request)):
            raise SettingsError(f"request: {taken[0]} is what the plugin itself sets")

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "api_key"}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def check_url(url: str) -> None:
    """Check an address of a server.

    Raises:
        SettingsError: it is none, or holds what would be sent along without being asked for.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"base_url: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise SettingsError("base_url: it must begin with http:// or https://")
    if not parts.hostname or port == 0 or not url.isprintable() or " " in url:
        raise SettingsError("base_url: it names no host")
    if parts.username is not None or parts.password is not None:
        raise SettingsError("base_url: it must not hold a user or a password; use api_key, api_key_file or api_key_env")
    if parts.query or parts.fragment:
        raise SettingsError("base_url: it must not hold a query or a fragment (? or #)")


def is_local(url: str) -> bool:
    """Whether an address is this machine's own, so that nobody on the way can read along."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def read_key(settings: Settings, env: Mapping[str, str]) -> str:
    """The key for the server, or an empty text when the settings name none.

    Raises:
        SettingsError: it cannot be read, or is no key. The text says where it was looked for, not what was found.
    """
    if settings.api_key:
        where, key = "api_key", settings.api_key
    elif settings.api_key_env:
        where = f"api_key_env: the variable {settings.api_key_env}"
        key = env.get(settings.api_key_env, "").strip()
        if not key:
            raise SettingsError(f"{where} is not set for the plugin; name it in pass_env of the plugin llm")
    elif settings.api_key_file:
        where = f"api_key_file: {settings.api_key_file}"
        key = _read(Path(settings.api_key_file), where)
    else:
        return ""
    if len(key) > MAX_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise SettingsError(f"{where} holds no key: one line of ASCII without spaces, at most {MAX_KEY} bytes")
    return key


def _read(path: Path, where: str) -> str:
    try:
        path = path.expanduser()
        with path.open("rb") as file:
            data = file.read(MAX_KEY + 2)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(f"{where} cannot be read: {reason}") from None
    key = data.decode("utf-8", "replace").strip()
    if not key:
        raise SettingsError(f"{where} is empty")
    return key
