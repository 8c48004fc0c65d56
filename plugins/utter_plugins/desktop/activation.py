"""Starts a `DBusActivatable` application over the session bus.

Rules here: one message, one reply. Source: Desktop Entry Specification 1.5, "D-Bus Activation".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .bus import BusError, SessionBus
from .failure import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jeepney import Message

# Starting the service may load the whole application before it answers.
ACTIVATE_TIMEOUT_S = 10.0
_BUS_NAME = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*(\.[A-Za-z_-][A-Za-z0-9_-]*)+")


def object_path(app: str) -> str:
    """The object path of an application: dots become slashes, dashes underscores."""
    return "/" + app.replace(".", "/").replace("-", "_")


def activate_message(app: str) -> Message:
    """`org.freedesktop.Application.Activate` with empty platform data."""
    from jeepney import DBusAddress, new_method_call  # noqa: PLC0415 - jeepney is optional

    address = DBusAddress(object_path(app), bus_name=app, interface="org.freedesktop.Application")
    return new_method_call(address, "Activate", "a{sv}", ({},))


def activate(app: str, env: Mapping[str, str]) -> str:
    """Ask an application to show itself.

    Returns:
        "" when it did, else why it did not (the caller then falls back to the entry's Exec line).
    """
    if not _BUS_NAME.fullmatch(app):
        return f"{app} is not a bus name"
    try:
        with SessionBus(env) as bus:
            bus.call(activate_message(app), ACTIVATE_TIMEOUT_S)
    except (Failure, BusError) as error:
        return str(error)
    return ""
