"""The commands plugin as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import utter_plugins.commands
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.manifest import load_manifest
from utter_sdk.testing import PluginProcess

ARGV = [sys.executable, "-P", "-m", "utter_plugins.commands"]
LOAD_S = 30.0


def start(env: dict[str, str], argv: list[str] = ARGV, **settings: Any) -> PluginProcess:
    return PluginProcess(argv, env=env, settings=settings, timeout=LOAD_S)


def test_the_handshake_says_what_the_manifest_says(env: dict[str, str]) -> None:
    path = Path(utter_plugins.commands.__file__).parent / "utter-plugin.toml"
    manifest = tomllib.loads(path.read_text())
    load_manifest(path)
    with start(env) as process:
        assert process.hello.plugin.name == manifest["name"]
        assert process.hello.plugin.version == manifest["version"]
        assert process.hello.plugin.kind == manifest["kind"]
        assert process.hello.provides == manifest["provides"]
        assert process.hello.permissions == manifest["permissions"]
        assert {"router.plan", "router.hints", "knowledge.catalog"} <= set(process.description.methods)
        assert process.close() == 0
        assert process.stderr == ""


def test_plan_hints_and_catalog(env: dict[str, str]) -> None:
    with start(env, phrase=[{"say": "good night", "op": "sleep"}]) as process:
        plan = process.call("router.plan", {"utterance": "Could you open Firefox?", "context": {"x": 1}})
        assert [(step["op"], step["args"], step["provenance"]) for step in plan["steps"]] == [
            ("launch_app", {"app": "org.mozilla.firefox"}, "user")
        ]
        nothing = process.call("router.plan", {"utterance": "the weather is nice"})
        assert nothing["steps"] == []
        assert nothing["detail"]
        hints = process.call("router.hints")["phrases"]
        assert hints[0] == "good night"
        assert "open Firefox" in hints
        labels = {item["id"]: item["label"] for item in process.call("knowledge.catalog")["candidates"]}
        assert labels["app:org.mozilla.firefox"] == "Firefox"
        assert labels["site:youtube"] == "YouTube"
        assert process.call("plugin.health") == {"status": "ok", "detail": ""}
        with pytest.raises(RpcError) as caught:
            process.call("router.plan", {"utterance": 5})
        assert caught.value.code == ErrorCode.INVALID_PARAMS
        assert "utterance" in caught.value.message


def write_over(path: Path, text: str) -> None:
    """Replace a file at once, as editors do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_a_changed_phrase_file_is_read_again(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "config/utter/phrases.toml"
    with start(env) as process:
        assert process.call("router.plan", {"utterance": "good night"})["steps"] == []
        # Neither the file nor its folders are there yet.
        write_over(path, '[[phrase]]\nsay = "good night"\nop = "sleep"\n')
        process.notification("router.hints_changed")
        assert process.call("router.plan", {"utterance": "good night"})["steps"][0]["op"] == "sleep"
        write_over(path, "[[phrase]\n")
        process.wait_stderr("is not TOML")
        health = process.call("plugin.health")
        assert health["status"] == "degraded"
        assert f"{path} is not TOML" in health["detail"]
        assert process.call("router.plan", {"utterance": "good night"})["steps"][0]["op"] == "sleep"
        write_over(path, '[[phrase]]\nsay = "sleep well"\nop = "rest"\n')
        process.notification("router.hints_changed")
        assert process.call("plugin.health")["status"] == "ok"
        assert process.call("router.plan", {"utterance": "good night"})["steps"] == []


def test_a_new_application_is_noticed(env: dict[str, str], tmp_path: Path) -> None:
    with start(env) as process:
        assert process.call("router.plan", {"utterance": "open inkscape"})["steps"] == []
        write_over(
            tmp_path / "data/applications/deep/inkscape.desktop", "[Desktop Entry]\nType=Application\nName=Inkscape\n"
        )
        process.notification("router.hints_changed")
        steps = process.call("router.plan", {"utterance": "open inkscape"})["steps"]
        assert steps[0]["args"] == {"app": "deep-inkscape"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"phrase": 5}, "phrase"), ({"phrases": {"a": 1}}, "phrases"), ({"frases": "x"}, "frases")],
)
def test_wrong_settings_are_named(env: dict[str, str], settings: dict[str, Any], why: str) -> None:
    with start(env, **settings) as process:
        with pytest.raises(RpcError, match=why) as caught:
            process.call("router.plan", {"utterance": "play"})
        assert caught.value.code == ErrorCode.PLUGIN_FAILED
        health = process.call("plugin.health")
        assert health["status"] == "degraded"
        assert why in health["detail"]


def test_a_missing_library_says_what_to_install(env: dict[str, str], tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "hassil.py").write_text("raise ImportError('No module named hassil')\n")
    (shadow / "rapidfuzz.py").write_text("raise ImportError('No module named rapidfuzz')\n")
    with start({**env, "PYTHONPATH": os.pathsep.join([str(shadow), os.environ.get("PYTHONPATH", "")])}) as process:
        with pytest.raises(RpcError, match=r"utter-runner\[commands\]") as caught:
            process.call("router.plan", {"utterance": "play"})
        assert caught.value.code == ErrorCode.PLUGIN_FAILED


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    code = (
        "import sys, utter_plugins.commands.plugin as plugin; plugin.build();"
        "print([name for name in ('hassil', 'rapidfuzz', 'jellyfish', 'numpy', 'yaml') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"
