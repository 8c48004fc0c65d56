"""What the rules of a plugin are, by its permissions and paths."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from utter_protocol.manifest import PERMISSIONS
from utter_runner.supervision.sandbox.permissions import Rules, code_paths, rules_for, session_bus, visible_to
from utter_runner.supervision.spec import PluginSpec


class Home:
    """A user's directories, with everything in them that a permission is about."""

    def __init__(self, root: Path) -> None:
        self.home, self.runtime, self.tmp = root / "home", root / "run", root / "tmp"
        for one in (self.home, self.runtime, self.tmp, self.runtime / "pulse"):
            one.mkdir(parents=True)
        for name in ("bus", "pipewire-0", "pipewire-0-manager", "wayland-1", "utter.sock", "wayland-1.lock"):
            (self.runtime / name).touch()
        self.environ = {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.runtime)}

    def rules(self, *permissions: str, **fields: Any) -> Rules:
        spec = PluginSpec(id="x", argv=("/usr/bin/true",), permissions=permissions, **fields)
        return rules_for(spec, "/usr/bin/true", self.environ, str(self.tmp))


@pytest.fixture
def user(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_without_a_permission_there_is_nothing_of_the_users(user: Home) -> None:
    rules = user.rules()
    assert not any((rules.network, rules.spawn, rules.screen, rules.abstract, rules.sockets, rules.devices))
    assert rules.write == (str(user.tmp),)
    assert {str(user.home), str(user.runtime), "/tmp"} <= set(rules.private)  # noqa: S108 - a private one
    for path in (user.home, user.runtime / "bus", Path("/etc/shadow"), Path("/root"), Path("/var/lib"), Path("/run")):
        assert not visible_to(str(path), rules), path
    for path in ("/usr/bin/env", "/etc/passwd", sys.prefix):
        assert visible_to(path, rules), path


def test_files(user: Home) -> None:
    reading, writing = user.rules("files.read"), user.rules("files.write")
    assert str(user.home) in reading.read
    assert reading.write == (str(user.tmp),)
    assert str(user.home) in writing.write


def test_paths_of_the_configuration_need_no_permission(user: Home) -> None:
    for name in ("in", "out"):
        (user.home / name).mkdir()
    rules = user.rules(read_paths=(f"{user.home}/in", f"{user.home}/none"), write_paths=(f"{user.home}/out",))
    assert f"{user.home}/in" in rules.read
    assert f"{user.home}/none" not in rules.read
    assert rules.write == (str(user.tmp), f"{user.home}/out")


@pytest.mark.parametrize(
    ("permission", "names"),
    [
        ("session.bus", ["bus"]),
        ("microphone", ["pipewire-0", "pipewire-0-manager", "pulse"]),
        ("screen", ["wayland-1"]),
    ],
)
def test_sockets(user: Home, permission: str, names: list[str]) -> None:
    found = [one for one in user.rules(permission).sockets if one.startswith(str(user.runtime))]
    assert found == [f"{user.runtime}/{name}" for name in names]


@pytest.mark.parametrize(
    ("address", "paths"),
    [
        ("", ["/run/u/bus"]),
        ("unix:path=/a/bus", ["/a/bus"]),
        ("unix:path=/a/bus,guid=01", ["/a/bus"]),
        ("tcp:host=x;unix:guid=1,path=/b", ["/b"]),
        ("unix:abstract=/tmp/x", ["/run/u/bus"]),
    ],
)
def test_where_the_session_bus_is(address: str, paths: list[str]) -> None:
    assert session_bus({"XDG_RUNTIME_DIR": "/run/u", "DBUS_SESSION_BUS_ADDRESS": address}) == paths


def test_abstract_sockets_are_for_a_bus_that_has_no_other(user: Home) -> None:
    assert not user.rules(*PERMISSIONS).abstract
    user.environ["DBUS_SESSION_BUS_ADDRESS"] = "unix:abstract=/tmp/dbus-x"
    assert user.rules("session.bus").abstract
    assert not user.rules("screen", "network").abstract


def test_a_socket_of_its_own(user: Home) -> None:
    path = user.runtime / "utter.sock"
    assert str(path) in user.rules(transport="connect", socket_path=str(path)).sockets
    assert str(user.runtime) in user.rules(transport="listen", socket_path=str(path)).write


def test_its_package_is_there_and_a_home_directory_never_is_one(user: Home) -> None:
    package = user.home / "plugins" / "x"
    package.mkdir(parents=True)
    assert str(package) in user.rules(package=str(package)).read
    for above in (user.home, user.home.parent, Path("/")):
        assert str(above) not in user.rules(package=str(above), cwd=str(above)).read


def test_code_that_lies_around_the_home_directory_gives_nothing_away(
    user: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(user.home), str(user.home.parent), "", "/"])
    code_paths.cache_clear()
    try:
        found = code_paths(str(user.home))
    finally:
        code_paths.cache_clear()
    assert not {str(user.home), str(user.home.parent), "", "/", "."} & set(found)
    assert sys.prefix in found


def test_an_unknown_permission_gives_nothing(user: Home) -> None:
    assert user.rules("root", "files.*", "everything") == user.rules()


def test_every_permission_makes_a_difference(user: Home) -> None:
    for name in PERMISSIONS.keys() - {"gpu", "input.inject"}:
        assert user.rules(name) != user.rules(), name


@pytest.mark.parametrize("name", ["HOME", "XDG_RUNTIME_DIR"])
@pytest.mark.parametrize("value", ["", "/", "relative"])
def test_a_variable_that_names_no_directory_of_the_users(user: Home, name: str, value: str) -> None:
    user.environ[name] = value
    rules = user.rules(*PERMISSIONS)
    assert not {"/", "", "relative"} & {*rules.private, *rules.read, *rules.write, *rules.sockets}
