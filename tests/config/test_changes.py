"""Which keys differ, and which can be taken over."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from utter_runner.config import Config, SocketConfig, parse_config
from utter_runner.config.changes import SINGLE, WHOLE, changed_keys, keeping, takes_effect

SECTIONS = [name for name in Config.__struct_fields__ if isinstance(getattr(Config(), name), msgspec.Struct)]


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("", "", []),
        ("", '[voice]\nlanguage = "en"\n', []),
        ("", '[voice]\nlanguage = "de"\n[log]\ncontent = true\n', ["voice.language", "log.content"]),
        ("", "[socket]\n", ["socket"]),
        ("[socket]\n", "", ["socket"]),
        ("[socket]\n", "[socket]\nallow_same_uid = true\n", ["socket.allow_same_uid"]),
        ("[policy.ops.mute]\nrate = '1/hour'\n", "[policy.ops.mute]\nrate = '2/hour'\n", ["policy.ops"]),
        # The same to Python, and not to a JSON Schema.
        (
            "[policy.ops.mute.schema.properties.n]\nconst = 1\n",
            "[policy.ops.mute.schema.properties.n]\nconst = true\n",
            ["policy.ops"],
        ),
        ('[[plugin]]\nid = "one"\n', '[[plugin]]\nid = "two"\n', []),
    ],
)
def test_what_differs_is_named(old: str, new: str, keys: list[str]) -> None:
    assert changed_keys(parse_config(old), parse_config(new)) == keys


def test_what_is_no_key_of_the_file_makes_no_difference() -> None:
    old = Config(path="/one", warnings=("careful",))
    assert changed_keys(old, Config(path="/two", secret_files=("/x",))) == []


def test_keys_that_wait_keep_their_old_values_and_only_those() -> None:
    old = parse_config("[runner]\nmax_clients = 3\nhandle_root = '/old'\n[audio]\nring_seconds = 5\n")
    new = parse_config("[runner]\nmax_clients = 4\nhandle_root = '/new'\n[audio]\nring_seconds = 6\n")
    keys = changed_keys(old, new)
    waiting = [key for key in keys if not takes_effect(key)]
    assert waiting == ["runner.handle_root", "audio.ring_seconds"]
    kept = keeping(old, new, waiting)
    assert (kept.runner.max_clients, kept.runner.handle_root, kept.audio.ring_seconds) == (4, "/old", 5)
    assert changed_keys(old, kept) == ["runner.max_clients"]
    assert keeping(old, new, keys) == old


def test_the_keys_that_are_listed_exist() -> None:
    keys = {f"{section}.{key}" for section in SECTIONS for key in getattr(Config(), section).__struct_fields__}
    assert keys >= SINGLE
    assert {*SECTIONS, "socket"} >= WHOLE
    assert all(takes_effect(f"socket.{key}") for key in SocketConfig.__struct_fields__)


def test_those_that_need_a_restart_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/operating.md").read_text()
    (row,) = [line for line in page.splitlines() if line.endswith("name them until then |")]
    named = row.split("|")[1]
    waiting = {
        key
        for section in SECTIONS
        for key in getattr(Config(), section).__struct_fields__
        if not takes_effect(f"{section}.{key}")
    }
    assert {key for key in waiting if f"`{key}`" in named or f" {key}`" in named} == waiting
