"""The daemon's eye on the record: when it looks, what it says, and what it refuses, against real files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
import trio.testing

from support.packages import package, places_in
from utter_protocol.drift import Announced
from utter_protocol.packages import MANIFEST_NAME
from utter_runner.config.load import parse_config
from utter_runner.operate import lockfile, watching
from utter_runner.operate.locking import examine
from utter_runner.operate.watching import DriftError, DriftWatch
from utter_runner.supervision.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from utter_runner.config import Config
    from utter_runner.supervision.spec import PluginSpec

SAID = Announced(version="1.0.0", protocol="1.0", abi=1, permissions=[])


class World:
    """A user with a lamp, a record, and what the watch has told."""

    def __init__(self, home: Path, *, locked: bool) -> None:
        self.home = home
        self.environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        self.places = places_in(home)
        package(home / "lamp")
        self.config: Config = parse_config(
            f'[runner]\nlocked = {str(locked).lower()}\n[[plugin]]\nid = "lamp"\nmanifest = "{home / "lamp"}"\n',
            home / "runner.toml",
        )
        self.changes = 0
        self.watch = DriftWatch(lambda: self.config, self.environ, self._changed)
        self.spec: PluginSpec = resolve(self.config.plugin[0], [], environ=self.environ)

    def _changed(self) -> None:
        self.changes += 1

    def lock(self) -> None:
        examine(self.config, self.environ, self.places, {}).accept()

    def touch(self) -> None:
        (self.home / "lamp/bin/lamp").write_text("#!/bin/sh\n# Another one.\n")

    def fields(self) -> list[str]:
        return [one.field for one in self.watch.drift]


async def test_it_is_told_once_and_again_when_it_is_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, locked=False)
    await world.watch.look()
    # Who never recorded anything is not told that nothing is, and can ask.
    assert (world.fields(), world.watch.warnings(), caplog.messages) == (["unrecorded"], [], [])
    world.lock()
    await world.watch.look()
    assert (world.fields(), world.changes) == ([], 2)
    world.touch()
    for _ in range(2):
        await world.watch.look()
    assert world.fields() == ["digest"]
    assert caplog.messages == world.watch.warnings()
    assert world.changes == 3
    world.lock()
    await world.watch.look()
    assert (world.fields(), world.watch.warnings()) == ([], [])
    # Nothing is refused without `locked`.
    world.touch()
    (tmp_path / "lamp" / MANIFEST_NAME).unlink()
    await world.watch.check("lamp", world.spec.made_of)
    world.watch.meet("lamp", msgspec.structs.replace(SAID, permissions=["screen"]), world.spec.made_of)
    await world.watch.check_again("lamp", world.spec.made_of)


async def test_many_who_ask_at_once_share_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, locked=False)
    looks = 0
    survey = watching.survey

    def counted(*arguments: Any) -> object:
        nonlocal looks
        looks += 1
        if looks == 1:
            # This one may miss what they ask about.
            for _ in range(50):
                trio.from_thread.run_sync(nursery.start_soon, world.watch.look)
        return survey(*arguments)

    monkeypatch.setattr(watching, "survey", counted)
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(world.watch.look)
    assert looks == 2


async def test_locked_looks_before_and_after_the_start(tmp_path: Path) -> None:
    world = World(tmp_path, locked=True)
    origin = world.spec.made_of
    with pytest.raises(DriftError, match="lamp is configured and not recorded"):
        await world.watch.check("lamp", origin)
    world.lock()
    await world.watch.check("lamp", origin)
    assert not list((tmp_path / "lamp").rglob("__pycache__"))
    world.watch.meet("lamp", SAID, origin)
    await world.watch.check_again("lamp", origin)
    # What the process itself makes there meanwhile is left to it.
    (tmp_path / "lamp/__pycache__").mkdir()
    await world.watch.check_again("lamp", origin)
    assert (tmp_path / "lamp/__pycache__").exists()
    world.touch()
    with pytest.raises(DriftError, match="What lamp is made of has changed"):
        await world.watch.check_again("lamp", origin)
    # Even if somebody agrees to it: what was started may be neither.
    world.lock()
    with pytest.raises(DriftError, match="The record of lamp was changed while it was started"):
        await world.watch.check_again("lamp", origin)
    await world.watch.check("lamp", origin)
    with pytest.raises(DriftError, match=r"\(field version, recorded '1.0.0', found '2.0.0'\)"):
        world.watch.meet("lamp", msgspec.structs.replace(SAID, version="2.0.0"), origin)
    assert world.watch.result().announced["lamp"].version == "2.0.0"


async def test_a_process_of_before_an_update_is_told_and_not_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, locked=False)
    world.watch.meet("lamp", msgspec.structs.replace(SAID, version="0.9.0"), world.spec.made_of)
    world.lock()
    await world.watch.look()
    # By the manifest that is there: the process contradicts it.
    assert world.fields() == ["version"]
    manifest = tmp_path / "lamp" / MANIFEST_NAME
    manifest.write_text(manifest.read_text().replace("1.0.0", "1.1.0"))
    await world.watch.look()
    # Both are told where it was changed and nobody has agreed to it, and the mend is that of the graver one.
    assert world.fields() == ["version", "digest", "started"]
    assert world.watch.warnings()[0].endswith("`utter plugins lock lamp` agrees to it.")
    world.lock()
    await world.watch.look()
    assert world.fields() == ["started"]
    assert world.watch.result().announced == {}
    assert caplog.messages[-1].endswith("runs by another manifest than there is now. `utter reload` starts it anew.")
    # One that does not run does not run as it was, and what it said is of no interest any more.
    changes = world.changes
    world.watch.ended("lamp")
    world.watch.ended("lamp")
    assert (world.fields(), world.changes) == ([], changes + 1)
    new = resolve(world.config.plugin[0], [], environ=world.environ)
    world.watch.meet("lamp", msgspec.structs.replace(SAID, version="1.1.0"), new.made_of)
    await world.watch.look()
    assert world.fields() == []
    assert world.watch.result().announced["lamp"].version == "1.1.0"


async def test_a_record_that_cannot_be_read_is_drift_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path, locked=True)
    world.lock()
    with world.places.lockfile.open("a") as file:
        file.write("[others]\n")
    await world.watch.look()
    (drift,) = world.watch.drift
    assert (drift.plugin, drift.field) == ("", "lockfile")
    assert world.watch.warnings() == [drift.detail]
    with pytest.raises(DriftError, match="there is no key others"):
        await world.watch.check("lamp", world.spec.made_of)
    # A user without a home has no record, which is no reason to fall over.
    world.environ.clear()
    await world.watch.look()
    assert world.fields() == ["lockfile"]
    world.environ["HOME"] = str(tmp_path)
    lockfile.write(world.places.lockfile, {})
    await world.watch.look()
    assert world.fields() == ["unrecorded"]


async def test_it_looks_by_itself_when_it_is_told_that_there_is_a_reason(tmp_path: Path) -> None:
    world = World(tmp_path, locked=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.watch.run)
        with trio.fail_after(30):
            while not world.changes:
                await trio.lowlevel.checkpoint()
            world.lock()
            world.watch.look_soon()
            while world.fields():
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
