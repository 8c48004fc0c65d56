from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.dbus import Service
from utter_plugins.desktop.activation import activate, object_path

if TYPE_CHECKING:
    from support.dbus import PrivateBus


@pytest.mark.parametrize(
    ("app", "path"),
    [("org.example.App", "/org/example/App"), ("org.example.my-app", "/org/example/my_app")],
)
def test_object_path(app: str, path: str) -> None:
    assert object_path(app) == path


def test_activates(bus: PrivateBus) -> None:
    with Service(bus.address, "org.example.App", lambda *_: ("", ())) as service:
        assert activate("org.example.App", {"DBUS_SESSION_BUS_ADDRESS": bus.address}) == ""
        assert service.calls.get() == ("Activate", ({},))


def test_says_why_not(bus: PrivateBus) -> None:
    env = {"DBUS_SESSION_BUS_ADDRESS": bus.address}
    with Service(bus.address, "org.example.App", lambda *_: "org.example.Refused"):
        assert activate("org.example.App", env) == "refused for the test"
    assert "org.example.Gone" in activate("org.example.Gone", env)
    assert activate("firefox", env) == "firefox is not a bus name"
    assert "There is no session bus" in activate("org.example.App", {})
