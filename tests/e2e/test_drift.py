"""The record and the real daemon: what has drifted is told, and with `[runner] locked` nothing of it is run."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib._bootstrap_external import _code_to_timestamp_pyc  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import pytest

from support.daemon import HOSTILE, Daemon, External, environment
from support.terminal import UTTER
from utter_protocol.errors import RpcError

MANIFEST = """\
name = "{name}"
version = "1.0.0"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["${{PYTHON}}", "-S", "-E", "lamp.py", "{name}", "{words}"]
permissions = ["network"]
"""
# What it says is in a file outside of the package: a plugin may say anything, whatever it is made of.
PROGRAM = f"""\
import importlib.util, os, sys
import helper
helper.leave_a_trace(sys.argv[2])
sys.argv[2:] = open(sys.argv[2]).read().split()
spec = importlib.util.spec_from_file_location("hostile_plugin", {str(HOSTILE)!r})
hostile = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hostile)


def rewrite(_wire, _params):
    with open(__file__, "a") as file:
        file.write("# By itself.\\n")
    os._exit(1)


hostile.MISDEEDS["rewrite"] = rewrite
hostile.main()
"""
HELPER = 'def leave_a_trace(path):\n    open(path + ".good", "a").close()\n'
EVIL = 'def leave_a_trace(path):\n    open(path + ".evil", "a").close()\n'


class Bed:
    """A user with one plugin in a directory, and a runner for it."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        (tmp_path / "run").mkdir(mode=0o700)
        self.env = environment(tmp_path / "run")
        self.lockfile = Path(self.env["HOME"], ".local/state/utter/install.lock")
        self.words = tmp_path / "words"
        self.say()
        self.package = self.make("lamp")

    def make(self, name: str) -> Path:
        package = self.directory / name
        package.mkdir()
        (package / "utter-plugin.toml").write_text(MANIFEST.format(name=name, words=self.words))
        (package / "lamp.py").write_text(PROGRAM)
        (package / "helper.py").write_text(HELPER)
        return package

    def say(self, *words: str) -> None:
        """What the plugin's process is to say of itself, when it is started the next time."""
        self.words.write_text(" ".join(["ops=on", *words]))

    def ran(self, what: str = "good") -> bool:
        """Whether anything of it was run; it is forgotten."""
        trace = self.words.with_name(f"words.{what}")
        found = trace.exists()
        trace.unlink(missing_ok=True)
        return found

    def config(self, *, locked: bool, name: str = "lamp") -> str:
        return (
            f"[runner]\nlocked = {str(locked).lower()}\n"
            f'[[plugin]]\nid = "{name}"\nmanifest = "{self.directory / name}"\n'
        )

    def daemon(self, *, locked: bool = True, name: str = "lamp") -> Daemon:
        return Daemon(self.directory, self.config(locked=locked, name=name), env=self.env)

    def utter(self, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
        """What `utter plugins` answers, and what it shows."""
        path = self.directory / "runner.toml"
        if not path.exists():
            path.write_text(self.config(locked=True))
        argv = [*UTTER, "plugins", *arguments, "--config", str(path), "--json"]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return dict(json.loads(done.stdout)), done.stderr

    def locked_by_hand(self) -> None:
        """Agreed to, with what its process says."""
        with self.daemon(locked=False):
            self.utter("lock", "--yes", "--accept-permissions")
        assert self.ran()


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def looked(daemon: Daemon) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """The drift as the runner sees it now, and its status."""
    with daemon.client() as client:
        found = client.call("runner.drift", {}, 30)["drift"]
        status = client.call("runner.status", {}, 30)
        assert status["drift"] == found
        return [(one["plugin"], one["field"]) for one in found], status


def shown(status: dict[str, Any]) -> tuple[str, str]:
    (plugin,) = status["plugins"]
    return plugin["status"], plugin["detail"]


def end(daemon: Daemon, method: str = "exit", **params: Any) -> None:
    """Have the plugin's process do that, after which it is gone."""
    with daemon.client() as client, suppress(RpcError):
        client.call("runner.invoke", {"plugin": "lamp", "method": method, "params": params}, 30)


def test_what_was_never_recorded_is_not_started_and_is_when_it_was(bed: Bed) -> None:
    with bed.daemon() as daemon:
        drift, status = looked(daemon)
        assert drift == [("lamp", "unrecorded")]
        assert status["locked"]
        state, detail = shown(status)
        assert state == "failed"
        assert "lamp is configured and not recorded. (field unrecorded, recorded 'nothing', found '1.0.0')" in detail
        assert "`utter plugins lock lamp` agrees to it" in detail
        assert any("lamp is configured and not recorded" in one for one in status["warnings"])
        assert not bed.ran()
        answer, said = bed.utter("lock", "lamp", "--yes")
        assert [one["plugin"] for one in answer["changed"]] == ["lamp"]
        assert "lamp 1.0.0, not recorded before" in said
        assert answer["not_asked"] == ["lamp"]
        assert looked(daemon)[0] == []
        with daemon.client() as client:
            client.call("runner.control", {"plugin": "lamp", "action": "start"}, 30)
        daemon.wait_plugin("lamp", "ready")
        # Now its ops can be recorded, too.
        answer, _ = bed.utter("lock", "--yes")
        assert list(answer["changed"][0]["after"]["process"]["tools"]) == ["on"]
        assert bed.utter("lock", "--yes")[0]["changed"] == []
    assert bed.ran()


def test_one_byte_is_told_or_refused(bed: Bed) -> None:
    bed.locked_by_hand()
    with (bed.package / "helper.py").open("a") as file:
        file.write("\n")
    with bed.daemon(locked=False) as daemon:
        drift, status = looked(daemon)
        assert drift == [("lamp", "digest")]
        assert shown(status)[0] == "ready"
        warning = "What lamp is made of has changed since it was recorded. `utter plugins lock lamp` agrees to it."
        assert warning in status["warnings"]
        # A look is taken after the start, by itself.
        daemon.said(warning)
    assert bed.ran()
    with bed.daemon() as daemon:
        _, status = looked(daemon)
        state, detail = shown(status)
        assert state == "failed"
        assert "With [runner] locked = true it may not run: What lamp is made of has changed" in detail
        assert "(field digest, recorded 'sha256:" in detail
        answer, said = bed.utter("lock", "lamp", "--yes")
        assert "-> sha256:" in said
        assert answer["changed"][0]["before"]["process"] == answer["changed"][0]["after"]["process"]
    assert not bed.ran()
    with bed.daemon() as daemon:
        assert shown(looked(daemon)[1])[0] == "ready"
    assert bed.ran()


@pytest.mark.parametrize(
    ("words", "field", "found"),
    [
        (["permissions=microphone"], "permissions", "microphone"),
        (['more={"schema":{"type":"object"}}'], "tools", "on none sha256:"),
        (['more={"side_effect":"external"}'], "tools", "on external sha256:"),
        (["ops=on,off"], "tools", "off none sha256:"),
    ],
)
def test_a_process_that_says_something_else_is_not_admitted(bed: Bed, words: list[str], field: str, found: str) -> None:
    bed.locked_by_hand()
    with bed.daemon() as daemon:
        assert shown(looked(daemon)[1])[0] == "ready"
        # Of the same files comes another answer, in a later epoch of the same run.
        bed.say(*words)
        end(daemon, code=1)
        plugin = daemon.wait_plugin("lamp", "failed", epoch=2)
        assert f"(field {field}, recorded " in plugin["detail"]
        assert f"found '{found}" in plugin["detail"]
        assert plugin["ops"] == []
        assert looked(daemon)[0] == [("lamp", field)]
        with daemon.client() as client:
            answer = client.call("runner.validate_plugin", {"plugin": "lamp"}, 30)
            assert answer["error"]["code"] == -32004
            assert answer["error"]["data"]["field"] == field
        # Who agrees to it has to say so where it may do more.
        if field == "permissions":
            refused, said = bed.utter("lock", "--yes", code=3)
            assert refused["error"]["kind"] == "untrusted"
            assert "NEW PERMISSION  microphone: It may hear the microphone." in said
        bed.utter("lock", "--yes", "--accept-permissions")
        assert looked(daemon)[0] == []
    with bed.daemon() as daemon:
        assert shown(looked(daemon)[1])[0] == "ready"


def test_without_locked_it_is_admitted_and_told(bed: Bed) -> None:
    bed.locked_by_hand()
    bed.say("permissions=microphone", 'more={"description":"Others."}')
    with bed.daemon(locked=False) as daemon:
        drift, status = looked(daemon)
        assert drift == [("lamp", "permissions"), ("lamp", "tools")]
        assert shown(status)[0] == "ready"
        assert "asks for more permissions than are recorded: microphone." in "".join(status["warnings"])
        assert bed.utter("drift", code=1)[0]["drift"] == status["drift"]
    # What is on the disk is as it was recorded, which is all that can be seen without a runner.
    assert bed.utter("drift")[0]["drift"] == []


def test_one_that_rewrites_itself_and_crashes_does_not_come_back(bed: Bed) -> None:
    bed.locked_by_hand()
    with bed.daemon() as daemon:
        assert shown(looked(daemon)[1])[0] == "ready"
        assert bed.ran()
        end(daemon, "rewrite")
        plugin = daemon.wait_plugin("lamp", "failed")
        assert "What lamp is made of has changed" in plugin["detail"]
        assert plugin["epoch"] == 1
        assert not bed.ran()
        assert looked(daemon)[0] == [("lamp", "digest")]


def plant(bed: Bed) -> None:
    """Byte code of something else, which Python takes for that of the helper."""
    helper = bed.package / "helper.py"
    about = helper.stat()
    code = compile(EVIL, str(helper), "exec")
    planted = Path(importlib.util.cache_from_source(str(helper)))
    planted.parent.mkdir(exist_ok=True)
    planted.write_bytes(_code_to_timestamp_pyc(code, int(about.st_mtime), about.st_size))


def test_byte_code_beside_what_is_verified_is_not_run(bed: Bed) -> None:
    bed.locked_by_hand()
    plant(bed)
    with bed.daemon(locked=False) as daemon:
        # It has no part in the digest, and Python would take it.
        assert looked(daemon)[0] == []
        assert bed.ran("evil")
    with bed.daemon() as daemon:
        assert shown(looked(daemon)[1])[0] == "ready"
        assert not bed.ran("evil")
        assert bed.ran()
        plant(bed)
        end(daemon, code=1)
        daemon.wait_plugin("lamp", "ready", epoch=2)
        assert not bed.ran("evil")


def test_a_manifest_that_was_changed_since_it_was_read_is_not_what_was_agreed_to(bed: Bed) -> None:
    bed.locked_by_hand()
    with bed.daemon() as daemon:
        assert shown(looked(daemon)[1])[0] == "ready"
        manifest = bed.package / "utter-plugin.toml"
        manifest.write_text(manifest.read_text().replace('"network"', '"network", "gpu"'))
        bed.utter("lock", "--yes", "--accept-permissions")
        end(daemon, code=1)
        detail = daemon.wait_plugin("lamp", "failed")["detail"]
        assert f"{manifest} is not what it was when the runner read it for the start." in detail
        with daemon.client() as client:
            client.call("runner.reload", {}, 30)
        daemon.wait_plugin("lamp", "ready")


def test_locked_can_be_switched_on_by_a_reload(bed: Bed) -> None:
    with bed.daemon(locked=False) as daemon:
        assert shown(looked(daemon)[1])[0] == "ready"
        daemon.config.write_text(daemon.config.read_text().replace("locked = false", "locked = true"))
        with daemon.client() as client:
            assert client.call("runner.reload", {}, 30)["changed"] == ["runner.locked"]
        # What runs goes on to its end.
        status = looked(daemon)[1]
        assert (status["locked"], shown(status)[0]) == (True, "ready")
        end(daemon, code=1)
        assert "lamp is configured and not recorded" in daemon.wait_plugin("lamp", "failed")["detail"]


def test_under_another_name_it_is_known_again(bed: Bed) -> None:
    bed.locked_by_hand()
    shutil.rmtree(bed.package)
    bed.make("light")
    with bed.daemon(name="light") as daemon:
        drift, status = looked(daemon)
        assert drift == [("light", "renamed")]
        assert "light is what is recorded as lamp: it has another name." in "".join(status["warnings"])
        assert shown(status)[0] == "failed"
        answer, _ = bed.utter("lock", "light", "--yes")
        assert {one["plugin"]: one["after"] is None for one in answer["changed"]} == {"lamp": True, "light": False}
    with bed.daemon(name="light") as daemon:
        drift, status = looked(daemon)
        assert (drift, shown(status)[0]) == ([], "ready")


def test_a_record_that_goes_while_it_runs(bed: Bed) -> None:
    bed.locked_by_hand()
    with bed.daemon() as daemon:
        assert looked(daemon)[0] == []
        bed.lockfile.write_text("version = 2\n[plugins.lamp\n")
        drift, status = looked(daemon)
        assert drift == [("", "lockfile")]
        assert f"{bed.lockfile}:2: The record of plugins cannot be used" in status["drift"][0]["detail"]
        # What runs goes on, and is not started again.
        assert shown(status)[0] == "ready"
        end(daemon, code=1)
        assert f"{bed.lockfile}:2: " in daemon.wait_plugin("lamp", "failed")["detail"]
        assert "cannot be used" in bed.utter("lock", "--yes", code=2)[0]["error"]["message"]
        bed.lockfile.unlink()
        assert looked(daemon)[0] == [("lamp", "unrecorded")]


@pytest.mark.parametrize("kind", ["a directory", "a pipe", "junk", "huge", "of everybody"])
def test_a_record_that_cannot_be_believed_starts_nothing_and_stops_nothing_else(bed: Bed, kind: str) -> None:
    bed.locked_by_hand()
    good = bed.lockfile.read_bytes()
    bed.lockfile.unlink()
    if kind == "a directory":
        bed.lockfile.mkdir()
    elif kind == "a pipe":
        subprocess.run(["mkfifo", str(bed.lockfile)], check=True)
    elif kind == "of everybody":
        bed.lockfile.write_bytes(good)
        bed.lockfile.chmod(0o666)
    else:
        bed.lockfile.write_bytes(b"\xff\0" if kind == "junk" else b"#" * (4 * 2**20 + 1))
    with bed.daemon() as daemon:
        drift, status = looked(daemon)
        assert drift == [("", "lockfile")]
        assert f"{bed.lockfile}:1: The record of plugins " in shown(status)[1]
        assert not bed.ran()
    with bed.daemon(locked=False) as daemon:
        assert shown(looked(daemon)[1])[0] == "ready"


def test_an_installed_one_can_run_locked_at_once(bed: Bed) -> None:
    argv = [*UTTER, "plugins", "install", str(bed.package), "--yes"]
    subprocess.run(argv, env=bed.env, check=True, timeout=100, capture_output=True)
    installed = Path(bed.env["HOME"], ".local/share/utter/plugins/lamp/lamp.py")
    config = '[runner]\nlocked = true\n[[plugin]]\nid = "lamp"\n'
    with Daemon(bed.directory, config, env=bed.env) as daemon:
        drift, status = looked(daemon)
        assert (drift, shown(status)[0]) == ([], "ready")
        installed.write_text(installed.read_text() + "#")
        drift, status = looked(daemon)
        assert drift == [("lamp", "digest")]
        assert "`utter plugins update lamp` installs it anew" in "".join(status["warnings"])


def test_one_that_somebody_else_starts_is_held_to_what_it_says(bed: Bed) -> None:
    config = '[runner]\nlocked = true\n[[plugin]]\nid = "lamp"\ntransport = "connect"\nspawn = false\n'
    (bed.directory / "runner.toml").write_text(config)
    bed.utter("lock", "--yes")
    argv = [sys.executable, "-S", "-E", str(HOSTILE), "lamp", "transport=connect", "stay", "ops=on"]
    with Daemon(bed.directory, config, env=bed.env) as daemon:
        with subprocess.Popen(argv, env=bed.env, stdin=subprocess.DEVNULL) as other:
            daemon.wait_plugin("lamp", "ready")
            bed.utter("lock", "--yes")
            other.kill()
        with subprocess.Popen([*argv, "permissions=screen"], env=bed.env, stdin=subprocess.DEVNULL) as other:
            detail = daemon.wait_for("The process of lamp asks for more permissions than are recorded: screen.")
            assert "lamp" in detail
            other.kill()
        assert ("lamp", "permissions") in looked(daemon)[0]


def test_one_that_somebody_else_starts_is_turned_away_when_it_is_not_recorded(bed: Bed) -> None:
    config = '[runner]\nlocked = true\n[[plugin]]\nid = "lamp"\ntransport = "connect"\nspawn = false\n'
    with Daemon(bed.directory, config, env=bed.env) as daemon, External("lamp", env=bed.env):
        assert "lamp is configured and not recorded" in daemon.wait_plugin("lamp", "failed")["detail"]
