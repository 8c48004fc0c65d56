"""A plugin gets its models: it is told where they are, may read those and no others, and is told of what is missing."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.packages import package
from support.supervision_tools import call, house
from utter_protocol.errors import RpcError
from utter_protocol.manifest import Model
from utter_protocol.models import content_path, models_directory
from utter_runner.config import PluginConfig
from utter_runner.operate.models.store import Store
from utter_runner.supervision.resolve import ResolveError, resolve
from utter_runner.supervision.sandbox.wrappers import find_sandbox
from utter_runner.supervision.spec import PluginSpec

# It answers what it can read of its models, and of a file that is none of them.
READER = """
import sys
from pathlib import Path
from typing import Any
from utter_sdk import Plugin

plugin = Plugin("reader", version="1.0.0", kind="action")


@plugin.method("read")
def read(params: dict[str, Any]) -> dict[str, Any]:
    return {"text": plugin.model(params["name"]).read_text()}


@plugin.method("try")
def attempt(params: dict[str, Any]) -> dict[str, Any]:
    try:
        if params.get("write"):
            Path(params["path"]).write_text("mine")
        return {"text": Path(params["path"]).read_text()}
    except OSError as error:
        return {"error": type(error).__name__}


plugin.run()
"""


def named(name: str, content: bytes) -> Model:
    digest = hashlib.sha256(content).hexdigest()
    return Model(name=name, url="https://example.org/x", sha256=digest, size=len(content))


def put(store: Store, plugin: str, name: str, content: bytes) -> Model:
    model = named(name, content)
    path = content_path(store.root, model.sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    store.give(plugin, model)
    return model


def reader(tmp_path: Path, *models: Model, **fields: Any) -> PluginSpec:
    program = tmp_path / "code" / "reader.py"
    program.parent.mkdir(exist_ok=True)
    program.write_text(READER)
    return PluginSpec(
        id="reader",
        argv=(sys.executable, "-P", str(program)),
        package=str(program.parent),
        models=models,
        model_store=str(tmp_path / "models"),
        **fields,
    )


SANDBOXES = {"none": None, "bubblewrap": ["bubblewrap"], "landlock": ["landlock"], "all": ["bubblewrap", "landlock"]}


@pytest.mark.parametrize("how", SANDBOXES)
async def test_it_reads_its_models_and_no_others(tmp_path: Path, how: str) -> None:
    store = Store(tmp_path / "models")
    mine = put(store, "reader", "base/words.txt", b"mine")
    theirs = put(store, "other", "words.txt", b"theirs")
    # What is left of an earlier version, which its manifest does not name any more.
    old = put(store, "reader", "old.txt", b"old")
    spec = reader(tmp_path, mine)
    wanted = SANDBOXES[how]
    if wanted is not None:
        available = find_sandbox(None, os.environ)
        if missing := [one for one in wanted if one not in available.wrappers]:
            pytest.skip(", ".join(available.without.get(one, one) for one in missing))
        spec = msgspec.structs.replace(spec, sandbox=find_sandbox(wanted, os.environ))
    async with house(spec) as running:
        assert await call(running, "reader", "read", {"name": "base/words.txt"}) == {"text": "mine"}
        for path in (
            store.directory_of("other") / "words.txt",
            content_path(store.root, theirs.sha256),
            store.directory_of("reader") / "old.txt",
            content_path(store.root, old.sha256),
        ):
            answer = await call(running, "reader", "try", {"path": str(path)})
            assert ("error" in answer) is (how != "none"), path
        if how != "none":
            for path in (content_path(store.root, mine.sha256), store.directory_of("reader") / "new"):
                assert "error" in await call(running, "reader", "try", {"path": str(path), "write": True})
    assert content_path(store.root, mine.sha256).read_bytes() == b"mine"


async def test_one_that_comes_later_is_there_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "models")
    model = named("words.txt", b"late")
    async with house(reader(tmp_path, model, restart="always")) as running:
        instance = running.supervisor.get("reader")
        assert instance.status_report()["warnings"] == ["The model words.txt must be fetched: utter models pull reader"]
        with pytest.raises(RpcError, match=r"The model words\.txt has not been fetched: utter models pull reader"):
            await call(running, "reader", "read", {"name": "words.txt"})
        put(store, "reader", "words.txt", b"late")
        assert instance.process is not None
        instance.process.signal_group(9)
        await running.until(lambda: instance.running and instance.epoch == 2)
        assert await call(running, "reader", "read", {"name": "words.txt"}) == {"text": "late"}
        assert instance.status_report()["warnings"] == []


def test_manifest_and_configuration_are_united(tmp_path: Path) -> None:
    manifest = package(tmp_path / "lamp") / "utter-plugin.toml"
    digest = hashlib.sha256(b"1").hexdigest()
    table = f'[[models]]\nname = "{{}}"\nurl = "https://example.org/x"\nsha256 = "{digest}"\nsize = 1\n'
    manifest.write_text(manifest.read_text() + table.format("a.bin") + table.format("b.bin"))
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    entry = PluginConfig(id="lamp", manifest=str(manifest), models=[named("b.bin", b"two"), named("c.bin", b"3")])
    spec = resolve(entry, [], environ=environ)
    assert [(one.name, one.size) for one in spec.models] == [("a.bin", 1), ("b.bin", 3), ("c.bin", 1)]
    assert spec.model_store == str(models_directory(environ))
    assert not resolve(PluginConfig(id="x1", entrypoint=["true"]), [], environ=environ).model_store
    odd = PluginConfig(id="lamp", manifest=str(manifest), models=[named("a.bin/x", b"1")])
    with pytest.raises(ResolveError, match=r"Plugin lamp: The model 'a\.bin/x' cannot have this name beside 'a\.bin'"):
        resolve(odd, [], environ=environ)


def test_a_module_is_told_that_it_gets_none(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    entry = PluginConfig(id="box", runtime="wasm", entrypoint=["/x.wasm"], models=[named("a.bin", b"1")])
    assert any(
        "can open no files, and does not get them" in one for one in resolve(entry, [], environ=environ).warnings
    )
