"""One look into the desktop's Secret Service (GNOME Keyring, KWallet, KeePassXC) over the session bus.

Rules here: nothing is unlocked and nobody is asked: what is locked is an error. Every call has a time limit. What
arrives is in plain text on the user's own bus, which every program of the user may use as well.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from .secret import SecretError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jeepney.io.blocking import DBusConnection

CALL_SECONDS = 5.0
_NAME = "org.freedesktop.secrets"
_SERVICE = "org.freedesktop.Secret.Service"
_ITEM = "org.freedesktop.Secret.Item"
_SESSION = "org.freedesktop.Secret.Session"
_PATH = "/org/freedesktop/secrets"


def look_up(attributes: Mapping[str, str], environ: Mapping[str, str]) -> bytes:
    """Return the secret of the one item that has these attributes.

    Raises:
        SecretError: there is no bus, no such service, no such item, more than one, or it is locked.
    """
    shown = ",".join(f"{name}={value}" for name, value in attributes.items())
    with closing(_connect(environ)) as bus:
        unlocked, locked = _call(bus, _PATH, f"{_SERVICE}.SearchItems", "a{ss}", dict(attributes))
        if len(unlocked) + len(locked) > 1:
            raise SecretError(f"The Secret Service has several items with {shown}; name more of their attributes.")
        if locked:
            raise SecretError(f"The Secret Service's item with {shown} is locked. Unlock it, then start the runner.")
        if not unlocked:
            raise SecretError(f"The Secret Service has no item with {shown}.")
        _, session = _call(bus, _PATH, f"{_SERVICE}.OpenSession", "sv", "plain", ("s", ""))
        try:
            ((_, _, value, _),) = _call(bus, unlocked[0], f"{_ITEM}.GetSecret", "o", session)
        finally:
            _call(bus, session, f"{_SESSION}.Close", "")
        return bytes(value)


def _connect(environ: Mapping[str, str]) -> DBusConnection:
    try:
        from jeepney.io.blocking import open_dbus_connection  # noqa: PLC0415 - an extra
    except ImportError:
        raise SecretError(
            'A secret of the kind "secret:" needs the Python package jeepney: install the extra utter-runner[desktop].'
        ) from None
    address = environ.get("DBUS_SESSION_BUS_ADDRESS", "")
    if not address and environ.get("XDG_RUNTIME_DIR"):
        address = f"unix:path={environ['XDG_RUNTIME_DIR']}/bus"
    if not address:
        raise SecretError("There is no session bus on which the Secret Service could be: none is in the environment.")
    try:
        return open_dbus_connection(address, auth_timeout=CALL_SECONDS)
    except (OSError, RuntimeError, ValueError, StopIteration) as error:
        raise SecretError(f"The session bus, on which the Secret Service is, cannot be reached: {error}.") from None


def _call(bus: DBusConnection, path: str, method: str, signature: str, *body: Any) -> Any:
    """Call a method, by its interface and name; return the body of the reply."""
    from jeepney import DBusAddress, MessageType, new_method_call  # noqa: PLC0415 - an extra

    interface, _, member = method.rpartition(".")
    address = DBusAddress(path, bus_name=_NAME, interface=interface)
    message = new_method_call(address, member, signature or None, body)
    try:
        reply = bus.send_and_get_reply(message, timeout=CALL_SECONDS)
    except TimeoutError:
        raise SecretError(f"The Secret Service did not answer {member} within {CALL_SECONDS:g} s.") from None
    except OSError as error:
        raise SecretError(f"The session bus went away: {error}.") from None
    if reply.header.message_type is MessageType.error:
        # Its own words are not shown: they are about a secret.
        raise SecretError(f"The Secret Service refused {member}, or there is none on the session bus.")
    return reply.body
