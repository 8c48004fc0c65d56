"""The plugin as the runner sees it: a process on stdio."""

from __future__ import annotations

import os
import select
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

import utter_plugins.desktop
from support.dbus import PrivateBus, Service, mpris_player
from support.desktop import PATIENT
from utter_plugins.desktop import ops
from utter_protocol.manifest import load_manifest
from utter_sdk import RpcError
from utter_sdk.testing import PluginProcess

ARGV = [sys.executable, "-P", "-m", "utter_plugins.desktop"]
MANIFEST = Path(utter_plugins.desktop.__file__).parent / "utter-plugin.toml"
URL = "https://www.example.org/?a=1&b=$(id)"


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


class Bed:
    """A home directory with programs and applications of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {
            "HOME": str(root),
            "PATH": f"{root}/bin:/usr/bin:/bin",
            "XDG_DATA_HOME": str(root / "share"),
            "XDG_DATA_DIRS": str(root / "none"),
            "XDG_RUNTIME_DIR": str(root / "run"),
            "DBUS_SESSION_BUS_ADDRESS": "",
            "TERMINAL": "",
        }

    def program(self, name: str, body: str = "exit 0") -> Path:
        return program(self.root / "bin" / name, body)

    def app(self, app: str, lines: str) -> None:
        path = self.root / "share/applications" / f"{app}.desktop"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Desktop Entry]\nType=Application\n{lines}\n")

    def plugin(self, **settings: Any) -> PluginProcess:
        return PluginProcess(ARGV, env=self.env, settings=settings)

    def patient_plugin(self, **settings: Any) -> PluginProcess:
        """One that watches a program until it ends, however long that takes."""
        return PluginProcess(PATIENT, env=self.env, settings=settings)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def invoke(process: PluginProcess, op: str, **args: Any) -> dict[str, Any]:
    result = process.call("action.invoke", {"op": op, "args": args, "provenance": "user"})
    assert isinstance(result, dict)
    return result


def test_what_it_declares_is_what_its_manifest_says(bed: Bed) -> None:
    manifest = load_manifest(MANIFEST)
    with bed.plugin() as process:
        hello = process.hello
        listed = process.call("action.capabilities")["ops"]
        assert process.close() == 0
    assert (hello.plugin.name, hello.plugin.version, hello.plugin.kind) == (
        manifest.name,
        manifest.version,
        manifest.kind,
    )
    assert hello.provides == manifest.provides
    assert hello.permissions == manifest.permissions
    ops_listed = {f"action.{op['op']}@1" for op in listed}
    assert ops_listed | {"action.invoke@1", "media.hold@1", "context.snapshot@1", "context.live@1"} == set(
        manifest.provides
    )
    assert all(op["description"].endswith(".") and op["side_effect"] in {"local", "external"} for op in listed)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (ops.URL_SCHEMA, [{"url": "https://a/"}], [{}, {"url": ""}, {"url": 1}, {"url": "x", "more": 1}]),
        (ops.APP_SCHEMA, [{"app": "firefox"}], [{}, {"app": ""}, {"app": "x" * 256}]),
        (
            ops.MEDIA_SCHEMA,
            [{"command": "play"}, {"command": "next", "player": "vlc"}],
            [{}, {"command": "explode"}, {"command": "play", "player": ""}],
        ),
        (
            ops.VOLUME_SCHEMA,
            [{"command": "up"}, {"command": "set", "percent": 150}, {"command": "down", "percent": 2.5}],
            [{"command": "set"}, {"command": "set", "percent": 151}, {"command": "up", "percent": -1}, {"percent": 5}],
        ),
    ],
)
def test_argument_schemas(schema: dict[str, Any], right: list[Any], wrong: list[Any]) -> None:
    validator = jsonschema_rs.validator_for(schema)
    assert [args for args in right if not validator.is_valid(args)] == []
    assert [args for args in wrong if validator.is_valid(args)] == []


@pytest.mark.parametrize(
    ("settings", "right"),
    [
        ({}, True),
        ({"dry_run": True, "opener": ["firefox", "--new-tab"], "terminal": ["foot"]}, True),
        ({"terminal": []}, True),
        ({"dry_rum": True}, False),
        ({"dry_run": "yes"}, False),
        ({"opener": []}, False),
        ({"opener": "firefox"}, False),
        ({"terminal": [""]}, False),
    ],
)
def test_the_manifest_and_the_plugin_agree_on_settings(settings: dict[str, Any], *, right: bool) -> None:
    schema = load_manifest(MANIFEST).config_schema
    assert jsonschema_rs.validator_for(schema).is_valid(settings) is right
    assert set(schema["properties"]) == set(ops.Settings.__struct_fields__)
    with nullcontext() if right else pytest.raises(msgspec.ValidationError):
        msgspec.convert(settings, ops.Settings)


@pytest.mark.parametrize("op", ["open_url", "ensure_url", "action.open_url"])
def test_a_url_reaches_the_opener_as_one_argument(bed: Bed, op: str) -> None:
    out = bed.root / "out"
    opener = bed.program("my-opener", f'echo "$#|$1|$2" > {out}')
    with bed.patient_plugin(opener=[str(opener), "--new-window"]) as process:
        assert invoke(process, op, url=URL) == {"ok": True, "detail": f"Opened {URL}", "data": {}}
    assert out.read_text() == f"2|--new-window|{URL}\n"


def test_an_opener_that_fails_late_is_told_in_the_log_without_the_address(bed: Bed) -> None:
    # The answer is given after a second; a program that is released then has not ended within it.
    os.mkfifo(bed.root / "hold")
    bed.program("xdg-open", f'read line < "{bed.root}/hold"; exit 3')
    with bed.plugin() as process:
        assert invoke(process, "open_url", url=URL)["ok"]
        (bed.root / "hold").write_text("go\n")
        process.wait_stderr("said to be open: no program that opens such pages is installed")
        assert "example.org" not in process.stderr


def test_xdg_open_is_the_default_and_its_exit_codes_are_explained(bed: Bed) -> None:
    bed.program("xdg-open", "exit 3")
    with bed.patient_plugin() as process:
        result = invoke(process, "open_url", url=URL)
    assert (result["ok"], result["detail"]) == (
        False,
        (
            f"xdg-open could not open {URL}: no program that opens such pages is installed; install a browser or set "
            "the default one."
        ),
    )


def test_an_opener_that_fails_or_is_missing(bed: Bed) -> None:
    opener = bed.program("my-opener", "exit 3")
    with bed.patient_plugin(opener=[str(opener)]) as process:
        assert "it ended with exit status 3" in invoke(process, "open_url", url=URL)["detail"]
        opener.unlink()
        result = invoke(process, "open_url", url=URL)
    assert (result["ok"], result["detail"].endswith("Install xdg-utils.")) == (False, True)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "--help", "javascript:alert(1)"])
def test_other_urls_never_reach_the_opener(bed: Bed, url: str) -> None:
    out = bed.root / "out"
    opener = bed.program("my-opener", f"touch {out}")
    with bed.plugin(opener=[str(opener)]) as process:
        assert invoke(process, "open_url", url=url)["ok"] is False
    assert not out.exists()


def test_an_application_is_started_and_outlives_the_plugin(bed: Bed) -> None:
    report, hold = bed.root / "report", bed.root / "hold"
    os.mkfifo(report)
    os.mkfifo(hold)
    bed.program("game", f'echo "$$ $@" > {report}\nread line < {hold}')
    bed.app("org.example.Game", "Name=Game\nExec=game --name %c %U")
    with bed.plugin() as process:
        result = invoke(process, "launch_app", app="org.example.Game")
        assert result == {"ok": True, "detail": "Started Game", "data": {"dbus": False}}
        plugin_pid = process.pid
        assert process.close() == 0
    pid, *arguments = report.read_text().split()
    assert arguments == ["--name", "Game"]
    assert os.getsid(int(pid)) == int(pid) != plugin_pid
    pidfd = os.pidfd_open(int(pid))
    try:
        hold.write_text("go\n")
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(10_000)
    finally:
        os.close(pidfd)


def test_an_application_that_fails_at_once_is_told(bed: Bed) -> None:
    bed.program("broken", "exit 127")
    bed.app("broken", "Name=Broken\nExec=broken")
    bed.program("quick", "exit 0")
    bed.app("quick", "Name=Quick\nExec=quick")
    with bed.patient_plugin() as process:
        assert invoke(process, "launch_app", app="broken") == {
            "ok": False,
            "detail": (
                "Broken stopped right after its start: it ended with exit status 127. "
                "Run broken in a terminal to see why."
            ),
            "data": {},
        }
        assert invoke(process, "launch_app", app="quick")["ok"] is True
        assert invoke(process, "launch_app", app="gone")["detail"] == "No application gone is installed."


def test_a_terminal_application_runs_in_the_configured_terminal(bed: Bed) -> None:
    out = bed.root / "out"
    terminal = bed.program("term", f'echo "$@" > {out}')
    bed.program("top")
    bed.app("top", "Name=Top\nExec=top -x\nTerminal=true")
    with bed.patient_plugin(terminal=[str(terminal), "--"]) as process:
        assert invoke(process, "launch_app", app="top")["ok"] is True
    assert out.read_text() == "-- top -x\n"
    with bed.patient_plugin() as process:
        assert "needs a terminal window" in invoke(process, "launch_app", app="top")["detail"]


def test_a_bus_activated_application(bed: Bed, bus: PrivateBus) -> None:
    out = bed.root / "out"
    bed.program("app", f"echo run > {out}")
    bed.app("org.example.App", "Name=App\nExec=app\nDBusActivatable=true")
    bed.app("org.example.Only", "Name=Only\nDBusActivatable=true")
    bed.env["DBUS_SESSION_BUS_ADDRESS"] = bus.address
    with bed.patient_plugin() as process:
        with Service(bus.address, "org.example.App", lambda *_: ("", ())) as service:
            assert invoke(process, "launch_app", app="org.example.App")["data"] == {"dbus": True}
            assert service.calls.get()[0] == "Activate"
        assert not out.exists()
        assert invoke(process, "launch_app", app="org.example.App")["data"] == {"dbus": False}
        assert out.read_text() == "run\n"
        result = invoke(process, "launch_app", app="org.example.Only")
        assert (result["ok"], result["detail"].startswith("Only could not be started over D-Bus: ")) == (False, True)


def test_media(bed: Bed, bus: PrivateBus) -> None:
    bed.env["DBUS_SESSION_BUS_ADDRESS"] = bus.address
    with bed.patient_plugin() as process:
        with mpris_player(bus.address, "demo.instance1", status="Playing", identity="Demo"):
            assert invoke(process, "media", command="pause", player="demo") == {
                "ok": True,
                "detail": "Sent pause to Demo",
                "data": {"player": "demo.instance1", "identity": "Demo"},
            }
        result = invoke(process, "media", command="pause")
        assert (result["ok"], result["detail"]) == (False, "No media player is running. Start one and try again.")


def test_volume(bed: Bed) -> None:
    calls = bed.root / "calls"
    bed.program("wpctl", f'echo "$@" >> {calls}\n[ "$1" = get-volume ] && echo "Volume: 0.30"\nexit 0')
    with bed.plugin() as process:
        assert invoke(process, "volume", command="set", percent=30) == {
            "ok": True,
            "detail": "The volume is 30 percent",
            "data": {"percent": 30, "muted": False},
        }
        assert "needs a percentage" in invoke(process, "volume", command="set")["detail"]
    assert calls.read_text().splitlines() == [
        "set-volume --limit 1.5 @DEFAULT_AUDIO_SINK@ 30%",
        "get-volume @DEFAULT_AUDIO_SINK@",
    ]


def test_dry_run_does_nothing_and_says_what_it_would_do(bed: Bed) -> None:
    out = bed.root / "out"
    for name in ("xdg-open", "wpctl", "game"):
        bed.program(name, f"touch {out}")
    bed.app("org.example.Game", "Name=Game\nExec=game %U")
    with bed.plugin(dry_run=True) as process:
        assert invoke(process, "open_url", url=URL) == {
            "ok": True,
            "detail": f"would open {URL}",
            "data": {"dry_run": True, "argv": ["xdg-open", URL]},
        }
        launch = invoke(process, "launch_app", app="org.example.Game")
        assert (launch["detail"], launch["data"]["argv"]) == ("would start Game", ["game"])
        media = invoke(process, "media", command="next")
        assert (media["detail"], media["data"]["argv"]) == ("would skip forward in the media player", [])
        assert media["data"]["call"] == "org.mpris.MediaPlayer2.Player.Next"
        volume = invoke(process, "volume", command="toggle_mute")
        assert (volume["detail"], volume["data"]["argv"][-1]) == ("would change the volume: toggle mute", "toggle")
        assert invoke(process, "open_url", url="file:///")["ok"] is False
        assert invoke(process, "launch_app", app="gone")["ok"] is False
        assert invoke(process, "volume", command="set", percent=200)["ok"] is False
    assert not out.exists()


@pytest.mark.parametrize(
    ("op", "args", "field"),
    [
        ("open_url", {}, "url"),
        ("open_url", {"url": 3}, "url"),
        ("launch_app", {"app": "a", "as_root": True}, "as_root"),
        ("media", {"command": "explode"}, "command"),
        ("volume", {"command": "set", "percent": "loud"}, "percent"),
    ],
)
def test_arguments_of_the_wrong_shape_are_invalid_params(bed: Bed, op: str, args: dict[str, Any], field: str) -> None:
    with bed.plugin(dry_run=True) as process, pytest.raises(RpcError) as caught:
        invoke(process, op, **args)
    assert caught.value.code == -32602
    assert field in str(caught.value.data)


@pytest.mark.parametrize(
    ("settings", "field"), [({"dry_rum": True}, "dry_rum"), ({"opener": []}, "opener"), ({"dry_run": "yes"}, "dry_run")]
)
def test_wrong_settings_stop_every_op(bed: Bed, settings: dict[str, Any], field: str) -> None:
    bed.program("xdg-open", f"touch {bed.root}/out")
    with bed.plugin(**settings) as process:
        health = process.call("plugin.health")
        assert (health["status"], field in health["detail"]) == ("degraded", True)
        with pytest.raises(RpcError) as caught:
            invoke(process, "open_url", url=URL)
    assert caught.value.code == -32000
    assert not (bed.root / "out").exists()
