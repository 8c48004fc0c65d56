"""What lies in the store is right or not there; what is shared stays as long as one needs it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import killed_pulls
from support.packages import package
from utter_protocol.manifest import Model
from utter_protocol.models import (
    content_path,
    link_path,
    missing_models,
    model_name_problems,
    models_directory,
    part_path,
)
from utter_runner.config import Config
from utter_runner.config.load import parse_config
from utter_runner.operate.errors import OperateError
from utter_runner.operate.models.removing import remove_models, remove_unused
from utter_runner.operate.models.store import STALE_S, Store
from utter_runner.operate.models.wanted import Needs, Wanted, chosen, model_states, needs


def model(name: str = "a.bin", content: bytes = b"content") -> Model:
    return Model(name=name, url="https://example.org/x", sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def put(store: Store, one: Model, content: bytes = b"content", *plugins: str) -> None:
    path = content_path(store.root, one.sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for plugin in plugins:
        store.give(plugin, one)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def test_what_is_there_is_told_from_names_and_sizes(store: Store) -> None:
    one = model("base/a.bin")
    assert store.state("ear", one) == ("missing", 0)
    part_path(store.root, one.sha256).parent.mkdir(parents=True)
    part_path(store.root, one.sha256).write_bytes(b"con")
    assert store.state("ear", one) == ("partial", 3)
    put(store, one)
    assert store.state("ear", one) == ("partial", 7)
    store.give("ear", one)
    assert store.state("ear", one) == ("present", 7)
    assert link_path(store.root, "ear", "base/a.bin").read_bytes() == b"content"
    assert store.state("mouth", one) == ("partial", 7)
    content_path(store.root, one.sha256).write_bytes(b"CONTENT")
    assert store.state("ear", one) == ("present", 7)
    assert store.state("ear", one, thorough=True) == ("damaged", 7)
    content_path(store.root, one.sha256).write_bytes(b"short")
    assert store.state("ear", one) == ("damaged", 5)


def test_a_new_version_of_a_model_takes_the_name(store: Store) -> None:
    old, new = model(content=b"content"), model(content=b"other!!")
    put(store, old, b"content", "ear")
    put(store, new, b"other!!")
    assert store.state("ear", new) == ("partial", 7)
    store.give("ear", new)
    store.give("ear", new)
    assert link_path(store.root, "ear", "a.bin").read_bytes() == b"other!!"
    assert store.links() == {("ear", "a.bin"): new.sha256}
    assert [one.sha256 for one in store.drop_unnamed()] == [old.sha256]


def test_the_store_can_be_moved(store: Store, tmp_path: Path) -> None:
    one = model("deep/er/a.bin")
    put(store, one, b"content", "ear")
    store.root.rename(tmp_path / "elsewhere")
    assert Store(tmp_path / "elsewhere").state("ear", one).state == "present"
    assert link_path(tmp_path / "elsewhere", "ear", "deep/er/a.bin").read_bytes() == b"content"


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../b", "a//b", ".hidden", "a/.b", "", "a\n", "a b", "a" * 201]
)
def test_no_name_leads_elsewhere(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a model"):
        link_path(store.root, "ear", name)


def test_names_that_are_in_the_way_of_each_other() -> None:
    names = ["a", "a/b", "A", "c/d", "c/d.bin", "c/D", "c", "e"]
    assert [at for at, _ in model_name_problems([model(name) for name in names])] == [1, 2, 5, 6]
    assert "The model 'a/b' cannot have this name beside 'a'" in model_name_problems([model("a"), model("a/b")])[0][1]


@pytest.mark.parametrize("what", ["file", "directory", "parent"])
def test_what_somebody_else_has_put_there_is_not_replaced(store: Store, what: str) -> None:
    one = model("base/a.bin")
    put(store, one)
    path = link_path(store.root, "ear", "base/a.bin")
    path.parent.parent.mkdir(parents=True)
    if what == "parent":
        path.parent.write_text("mine")
    elif what == "file":
        path.parent.mkdir()
        path.write_text("mine")
    else:
        path.mkdir(parents=True)
    with pytest.raises(OperateError, match=r"is in the way of the model base/a\.bin: move it elsewhere"):
        store.give("ear", one)


def test_a_content_stays_as_long_as_one_plugin_has_it(store: Store) -> None:
    one, other = model("base/a.bin"), model("b.bin", b"b")
    put(store, one, b"content", "ear", "mouth")
    put(store, other, b"b", "ear")
    both = [Wanted("ear", one, configured=False), Wanted("mouth", one, configured=False)]
    first = remove_models(store, [both[0], Wanted("ear", other, configured=False)], force=False)
    assert first == ([("ear", "base/a.bin"), ("ear", "b.bin")], 1)
    assert not store.directory_of("ear").exists()
    assert store.state("mouth", one).state == "present"
    assert remove_models(store, both, force=False) == ([("mouth", "base/a.bin")], 7)
    assert store.contents() == []
    assert remove_models(store, both, force=False) == ([], 0)


def test_what_a_configured_plugin_needs_is_kept(store: Store) -> None:
    one = model()
    put(store, one, b"content", "ear")
    with pytest.raises(OperateError, match=r"plugins run that need them: ear\. --force"):
        remove_models(store, [Wanted("ear", one, configured=True)], force=False)
    assert store.state("ear", one).state == "present"
    assert remove_models(store, [Wanted("ear", one, configured=True)], force=True).freed == 7


def test_what_no_plugin_needs_goes_and_what_is_not_known_stays(store: Store) -> None:
    one, old, broken = model(), model("old.bin", b"old"), model("b.bin", b"broken")
    put(store, one, b"content", "ear")
    put(store, old, b"old", "ear")
    put(store, broken, b"broken", "odd")
    part_path(store.root, "0" * 64).parent.mkdir()
    part_path(store.root, "0" * 64).write_bytes(b"12")
    part_path(store.root, one.sha256).write_bytes(b"123")
    known = Needs([Wanted("ear", one, configured=True)], {"odd": "It cannot be read."})
    assert remove_unused(store, known) == ([("ear", "old.bin")], 3 + 2 + 3)
    assert store.links() == {("ear", "a.bin"): one.sha256, ("odd", "b.bin"): broken.sha256}


def test_only_what_is_old_and_nobody_holds_is_swept(store: Store) -> None:
    names = ["1" * 64, "2" * 64, "3" * 64, "4" * 64]
    part_path(store.root, names[0]).parent.mkdir(parents=True)
    for name in names:
        part_path(store.root, name).write_bytes(b"12345")
        os.utime(part_path(store.root, name), (0, 0))
    os.utime(part_path(store.root, names[0]))
    assert STALE_S > 0
    with store.part(names[1], lambda: None):
        assert store.sweep({names[2]}) == 5
    assert store.parts() == names[:3]


def test_killed_at_every_change(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(killed_pulls.__file__).parents[1])}
    subprocess.run([sys.executable, killed_pulls.__file__, str(tmp_path)], env=env, check=True, timeout=110)
    numbers = sorted(int(path.stem) for path in tmp_path.glob("*.done"))
    assert len(numbers) > 25
    seen = set()
    for number in numbers:
        place = Store(tmp_path / str(number))
        done = (tmp_path / f"{number}.done").read_text().split()
        for content in place.contents():
            assert place.is_whole(content.sha256), number
        states = {name: place.state("ear", one).state for name, one in killed_pulls.MODELS.items()}
        for name in done:
            assert states[name] == "present", number
        seen |= set(states.values())
        # A later pull finishes, whatever was left.
        killed_pulls.work(place.root, lambda _line: None)
        assert all(place.state("ear", one, thorough=True).state == "present" for one in killed_pulls.MODELS.values())
        assert place.parts() == []
        assert len(place.links()) == len(killed_pulls.MODELS)
    assert seen == {"present", "partial", "missing"}


# ---- which plugins need which

CONFIG = """
[[plugin]]
id = "lamp"
[[plugin.models]]
name = "extra.bin"
url = "https://example.org/extra"
sha256 = "{0}"
size = 5
[[plugin]]
id = "own"
enabled = false
entrypoint = ["own"]
[[plugin.models]]
name = "own.bin"
url = "https://example.org/own"
sha256 = "{0}"
size = 5
"""
IN_MANIFEST = """
[[models]]
name = "{}"
url = "https://example.org/{}"
sha256 = "{}"
size = 7
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    installed = tmp_path / "data" / "utter" / "plugins"
    for name, models in (("lamp", ["lamp.bin", "extra.bin"]), ("other", ["o/ther.bin"])):
        manifest = package(installed / name, name=name) / "utter-plugin.toml"
        digest = hashlib.sha256(b"content").hexdigest()
        manifest.write_text(manifest.read_text() + "".join(IN_MANIFEST.format(one, one, digest) for one in models))
    (installed / "broken").mkdir()
    (installed / "broken" / "utter-plugin.toml").write_text("models = 3")
    return {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data"), "XDG_DATA_DIRS": "/nowhere"}


def test_manifests_and_configuration_are_united(environ: dict[str, str]) -> None:
    found = needs(parse_config(CONFIG.format("0" * 64)), environ)
    assert [(one.plugin, one.model.name, one.model.size, one.configured) for one in found.wanted] == [
        ("lamp", "lamp.bin", 7, True),
        ("lamp", "extra.bin", 5, True),
        ("other", "o/ther.bin", 7, False),
        ("own", "own.bin", 5, False),
    ]
    assert found.unknown.keys() == {"broken"}
    assert [one.configured for one in needs(Config(), environ).wanted] == [False] * 3


def test_words_mean_plugins_names_or_directories(environ: dict[str, str]) -> None:
    wanted = needs(parse_config(CONFIG.format("0" * 64)), environ).wanted
    assert [one.model.name for one in chosen(wanted, ["lamp", "lamp.bin"])] == ["lamp.bin", "extra.bin"]
    assert [one.model.name for one in chosen(wanted, ["o", "own.bin"])] == ["o/ther.bin", "own.bin"]
    with pytest.raises(OperateError, match=r"There is no model 'o/th'.*Plugins that do: lamp, other, own"):
        chosen(wanted, ["o/th"])


def test_states_for_whoever_asks(environ: dict[str, str]) -> None:
    config, store = parse_config(CONFIG.format("0" * 64)), Store.of(environ)
    assert store.root == models_directory(environ)
    put(store, next(one.model for one in needs(config, environ).wanted if one.model.name == "lamp.bin"))
    store.give("lamp", needs(config, environ).wanted[0].model)
    states = model_states(config, environ)
    assert [(one.model.name, one.found.state) for one in states] == [("lamp.bin", "present"), ("extra.bin", "missing")]
    assert states[0].path.read_bytes() == b"content"
    assert len(model_states(config, environ, everything=True)) == 4
    states[0].path.write_bytes(b"CONTENT")
    assert [one.found.state for one in model_states(config, environ, thorough=True)] == ["damaged", "missing"]
    models = [one.model for one in states]
    assert missing_models(store.root, "lamp", models[:1]) == ""
    assert missing_models(store.root, "lamp", models) == ("The model extra.bin must be fetched: utter models pull lamp")
