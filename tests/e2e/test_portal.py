"""From the desktop's shortcut to a spoken session: a real session bus, the real daemon, a portal that is a mock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import pytest

from support.audio import write_wav
from support.daemon import Daemon, environment
from support.dbus import PrivateBus
from support.portal import MockPortal
from utter_runner.config.desktop_entry import APP_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from utter_sdk.client import Client

# Hears how much there was to hear.
EAR = """
from utter_sdk import Plugin

plugin = Plugin("ear", version="1.0.0", kind="bundle", provides=["stt.transcribe@1", "router.plan@1"])
fed = []
plugin.method("stt.start")(lambda params: fed.clear() or {})
plugin.method("stt.cancel")(lambda params: {})
plugin.notification("stt.feed")(lambda params: fed.append(params))
plugin.method("stt.finish")(lambda params: {"text": "heard something" if fed else ""})
plugin.method("router.plan")(lambda params: {"steps": [], "score": 0.0})
plugin.run()
"""
_UTTER = "import sys; from utter_runner.cli import main; sys.exit(main())"
CONFIG = """
[audio]
source = "wav"
wav_path = '{wav}'
cues = false
[voice]
tap_ms = 0
[hotkeys]
push_to_talk = "CTRL+ALT+SPACE"
devices = ["no such keyboard"]
portal = "{portal}"
[[plugin]]
id = "ear"
entrypoint = ['{python}', '{ear}']
"""


class House:
    """A daemon on a bus, and its events."""

    def __init__(self, tmp_path: Path, bus: PrivateBus, portal: str = "auto") -> None:
        ear = tmp_path / "ear.py"
        ear.write_text(EAR)
        wav = write_wav(tmp_path / "speech.wav", [0.1, -0.1] * 160_000)
        config = CONFIG.format(wav=wav, portal=portal, python=sys.executable, ear=ear)
        (tmp_path / "run").mkdir(mode=0o700)
        env = environment(tmp_path / "run", DBUS_SESSION_BUS_ADDRESS=bus.address, XDG_DATA_HOME=str(tmp_path / "data"))
        self.daemon = Daemon(tmp_path, config, env=env, quiet=False)
        self.client: Client
        self.events: Any

    def __enter__(self) -> Self:
        self.daemon.__enter__()
        self.client = self.daemon.client()
        self.events = self.client.subscribe("runner.events")
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.daemon.__exit__(*error)

    def next(self, name: str) -> dict[str, Any]:
        while (event := self.events.get(60))["event"] != name:
            pass
        return dict(event)

    def hotkeys(self) -> dict[str, Any]:
        return dict(self.client.call("runner.status", {}, timeout=30)["hotkeys"])

    def wait_portal(self, state: str) -> None:
        if self.hotkeys()["portal"]["state"] == state:
            return
        while self.next("hotkeys")["portal"]["state"] != state:
            pass

    def utter(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", _UTTER, *arguments, "--socket", str(self.daemon.socket)]
        return subprocess.run(argv, env=self.daemon.env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    (tmp_path / "bus").mkdir()
    with PrivateBus(tmp_path / "bus") as started:
        yield started


@pytest.mark.parametrize("version", [1, 2])
def test_a_shortcut_of_the_desktop_is_the_key(tmp_path: Path, bus: PrivateBus, version: int) -> None:
    with MockPortal(bus.address, version=version) as portal, House(tmp_path, bus) as house:
        house.wait_portal("bound")
        for _ in range(2):
            portal.press()
            while house.next("session")["state"] != "listening":
                pass
            portal.release()
            report = house.next("report")["report"]
            assert (report["outcome"], report["heard"]) == ("not_understood", "heard something"), report
        hotkeys = house.hotkeys()
        assert (hotkeys["available"], hotkeys["path"], hotkeys["devices"]) == (True, "portal", [])
        assert hotkeys["portal"]["triggers"]["push_to_talk"] == "CTRL+ALT+space"
        assert 0 <= hotkeys["seen"]["portal"] < 60
        assert hotkeys["seen"]["evdev"] is hotkeys["seen"]["ptt"] is None
        shown = house.utter("status").stdout
        assert "shortcuts of the desktop (push_to_talk CTRL+ALT+space" in " ".join(shown.split())
        # A compositor's binding works beside it.
        assert house.utter("ptt", "cancel").returncode == 0
        assert house.hotkeys()["seen"]["ptt"] is not None
        # Cancelling over the portal.
        portal.press()
        while house.next("session")["state"] != "listening":
            pass
        portal.press("cancel")
        assert house.next("report")["report"]["outcome"] == "cancelled"


def test_a_portal_that_goes_while_the_key_is_held_ends_the_session(tmp_path: Path, bus: PrivateBus) -> None:
    with House(tmp_path, bus) as house:
        house.wait_portal("absent")
        for _ in range(2):
            with MockPortal(bus.address) as portal:
                house.wait_portal("bound")
                portal.press()
                while house.next("session")["state"] != "listening":
                    pass
            assert house.next("report")["report"]["heard"] == "heard something"


def test_a_dismissed_dialog_is_shown_again_by_utter_hotkeys_bind(tmp_path: Path, bus: PrivateBus) -> None:
    with MockPortal(bus.address, response=1) as portal, House(tmp_path, bus) as house:
        house.wait_portal("dismissed")
        assert "utter hotkeys bind" in house.hotkeys()["detail"]
        portal.response = 0
        done = house.utter("hotkeys", "bind", "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["asked"]) == (0, True), done
        assert os.path.basename(answer["installed"]) == f"{APP_ID}.desktop"  # noqa: PTH119 - a text in an answer
        house.wait_portal("bound")
        assert len(portal.shortcuts) == 2


def test_switched_off_it_is_not_asked(tmp_path: Path, bus: PrivateBus) -> None:
    with MockPortal(bus.address) as portal, House(tmp_path, bus, portal="off") as house:
        done = house.utter("hotkeys", "bind")
        assert done.returncode == 4
        assert 'set [hotkeys] portal to "auto" or "always"' in done.stderr
        assert house.hotkeys()["path"] == "none"
        assert portal.asked == []
