"""The desktop plugin keeps to the protocol."""

from __future__ import annotations

from pathlib import Path

import utter_plugins.desktop
from support.conformance import PATIENT, broken, check_shipped
from support.dbus import MediaPlayer, PrivateBus
from utter_sdk.conformance.plugin import Limits, Subject, check_plugin

MANIFEST = Path(utter_plugins.desktop.__file__).parent / "utter-plugin.toml"


def test_it_keeps_to_the_protocol(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_DATA_DIRS": str(tmp_path)}
    report = check_shipped(MANIFEST, {**env, "DBUS_SESSION_BUS_ADDRESS": ""}, dry_run=True)
    assert broken(report) == set(), report.text()
    assert {one.check.id for one in report.outcomes if one.verdict == "holds"} >= {
        "method.action.capabilities",
        "method.action.invoke",
        "describe.ops",
        "method.media.hold",
        "method.media.release",
    }


def test_players_that_are_held_for_the_kit_play_again(bus: PrivateBus) -> None:
    subject = Subject.from_manifest(MANIFEST, env={"DBUS_SESSION_BUS_ADDRESS": bus.address})
    with MediaPlayer(bus.address, "demo") as player:
        report = check_plugin(subject, Limits(**PATIENT), only=("method.media.",), loud=True)
        player.wait("Playing")
    assert broken(report) == set(), report.text()
    assert player.commands == ["Pause", "Play"]
