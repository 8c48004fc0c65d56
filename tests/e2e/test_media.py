"""Players on a real session bus, the real daemon and the real desktop plugin: quiet while somebody speaks."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import utter_plugins.desktop
from support.audio import write_wav
from support.daemon import Daemon
from support.dbus import MediaPlayer, PrivateBus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_sdk.client import Client

# Hears what the test has written down, and does with the player whatever it heard.
EAR = """
import sys
from pathlib import Path

from utter_sdk import Plugin

SAID = Path(sys.argv[1])
plugin = Plugin("ear", version="1.0.0", kind="bundle", provides=["stt.transcribe@1", "router.plan@1"])
for name in ("stt.start", "stt.cancel"):
    plugin.method(name)(lambda params: {})
plugin.notification("stt.feed")(lambda params: None)
plugin.method("stt.finish")(lambda params: {"text": SAID.read_text()})


@plugin.method("router.plan")
def plan(params: dict):
    step = {"op": "media", "args": {"command": params["utterance"]}, "provenance": "user"}
    return {"steps": [step], "score": 1.0}


plugin.run()
"""

# The players are threads of this process, which on a busy machine answer later than those of a person would. Whatever
# the plugin waits for, the runner waits longer.
RUNNER = """
import sys
from utter_runner.voice import media

media.CALL_SECONDS = 60.0
from utter_runner.main import main

sys.exit(main())
"""
DESKTOP = """
from utter_plugins.desktop import holding, ops

holding.HOLD_S = {hold_s}
ops.build().run()
"""
MANIFEST = Path(utter_plugins.desktop.__file__).with_name("utter-plugin.toml")


class House:
    """A daemon with a microphone, an ear and the desktop, in which players have `hold_s` to answer."""

    def __init__(self, tmp_path: Path, bus: PrivateBus, voice: str = "", *, hold_s: float = 15.0) -> None:
        self.bus = bus
        self.said = tmp_path / "said"
        (tmp_path / "ear.py").write_text(EAR)
        (tmp_path / "desktop.py").write_text(DESKTOP.format(hold_s=hold_s))
        wav = write_wav(tmp_path / "silence.wav", [0.0] * 16_000)
        words = ", ".join(f"'{word}'" for word in (sys.executable, tmp_path / "ear.py", self.said))
        self.daemon = Daemon(
            tmp_path,
            f"""
[audio]
source = "wav"
wav_path = '{wav}'
cues = false
[hotkeys]
enabled = false
[voice]
{voice}
[[plugin]]
id = "ear"
entrypoint = [{words}]
[[plugin]]
id = "desktop"
manifest = '{MANIFEST}'
entrypoint = ['{sys.executable}', '-P', '{tmp_path / "desktop.py"}']
env = {{ DBUS_SESSION_BUS_ADDRESS = "{bus.address}" }}
""",
            quiet=False,
            program=("-c", RUNNER),
        )
        self.client: Client
        self.events: Any = None

    def player(self, name: str, status: str = "Playing", **more: Any) -> MediaPlayer:
        return MediaPlayer(self.bus.address, name, status, **more)

    def press(self) -> None:
        assert self.client.call("ptt.press", {}, timeout=30)["session"]

    def release(self, said: str = "") -> dict[str, Any]:
        """Let go of the key; return the report."""
        self.said.write_text(said)
        self.client.call("ptt.release", {}, timeout=30)
        return self.report()

    def report(self) -> dict[str, Any]:
        return dict(self.next("report")["report"])

    def next(self, name: str) -> dict[str, Any]:
        while (event := self.events.get(60))["event"] != name:
            pass
        return dict(event)

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.daemon, self.daemon.client() as self.client, self.client.subscribe("runner.events") as self.events:
            yield


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    (tmp_path / "bus").mkdir()
    with PrivateBus(tmp_path / "bus") as started:
        yield started


def test_what_plays_is_quiet_while_somebody_speaks_and_is_found_as_it_was(tmp_path: Path, bus: PrivateBus) -> None:
    house = House(tmp_path, bus)
    with house.running():
        for said, commands, status in (
            ("", [], "Playing"),
            ("pause", ["Pause"], "Paused"),
            ("next", ["Next"], "Playing"),
            ("toggle", ["PlayPause"], "Paused"),
            ("play", ["Play"], "Playing"),
        ):
            with house.player("demo") as player:
                house.press()
                player.wait("Paused")
                report = house.release(said)
                assert report["outcome"] == ("done" if said else "nothing_heard"), report
                player.wait(status)
                assert player.commands == ["Pause", "Play", *commands]
        # Given up, it plays again all the same.
        with house.player("demo") as player:
            house.press()
            player.wait("Paused")
            house.client.call("ptt.cancel", {}, timeout=30)
            player.wait("Playing")


def test_players_that_go_their_own_way(tmp_path: Path, bus: PrivateBus) -> None:
    # The one that hangs costs so much, and no more.
    house = House(tmp_path, bus, hold_s=4.0)
    with (
        house.player("alike") as alike,
        house.player("stopped") as stopped,
        house.player("played") as played,
        house.player("radio", can={"CanPause": False}) as radio,
        house.player("hung", silent=True) as hung,
        house.running(),
    ):
        with house.player("leaves") as leaves:
            house.press()
            for player in (alike, stopped, played, leaves):
                player.wait("Paused")
        stopped.press("Stopped")
        played.press("Playing", "Paused")
        assert house.release()["outcome"] == "nothing_heard"
        alike.wait("Playing")
    assert [one.commands for one in (stopped, played, radio, hung)] == [["Pause"], ["Pause"], [], []]
    assert [one.status for one in (stopped, played, radio)] == ["Stopped", "Paused", "Playing"]


def test_a_plugin_that_dies_leaves_them_paused_and_the_user_is_told(tmp_path: Path, bus: PrivateBus) -> None:
    house = House(tmp_path, bus)
    with house.player("demo", identity="Demo") as player, house.running():
        house.press()
        player.wait("Paused")
        # It is done behind the hold, so that has been answered.
        step = {"op": "media", "args": {"command": "next"}, "provenance": "user"}
        invoked = {"plugin": "desktop", "method": "action.invoke", "params": step}
        assert house.client.call("runner.invoke", invoked, timeout=30)["ok"]
        plugins = house.client.call("runner.plugins", {}, timeout=30)["plugins"]
        os.kill(next(one["pid"] for one in plugins if one["id"] == "desktop"), signal.SIGKILL)
        house.daemon.wait_plugin("desktop", "ready", epoch=2)
        house.said.write_text("")
        house.client.call("ptt.release", {}, timeout=30)
        assert "desktop has paused Demo while you spoke" in house.next("warning")["text"]
        # The next one knows nothing of it, and serves the next session.
        assert player.status == "Paused"
        player.press("Playing")
        house.press()
        player.wait("Paused")
        house.release()
        player.wait("Playing")


def test_what_is_held_when_the_runner_stops_plays_again(tmp_path: Path, bus: PrivateBus) -> None:
    house = House(tmp_path, bus)
    with house.player("demo") as player:
        with house.running():
            house.client.call("ptt.toggle", {}, timeout=30)
            player.wait("Paused")
        player.wait("Playing")


def test_it_can_be_switched_off(tmp_path: Path, bus: PrivateBus) -> None:
    house = House(tmp_path, bus, "pause_media = false")
    with house.player("demo") as player, house.running():
        house.said.write_text("pause")
        # No tap, however fast.
        for _ in range(2):
            house.client.call("ptt.toggle", {}, timeout=30)
        assert house.report()["outcome"] == "done"
        assert player.commands == ["Pause"]
