"""The life of a plugin that somebody signed: installed, run by the real daemon, updated, run again, removed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from support.daemon import Daemon, environment
from support.docs import ROOT
from support.terminal import UTTER

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = ROOT / "plugins" / "examples" / "python-hello"
CONFIG = '[[plugin]]\nid = "python-hello"\n'

pytestmark = pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")


class Author:
    """Somebody with minisign and a directory to work in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._minisign("-G", "-W", "-p", "author.pub", "-s", "author.key")
        shutil.copytree(EXAMPLE, directory / "python-hello", ignore=shutil.ignore_patterns("__pycache__"))

    def _minisign(self, *arguments: str) -> None:
        subprocess.run(["minisign", *arguments], cwd=self.directory, check=True, timeout=60, capture_output=True)

    def release(self, version: str, greeting: str, comma: str = ",") -> Path:
        """A signed archive of a version that greets like this."""
        for path in (self.directory / "python-hello").iterdir():
            text = (EXAMPLE / path.name).read_text()
            text = re.sub(r'(?<!min_runner = )"0\.1\.0"', f'"{version}"', text)
            path.write_text(text.replace('"Hello"', f'"{greeting}"').replace("}, {", f"}}{comma} {{"))
        archive = self.directory / f"python-hello-{version}{comma}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(self.directory / "python-hello", "python-hello")
        self._minisign("-S", "-s", "author.key", "-t", f"python-hello {version}", "-m", archive.name)
        return archive


def drifted(daemon: Daemon) -> list[tuple[str, str]]:
    """What the runner finds drifted when it looks, by plugin and field."""
    with daemon.client() as client:
        return [(one["plugin"], one["field"]) for one in client.call("runner.drift", {}, 30)["drift"]]


def greeting(daemon: Daemon) -> tuple[str, str]:
    """What the plugin is, and what it says."""
    with daemon.client() as client:
        (shown,) = client.call("runner.plugins", {}, 30)["plugins"]
        params = {"op": "hello", "args": {"name": "Ada"}, "provenance": "user"}
        call = {"plugin": "python-hello", "method": "action.invoke", "params": params}
        return shown["version"], client.call("runner.invoke", call, 30)["detail"]


def test_the_life_of_a_signed_plugin(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    env = environment(tmp_path / "run")
    author = Author(tmp_path / "author")
    usual = tmp_path / "run" / "home" / ".config" / "utter" / "runner.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text(CONFIG)

    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run([*UTTER, *arguments], env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    def utter(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
        return dict(json.loads(run("plugins", *map(str, arguments), "--json", code=code)))

    def update_as_told(archive: Path) -> str:
        """What a person is told to do in the end, which is done."""
        told = run("plugins", "update", str(archive), "--key", str(key), "--yes").splitlines()[-1]
        for command in told.split(" && "):
            run(*command.split()[1:])
        return told

    first = author.release("0.1.0", "Hello")
    key = author.directory / "author.pub"
    installed = utter("install", first, "--key", key, "--yes")
    assert installed["signed_by"] == key.read_text().splitlines()[1]
    with Daemon(tmp_path, CONFIG, env=env) as daemon:
        assert greeting(daemon) == ("0.1.0", "Hello, Ada!")
        # It is replaced while it runs, and what runs goes on.
        second = author.release("0.2.0", "Ahoy")
        assert utter("update", second, "--key", key, "--yes")["was"] == "0.1.0"
        assert greeting(daemon) == ("0.1.0", "Hello, Ada!")
        assert drifted(daemon) == [("python-hello", "started")]
        daemon.wait_for("python-hello runs by another manifest than there is now. `utter reload` starts it anew.")
        # Another version is found by a reload, and one whose manifest is the same by a restart.
        seen = len(daemon.log)
        assert update_as_told(author.release("0.3.0", "Servus")) == "utter reload"
        daemon.wait_plugin("python-hello", "ready", epoch=2)
        assert greeting(daemon) == ("0.3.0", "Servus, Ada!")
        assert drifted(daemon) == []
        third = author.release("0.3.0", "Servus", comma=";")
        assert update_as_told(third) == "utter reload && utter plugins restart python-hello"
        daemon.wait_plugin("python-hello", "ready", epoch=3)
        assert greeting(daemon) == ("0.3.0", "Servus; Ada!")
        assert drifted(daemon) == []
    # Nothing of this was worth a warning.
    assert not [line for line in daemon.log[seen:] if line.startswith("WARNING")]
    with Daemon(tmp_path, CONFIG, env=env) as daemon:
        assert greeting(daemon)[1] == "Servus; Ada!"
    # One that is not what was signed is not taken, and changes nothing.
    with third.open("ab") as file:
        file.write(b"\0")
    assert utter("update", third, "--key", key, "--yes", code=3)["error"]["kind"] == "untrusted"
    assert utter("remove", "python-hello", "--yes")["plugin"] == "python-hello"
    with Daemon(tmp_path, CONFIG, env=env) as daemon, daemon.client() as client:
        assert client.call("runner.plugins", {}, 30)["plugins"] == []
